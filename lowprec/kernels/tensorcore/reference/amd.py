"""AMD's matrix cores: three summation orders.

CDNA1 sums a few products and C exactly; CDNA2 adds float32 products in pairs and flushes subnormals; CDNA3 truncates
the products, rounds the sum with C twice toward minus infinity, and then rounds to nearest.
"""

from typing import NamedTuple

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

from .aligned import FAR, FLOOR, TRUNCATE, close_result, cut, open_result, special_sum
from .exact import collapse, grow

U = np.uint32


@kernel
def flushed(x):
    """Return float32 x, with a subnormal as a zero of its sign."""
    u = bits32(x)
    return x if U(u & U(0x7F800000)) != U(0) else float32_from_bits(U(u & U(0x80000000)))


@kernel
def pairwise_dot(a, b, group, state, start, stop):
    """Add groups of float32 products pairwise, then the group's sum to C, for rows `start` to `stop`.

    Values a [M, K], b [N, K] (with subnormals flushed to +0 beforehand), state [M, N]: C, then D. Subnormal results are
    flushed to the zero of their sign.
    """
    k = a.shape[1]
    buffer = np.empty(group, np.float32)
    for i in range(start, stop):
        for j in range(b.shape[0]):
            u = bits32(state[i, j])
            d = state[i, j] if U(u & U(0x7F800000)) != U(0) else np.float32(0)
            for p0 in range(0, max(k, 1), group):
                for t in range(group):
                    buffer[t] = np.float32(0)
                    if p0 + t < k:
                        buffer[t] = flushed(np.float32(a[i, p0 + t] * b[j, p0 + t]))
                count = group
                while count > 1:
                    for t in range(count // 2):
                        buffer[t] = flushed(np.float32(buffer[2 * t] + buffer[2 * t + 1]))
                    if count % 2:
                        buffer[count // 2] = buffer[count - 1]
                    count = (count + 1) // 2
                d = flushed(np.float32(d + buffer[0]))
            state[i, j] = d


@kernel
def exact_group_dot(a, b, group, state, start, stop):
    """Sum each group's products and C exactly and round once to nearest even, for rows `start` to `stop`.

    Float32 values a [M, K], b [N, K], with products that are exact in float64; state [M, N]: C, then D. The exact
    sum is a list of nonoverlapping float64 numbers, smallest first, to which numbers are added one at a time.
    """
    k = a.shape[1]
    parts = np.empty(group + 1, np.float64)
    for i in range(start, stop):
        for j in range(b.shape[0]):
            d = state[i, j]
            for p0 in range(0, max(k, 1), group):
                parts[0] = np.float64(d)
                count = 1
                plain = parts[0]
                for p in range(p0, min(p0 + group, k)):
                    x = np.float64(a[i, p]) * np.float64(b[j, p])
                    plain += x
                    count = grow(parts, count, x)
                if plain - plain != 0.0:
                    d = np.float32(plain)  # NaN or Inf among the terms
                    continue
                d = np.float32(collapse(parts, count) + 0.0)  # the exact zero is +0
            state[i, j] = d


class Floors(NamedTuple):
    """Rule by which CDNA3 sums the products of a group and C."""

    low_bits: int  # as `aligned.Rule`
    group: int
    # 1: All products share one alignment. 2: Even and odd k are aligned separately, and their sums are then rounded
    # down at the larger exponent and added.
    lanes: int
    fraction_bits: int  # F, of the products and of C
    wide_bits: int  # the sum with C has one bit more than this, and this many after normalization
    window: int  # C is dropped if its exponent is below the largest by more than this


@kernel
def floored_dot(a, b, rule, result, state, start, stop):
    """Compute rows `start` to `stop` of ``D = A @ B.T + C`` by CDNA3's rule, with groups chained in increasing k.

    Parameters
    ----------
    a, b : aligned.Parts
        Fields of A [M, K] and of B [N, K].
    rule : Floors
    result, state
        Arguments of `aligned.fused_dot`.
    """
    low_bits, group, lanes, fraction_bits, wide_bits, window = rule
    significand_a, exponent_a, kind_a, special_a = a
    significand_b, exponent_b, kind_b, special_b = b
    k = significand_a.shape[1]
    infinity, sign = result[3], result[4]
    last = np.int64(62)
    left = max(np.int64(fraction_bits - low_bits), np.int64(0))
    for i in range(start, stop):
        for j in range(significand_b.shape[0]):
            u = state[i, j]
            for g in range(max((k + group - 1) // group, 1)):
                p0 = g * group
                p1 = min(p0 + group, k)
                s_c, e_c, special = open_result(u, result)
                plus = minus = False
                e_dot = np.int64(FAR * 4)
                dot = np.int64(0)
                for lane in range(lanes):
                    e_lane = np.int64(FAR * 4)
                    for p in range(p0 + lane, p1, lanes):
                        product = np.int64(significand_a[i, p]) * np.int64(significand_b[j, p])
                        e = np.int64(exponent_a[i, p]) + np.int64(exponent_b[j, p])
                        if product != 0:
                            e_lane = max(e_lane, e)
                            if e + (np.int64(1) if abs(product) >> (low_bits + 1) else np.int64(0)) >= 128:
                                plus = plus or product > 0
                                minus = minus or product < 0
                    total = np.int64(0)
                    for p in range(p0 + lane, p1, lanes):
                        product = np.int64(significand_a[i, p]) * np.int64(significand_b[j, p])
                        if product != 0:
                            e = np.int64(exponent_a[i, p]) + np.int64(exponent_b[j, p])
                            away = min(e_lane - e + low_bits + left - fraction_bits, last)
                            total += cut(product << left, away, TRUNCATE)
                    e_both = max(e_dot, e_lane)
                    dot = cut(dot, min(e_both - e_dot, last), FLOOR) + cut(total, min(e_both - e_lane, last), FLOOR)
                    e_dot = e_both
                if special or special_a[i, g] or special_b[j, g]:
                    u = special_sum(
                        significand_a[i, p0:p1], kind_a[i, p0:p1], significand_b[j, p0:p1], kind_b[j, p0:p1], u, result
                    )
                    plus = plus or u == U(infinity)
                    minus = minus or u == U(infinity | sign)
                    if u == U(sign - 1):
                        continue
                if plus or minus:  # a finite product above float32's range counts as Inf
                    u = U(sign - 1) if plus and minus else U(infinity if plus else infinity | sign)
                    continue
                e_c = max(e_c, result[2])  # a zero C has float32's smallest exponent
                top = max(e_dot, e_c)
                wide = np.int64(wide_bits + 1)
                fine = max(wide, np.int64(fraction_bits))
                total = _floor_to(dot, top - e_dot + fraction_bits - wide) << (fine - wide)
                if e_c >= top - window:
                    total += _floor_to(s_c, top - e_c + result[0] - fraction_bits) << (fine - fraction_bits)
                u = _normalised(total, top - fine, np.int64(wide_bits), result)
            state[i, j] = u


@kernel
def _floor_to(n, places):
    """Return floor(n / 2^places); negative places shift left."""
    return n << -places if places < 0 else cut(n, min(places, np.int64(62)), FLOOR)


@kernel
def _normalised(total, unit, keep, result):
    """Floor total * 2^unit to `keep` bits below its leading one (at least float32's emin), and round it.

    A negative number that rounds to zero gives -0, as in IEEE 754; an exact zero is +0.
    """
    magnitude = abs(total)
    width = np.int64(0)
    while width < 62 and magnitude >> width:
        width += 1
    e = max(width - 1 + unit, result[2])
    places = e - keep - unit
    if places > 0:
        total, unit = cut(total, min(places, np.int64(62)), FLOOR), unit + places
    bits = close_result(total, unit, result)
    return U(result[4]) if bits == U(0) and total < 0 else bits
