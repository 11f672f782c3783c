"""exp and log in float64, from IEEE additions, multiplications, divisions and integer operations only.

The C library's functions differ in their last bit between machines, and its float32 ones between vector widths. These
functions give the same bits on all IEEE machines, and their loops vectorize. The trainer defines the float32 result of
exp(x) as ``float32(exp64(float64(x)))``.

Both are scalar functions for use inside other kernels. Their errors are below one ulp: the argument is reduced with ln
2 split in two parts, and the Taylor series is truncated where the next term is below 2**-57 of the result.
"""

from __future__ import annotations

import numpy as np

from lowprec._jit import bits64, float64_from_bits, kernel

_LOG2_E = 1.4426950408889634
# ln 2 as a sum: the first part has 32 significant bits, so its product with any exponent (12 bits) is exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
# Adding 1.5 * 2**52 rounds to an integer, which is in the low bits of the sum.
_MAGIC = 6755399441055744.0
_MAGIC_BITS = np.float64(_MAGIC).view(np.uint64)
_SQRT_HALF_BITS = np.float64(0.7071067811865476).view(np.uint64)
_EXPONENT = np.uint64(52)
_FRACTION = np.uint64((1 << 52) - 1)


@kernel
def exp64(x: float) -> float:
    """Return e**x: gradual underflow, inf on overflow, NaN for NaN."""
    # Beyond these limits the result is 0 or inf; both comparisons are false for NaN, which propagates.
    if x > 710.0:
        x = 710.0
    if x < -746.0:
        x = -746.0
    shifted = x * _LOG2_E + _MAGIC
    n = shifted - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    q = 1.0 / 6227020800.0
    q = q * r + 1.0 / 479001600.0
    q = q * r + 1.0 / 39916800.0
    q = q * r + 1.0 / 3628800.0
    q = q * r + 1.0 / 362880.0
    q = q * r + 1.0 / 40320.0
    q = q * r + 1.0 / 5040.0
    q = q * r + 1.0 / 720.0
    q = q * r + 1.0 / 120.0
    q = q * r + 1.0 / 24.0
    q = q * r + 1.0 / 6.0
    q = q * r + 0.5
    p = 1.0 + (r + r * r * q)
    # 2**n in two factors, so that neither overflows and a subnormal result is rounded once, by the last product.
    both = np.uint64(bits64(shifted) - _MAGIC_BITS) + np.uint64(2046)
    first = np.uint64(both >> np.uint64(1))
    second = np.uint64(both - first)
    return p * float64_from_bits(np.uint64(first << _EXPONENT)) * float64_from_bits(np.uint64(second << _EXPONENT))


@kernel
def log64(x: float) -> float:
    """Return ln x: -inf for zeros, inf for inf, NaN for negative numbers and NaN."""
    # A subnormal is first scaled to a normal number; 54 is subtracted from its exponent below.
    scaled = x
    lift = 0.0
    if x < 2.2250738585072014e-308:
        scaled = x * 18014398509481984.0
        lift = -54.0
    # The exponent is counted from sqrt(1/2), so that m is in [sqrt(1/2), sqrt(2)) and 1.0 gives exactly 0.
    offset = np.uint64(np.uint64(bits64(scaled) - _SQRT_HALF_BITS) + np.uint64(1023 << 52))
    # The biased exponent as a float, without the vector conversion from integers that some machines lack.
    n = (float64_from_bits(np.uint64(np.uint64(offset >> _EXPONENT) | _MAGIC_BITS)) - _MAGIC) - 1023.0 + lift
    m = float64_from_bits(np.uint64(np.uint64(offset & _FRACTION) + _SQRT_HALF_BITS))
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    # log(1 + f) = 2 atanh(s) = 2s + s * t; 2s = f - s*f keeps the exact f as the leading term.
    t = 2.0 / 23.0
    t = t * z + 2.0 / 21.0
    t = t * z + 2.0 / 19.0
    t = t * z + 2.0 / 17.0
    t = t * z + 2.0 / 15.0
    t = t * z + 2.0 / 13.0
    t = t * z + 2.0 / 11.0
    t = t * z + 2.0 / 9.0
    t = t * z + 2.0 / 7.0
    t = t * z + 2.0 / 5.0
    t = t * z + 2.0 / 3.0
    t = t * z
    half_square = 0.5 * f * f
    result = n * _LN2_HIGH - ((half_square - (s * (half_square + t) + n * _LN2_LOW)) - f)
    if x == 0.0:
        result = -np.inf
    if x < 0.0 or x != x:
        result = np.nan
    if x == np.inf:
        result = x
    return result
