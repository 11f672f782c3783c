"""Block quantization in any rounding mode: as `quantize`, with a word per element that is added before truncation.

The random word of an element is that of its index in the matrix, counted in rows, so that strips, segments and threads
do not affect it.
"""

import numpy as np

from lowprec._jit import kernel, variant

from ..cast.rounding import encode32_random, encode32_words
from .elements import WIDTHS, amax_rows, scale_of
from .scales import DIVIDE, block_scales

U = np.uint32
F = np.float32
WIDTH = 0


@kernel
def scale_columns(x, width, divide, factor, scaled):
    """Divide or multiply values by one factor each."""
    if divide:
        for j in range(x.size):
            scaled[j] = F(x[j] / factor[j])
    else:
        for j in range(x.size):
            scaled[j] = F(x[j] * factor[j])


@kernel
def scale_row(x, width, divide, factor, scaled):
    """Divide or multiply contiguous blocks by their factors; the last may be shorter."""
    for b in range(factor.size):
        tile, into = x[b * width : min(b * width + width, x.size)], scaled[b * width : min(b * width + width, x.size)]
        f = factor[b]
        if divide:
            for j in range(tile.size):
                into[j] = F(tile[j] / f)
        else:
            for j in range(tile.size):
                into[j] = F(tile[j] * f)


def SCALE(x, scaled, factor, count, divide):
    """Serve as a placeholder, rebound to the intrinsic of a variant."""


def _scale_whole(x, width, divide, factor, scaled):
    whole = x.size // WIDTH
    place, into, own = np.intp(x.ctypes.data), np.intp(scaled.ctypes.data), np.intp(factor.ctypes.data)
    SCALE(place, into, own, np.intp(whole), divide)
    for j in range(whole * WIDTH, x.size):
        scaled[j] = F(x[j] / factor[whole]) if divide else F(x[j] * factor[whole])


scale_rows = (
    scale_row,
    scale_columns,
    *(variant(_scale_whole, f"scale_row_{w}", WIDTH=w, SCALE=scale_of(w)) for w in WIDTHS[2:]),
)


def amax_row(x, width, amax):
    """Serve as a placeholder, rebound to the variants of `elements`."""


def scale(x, width, divide, factor, scaled):
    """Serve as a placeholder, rebound to the variants of this module."""


def encode(x, out, constants, words, seed_lo, seed_hi, start):
    """Serve as a placeholder, rebound to `encode32_words`, or to `encode32_random` if its conditions hold."""


def _quantize_strips(x, blocks, rule, cast, codes, scales, start, stop):
    """Quantize strips as in `kernels.scaling.quantize`.

    `cast` is the constants of `encode`, those of its words, the seed, and the index of the first element of x.
    """
    (rows, width, segment), (constants, words, seed, origin) = blocks, cast
    divide = rule[1] == DIVIDE
    columns = x.shape[1]
    amax = np.empty(segment // width, np.uint32)
    factor = np.empty(segment // width, np.float32)
    scaled = np.empty(segment, np.float32)  # words for whole segments: blocks are too short for vectors
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
                scale(x[i, c0:c1], width, divide, f, y)
                encode(y, codes[i, c0:c1], constants, words, seed[0], seed[1], at)


def _variants(name, encode):
    rows = zip(WIDTHS, amax_rows, scale_rows, strict=True)
    return tuple(variant(_quantize_strips, f"{name}_{w}", amax_row=a, scale=s, encode=encode) for w, a, s in rows)


quantize_strips = _variants("quantize_words", encode32_words)
quantize_strips_random = _variants("quantize_random", encode32_random)
