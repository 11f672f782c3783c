"""Float32 products in one fixed order, each sum a chain of fused multiply-adds in increasing k."""

from __future__ import annotations

import numpy as np

from .._threads import over_rows, scratch
from ..kernels.float32 import gemm as gemm_f32
from ..kernels.float32 import tile as f32_tile
from .product import Float32Matrix

_WORK = 1 << 25  # multiply-adds that are worth a thread: some hundred microseconds, a few times what waking it costs
_ROWS_AT_ONCE = 512


def accumulate_f32(
    x: Float32Matrix, y: Float32Matrix, out: Float32Matrix, constants: tuple[np.uint32, ...] | None = None
) -> None:
    """Add ``X @ Y.T`` onto `out` [M, N] in the fixed order of `kernels.float32.gemm`.

    x [M, K] and y [N, K] are contiguous or transposed views of contiguous matrices. With `constants`, those of
    `cast_constants.round_constants`, the sums start from 0 and are rounded to that format; `out` may hold anything.
    """
    (m, k), n = x.shape, y.shape[0]
    if 0 in (m, n) or (k == 0 and constants is None):
        return
    panels = scratch("b32", -(-n // f32_tile.COLUMNS) * f32_tile.COLUMNS * k, np.float32)
    if y.flags.c_contiguous:
        gemm_f32.pack_panels(y, panels)
    else:
        gemm_f32.pack_panels_transposed(y.T, panels)

    def some_rows(first: int, stop: int) -> None:
        quads = scratch("a32", -(-(stop - first) // 4) * 4 * k, np.float32)
        if x.flags.c_contiguous:
            gemm_f32.pack_quads(x[first:stop], quads)
        else:
            gemm_f32.pack_quads_transposed(x.T, first, stop, quads)
        if constants is None:
            gemm_f32.gemm_packed(quads, panels, k, out[first:stop], 0, stop - first)
        else:
            gemm_f32.gemm_packed_rounded(quads, panels, k, constants, out[first:stop], 0, stop - first)

    over_rows(some_rows, m, n * k, _WORK, _ROWS_AT_ONCE)
