"""Special functions of NVIDIA's MUFU unit: a quadratic polynomial in the low bits of the significand, as it computes.

A segment of the significand has coefficients C0, C1 and C2. With x, the bits below those that choose the segment, as a
fraction of 2^17, the unit adds C0 + C1 x + C2 x^2 and drops the bits below the result's last place. The square is the
sum of its partial products without those below 2^-15. Sums are integers in units of 2^-17 of the last place of a
significand of 24 bits. Arrays are one-dimensional; `x` and `out` hold the words of float32 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, kernel

F, U = np.float32, np.uint32
_FRACTION, _ONE, _INFINITY, _NAN, _SIGN = (1 << 23) - 1, 1 << 23, 0x7F800000, 0x7FFFFFFF, 1 << 31


def _make_squares() -> Any:
    """Return the squares of all x in units of 2^-15, from the partial products of at least one unit."""
    x, bits, dropped = np.arange(1 << 17), 17, 19
    squares = np.zeros_like(x)
    for i in range(bits):
        for j in range(i, bits):
            column = i + j + (i != j)  # the two products of a pair of bits are one in the next column
            if column >= dropped:
                squares += (x >> i & x >> j & 1) << column - dropped
    return squares.astype(np.int32)


SQUARES = _make_squares()


@kernel
def _interpolate(fraction: Any, low_bits: int, table: Any, squares: Any) -> Any:
    segment, x = fraction >> low_bits, (fraction & ((1 << low_bits) - 1)) << (17 - low_bits)
    return table[segment, 0] + table[segment, 1] * x + ((table[segment, 2] * squares[x]) << 2)


@kernel
def _special(word: Any, at_zero: Any, at_infinity: Any) -> Any:
    """Return the result of a function of positive numbers for any other number, NaN and infinity, and otherwise -1."""
    field = word >> 23 & 255
    if field == 0:
        return at_zero
    if word >> 31 or (field == 255 and word & _FRACTION):
        return _NAN
    return at_infinity if field == 255 else -1


@kernel
def _normalize(fixed: Any, places: int) -> Any:
    """Return the word of a positive number with `places` bits after the point, rounded toward zero."""
    top = 0
    while fixed >> top + 1:
        top += 1
    return (top + 126 - places << 23) + (fixed >> top - 23 if top >= 23 else fixed << 23 - top)


@kernel
def ex2(x: Any, table: Any, squares: Any, out: Any) -> None:
    """Write 2**x. Bits of x below 2^-23 are dropped, and a negative fraction is the one's complement of the rest."""
    for i in range(x.size):
        word: Any = np.int64(x[i])
        exponent, negative = (word >> 23 & 255) - 127, word >> 31
        if exponent == 128 and word & _FRACTION:
            out[i] = _NAN
        elif exponent >= 8:
            out[i] = 0 if negative else _INFINITY
        else:
            significand = word & _FRACTION | _ONE
            fixed = significand << exponent if exponent >= 0 else significand >> min(-exponent, 24)
            if negative:
                fixed = -fixed - 1 if fixed & _FRACTION else -fixed
            y = _interpolate(fixed & _FRACTION, 17, table, squares) >> 17
            whole = fixed >> 23
            if whole < -126:
                out[i] = 0
            elif whole > 127:
                out[i] = _INFINITY
            else:
                out[i] = (whole + 126 << 23) + (y if fixed & _FRACTION else _ONE)


@kernel
def rcp(x: Any, table: Any, squares: Any, out: Any) -> None:
    """Write 1/x; subnormal numbers and results are zero."""
    for i in range(x.size):
        word: Any = np.int64(x[i])
        sign, field, fraction = word & _SIGN, word >> 23 & 255, word & _FRACTION
        if field == 255:
            out[i] = _NAN if fraction else sign
        elif field == 0:
            out[i] = sign | _INFINITY
        else:
            y = (252 - field << 23) + (_interpolate(fraction, 16, table, squares) >> 17)
            out[i] = sign | y if y >= _ONE else sign


@kernel
def rsqrt(x: Any, table: Any, squares: Any, out: Any) -> None:
    """Write 1/sqrt(x); subnormal numbers are zero."""
    for i in range(x.size):
        word: Any = np.int64(x[i])
        sign, field, fraction = word & _SIGN, word >> 23 & 255, word & _FRACTION
        special = _special(word, sign | _INFINITY, 0)
        if special >= 0:
            out[i] = special
        else:
            odd = field + 1 & 1
            half = field - 127 - odd >> 1
            y = _interpolate(odd << 23 | fraction, 17, table, squares) >> 17
            out[i] = (125 - half << 23) + (y if fraction or odd else 2 * _ONE)


@kernel
def sqrt(x: Any, table: Any, squares: Any, out: Any) -> None:
    """Write sqrt(x); subnormal numbers are zero."""
    for i in range(x.size):
        word: Any = np.int64(x[i])
        sign, field, fraction = word & _SIGN, word >> 23 & 255, word & _FRACTION
        special = _special(word, sign, _INFINITY)
        if special >= 0:
            out[i] = special
        else:
            odd = field + 1 & 1
            half = field - 127 - odd >> 1
            out[i] = (126 + half << 23) + (_interpolate(odd << 23 | fraction, 17, table, squares) >> 18)


@kernel
def lg2(x: Any, table: Any, squares: Any, out: Any) -> None:
    """Write log2(x), a number with 36 bits after the point before it is normalized; subnormal numbers are zero."""
    for i in range(x.size):
        word: Any = np.int64(x[i])
        sign, field, fraction = word & _SIGN, word >> 23 & 255, word & _FRACTION
        special = _special(word, _SIGN | _INFINITY, _INFINITY)
        if special >= 0:
            out[i] = special
        elif word == 127 << 23:
            out[i] = 0
        else:
            fixed = (field - 127 << 41) + _interpolate(fraction, 17, table, squares)
            sign = _SIGN if fixed < 0 else 0
            fixed = (-fixed - 1 if fixed < 0 else fixed) >> 5
            out[i] = sign | _normalize(fixed, 36) if fixed else sign


#: Of each octave from 2^-8 on: log2 of the number of segments, and the first one's place in the table.
_OCTAVES = (0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3)
_FIRST = (0, 1, 2, 3, 5, 7, 11, 15, 19, 27, 43)


@kernel
def tanh(x: Any, table: Any, squares: Any, out: Any) -> None:
    """Write tanh(x): x below 2^-8, subnormal numbers among them, and 1 from 8 on."""
    for i in range(x.size):
        word: Any = np.int64(x[i])
        sign, octave, fraction = word & _SIGN, (word >> 23 & 255) - 119, word & _FRACTION
        if octave == 136 and fraction:
            out[i] = _NAN
        elif octave < 0:
            out[i] = word
        elif octave > 10:
            out[i] = sign | 127 << 23
        else:
            fraction = (_FIRST[octave] << 17) + (fraction >> 6 - _OCTAVES[octave])
            out[i] = sign | _normalize(_interpolate(fraction, 17, table, squares), 41)


@kernel
def reduce_expf(x: Any, fractions: Any, scales: Any) -> None:
    """Split e**x into 2**fraction and a power of two, as CUDA's expf does; write both in float32."""
    for i in range(x.size):
        share = fma32(x[i], F(0.0057249800302088), F(0.5))  # .sat: from 0 to 1, and 0 for NaN
        share = F(0) if not share > F(0) else F(1) if share > F(1) else share
        shifted = F(np.floor(np.float64(share) * 252.0 + 12582913.0))  # .rm; numbers near 1.5 * 2^23 are integers
        whole = F(shifted - F(12583039.0))
        fraction = fma32(x[i], F(1.4426950216293335), F(-whole))
        fractions[i] = fma32(x[i], F(1.925963033500011e-08), fraction)
        scales[i] = float32_from_bits(U(U(bits32(shifted)) << U(23)))


_LOG = tuple(
    map(F, (-0.13018856942653656, 0.1408461034297943, -0.1214862763881683, 0.139806106686592, -0.1668423563241959,
            0.2001229971647263, -0.2499966919422150, 0.3333318233489990, -0.5))
)  # fmt: skip


@kernel
def logf(x: Any, out: Any) -> None:
    """Write the natural logarithm as CUDA's logf, a polynomial of fused multiply-adds; arrays are float32."""
    for i in range(x.size):
        small = x[i] < F(2.0**-126)
        number = F(x[i] * F(8388608.0)) if small else x[i]
        word: Any = np.int64(bits32(number)) & 0xFFFFFFFF
        if number == F(0):
            out[i] = F(-np.inf)
        elif word >= _INFINITY:
            out[i] = fma32(number, F(np.inf), F(np.inf))
        else:
            power: Any = np.int64(np.int32(word - 0x3F2AAAAB)) & ~_FRACTION
            f = F(float32_from_bits(U(word - power)) - F(1))
            exponent = fma32(F(power), F(2.0**-23), F(-23) if small else F(0))
            y = fma32(f, _LOG[0], _LOG[1])
            for k in range(2, 9):
                y = fma32(f, y, _LOG[k])
            y = fma32(f, F(f * y), f)
            out[i] = fma32(exponent, F(0.6931471824645996), y)
