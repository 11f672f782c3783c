"""log2 and 2**y of float32 numbers, correctly rounded to float32.

Both are computed in float64, with an error below ``RELATIVE_ERROR`` of the result, and rounded to float32. The result
is correctly rounded unless the float64 value is within its error of a boundary between two float32 results. With only
2^32 inputs these cases can be enumerated: a test does so and compares each with mpmath. Of log2's 2,139,095,039
positive numbers, 128 are that close to a boundary and all are right; of 2**y's 2,251,227,134 from -153 to 150, 12 are,
and two are wrong: the code corrects them explicitly.

The bounds. The error of `log64` is at most one ulp (its own tests), 2^-52 of the result; rounding log2(e) and the
product add 2^-53 each: less than 2^-51. In `exp2_float64` the argument is split exactly into i / 64 and a remainder
r < 1/64, the Taylor series of 2^r - 1 is truncated at r^7 ln2^7 / 5040 < 2^-57.9, and the roundings of r times the
series, of 1 plus it, of the table's entry and of the product are at most 2^-53 each except the first, which is below
2^-59: less than 2^-51; the power of two is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import float64_from_bits, kernel
from lowprec.kernels.elementary import log64
from lowprec.kernels.logfmt.tables import EXP2, EXP2_SERIES

RELATIVE_ERROR = 2.0**-51

_LOG2_E = 1.4426950408889634
# The two arguments with results closest to a boundary, within 2^-58 of the result.
_HARD_1, _RESULT_1 = np.float32(float.fromhex("0x1.853a6ep-9")), np.float32(float.fromhex("0x1.00870ap+0"))
_HARD_2, _RESULT_2 = np.float32(float.fromhex("-0x1.e7526ep-6")), np.float32(float.fromhex("0x1.f58d62p-1"))


@kernel
def log2_float64(x: Any) -> float:
    """Return log2 of a positive float32 number or infinity, to within `RELATIVE_ERROR`; -inf for 0."""
    return log64(np.float64(x)) * _LOG2_E


@kernel
def exp2_float64(y: Any) -> float:
    """Return 2**y of a float32 number from -1000 to 1000, to within `RELATIVE_ERROR`."""
    wide = np.float64(y)
    i = np.int32(np.floor(64.0 * wide))
    r = wide - i / 64.0
    p = EXP2_SERIES[5]
    for k in range(4, -1, -1):
        p = p * r + EXP2_SERIES[k]
    power = float64_from_bits(np.uint64(np.uint64((i >> 6) + 1023) << np.uint64(52)))
    return EXP2[i & 63] * (1.0 + p * r) * power


@kernel
def log2_rounded(x: Any) -> Any:
    """Return log2 of a float32 number, correctly rounded: -inf for zeros, inf for inf, NaN below zero and for NaN."""
    return np.float32(log2_float64(x))


@kernel
def exp2_in_range(y: Any) -> Any:
    """Return 2**y of a float32 number from -1000 to 1000, correctly rounded: `exp2_rounded` without range checks."""
    result = np.float32(exp2_float64(y))
    if y == _HARD_1:
        result = _RESULT_1
    if y == _HARD_2:
        result = _RESULT_2
    return result


@kernel
def exp2_rounded(y: Any) -> Any:
    """Return 2**y of a float32 number, correctly rounded, including subnormal results; NaN for NaN."""
    if not abs(y) <= np.float32(1000.0):
        return np.float32(y * y * np.float32(np.inf)) if y > np.float32(0.0) else (y if y != y else np.float32(0.0))
    return exp2_in_range(y)
