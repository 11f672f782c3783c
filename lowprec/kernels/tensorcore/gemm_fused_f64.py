"""Tensor cores of any width: fused group sums with up to 40 fraction bits, in float64 lanes.

The fast forms are `fused_tile_f64`, rounding toward zero in the FPU. `_portable_tile` here does the same in default
rounding and serves every CPU: a product of two operands of up to 11 significant bits is exact in float64, and so is
its multiple by the power of two 1 / q; what is left of it without its fraction is a whole number below 2^(F + 2), and
sums of 256 of these and C stay below 2^53. S q is truncated to float32 by clearing bits, or, for subnormals, by the
same trick at the quantum 2^(-126 - keep).

The caller's part: A, B and C may hold NaN and Inf, but then, and where a result leaves its format, outputs come that
are not finite and mean nothing but that. The bits are those of a machine whose zeros take part in the alignment with an
exponent `lowest` of at least -800 and at most the smallest one of C's format (-126, or -14 for float16).
"""

import numpy as np

from lowprec._jit import bits32, bits64, float32_from_bits, float64_from_bits, fma32, kernel, set_rounding, variant

from ..buffers import aligned_f64
from .fused_tile_f64 import make_tile
from .wide_sum import COLUMNS, RESULTS, ROWS, Shape

U, L = np.uint32, np.uint64
BATCH = 256  # rows that sweep over one slice of a panel; their running sums are kept meanwhile
SLICE = 512  # products after which the next rows get their turn, so that a panel's slice stays in a near cache
N = COLUMNS
# What `variant` gives another meaning: the tile, whether it wants the thread's rounding mode toward zero, and whether
# results are float16.
tile, toward_zero, half = None, False, False
EXPONENT = np.uint64(0x7FF << 52)


def _gemm(
    a_values, a_exponents, a_masks, b_values, b_exponents, b_masks, groups, group, fraction_bits, lowest, keep,
    block, promote, scale_a, scale_b, c, use_c, out, first, columns, start, stop,
):  # fmt: skip
    """Compute rows `start` to `stop` and columns `first` to ``first + columns`` of ``D = A @ B.T`` around a tile.

    Arguments::

        a_values, a_exponents, a_masks      flat, from `fused_pack_f64.pack_quads`
        b_values, b_exponents, b_masks      flat, from `fused_pack_f64.pack_panels`, of those columns alone
        groups          number of groups in K
        group           products in each of them, before padding
        fraction_bits, lowest, keep         F, the least exponent E, and the fraction bits of the result
        block           groups over which the scales are constant
        promote         0: no; 1: as for `gemm_fused.gemm_fused`; 2: so, and each sum is rounded to float16
        scale_a, scale_b, c, use_c, out     as for `gemm_fused.gemm_fused`

    Scales are [blocks, >= M] and [blocks, >= N]; `start` is a multiple of 4.
    """
    depth, words = (group + 3) // 4 * 4, (group + 31) // 32
    chunk = max(SLICE // depth, 1)
    blocks = scale_a.shape[0]
    state = aligned_f64(BATCH * COLUMNS)
    clear = U(U(0xFFFFFFFF) << U(23 - keep))
    for r0 in range(start, stop, BATCH):
        r1 = min(r0 + BATCH, stop)
        for j0 in range(0, columns, COLUMNS):
            width, left = min(COLUMNS, columns - j0), first + j0
            for index in range(blocks):
                g_begin = index * block
                g_end = min(g_begin + block, groups)
                if promote or index == 0:
                    state[:] = 0.0
                if index == 0 and use_c:
                    for i in range(r0, r1):
                        for j in range(width):
                            state[(i - r0) * COLUMNS + j] = np.float64(c[i, left + j]) + 0.0  # -0 becomes +0
                if index > 0 and not promote:
                    s_before, s_now = scale_b[index - 1], scale_b[index]
                    for i in range(r0, r1):
                        before, now = scale_a[index - 1, i], scale_a[index, i]
                        d = state[(i - r0) * COLUMNS : (i - r0 + 1) * COLUMNS]
                        for j in range(width):
                            ratio = np.float32(before * s_before[left + j]) / np.float32(now * s_now[left + j])
                            bits = bits32(np.float32(d[j]) * ratio)
                            d[j] = np.float64(float32_from_bits(U(bits & clear))) + 0.0
                if toward_zero:
                    set_rounding(np.int32(0))
                for g0 in range(g_begin, g_end, chunk):
                    count = min(chunk, g_end - g0)
                    b_at = j0 // COLUMNS * groups + g0
                    b_v, b_e = b_values[b_at * depth * COLUMNS :], b_exponents[b_at * depth * COLUMNS :]
                    b_m = b_masks[b_at * words * COLUMNS :]
                    for i0 in range(r0, r1, ROWS):
                        a_at = i0 // ROWS * groups + g0
                        a_v, a_e = a_values[a_at * depth * ROWS :], a_exponents[a_at * depth * ROWS :]
                        a_m = a_masks[a_at * words * ROWS :]
                        d = state[(i0 - r0) * COLUMNS : (i0 - r0 + ROWS) * COLUMNS]
                        how = count, depth, words, np.int32(fraction_bits), np.int32(lowest), np.int32(keep)
                        tile(a_v, a_e, a_m, b_v, b_e, b_m, d, *how)
                if toward_zero:
                    set_rounding(np.int32(1))
                if promote or index == blocks - 1:
                    s_b = scale_b[index]
                    for i in range(r0, r1):
                        s_a = scale_a[index, i]
                        d = state[(i - r0) * COLUMNS : (i - r0 + 1) * COLUMNS]
                        into = out[i, left : left + width]
                        if promote:
                            for j in range(width):
                                into[j] = fma32(np.float32(s_a * s_b[left + j]), np.float32(d[j]), into[j])
                            if promote == 2:
                                for j in range(width):
                                    into[j] = _to_float16(into[j])
                        else:
                            for j in range(width):
                                into[j] = np.float32(s_a * s_b[left + j]) * np.float32(d[j])


@kernel
def _to_float16(x):
    """Round float32 to float16's grid, to nearest even; NaN beyond it."""
    v = np.float64(x)
    binade = float64_from_bits(L(bits64(v) & EXPONENT))
    magic = max(binade, 2.0**-14) * (1.5 * 2.0**42)
    d = (v + magic) - magic
    return np.float32(d if abs(d) < 2.0**16 else np.nan)


def _portable_tile(a_v, a_e, _a_m, b_v, b_e, _b_m, state, groups, depth, _words, fraction_bits, lowest, keep):
    """Do the tile's work in plain loops, for float16 results if `half`; B's values come without the factor.

    It works on four products at a time. The four rows lie in one array each, with constant distances: LLVM then sees
    that they do not overlap.
    """
    top = np.empty(4 * N, np.int16)
    total, inverse = aligned_f64(4 * N), aligned_f64(4 * N)
    for g in range(groups):
        top[:] = np.int16((lowest + np.int32(1023)) << np.int32(4))
        for p in range(g * depth, (g + 1) * depth, 4):
            e, y = a_e[p * ROWS : (p + 4) * ROWS], b_e[p * N : (p + 4) * N]
            e00, e01, e02, e03 = np.int16(e[0]), np.int16(e[4]), np.int16(e[8]), np.int16(e[12])
            e10, e11, e12, e13 = np.int16(e[1]), np.int16(e[5]), np.int16(e[9]), np.int16(e[13])
            e20, e21, e22, e23 = np.int16(e[2]), np.int16(e[6]), np.int16(e[10]), np.int16(e[14])
            e30, e31, e32, e33 = np.int16(e[3]), np.int16(e[7]), np.int16(e[11]), np.int16(e[15])
            for j in range(N):
                y0, y1, y2, y3 = y[j], y[N + j], y[2 * N + j], y[3 * N + j]
                top[j] = _largest(top[j], e00, e01, e02, e03, y0, y1, y2, y3)
                top[N + j] = _largest(top[N + j], e10, e11, e12, e13, y0, y1, y2, y3)
                top[2 * N + j] = _largest(top[2 * N + j], e20, e21, e22, e23, y0, y1, y2, y3)
                top[3 * N + j] = _largest(top[3 * N + j], e30, e31, e32, e33, y0, y1, y2, y3)
        open_sums(state, top, fraction_bits, half, total, inverse)
        for p in range(g * depth, (g + 1) * depth, 4):
            x, z = a_v[p * ROWS : (p + 4) * ROWS], b_v[p * N : (p + 4) * N]
            a00, a01, a02, a03 = x[0], x[4], x[8], x[12]
            a10, a11, a12, a13 = x[1], x[5], x[9], x[13]
            a20, a21, a22, a23 = x[2], x[6], x[10], x[14]
            a30, a31, a32, a33 = x[3], x[7], x[11], x[15]
            for j in range(N):
                z0, z1, z2, z3 = z[j], z[N + j], z[2 * N + j], z[3 * N + j]
                total[j] += _four(inverse[j], a00, a01, a02, a03, z0, z1, z2, z3)
                total[N + j] += _four(inverse[N + j], a10, a11, a12, a13, z0, z1, z2, z3)
                total[2 * N + j] += _four(inverse[2 * N + j], a20, a21, a22, a23, z0, z1, z2, z3)
                total[3 * N + j] += _four(inverse[3 * N + j], a30, a31, a32, a33, z0, z1, z2, z3)
        close_sums(total, inverse, keep, half, state)


@kernel
def open_sums(state, top, fraction_bits, half, total, inverse):
    """Begin 4 x 32 group sums: 1 / q from C and the largest exponents of products, and the truncated C / q."""
    emin = np.int64(1023 - 14) if half else np.int64(1023 - 126)
    for j in range(4 * N):
        c = state[j]
        e_c = max(np.int64(L(bits64(c) & EXPONENT) >> L(52)), emin)
        e_c = e_c if c != 0.0 else np.int64(0)
        largest = max(np.int64(top[j]) >> np.int64(4), e_c)
        # 1 / q = 2^(F - E), and both exponents are biased.
        inverse[j] = float64_from_bits(L(np.int64(2 * 1023 + fraction_bits) - largest) << L(52))
        total[j] = np.trunc(c * inverse[j])


@kernel
def close_sums(total, inverse, keep, half, state):
    """Bring 4 x 32 sums, in units of q, to the result's format; NaN where they leave it."""
    limit, least_normal = (2.0**16, 2.0**-14) if half else (2.0**128, 2.0**-126)
    clear = L(L(0xFFFFFFFFFFFFFFFF) << L(52 - keep))
    fine = float64_from_bits(L(1023 + 126 + keep) << L(52))  # 1 / quantum of subnormal results
    for j in range(4 * N):
        v = total[j] / inverse[j]
        if half:
            binade = float64_from_bits(L(bits64(v) & EXPONENT))
            magic = max(binade, least_normal) * (1.5 * 2.0**42)
            d = (v + magic) - magic
        else:
            d = float64_from_bits(L(bits64(v) & clear))
            d = d if abs(v) >= least_normal else np.trunc(v * fine) / fine
        state[j] = d + 0.0 if abs(d) < limit else np.nan


@kernel
def _largest(top, e0, e1, e2, e3, y0, y1, y2, y3):
    """Return the largest of `top` and four sums of exponents."""
    low, high = max(np.int16(e0 + y0), np.int16(e1 + y1)), max(np.int16(e2 + y2), np.int16(e3 + y3))
    return max(top, max(low, high))


@kernel
def _four(inverse, a0, a1, a2, a3, z0, z1, z2, z3):
    """Return the sum of four products, each truncated, in units of q."""
    low = np.trunc(a0 * z0 * inverse) + np.trunc(a1 * z1 * inverse)
    return low + (np.trunc(a2 * z2 * inverse) + np.trunc(a3 * z3 * inverse))


def _fast(result, lanes, vectors, embedded):
    shape = Shape(lanes, vectors, embedded, interleaved=embedded, result=result)
    return variant(_gemm, f"gemm_{lanes}_{result}", tile=make_tile(shape), toward_zero=not embedded)


def _portable(result):
    plain = variant(_portable_tile, f"tile_{result}", half=result == "float16")
    return variant(_gemm, f"gemm_portable_{result}", tile=plain)


# By kind of result (`fused_tile_f64.RESULTS`); each is compiled when it is first called.
gemm_avx512 = {result: _fast(result, 8, 4, True) for result in RESULTS}
gemm_fma = {result: _fast(result, 4, 2, False) for result in RESULTS if result != "float16"}
gemm_portable = {result: _portable(result) for result in ("float32", "float16")}
gemm_portable["normal"] = gemm_portable["float32"]
