"""Block quantization in any rounding mode: what `quantize` does, with a word for every element before its code is cut.

The random word of an element belongs to its index in the matrix, counted in rows, so that strips, segments and threads
cannot change it.
"""

import numpy as np

from lowprec._jit import bits32, kernel

from .block_elements import amax_rows
from .block_scale import block_scales
from .random_bits import keyed_word, random_keys, random_word
from .rounding import encode_word, fixed_word, random_part

U = np.uint32
F = np.float32
amax_any, amax_columns = amax_rows[0], amax_rows[1]


@kernel
def encode_span(x, divide, factor, constants, words, keys, seed, start, codes):
    """Encode values that share a factor; the first has the index `start`, and `keys` are those of its high half."""
    lo = start & np.int64(0xFFFFFFFF)
    if words[2] == U(0):
        for j in range(x.size):
            u = bits32(F(x[j] / factor) if divide else F(x[j] * factor))
            codes[j] = encode_word(u, constants, fixed_word(u, words))
    elif lo + x.size <= np.int64(0x100000000):
        first = U(lo)
        for j in range(x.size):
            word = random_part(keyed_word(keys, U(first + U(j))), words)
            u = bits32(F(x[j] / factor) if divide else F(x[j] * factor))
            codes[j] = encode_word(u, constants, word)
    else:
        for j in range(x.size):
            at = start + np.int64(j)
            word = random_word(seed[0], seed[1], U(at & np.int64(0xFFFFFFFF)), U(at >> np.int64(32)))
            u = bits32(F(x[j] / factor) if divide else F(x[j] * factor))
            codes[j] = encode_word(u, constants, random_part(word, words))


@kernel
def encode_columns(x, divide, factor, constants, words, keys, seed, start, codes):
    """Encode values of which each has its own factor."""
    lo = start & np.int64(0xFFFFFFFF)
    if words[2] == U(0):
        for j in range(x.size):
            u = bits32(F(x[j] / factor[j]) if divide else F(x[j] * factor[j]))
            codes[j] = encode_word(u, constants, fixed_word(u, words))
    elif lo + x.size <= np.int64(0x100000000):
        first = U(lo)
        for j in range(x.size):
            word = random_part(keyed_word(keys, U(first + U(j))), words)
            u = bits32(F(x[j] / factor[j]) if divide else F(x[j] * factor[j]))
            codes[j] = encode_word(u, constants, word)
    else:
        for j in range(x.size):
            encode_span(
                x[j : j + 1], divide, factor[j], constants, words, keys, seed, start + np.int64(j), codes[j : j + 1]
            )


@kernel
def quantize_strips(x, rows, width, segment, rule, constants, words, seed, origin, codes, scales, start, stop):
    """Quantize strips as `kernels.quantize` does; the first element of x has the index `origin`."""
    how, division, numbers, words_of_scale, special, use_special_zero = rule
    divide = division == 0
    columns = x.shape[1]
    amax = np.empty(segment // width, np.uint32)
    factor = np.empty(segment // width, np.float32)
    keys, held = random_keys(seed[0], seed[1], U(0)), np.int64(0)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, x.shape[0])
        for c0 in range(0, columns, segment):
            c1 = min(c0 + segment, columns)
            n = (c1 - c0 + width - 1) // width
            a, f = amax[:n], factor[:n]
            a[:] = U(0)
            for i in range(r0, r1):
                if width == 1:
                    amax_columns(x[i, c0:c1], width, a)
                else:
                    amax_any(x[i, c0:c1], width, a)
            s = scales[strip, c0 // width : c0 // width + n]
            block_scales(a, how, division, numbers, words_of_scale, special, use_special_zero, s, f)
            for i in range(r0, r1):
                at = np.int64(origin) + np.int64(i) * np.int64(columns) + np.int64(c0)
                if at >> np.int64(32) != held:
                    held = at >> np.int64(32)
                    keys = random_keys(seed[0], seed[1], U(held))
                if width == 1:
                    encode_columns(x[i, c0:c1], divide, f, constants, words, keys, seed, at, codes[i, c0:c1])
                else:
                    for b in range(n):
                        j0, j1 = c0 + b * width, min(c0 + b * width + width, c1)
                        first = at + np.int64(b * width)
                        if first >> np.int64(32) != held:
                            held = first >> np.int64(32)
                            keys = random_keys(seed[0], seed[1], U(held))
                        encode_span(x[i, j0:j1], divide, f[b], constants, words, keys, seed, first, codes[i, j0:j1])
