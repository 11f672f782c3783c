"""Matrix products of plain dot products within the limits of `tile`: packing, and the loop."""

from typing import Any

import numpy as np

from lowprec._jit import bits32, cpu_features, kernel, set_rounding, variant

from ...vectors import F64, aligned_f32
from ..loop import TO_NEAREST, TOWARD_ZERO
from .tile import (
    COLUMNS,
    ExactPairs,
    ExactQuads,
    FlushedFma,
    Form,
    Lanes,
    Odd,
    PairLanes,
    Pairs,
    PairsOfPairs,
    RoundedPairs,
    ScaledGroups,
    make_dot_tile,
)

U = np.uint32
BATCH = 128  # rows per sweep, with their sums in memory
DEPTH = 128  # k per pass, approximately: that slice of 64 columns stays in a near cache while rows sweep over it


@kernel
def extents(x, low, high):
    """Write the smallest nonzero and the largest magnitude of each row of x [R, K], as bits of float32.

    A row of zeros has (0x7FFFFFFF, 0).
    """
    for i in range(x.shape[0]):
        row = x[i]
        least, most = U(0x7FFFFFFE), U(0)
        for p in range(row.size):
            u = U(bits32(row[p]) & U(0x7FFFFFFF))
            most = max(most, u)
            least = min(least, U(u - U(1)))  # a zero becomes the largest value
        low[i] = U(least + U(1))
        high[i] = most


@kernel
def pack_quads(a, whole, quads):
    """Pack A [M, K] in quads of rows, each [depth][4]: zeros from K to `whole`, then -0."""
    m, k = a.shape
    depth = quads.size // ((m + 3) // 4 * 4)
    for i in range((m + 3) // 4 * 4):
        into = quads[i // 4 * 4 * depth : (i // 4 * 4 + 4) * depth]
        r = i % 4
        if i < m:
            row = a[i]
            for p in range(k):
                into[4 * p + r] = row[p]
        else:
            for p in range(k):
                into[4 * p + r] = 0.0
        for p in range(k, depth):
            into[4 * p + r] = 0.0 if p < whole else -0.0


@kernel
def pack_panels(b, factor, panels):
    """Pack `factor` times B [N, K] in panels of 64 columns, each [depth][64], zero-padded."""
    n, k = b.shape
    columns = (n + COLUMNS - 1) // COLUMNS * COLUMNS
    depth = panels.size // columns
    for j0 in range(0, columns, COLUMNS):
        panel = panels[j0 * depth : (j0 + COLUMNS) * depth]
        for j in range(COLUMNS):
            if j0 + j < n:
                row = b[j0 + j]
                for p in range(k):
                    panel[p * COLUMNS + j] = row[p] * factor
            else:
                for p in range(k):
                    panel[p * COLUMNS + j] = 0.0
        panel[k * COLUMNS :] = 0.0


# Placeholders that `variant` replaces.
tile, odd = None, False


def _dots(quads, panels, products, steps, out):
    """Add ``A @ B.T`` of packed operands to `out` [M, N] float32.

    A step takes `products` products. An instruction has `steps` steps; 0 means any number.
    """
    m, n = out.shape
    depth = quads.size // ((m + 3) // 4 * 4)
    size = quads.itemsize
    state = aligned_f32(BATCH * COLUMNS)
    state[:] = np.float32(0)
    a_at, b_at, state_at = quads.ctypes.data, panels.ctypes.data, state.ctypes.data
    each = steps * products
    wide = max(DEPTH // each, 1) * each if steps else DEPTH
    if odd:
        set_rounding(TOWARD_ZERO)
    for r0 in range(0, m, BATCH):
        r1 = min(r0 + BATCH, m)
        for j0 in range(0, n, COLUMNS):
            width = min(COLUMNS, n - j0)
            for i in range(r0, r1):
                row, sums = out[i, j0 : j0 + width], state[(i - r0) * COLUMNS : (i - r0) * COLUMNS + width]
                for j in range(width):
                    sums[j] = row[j]
            for p0 in range(0, depth, wide):
                some = min(wide, depth - p0)
                for i0 in range(r0, r1, 4):
                    tile(
                        a_at + (i0 * depth + p0 * 4) * size,
                        b_at + (j0 * depth + p0 * COLUMNS) * size,
                        state_at + (i0 - r0) * COLUMNS * 4,
                        steps if steps else some // products,
                        some // each if steps else 1,
                    )
            for i in range(r0, r1):
                row, sums = out[i, j0 : j0 + width], state[(i - r0) * COLUMNS : (i - r0) * COLUMNS + width]
                for j in range(width):
                    row[j] = sums[j]
    if odd:
        set_rounding(TO_NEAREST)


def _compiled(form: type[Form]) -> Any:
    """Return the loop for a form; 32 vector registers hold 4 rows x 32 numbers and the temporaries of a step."""
    wide = "avx512f" in cpu_features()
    lanes = (16 if wide else 8) // (2 if form.element is F64 else 1)
    return variant(
        _dots, f"dots_{form.__name__}", tile=make_dot_tile(form, lanes, 2 if wide else 1), odd=form.toward_zero
    )


FORMS: tuple[type[Form], ...] = (
    FlushedFma, Lanes, PairLanes, Odd, RoundedPairs, ScaledGroups, Pairs, PairsOfPairs, ExactPairs, ExactQuads,
)  # fmt: skip
dots = {form: _compiled(form) for form in FORMS}
