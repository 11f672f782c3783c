"""LogFMT by looking at every code, in exact rational arithmetic: no logarithm, no exponential, no root.

The grid's value between ``low`` and ``high`` after j of N equal ratios is ``(low^(N-j) high^j)^(1/N)``. Whether a
number b lies below it is ``b^N < low^(N-j) high^j``, which integers decide; so its nearest float32 number is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from .values import FLOAT32, decode, encode, exact

LogRounding = Literal["linear", "log"]


def logfmt_grid(amin: float, amax: float, bits: int, octaves: int = 32) -> list[Fraction]:
    """Return what the magnitude codes 0 .. K of a tile decode to; amin and amax are float32 numbers, 0 < amin <= amax.

    Examples
    --------
    >>> [int(v) for v in logfmt_grid(1, 64, 4)]
    [0, 1, 2, 4, 8, 16, 32, 64]
    """
    top = 2 ** (bits - 1) - 1
    high = Fraction(amax)
    low = max(Fraction(amin), high / 2**octaves)
    if low == high:
        return [Fraction(0)] + [high] * top
    inner = [_nearest_power(low, high, j, top - 1) for j in range(1, top - 1)]
    return [Fraction(0), _float32(encode(low, FLOAT32)), *inner, high]


def logfmt_code(x: float, grid: Sequence[Fraction], rounding: LogRounding = "linear") -> int:
    """Return the magnitude code of a number: the nearest value of the grid, of two equally near the larger.

    With "log", nearness is that of logarithms, for numbers that are not below code 1.
    """
    a = abs(Fraction(x))
    if rounding == "linear" or a < grid[1]:
        return min(range(len(grid)), key=lambda k: (abs(grid[k] - a), -k))
    # a is as near to v as their ratio, the larger over the smaller, is to 1.
    return min(range(1, len(grid)), key=lambda k: (max(a / grid[k], grid[k] / a), -k))


def logfmt_tile(
    x: Sequence[float], bits: int, octaves: int = 32, rounding: LogRounding = "linear"
) -> tuple[list[int], list[Fraction]]:
    """Return the magnitude codes of a tile of float32 numbers, and what they decode to."""
    magnitudes = [abs(Fraction(v)) for v in x if v != 0]
    if not magnitudes:
        return [0] * len(x), [Fraction(0)] * len(x)
    grid = logfmt_grid(float(min(magnitudes)), float(max(magnitudes)), bits, octaves)
    codes = [logfmt_code(v, grid, rounding) for v in x]
    return codes, [grid[k] for k in codes]


def _float32(code: int) -> Fraction:
    value = exact(decode(code, FLOAT32))
    assert isinstance(value, Fraction)
    return value


def _nearest_power(low: Fraction, high: Fraction, j: int, n: int) -> Fraction:
    """Return the float32 number nearest to low^((n-j)/n) high^(j/n)."""
    target = _times(_power(low, n - j), _power(high, j))
    # The codes of positive float32 numbers ascend: look for the last whose number does not exceed the target.
    first, end = encode(low, FLOAT32) - 1, encode(high, FLOAT32) + 1
    while end - first > 1:
        middle = (first + end) // 2
        if _exceeds(_power(_float32(middle), n), target):
            end = middle
        else:
            first = middle
    below, above = _float32(first), _float32(first + 1)
    half = (below + above) / 2
    return below if _exceeds(_power(half, n), target) else above


Dyadic = tuple[int, int]  # m, e for m * 2^e


def _power(value: Fraction, n: int) -> Dyadic:
    """Return a power of a number whose denominator is a power of two."""
    shift = value.denominator.bit_length() - 1
    twos = (value.numerator & -value.numerator).bit_length() - 1
    return (value.numerator >> twos) ** n, (twos - shift) * n


def _times(a: Dyadic, b: Dyadic) -> Dyadic:
    return a[0] * b[0], a[1] + b[1]


def _exceeds(a: Dyadic, b: Dyadic) -> bool:
    least = min(a[1], b[1])
    return a[0] << (a[1] - least) > b[0] << (b[1] - least)
