"""Block quantization in any rounding mode: what `quantize` does, with a word for every element before its code is cut.

The random word of an element belongs to its index in the matrix, counted in rows, so that strips, segments and threads
cannot change it.
"""

import numpy as np

from lowprec._jit import bits32, kernel, variant

from ..cast.random_bits import key_run, key_runs, keyed_word, random_keys
from ..cast.rounding import encode_word, fixed_word, random_part
from .elements import WIDTHS, amax_rows
from .scales import DIVIDE, block_scales

U = np.uint32
F = np.float32


@kernel
def encode_span(x, constants, words, seed, start, codes):
    """Encode scaled values; the first has the index `start`."""
    if words[2] == U(0):
        for j in range(x.size):
            u = bits32(x[j])
            codes[j] = encode_word(u, constants, fixed_word(u, words))
        return
    for p in range(key_runs(start, x.size)):
        a, b, hi, lo = key_run(start, x.size, p)
        keys = random_keys(seed[0], seed[1], hi)
        part, into = x[a:b], codes[a:b]
        for j in range(part.size):
            word = random_part(keyed_word(keys, U(lo + U(j))), words)
            into[j] = encode_word(bits32(part[j]), constants, word)


@kernel
def scale_columns(x, divide, factor, scaled):
    """Divide or multiply values of which each has its own factor."""
    if divide:
        for j in range(x.size):
            scaled[j] = F(x[j] / factor[j])
    else:
        for j in range(x.size):
            scaled[j] = F(x[j] * factor[j])


@kernel
def scale_row(x, width, divide, factor, scaled):
    """Divide or multiply blocks that lie side by side; the last may be shorter."""
    for b in range(factor.size):
        tile, into = x[b * width : min(b * width + width, x.size)], scaled[b * width : min(b * width + width, x.size)]
        f = factor[b]
        if divide:
            for j in range(tile.size):
                into[j] = F(tile[j] / f)
        else:
            for j in range(tile.size):
                into[j] = F(tile[j] * f)


def amax_row(x, width, amax):
    """Stand in for the variants of `block_elements`."""


def _quantize_strips(x, blocks, rule, cast, codes, scales, start, stop):
    """Quantize strips as `kernels.scaling.quantize` does.

    `cast` is the constants of `encode_word`, those of its words, the seed, and the index of the first element of x.
    """
    (rows, width, segment), (constants, words, seed, origin) = blocks, cast
    divide = rule[1] == DIVIDE
    columns = x.shape[1]
    amax = np.empty(segment // width, np.uint32)
    factor = np.empty(segment // width, np.float32)
    scaled = np.empty(segment, np.float32)  # words are drawn for whole segments: blocks are too short for vectors
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, x.shape[0])
        for c0 in range(0, columns, segment):
            c1 = min(c0 + segment, columns)
            n = (c1 - c0 + width - 1) // width
            a, f, y = amax[:n], factor[:n], scaled[: c1 - c0]
            a[:] = U(0)
            for i in range(r0, r1):
                amax_row(x[i, c0:c1], width, a)
            s = scales[strip, c0 // width : c0 // width + n]
            block_scales(a, rule, s, f)
            for i in range(r0, r1):
                at = np.int64(origin) + np.int64(i) * np.int64(columns) + np.int64(c0)
                if width == 1:
                    scale_columns(x[i, c0:c1], divide, f, y)
                else:
                    scale_row(x[i, c0:c1], width, divide, f, y)
                encode_span(y, constants, words, seed, at, codes[i, c0:c1])


quantize_strips = tuple(
    variant(_quantize_strips, f"quantize_words_{w}", amax_row=a) for w, a in zip(WIDTHS, amax_rows, strict=True)
)
