"""Special functions of NVIDIA's MUFU unit: a quadratic polynomial in the low bits of the significand, as it computes.

A segment of the significand has coefficients C0, C1 and C2. With x, the bits below those that choose the segment, as a
fraction of 2^17, the unit adds C0 + C1 x + C2 x^2 and drops the bits below the result's last place. The square is the
sum of its partial products without those below 2^-15. Sums are integers in units of 2^-17 of the last place of a
significand of 24 bits. Arrays are one-dimensional; `x` and `out` hold the words of float32 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import kernel

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
        if field == 255 and fraction:
            out[i] = _NAN
        elif field == 0:
            out[i] = sign | _INFINITY
        elif sign:
            out[i] = _NAN
        elif field == 255:
            out[i] = 0
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
        if field == 255 and fraction:
            out[i] = _NAN
        elif field == 0:
            out[i] = sign
        elif sign:
            out[i] = _NAN
        elif field == 255:
            out[i] = _INFINITY
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
        if field == 255 and fraction:
            out[i] = _NAN
        elif field == 0:
            out[i] = _SIGN | _INFINITY
        elif sign:
            out[i] = _NAN
        elif field == 255:
            out[i] = _INFINITY
        elif word == 127 << 23:
            out[i] = 0
        else:
            fixed = (field - 127 << 41) + _interpolate(fraction, 17, table, squares)
            sign = _SIGN if fixed < 0 else 0
            fixed = (-fixed - 1 if fixed < 0 else fixed) >> 5
            top = 0
            while fixed >> top + 1:
                top += 1
            significand = fixed >> top - 23 if top >= 23 else fixed << 23 - top
            out[i] = sign | (top + 90 << 23) + significand if fixed else sign
