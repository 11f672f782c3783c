"""RISC-V's sums: a group's products, exact or aligned with rounding to odd; their rounded sum; its sum with C.

Aligned products are added as integers: a magnitude stays below 2^(F + 2), and the sum of 1024 of them below 2^53, so
that float64 represents it exactly. Rounding to odd in float64 preserves what rounding to float32 needs.
"""

from typing import NamedTuple

import numpy as np

from lowprec._jit import bits64, float32_from_bits, float64_from_bits, kernel

from .aligned import FINITE, INFINITE, NOT_A_NUMBER
from .cpu import exact64
from .exact import collapse, grow

L = np.uint64
EXACT, NEAREST, ODD = 0, 1, 2  # roundings
NOTHING = -(1 << 20)  # exponent of a sum without nonzero products
_BELOW = L((1 << 29) - 1)  # bits of a float64 below the last bit of float32
_QUIET_NAN = np.uint32(0x7FC00000)


class PartialRule(NamedTuple):
    """Rule for the sum of a group; a product is worth ``sa * sb * 2^(ea + eb - low_bits)``."""

    low_bits: int
    group: int
    fraction_bits: int  # kept below the largest exponent, by rounding to odd; -1: products are exact
    partial: int  # rounding of the products' sum to float32
    last: int  # rounding of its sum with C


@kernel
def _power(exponent):
    """Return 2^exponent, -1022 <= exponent <= 1023."""
    return float64_from_bits(L(L(exponent + 1023) << L(52)))


@kernel
def _special(significand, kind):
    """Return NaN, an infinity, or a finite number of the same sign."""
    if kind == NOT_A_NUMBER:
        return np.nan
    return np.float64(significand) * (np.inf if kind == INFINITE else 1.0)


@kernel
def rounded(x, how):
    """Round float64 x to float32, to nearest even or to odd; subnormals are kept, 2^128 and more becomes Inf."""
    size = abs(x)
    if how != ODD or size - size != 0.0 or size >= 2.0**128:
        return np.float64(np.float32(x))
    if size < 2.0**-126:
        units = size * 2.0**149
        n = np.int64(units)
        if np.float64(n) != units:
            n |= np.int64(1)
        return np.copysign(np.float64(n) * 2.0**-149, x)
    u = bits64(x)
    cut = L(u & L(~_BELOW))
    if u & _BELOW:
        cut = L(cut | L(_BELOW + L(1)))
    return float64_from_bits(cut)


@kernel
def partial_dot(a, b, rule, state, start, stop):
    """Compute rows `start` to `stop` of ``D = A @ B.T + C``, groups chained in increasing k.

    Parameters
    ----------
    a, b : aligned.Parts
        Fields of A [M, K] and of B [N, K].
    rule : PartialRule
    state : [M, N] float32
        C, then D; every NaN is 0x7FC00000.
    """
    low_bits, group, fraction_bits, partial, last = rule
    significand_a, exponent_a, kind_a, _ = a
    significand_b, exponent_b, kind_b, _ = b
    k = significand_a.shape[1]
    parts = np.empty(group + 2, np.float64)
    for i in range(start, stop):
        for j in range(significand_b.shape[0]):
            d = np.float64(state[i, j])
            for p0 in range(0, max(k, 1), group):
                p1 = min(p0 + group, k)
                special, top = 0.0, np.int64(NOTHING)
                for p in range(p0, p1):
                    if kind_a[i, p] != FINITE or kind_b[j, p] != FINITE:
                        special += _special(significand_a[i, p], kind_a[i, p]) * _special(
                            significand_b[j, p], kind_b[j, p]
                        )
                    elif significand_a[i, p] != 0 and significand_b[j, p] != 0:
                        top = max(top, np.int64(exponent_a[i, p]) + np.int64(exponent_b[j, p]))
                if special - special != 0.0:
                    d += special
                    continue
                parts[0], count, total = 0.0, 1, np.int64(0)
                for p in range(p0, p1):
                    n = np.int64(significand_a[i, p]) * np.int64(significand_b[j, p])
                    if n == 0:
                        continue
                    e = np.int64(exponent_a[i, p]) + np.int64(exponent_b[j, p]) - low_bits
                    if fraction_bits < 0:
                        count = grow(parts, count, np.float64(n) * _power(e))
                        continue
                    m, places = abs(n), top - fraction_bits - e
                    if places <= 0:
                        m <<= -places
                    else:
                        whole = m >> min(places, np.int64(62))
                        m = whole | np.int64(whole << min(places, np.int64(62)) != m)
                    total += m if n > 0 else -m
                if total != 0:
                    parts[0] = np.float64(total) * _power(top - fraction_bits)
                if partial == EXACT:
                    if d - d != 0.0:
                        continue
                    count = grow(parts, count, d)
                    d = rounded(collapse(parts, count), last)
                else:
                    d = rounded(exact64(rounded(collapse(parts, count), partial), d), last)
            state[i, j] = np.float32(d) if d == d else float32_from_bits(_QUIET_NAN)
