"""The same fused group sum as `gemm_fused`, term by term in integers, for everything: the reference engine.

Takes any codes (NaN, Inf, subnormals, zeros of both signs), any C, any group size and up to 40 fraction bits.
One output at a time; about a hundred times slower than the float formulation, and used where that one's
conditions do not hold.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

NAN = np.uint32(0x7FFFFFFF)  # the canonical NaN of NVIDIA's tensor cores
FAR = np.int64(-(1 << 30))  # exponent of "no term"

FINITE, INFINITE, NOT_A_NUMBER = 0, 1, 2


@kernel
def shifted(significand, shift):
    """Return significand * 2^shift truncated toward zero."""
    if shift >= 0:
        return significand << shift
    right = min(-shift, np.int64(63))
    return significand >> right if significand >= 0 else -((-significand) >> right)


@kernel
def to_float32_bits(total, exponent, keep):
    """Truncate total * 2^exponent to `keep` fraction bits (subnormals at float32's emin); zero is +0."""
    if total == 0:
        return np.uint32(0)
    magnitude = abs(total)
    width = np.int64(0)
    while width < 63 and magnitude >> width:
        width += 1
    e = max(width - 1 + exponent, np.int64(-126))
    significand = shifted(magnitude, exponent - (e - keep))
    if significand == 0:
        return np.uint32(0)
    if e > 127:
        bits = np.int64(0x7F800000)
    else:
        # The implicit bit adds one to the exponent field; without it (subnormals) the field stays 0.
        bits = (significand << (23 - keep)) + ((e + 126) << 23)
    if total < 0:
        bits |= np.int64(0x80000000)
    return np.uint32(bits)


@kernel
def fused_dot_reference(
    a, b, significand_a, exponent_a, kind_a, significand_b, exponent_b, kind_b,
    low_bits, group, fraction_bits, keep, c, out,
):  # fmt: skip
    """Compute ``D = A @ B.T + C`` [M, N]: codes a [M, K], b [N, K], groups chained in increasing k.

    The tables give for every code the signed integer significand, the un-normalised exponent and the kind
    (`FINITE` ...); a product's value is ``sa * sb * 2^(ea + eb - low_bits)``.
    """
    m, k = a.shape
    n = b.shape[0]
    for i in range(m):
        for j in range(n):
            state = bits32(c[i, j])
            for p0 in range(0, max(k, 1), group):
                p1 = min(p0 + group, k)
                # The specials decide first; C among them.
                magnitude_c = np.uint32(state & np.uint32(0x7FFFFFFF))
                negative_c = state >= np.uint32(0x80000000)
                nan = magnitude_c > np.uint32(0x7F800000)
                plus = magnitude_c == np.uint32(0x7F800000) and not negative_c
                minus = magnitude_c == np.uint32(0x7F800000) and negative_c
                e_max = FAR
                for p in range(p0, p1):
                    x, y = a[i, p], b[j, p]
                    if kind_a[x] == NOT_A_NUMBER or kind_b[y] == NOT_A_NUMBER:
                        nan = True
                    elif kind_a[x] == INFINITE or kind_b[y] == INFINITE:
                        product = significand_a[x] * significand_b[y]
                        nan = nan or product == 0
                        plus = plus or product > 0
                        minus = minus or product < 0
                    elif significand_a[x] != 0 and significand_b[y] != 0:
                        e_max = max(e_max, np.int64(exponent_a[x]) + np.int64(exponent_b[y]))
                if nan or (plus and minus):
                    state = NAN
                    continue
                if plus or minus:
                    state = np.uint32(0x7F800000) if plus else np.uint32(0xFF800000)
                    continue
                field_c = np.int64(magnitude_c >> np.uint32(23))
                e_c = max(field_c, np.int64(1)) - 127
                significand_c = np.int64(magnitude_c & np.uint32(0x7FFFFF))
                if field_c > 0:
                    significand_c += np.int64(1) << 23
                if magnitude_c != 0:
                    e_max = max(e_max, e_c)
                if e_max == FAR:
                    state = np.uint32(0)
                    continue
                lsb = e_max - fraction_bits
                total = shifted(-significand_c if negative_c else significand_c, e_c - 23 - lsb)
                for p in range(p0, p1):
                    x, y = a[i, p], b[j, p]
                    product = significand_a[x] * significand_b[y]
                    if product != 0:
                        e = np.int64(exponent_a[x]) + np.int64(exponent_b[y]) - low_bits
                        total += shifted(product, e - lsb)
                state = to_float32_bits(total, lsb, keep)
            out[i, j] = float32_from_bits(state)


@kernel
def rows_with_special(codes, kind, out):
    """Tell for each row of codes [M, K] whether any of them is NaN or Inf."""
    for i in range(codes.shape[0]):
        found = False
        for p in range(codes.shape[1]):
            found = found or kind[codes[i, p]] != 0
        out[i] = found
