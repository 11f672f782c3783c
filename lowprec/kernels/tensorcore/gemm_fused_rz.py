"""The loops around `fused_tile`: the same product as `gemm_fused`, rounding toward zero in the FPU.

The same conditions hold, with groups of up to 32 products (a multiple of 4) and fraction bits up to 14.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, set_rounding, variant

from ..buffers import aligned_f32, aligned_i8
from .fused_tile import COLUMNS, Shape, make_first_exponents, make_tile

U = np.uint32
PANEL = COLUMNS
BATCH = 256  # rows that sweep over one slice of a panel; their running sums are kept meanwhile


# What `variant` gives another meaning: the tile, the search that comes before a sweep's first one, and how they work.
tile, first_exponents, embedded, interleaved = None, None, False, False


def gemm_fused_rz(
    a_values, a_exponents, a_masks, b_values, b_exponents, b_masks, group, fraction_bits, keep,
    block, promote, scale_a, scale_b, c, use_c, out, start, stop,
):  # fmt: skip
    """Compute rows `start` to `stop` of ``D = A @ B.T``; arguments as for `gemm_fused.gemm_fused`.

    `a_values` and its companions come from `fused_pack.pack_quads`, as arrays [quads, ...].
    """
    n = out.shape[1]
    k = a_values.shape[1] // 4
    blocks = scale_a.shape[0]
    groups = k // group
    state = aligned_f32(BATCH * COLUMNS)
    state_at = state.ctypes.data
    top = aligned_i8(4 * COLUMNS)
    top_at = np.intp(top.ctypes.data)
    a_v, a_e, a_m = a_values.ctypes.data, a_exponents.ctypes.data, a_masks.ctypes.data
    b_v, b_e, b_m = b_values.ctypes.data, b_exponents.ctypes.data, b_masks.ctypes.data
    clear = U(U(0xFFFFFFFF) << U(23 - keep))
    for r0 in range(start, stop, BATCH):
        r1 = min(r0 + BATCH, stop)
        for j0 in range(0, n, COLUMNS):
            width = min(COLUMNS, n - j0)
            for block_index in range(blocks):
                p_begin = block_index * block
                p_end = min(p_begin + block, k)
                if promote or block_index == 0:
                    state[:] = np.float32(0)
                if block_index == 0 and use_c:
                    for i in range(r0, r1):
                        for j in range(width):
                            state[(i - r0) * COLUMNS + j] = c[i, j0 + j] + np.float32(0)  # -0 becomes +0
                if block_index > 0 and not promote:
                    s_before, s_now = scale_b[block_index - 1], scale_b[block_index]
                    for i in range(r0, r1):
                        before, now = scale_a[block_index - 1, i], scale_a[block_index, i]
                        d = state[(i - r0) * COLUMNS : (i - r0 + 1) * COLUMNS]
                        for j in range(width):
                            ratio = np.float32(before * s_before[j0 + j]) / np.float32(now * s_now[j0 + j])
                            d[j] = float32_from_bits(U(bits32(d[j] * ratio) & clear))
                if not embedded:
                    set_rounding(np.int32(0))
                b_at = np.intp(b_e + j0 * k + p_begin * COLUMNS)
                if interleaved:
                    first_exponents(np.intp(a_e + ((r0 - start) * k + p_begin * 4)), b_at, group, top_at)
                for i0 in range(r0, r1, 4):
                    a_at = np.intp(a_e + ((i0 - start) * k + p_begin * 4))
                    tile(
                        a_v + ((i0 - start) * k + p_begin * 4) * 4,
                        a_at,
                        a_m + ((i0 - start) // 4 * groups + p_begin // group) * 32,
                        b_v + (j0 * k + p_begin * COLUMNS) * 4,
                        b_at,
                        b_m + (j0 // COLUMNS * groups + p_begin // group) * 8 * COLUMNS,
                        state_at + (i0 - r0) * 4 * COLUMNS,
                        (p_end - p_begin) // group,
                        group,
                        np.int32(fraction_bits),
                        np.int32(keep),
                        top_at,
                        a_at + (4 * k if i0 + 4 < r1 else 0),
                        b_at,
                    )
                if not embedded:
                    set_rounding(np.int32(1))
                if promote or block_index == blocks - 1:
                    s_b = scale_b[block_index]
                    for i in range(r0, r1):
                        s_a = scale_a[block_index, i]
                        d = state[(i - r0) * COLUMNS : (i - r0 + 1) * COLUMNS]
                        into = out[i, j0 : j0 + width]
                        if promote:
                            for j in range(width):
                                into[j] = fma32(np.float32(s_a * s_b[j0 + j]), d[j], into[j])
                        else:
                            for j in range(width):
                                into[j] = np.float32(s_a * s_b[j0 + j]) * d[j]


def _variant(name, shape):
    return variant(
        gemm_fused_rz,
        name,
        tile=make_tile(shape),
        first_exponents=make_first_exponents(shape),
        embedded=shape.embedded,
        interleaved=shape.interleaved,
    )


gemm_avx512 = _variant("gemm_avx512", Shape(lanes=16, vectors=4, embedded=True, interleaved=True))
gemm_fma = _variant("gemm_fma", Shape(lanes=8, vectors=2, embedded=False, interleaved=False))
