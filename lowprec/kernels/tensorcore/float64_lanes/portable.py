"""Groups of products in float64 lanes and the default rounding mode: portable equivalent of `tile`.

A product of two operands of up to 11 significant bits is exact in float64, as is its multiple by the power of two
1 / q; its integer part is below 2^(F + 2), and sums of 256 of these and C stay below 2^53. S q is truncated to float32
by clearing bits, or, for subnormals, by rounding at the quantum 2^(-126 - keep).
"""

from typing import Any

import numpy as np

from lowprec._jit import bits64, float64_from_bits, kernel, variant

from ...vectors import aligned_f64
from .sums import COLUMNS, ROWS

L = np.uint64
N = COLUMNS
EXPONENT = np.uint64(0x7FF << 52)
# Placeholders that `variant` replaces: whether results are float16, and how terms become multiples of q.
half, cut = False, np.trunc


def _tile(a, b, state, groups, sums, top, following):
    """Compute the tile in plain loops, with float16 results if `half` and terms rounded by `cut`; B has no factor.

    It processes four products at a time. The four rows are in one array each, at constant distances, so that LLVM can
    prove that they do not overlap.
    """
    depth = (sums.group + 3) // 4 * 4
    least = np.int16((sums.lowest + 1023) << 4)
    total, inverse = aligned_f64(4 * N), aligned_f64(4 * N)
    for g in range(groups):
        top[:] = least
        for p in range(g * depth, (g + 1) * depth, 4):
            e, y = a.exponents[p * ROWS : (p + 4) * ROWS], b.exponents[p * N : (p + 4) * N]
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
        open_sums(state, top, np.int32(sums.fraction_bits), half, total, inverse)
        for p in range(g * depth, (g + 1) * depth, 4):
            x, z = a.values[p * ROWS : (p + 4) * ROWS], b.values[p * N : (p + 4) * N]
            a00, a01, a02, a03 = x[0], x[4], x[8], x[12]
            a10, a11, a12, a13 = x[1], x[5], x[9], x[13]
            a20, a21, a22, a23 = x[2], x[6], x[10], x[14]
            a30, a31, a32, a33 = x[3], x[7], x[11], x[15]
            for j in range(N):
                z0, z1, z2, z3 = z[j], z[N + j], z[2 * N + j], z[3 * N + j]
                total[j] += four(inverse[j], a00, a01, a02, a03, z0, z1, z2, z3)
                total[N + j] += four(inverse[N + j], a10, a11, a12, a13, z0, z1, z2, z3)
                total[2 * N + j] += four(inverse[2 * N + j], a20, a21, a22, a23, z0, z1, z2, z3)
                total[3 * N + j] += four(inverse[3 * N + j], a30, a31, a32, a33, z0, z1, z2, z3)
        close_sums(total, inverse, np.int32(sums.keep), half, state)


def _open_sums(state, top, fraction_bits, half, total, inverse):
    """Initialize 4 x 32 group sums: 1 / q from C and the largest exponents of products, and C / q, truncated."""
    emin = np.int64(1023 - 14) if half else np.int64(1023 - 126)
    for j in range(4 * N):
        c = state[j]
        e_c = max(np.int64(L(bits64(c) & EXPONENT) >> L(52)), emin)
        e_c = e_c if c != 0.0 else np.int64(0)
        largest = max(np.int64(top[j]) >> np.int64(4), e_c)
        # 1 / q = 2^(F - E), and both exponents are biased.
        inverse[j] = float64_from_bits(L(np.int64(2 * 1023 + fraction_bits) - largest) << L(52))
        total[j] = cut(c * inverse[j])


@kernel
def close_sums(total, inverse, keep, half, state):
    """Convert 4 x 32 sums, in units of q, to the format of the result; NaN if out of range."""
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


def _four(inverse, a0, a1, a2, a3, z0, z1, z2, z3):
    """Return the sum of four products, each truncated, in units of q."""
    low = cut(a0 * z0 * inverse) + cut(a1 * z1 * inverse)
    return low + (cut(a2 * z2 * inverse) + cut(a3 * z3 * inverse))


def _tiles(name: str, cut: Any) -> dict[str, Any]:
    """Return tiles for float32 and float16 results."""
    parts: dict[str, Any] = {
        part.__name__[1:]: variant(part, f"{part.__name__[1:]}_{name}", cut=cut) for part in (_open_sums, _four)
    }
    halves = {"float32": False, "float16": True}
    return {result: variant(_tile, f"tile_{name}_{result}", half=half, **parts) for result, half in halves.items()}


open_sums, four = variant(_open_sums, "open_sums"), None  # for truncated terms; a placeholder that `variant` replaces
tiles = {
    "truncate": _tiles("truncate", np.trunc),
    "floor": _tiles("floor", np.floor),
    "nearest": _tiles("nearest", np.rint),
}
