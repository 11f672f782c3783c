"""Tensor cores in integer arithmetic, without restrictions: the reference engine.

A group of L products and C is one sum: every nonzero term is aligned to the largest exponent E among them, rounded to a
multiple of 2^(E - F), added exactly, and the sum is rounded to the result's format. It accepts any codes (NaN, Inf,
subnormals, zeros of both signs), any C, any L and F, three roundings of terms and any result format; the fast engines
compute special cases tens of times faster.

64-bit integers suffice: a product of two significands, shifted left so that its last bit is worth at most 2^-F of its
own exponent, stays below 2^max(F + 2, 48), and 1025 of them below 2^59.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import bits64, kernel

U = np.uint32
FINITE, INFINITE, NOT_A_NUMBER = 0, 1, 2
TRUNCATE, FLOOR, NEAREST = 0, 1, 2
FAR = -16384  # exponent of a zero
NONZERO = -8192  # every nonzero product has a larger exponent, every zero product a smaller one
NEVER = -40000  # as the exponent of zero terms: they are ignored
COLUMNS = 128


class Parts(NamedTuple):
    """Codes [R, K] split into their fields, or transposed [K, R]."""

    significand: Any  # int32, signed; +-1 for Inf
    exponent: Any  # int16, unnormalized; `FAR` for zeros
    kind: Any  # int8: `FINITE`, `INFINITE` or `NOT_A_NUMBER`
    special: Any  # bool [R, groups]: whether a group contains NaN or Inf

    @property
    def T(self) -> "Parts":
        """The transpose of all four arrays, contiguous."""
        return Parts(*(np.ascontiguousarray(part.T) for part in self))


class Rule(NamedTuple):
    """Rule for the sum of a group; a product is worth ``sa * sb * 2^(ea + eb - low_bits)``."""

    low_bits: int
    group: int  # L
    fraction_bits: int  # F
    align: int  # alignment of terms: `TRUNCATE`, `FLOOR` or `NEAREST`
    zero_exponent: int  # exponent of a zero product or a zero C in the alignment, or `NEVER`


class Result(NamedTuple):
    """Format of a result, and the rounding to it."""

    fraction: int  # stored fraction bits
    keep: int  # fraction bits in use
    emin: int
    infinity: int  # bits of Inf
    sign: int  # sign bit
    rounding: int  # `TRUNCATE` or `NEAREST`


@kernel
def take_apart(codes, fmt, significand, exponent, kind):
    """Split codes [R, K] of a format, given by its `Format.params`, into the first three of `Parts`.

    A value is ``significand * 2^(exponent - mantissa_bits)``.
    """
    mantissa_bits, emin, sign_mask = fmt.mantissa_bits, fmt.emin, fmt.sign_mask
    rows, columns = codes.shape
    magnitude_mask = (np.int64(1) << 32) - 1 - sign_mask
    for i in range(rows):
        for p in range(columns):
            code = np.int64(codes[i, p])
            magnitude = code & magnitude_mask
            field = magnitude >> mantissa_bits
            s = magnitude - (field << mantissa_bits)
            e = emin + field
            if fmt.has_subnormals:
                s += (np.int64(1) << mantissa_bits) if field > 0 else np.int64(0)
                e = emin + max(field - 1, 0)
            else:
                s += np.int64(1) << mantissa_bits
            what = FINITE
            if magnitude == fmt.inf_code:
                what, s = INFINITE, np.int64(1)
            elif magnitude > fmt.max_code or code == fmt.nan_code:
                what = NOT_A_NUMBER
            significand[i, p] = -s if code & sign_mask else s
            exponent[i, p] = e if s != 0 else FAR
            kind[i, p] = what


@kernel
def cut(n, places, align):
    """Return n / 2^places as an integer, 0 <= places <= 62: rounded toward zero, down, or to nearest even."""
    step = np.int64(1) << places
    if align == TRUNCATE:
        return (n + ((n >> np.int64(63)) & (step - np.int64(1)))) >> places
    if align == NEAREST:
        half = step >> np.int64(1)
        bias = half - np.int64(1) + ((n >> places) & np.int64(1))
        return (n + (bias if half > 0 else np.int64(0))) >> places
    return n >> places


@kernel
def open_result(u, result):
    """Return the signed significand and the exponent of a result, given as bits, and whether it is special."""
    fraction, _, emin, infinity, sign, _ = result
    magnitude = np.int64(u) & (sign - 1)
    field = magnitude >> fraction
    s = magnitude - (field << fraction) + ((np.int64(1) << fraction) if field > 0 else np.int64(0))
    e = emin + max(field - 1, np.int64(0))
    return (-s if np.int64(u) & sign else s), (e if s != 0 else np.int64(FAR)), magnitude >= infinity


@kernel
def close_result(total, unit, result):
    """Return the bits of total * 2^unit in the result's format; a zero is +0."""
    fraction, keep, emin, infinity, sign, rounding = result
    magnitude = abs(total)
    top = np.int64(bits64(np.float64(magnitude)) >> np.uint64(52)) - 1023
    top -= np.int64(1) if (np.int64(1) << max(top, 0)) > magnitude else np.int64(0)  # float64 may have rounded up
    e = max(top + unit, emin)
    places = e - keep - unit
    n = cut(magnitude << min(max(-places, 0), np.int64(62)), min(max(places, 0), np.int64(62)), rounding)
    # The implicit bit increments the exponent field; without it (subnormals) the field remains 0.
    bits = min((n << (fraction - keep)) + (min(e - emin, np.int64(1) << 20) << fraction), infinity)
    return U(0) if n == 0 else U(bits | (sign if total < 0 else np.int64(0)))


@kernel
def special_sum(significand_a, kind_a, significand_b, kind_b, c_bits, result):
    """Return the bits for a group with NaN or Inf: IEEE's class of the sum, with the canonical NaN."""
    _, _, _, infinity, sign, _ = result
    magnitude = np.int64(c_bits) & (sign - 1)
    nan = magnitude > infinity
    plus = magnitude == infinity and np.int64(c_bits) < sign
    minus = magnitude == infinity and np.int64(c_bits) >= sign
    for p in range(kind_a.size):
        if kind_a[p] == NOT_A_NUMBER or kind_b[p] == NOT_A_NUMBER:
            nan = True
        elif kind_a[p] == INFINITE or kind_b[p] == INFINITE:
            positive = (significand_a[p] > 0) == (significand_b[p] > 0)
            nan = nan or significand_a[p] == 0 or significand_b[p] == 0
            plus = plus or positive
            minus = minus or not positive
    if nan or (plus and minus):
        return U(sign - 1)
    return U(infinity) if plus else U(infinity | sign)


@kernel
def fused_dot(a, b, rule, result, state, start, stop):
    """Compute rows `start` to `stop` of ``D = A @ B.T + C``, groups chained in increasing k.

    Parameters
    ----------
    a, b : Parts
        Fields of A [M, K], and of B transposed, [K, N].
    rule : Rule
    result : Result
    state : [M, N] uint32
        Bits of C on entry, of D on return.
    """
    low_bits, group, fraction_bits, align, zero_exponent = rule
    significand_a, exponent_a, kind_a, special_a = a
    significand_b, exponent_b, kind_b, special_b = b
    k = significand_a.shape[1]
    n = state.shape[1]
    left = max(np.int64(fraction_bits - low_bits), np.int64(0))
    places = np.int64(low_bits + left - fraction_bits)
    left_c = max(np.int64(fraction_bits - result[0]), np.int64(0))
    places_c = np.int64(result[0] + left_c - fraction_bits)
    top, low = np.empty(COLUMNS, np.int32), np.empty(COLUMNS, np.int32)
    e_c = np.empty(COLUMNS, np.int32)
    total = np.empty(COLUMNS, np.int64)
    before = np.empty(COLUMNS, np.uint32)
    for i in range(start, stop):
        for j0 in range(0, n, COLUMNS):
            width = min(COLUMNS, n - j0)
            d = state[i, j0 : j0 + width]
            for g in range(max((k + group - 1) // group, 1)):
                p0 = g * group
                p1 = min(p0 + group, k)
                odd = special_a[i, g]
                flags = special_b[g, j0 : j0 + width]
                for j in range(width):
                    s, e, special = open_result(d[j], result)
                    before[j], total[j] = d[j], s
                    e_c[j] = top[j] = e
                    low[j] = e if p1 - p0 == group else np.int64(FAR)
                    odd |= special | flags[j]
                for p in range(p0, p1):
                    x = np.int32(exponent_a[i, p])
                    y = exponent_b[p, j0 : j0 + width]
                    for j in range(width):
                        e = np.int32(x + np.int32(y[j]))
                        top[j] = max(top[j], e)
                        low[j] = min(low[j], e)
                for j in range(width):
                    if low[j] < NONZERO:
                        top[j] = max(top[j], np.int32(zero_exponent))
                    away = min(np.int64(top[j] - e_c[j]) + places_c, np.int64(62))
                    total[j] = cut(total[j] << left_c, away, align)
                for p in range(p0, p1):
                    s = np.int64(significand_a[i, p])
                    if s == 0:
                        continue
                    x = np.int64(exponent_a[i, p]) - places
                    y = exponent_b[p, j0 : j0 + width]
                    v = significand_b[p, j0 : j0 + width]
                    for j in range(width):
                        away = min(np.int64(top[j]) - (x + np.int64(y[j])), np.int64(62))
                        total[j] += cut((s * np.int64(v[j])) << left, away, align)
                for j in range(width):
                    d[j] = close_result(total[j], np.int64(top[j]) - fraction_bits, result)
                if odd:
                    for j in range(width):
                        if special_a[i, g] or flags[j] or open_result(before[j], result)[2]:
                            d[j] = special_sum(
                                significand_a[i, p0:p1], kind_a[i, p0:p1],
                                significand_b[p0:p1, j0 + j], kind_b[p0:p1, j0 + j], before[j], result,
                            )  # fmt: skip


@kernel
def rows_with_special(codes, kind, out):
    """Write for each row of codes [M, K] whether any of them is NaN or Inf."""
    for i in range(codes.shape[0]):
        found = False
        for p in range(codes.shape[1]):
            found = found or kind[codes[i, p]] != 0
        out[i] = found
