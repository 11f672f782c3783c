"""Block quantization in one sweep: largest magnitude and scale of each block, and its codes or values.

A strip of rows is processed in segments of columns that fit a cache: for all blocks of a segment first the largest
magnitudes, then the scales, then the codes are computed, so that the latency of this sequence occurs once for many
blocks and the second pass reads the values from the cache. Magnitudes are compared as integers: NaN sorts above Inf and
Inf above all others, so non-finite values appear in the maximum without a separate test.
"""

from typing import NamedTuple

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel, variant

from ..cast.bounded import INF, quiet
from ..cast.nearest import decode_bits
from . import elements
from . import values as rounded
from .elements import mend_codes
from .scales import DIVIDE, block_scales
from .values import mend_values

U = np.uint32
F = np.float32


class Blocks(NamedTuple):
    """Blocks of rows x width; columns are processed in segments, each a multiple of the width."""

    rows: int
    width: int
    segment: int


def amax_row(x, width, amax):
    """Serve as a placeholder, rebound to the variants of `elements`."""


def encode_row(x, width, divide, factor, constants, ahead, codes):
    """Serve as a placeholder, rebound to the variants of `elements`."""


def round_row(x, width, divide, factor, scale, tensor, constants, ahead, streamed, values):
    """Serve as a placeholder, rebound to the variants of `values`."""


def _quantize_strips(x, blocks, rule, cast, codes, scales, start, stop):
    """Quantize strips `start` to `stop` of x [R, C], each one row of `blocks` (a `Blocks`); the last may be shorter.

    Writes codes [R, C] and scales [ceil(R / rows), ceil(C / width)]. `rule` is that of `block_scales`; `cast` has the
    constants of `encode_row` and of `encode_bits`.
    """
    rows, width, segment = blocks
    divide = rule[1] == DIVIDE
    constants, any_constants = cast
    columns, ahead = x.shape[1], np.int64(4 * segment)  # prefetch distance: the next segment
    amax = np.empty(segment // width, np.uint32)
    factor = np.empty(segment // width, np.float32)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, x.shape[0])
        for c0 in range(0, columns, segment):
            c1 = min(c0 + segment, columns)
            n = (c1 - c0 + width - 1) // width
            a, f = amax[:n], factor[:n]
            s = scales[strip, c0 // width : c0 // width + n]
            a[:] = U(0)
            for i in range(r0, r1):
                amax_row(x[i, c0:c1], width, a)
            block_scales(a, rule, s, f)
            worst = U(0)
            for b in range(n):
                worst = max(worst, a[b])
            for i in range(r0, r1):
                encode_row(x[i, c0:c1], width, divide, f, constants, ahead, codes[i, c0:c1])
                if worst >= INF:
                    mend_codes(x[i, c0:c1], width, divide, a, f, any_constants, codes[i, c0:c1])


def _round_strips(x, blocks, rule, cast, tensor, streamed, values, start, stop):
    """Quantize strips and write the decoded values, with non-temporal stores if `streamed`."""
    rows, width, segment = blocks
    divide = rule[1] == DIVIDE
    constants, any_constants = cast
    columns, ahead = x.shape[1], np.int64(4 * segment)
    amax = np.empty(segment // width, np.uint32)
    scale = np.empty(segment // width, np.float32)
    factor = np.empty(segment // width, np.float32)
    kept = np.empty(min(segment, columns), np.float32)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, x.shape[0])
        for c0 in range(0, columns, segment):
            c1 = min(c0 + segment, columns)
            n = (c1 - c0 + width - 1) // width
            a, f, s = amax[:n], factor[:n], scale[:n]
            a[:] = U(0)
            for i in range(r0, r1):
                amax_row(x[i, c0:c1], width, a)
            block_scales(a, rule, s, f)
            worst = U(0)
            for b in range(n):
                worst = max(worst, a[b])
            for i in range(r0, r1):
                if worst >= INF:
                    for j in range(c1 - c0):  # values may overwrite x
                        kept[j] = x[i, c0 + j]
                round_row(x[i, c0:c1], width, divide, f, s, tensor, constants, ahead, streamed, values[i, c0:c1])
                if worst >= INF:
                    mend_values(kept[: c1 - c0], width, divide, a, f, s, tensor, any_constants, values[i, c0:c1])


WIDTHS = elements.WIDTHS
quantize_strips = tuple(
    variant(_quantize_strips, f"quantize_strips_{w}", amax_row=a, encode_row=e)
    for w, a, e in zip(WIDTHS, elements.amax_rows, elements.encode_rows, strict=True)
)
round_strips = tuple(
    variant(_round_strips, f"round_strips_{w}", amax_row=a, round_row=r)
    for w, a, r in zip(WIDTHS, elements.amax_rows, rounded.round_rows, strict=True)
)
quantize_strips_any = variant(
    _quantize_strips, "quantize_strips_any", amax_row=elements.amax_rows[0], encode_row=elements.encode_row_any
)
round_strips_any = variant(
    _round_strips, "round_strips_any", amax_row=elements.amax_rows[0], round_row=rounded.round_row_any
)


@kernel
def largest_finite(x):
    """Return the bits of the largest magnitude of contiguous x, ignoring NaN, and Inf only if x contains it."""
    top = U(0)
    for i in range(x.size):
        a = U(bits32(x[i]) & U(0x7FFFFFFF))
        top = max(top, a if a <= INF else U(0))
    return top


@kernel
def dequantize_blocks(codes, scales, rows, cols, tensor, constants, out, start, stop):
    """Write ``float32(scale * decode(code)) * tensor`` for rows `start` to `stop` of codes [R, C]."""
    width = codes.shape[1]
    blocks = (width + cols - 1) // cols
    for i in range(start, stop):
        for b in range(blocks):
            tile = codes[i, b * cols : min(b * cols + cols, width)]
            into = out[i, b * cols : min(b * cols + cols, width)]
            s = scales[i // rows, b]
            for j in range(tile.size):
                into[j] = quiet(F(F(s * float32_from_bits(decode_bits(U(tile[j]), constants))) * tensor))


@kernel
def dequantize_columns(codes, scales, rows, tensor, constants, out, start, stop):
    """Write ``float32(scale * decode(code)) * tensor`` for blocks of one column."""
    for i in range(start, stop):
        tile, into, s = codes[i], out[i], scales[i // rows]
        for j in range(tile.size):
            into[j] = quiet(F(F(s[j] * float32_from_bits(decode_bits(U(tile[j]), constants))) * tensor))
