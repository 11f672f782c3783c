"""AMD's RDNA3 and RDNA4: sums in two's complement integers, aligned downwards or in C's sign frame.

`aligned.take_apart` splits the codes; their signs are a separate array, since the sign of a zero product matters.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import kernel

from .aligned import FLOOR, INFINITE, NEAREST, NOT_A_NUMBER, close_result, cut, open_result

U = np.uint32
NOTHING = -(1 << 20)  # exponent of a sum without nonzero terms


class SignedParts(NamedTuple):
    """`aligned.Parts`, and the codes' sign bits [R, K]."""

    significand: Any
    exponent: Any
    kind: Any
    special: Any
    negative: Any


class Grids(NamedTuple):
    """Last bits that are kept; a product is worth ``sa * sb * 2^(ea + eb - low_bits)``."""

    low_bits: int
    group: int
    fraction_bits: int  # below the largest sum of two operands' exponents
    leading_bits: int  # below the largest leading bit
    least: int  # smallest exponent of C in the alignment; `NOTHING`: subnormals of C and of results are zeros
    nan_operand: int  # bits of the result for a NaN operand
    kept: int  # mask of the result's bits


@kernel
def special_sum(a, b, i, j, p0, p1, c_bits, grids, result):
    """Return the bits of a sum with NaN or Inf: a NaN operand, an invalid operation, C's NaN made quiet, or Inf."""
    infinity, sign, quiet = U(result[3]), U(result[4]), U(np.int64(1) << (result[0] - 1))
    plus = minus = invalid = False
    for p in range(p0, p1):
        if a[2][i, p] == NOT_A_NUMBER or b[2][j, p] == NOT_A_NUMBER:
            return U(grids[5])
        if a[2][i, p] == INFINITE or b[2][j, p] == INFINITE:
            invalid = invalid or a[0][i, p] == 0 or b[0][j, p] == 0
            minus = minus or a[4][i, p] != b[4][j, p]
            plus = plus or a[4][i, p] == b[4][j, p]
    if invalid or (plus and minus):
        return U(sign | infinity | quiet)
    magnitude = U(c_bits & U(sign - U(1)))
    if magnitude > infinity:
        return U(c_bits | quiet)
    if magnitude == infinity:
        plus, minus = plus or c_bits == magnitude, minus or c_bits != magnitude
    if plus and minus:
        return U(sign | infinity | quiet)
    return infinity if plus else U(sign | infinity)


@kernel
def leading(n):
    """Return the exponent of the leading bit of n >= 0, or `NOTHING`."""
    width = np.int64(0)
    while n >> width:
        width += 1
    return width - 1 if width else np.int64(NOTHING)


@kernel
def toward_zero(n, places):
    """Return n / 2^places for n >= 0, without the fraction; negative places shift left."""
    return n << -places if places < 0 else n >> min(places, np.int64(62))


@kernel
def framed_dot(a, b, grids, result, state, start, stop):
    """Compute rows `start` to `stop` of ``D = A @ B.T + C`` by RDNA3's rule, with groups chained in increasing k.

    Parameters
    ----------
    a, b : SignedParts
        Fields of A [M, K] and of B [N, K], with flushed subnormals as zeros.
    grids : Grids
    result, state
        Arguments of `aligned.fused_dot`.
    """
    low_bits, group, fraction, sign = np.int64(grids[0]), grids[1], result[0], result[4]
    flushes = grids[4] == NOTHING
    k = a[0].shape[1]
    for i in range(start, stop):
        for j in range(b[0].shape[0]):
            u = state[i, j]
            for p0 in range(0, max(k, 1), group):
                p1 = min(p0 + group, k)
                s_c, e_c, special = open_result(u, result)
                if special or a[3][i, p0 // group] or b[3][j, p0 // group]:
                    u = special_sum(a, b, i, j, p0, p1, u, grids, result)
                    continue
                frame = np.int64(u) & sign != 0
                if flushes and abs(s_c) >> fraction == 0:
                    s_c = np.int64(0)  # a subnormal C
                m_c = abs(s_c)
                sums = np.int64(NOTHING)
                tops = leading(m_c) + e_c - fraction if m_c else np.int64(NOTHING)
                for p in range(p0, p1):
                    m = np.int64(abs(a[0][i, p])) * np.int64(abs(b[0][j, p]))
                    if m:
                        e = np.int64(a[1][i, p]) + np.int64(b[1][j, p])
                        sums, tops = max(sums, e), max(tops, leading(m) + e - low_bits)
                if tops == NOTHING:
                    u = U(0)
                    continue
                unit = max(sums - grids[2], max(tops, np.int64(grids[4])) - grids[3])
                total = toward_zero(m_c, unit - (e_c - fraction)) if m_c else np.int64(0)
                for p in range(p0, p0 + group):
                    m, negative, e = np.int64(0), False, unit
                    if p < p1:
                        m = np.int64(abs(a[0][i, p])) * np.int64(abs(b[0][j, p]))
                        negative = a[4][i, p] != b[4][j, p]
                        e = np.int64(a[1][i, p]) + np.int64(b[1][j, p]) - low_bits if m else unit
                    m = toward_zero(m, unit - e)
                    total += m if negative == frame else -m - 1  # ones' complement
                if flushes:
                    u = U(_close_framed(total, unit, frame) & U(grids[6]))
                else:
                    u = close_result(-total if frame else total, unit, result)
            state[i, j] = u


@kernel
def _close_framed(total, unit, frame):
    """Return total * 2^unit in float32: rounded to nearest with any exponent, then subnormals become +0."""
    m = abs(total)
    if m == 0:
        return U(0)
    e = leading(m)
    n = cut(m, e - 23, NEAREST) if e > 23 else m << (23 - e)
    if n >> 24:
        n, e = n >> 1, e + 1
    e += unit
    if e < -126:
        return U(0)
    sign = U(0x80000000) if (total < 0) != frame else U(0)
    bits = (np.int64(e + 127) << 23) + (n & np.int64(0x7FFFFF)) if e < 128 else np.int64(0x7F800000)
    return U(sign | U(bits))


@kernel
def floored_pair_dot(a, b, grids, result, state, start, stop):
    """Compute rows `start` to `stop` of ``D = A @ B.T + C`` by RDNA4's rule; arguments are those of `framed_dot`."""
    low_bits, group, fraction, least = np.int64(grids[0]), grids[1], result[0], np.int64(grids[4])
    k = a[0].shape[1]
    last = np.int64(62)
    sums, units = np.empty((group + 1) // 2, np.int64), np.empty((group + 1) // 2, np.int64)
    for i in range(start, stop):
        for j in range(b[0].shape[0]):
            u = state[i, j]
            for p0 in range(0, max(k, 1), group):
                p1 = min(p0 + group, k)
                s_c, e_c, special = open_result(u, result)
                if special or a[3][i, p0 // group] or b[3][j, p0 // group]:
                    u = special_sum(a, b, i, j, p0, p1, u, grids, result)
                    continue
                unit = max(leading(abs(s_c)) + e_c - fraction if s_c else np.int64(NOTHING), least) - grids[3]
                pairs = 0
                for q in range(p0, p1, 2):
                    top = np.int64(NOTHING)
                    for p in range(q, min(q + 2, p1)):
                        if a[0][i, p] != 0 and b[0][j, p] != 0:
                            top = max(top, np.int64(a[1][i, p]) + np.int64(b[1][j, p]))
                    if top == NOTHING:
                        continue
                    low, total = top - grids[2], np.int64(0)
                    for p in range(q, min(q + 2, p1)):
                        m = np.int64(a[0][i, p]) * np.int64(b[0][j, p])
                        if m != 0:
                            e = np.int64(a[1][i, p]) + np.int64(b[1][j, p]) - low_bits
                            total += m << (e - low) if e >= low else cut(m, min(low - e, last), FLOOR)
                    sums[pairs], units[pairs] = total, low
                    pairs += 1
                    unit = max(unit, low)
                away = unit - (e_c - fraction)
                total = np.int64(0)
                if s_c != 0:
                    total = s_c << -away if away < 0 else cut(s_c, min(away, last), FLOOR)
                    if s_c < 0 and away > 0 and abs(s_c) >> min(away, last) == 0 and unit > least:
                        total = np.int64(0)  # a negative C of which no bit is left
                for q in range(pairs):
                    total += cut(sums[q], min(unit - units[q], last), FLOOR)
                u = U(close_result(total, unit, result) & U(grids[6]))
            state[i, j] = u
