"""Products of FP8 codes in float32 lanes: packing of both operands, then the loop of `loop` around the tile.

It is one compiled function, because a call takes as long as a small product. Arrays and numbers are separate arguments:
a call with tuples takes five times as long.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import cpu_features, variant

from ...vectors import aligned_f32, aligned_i8
from ..loop import Chains, Sums, make_gemm
from .pack import COLUMNS, ROWS, Signed, largest_magnitude, pack_panels, pack_quads
from .sums import FACTOR, Biased, Encoded, EncodedFloored, Floored, Rounded, TowardZero
from .tile import PANEL, Shape, make_first_exponents, make_tile

# A slice of the products of a batch of rows stays in the L2 cache while it is multiplied by the columns of a panel, 64
# at a time, with their slice of B in the L1 cache. Running sums are in memory.
BATCH, SLICE = 256, 128

gemm = None  # placeholder that `variant` replaces


def _product(
    a, b, lay_out, reading_a, reading_b, factor, group, fraction_bits, keep, onto, use_c,
    a_values, a_exponents, a_signs, b_values, b_exponents, b_signs, scale_a, scale_b, plan, word, factors, c, out,
):  # fmt: skip
    """Compute ``D = A @ B.T`` of codes [M, K] and [N, K]; return the largest code of A, and of B, without its sign.

    Parameters
    ----------
    a, b : uint8
        Codes of finite numbers: rows and columns with NaN or Inf give undefined results.
    lay_out : int
        1: pack B here; 0: B is packed already, and its largest code is not computed.
    reading_a, reading_b : int64
        `pack.Reading` of both formats, as arrays.
    factor : float
        Factor of B's values, a float32.
    group, fraction_bits, keep, onto, use_c
        Fields of `loop.Sums` and `loop.Chains`.
    a_values, a_exponents, a_signs, b_values, b_exponents, b_signs
        Buffers for both operands as packed by `pack`.
    scale_a, scale_b, plan, word, factors, c, out
        Arguments of the loop of `loop`.
    """
    n, k = out.shape[1], a.shape[1]
    groups = (max(k, 1) + group - 1) // group
    rows, panels = Signed(a_values, a_exponents, a_signs), Signed(b_values, b_exponents, b_signs)
    pack_quads(a, group, groups * group, reading_a, rows)
    largest_a, largest_b = largest_magnitude(a, reading_a), np.uint8(0)
    if lay_out:
        pack_panels(b, group, groups * group, reading_b, np.float32(factor), panels, 0, n)
        largest_b = largest_magnitude(b, reading_b)
    sums, chains = Sums(group, fraction_bits, keep, 0), Chains(groups, plan, word, onto, use_c, 0, n)
    gemm(rows, panels, sums, chains, scale_a, scale_b, factors, c, out)
    return largest_a, largest_b


tile, first_exponents = None, None  # placeholders that `variant` replaces


def _sweep(a, b, state, place, sums, groups):
    """Add a block's products to the running sums; `pack` packs A in quads and B in panels."""
    k, group = groups * sums.group, sums.group
    top = aligned_i8(2 * ROWS * COLUMNS)
    top_at = np.intp(top.ctypes.data)
    chunk = max(SLICE // group, 1)
    for g0 in range(place.group, place.stop, chunk):
        count = min(chunk, place.stop - g0)
        inside = g0 * group
        cut = np.intp(-1) << np.intp(23 - sums.keep) if g0 + count == place.stop else np.intp(-1)
        for j0 in range(0, place.width, COLUMNS):
            column = place.column + j0
            b_at = Signed(
                np.intp(b.values.ctypes.data + (column * k + inside * COLUMNS) * 4),
                np.intp(b.exponents.ctypes.data + column * k + inside * COLUMNS),
                np.intp(b.signs.ctypes.data + (column // COLUMNS * groups + g0) * COLUMNS * 4),
            )
            first_exponents(
                np.intp(a.exponents.ctypes.data + (place.row * k + inside * ROWS) * 4), b_at.exponents, group, top_at
            )
            for i0 in range(place.row, place.end, ROWS):
                a_at = Signed(
                    np.intp(a.values.ctypes.data + (i0 * k + inside * ROWS) * 4),
                    np.intp(a.exponents.ctypes.data + (i0 * k + inside * ROWS) * 4),
                    np.intp(a.signs.ctypes.data + (i0 // ROWS * groups + g0) * ROWS * 4),
                )
                state_at = np.intp(state.ctypes.data + ((i0 - place.row) * place.panel + j0) * 4)
                following = a_at.exponents + (4 * ROWS * k if i0 + ROWS < place.end else 0)
                tile(a_at, b_at, state_at, count, sums, (top_at, following, b_at.exponents, cut))
    top[0] = 0  # an address alone does not keep an array


class Form(NamedTuple):
    """A compiled kernel and the operand layout that it requires."""

    run: Any
    factor: float = 1.0  # factor of B's values
    counts: bool = False  # whether it reads signs, with zeros packed as 2^-126


def _form(name: str, shape: Shape, toward_zero: bool = False, factor: float = 1.0) -> Form:
    sweep = variant(_sweep, f"sweep_{name}", tile=make_tile(shape), first_exponents=make_first_exponents(shape))
    loop = make_gemm(f"gemm_narrow_{name}", sweep, PANEL, BATCH, aligned_f32, toward_zero, inline=True)
    return Form(variant(_product, f"product_{name}", gemm=loop), factor, shape.sum.counts)


# By alignment. Machine code is cached by the CPU's name and features.
_LANES = 16 if "avx512f" in cpu_features() else 8
_ROUNDED = _form("nearest", Shape(_LANES, 2, Rounded))
FORMS = {
    "avx512": {
        "truncate": _form("avx512", Shape(16, 4, Encoded), factor=FACTOR),
        "floor": _form("avx512_floor", Shape(16, 4, EncodedFloored)),
        "nearest": _ROUNDED,
    },
    "fma": {
        "truncate": _form("fma", Shape(8, 2, TowardZero), toward_zero=True, factor=FACTOR),
        "floor": _form("fma_floor", Shape(8, 2, Floored), toward_zero=True),
        "nearest": _ROUNDED,
    },
    "portable": {"truncate": _form("portable", Shape(_LANES, 2, Biased)), "nearest": _ROUNDED},
}
