"""LogFMT in exact arithmetic: no decision depends on a floating-point logarithm, exponential or root.

The grid value between ``low`` and ``high`` after j of N equal ratios is ``(low^(N-j) high^j)^(1/N)``. A number b is
below it if ``b^N < low^(N-j) high^j``, which integers decide; this determines its nearest float32 number. Sixty decimal
digits, with a bounded error, are used where they are conclusive.
"""

from __future__ import annotations

import bisect
import decimal
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from .values import FLOAT32, decode, encode, exact

LogRounding = Literal["linear", "log"]


class LogGrid(Sequence[Fraction]):
    """Decoded values of all magnitude codes of a tile, computed on demand.

    amin and amax are float32 numbers, 0 < amin <= amax.

    Examples
    --------
    >>> [int(v) for v in LogGrid(1, 64, 4)]
    [0, 1, 2, 4, 8, 16, 32, 64]
    """

    def __init__(self, amin: float | Fraction, amax: float | Fraction, bits: int, octaves: int = 32) -> None:
        self._top = (1 << (bits - 1)) - 1
        self._high = Fraction(amax)
        self._low = max(Fraction(amin), self._high / 2**octaves)
        self._found: dict[int, Fraction] = {}
        with decimal.localcontext(_CONTEXT):
            self._logs = tuple(_decimal(end).ln() for end in (self._low, self._high))

    def __len__(self) -> int:
        return int(self._top + 1)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        if not -len(self) <= k < len(self):
            raise IndexError(k)
        k %= len(self)
        if k not in self._found:
            self._found[k] = self._value(k)
        return self._found[k]

    def _value(self, k: int) -> Fraction:
        if k == 0:
            return Fraction(0)
        if self._low == self._high or k == self._top:
            return self._high
        if k == 1:
            return _float32(encode(self._low, FLOAT32))
        return self._inner(k - 1, self._top - 1)

    def _inner(self, j: int, n: int) -> Fraction:
        """Return the float32 number nearest to low^((n-j)/n) high^(j/n), from 60 digits or, in doubt, from integers."""
        with decimal.localcontext(_CONTEXT):
            value = Fraction(((self._logs[0] * (n - j) + self._logs[1] * j) / n).exp())
        code = encode(value, FLOAT32)
        near = _float32(code)
        neighbour = _float32(code + 1 if value > near else max(code - 1, 0))
        if abs(value - (near + neighbour) / 2) > value * _DOUBT:
            return near
        return _nearest_power(self._low, self._high, j, n)


_CONTEXT = decimal.Context(prec=60)
_DOUBT = Fraction(1, 10**50)  # far above the error of 60 digits


def _decimal(value: Fraction) -> decimal.Decimal:
    return decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator)


def logfmt_grid(amin: float, amax: float, bits: int, octaves: int = 32) -> list[Fraction]:
    """Return the complete `LogGrid`."""
    return list(LogGrid(amin, amax, bits, octaves))


def logfmt_code(x: float | Fraction, grid: Sequence[Fraction], rounding: LogRounding = "linear") -> int:
    """Return the magnitude code of a number: that of the nearest grid value, or of the larger one in a tie.

    With "log", distances are measured between logarithms, for numbers not below the value of code 1. Grid values
    ascend, so the result is one of the number's two neighbours; among codes with equal values it is the last.
    """
    a = abs(Fraction(x))
    below = bisect.bisect_right(grid, a) - 1
    if below == len(grid) - 1:
        return below
    above = bisect.bisect_right(grid, grid[below + 1]) - 1
    if rounding == "linear" or a < grid[1]:
        return above if grid[above] - a <= a - grid[below] else below
    # the distance of a from v is their ratio, larger over smaller
    return above if grid[above] / a <= a / grid[below] else below


def logfmt_tile(
    x: Sequence[float | Fraction], bits: int, octaves: int = 32, rounding: LogRounding = "linear"
) -> tuple[list[int], list[Fraction]]:
    """Return the magnitude codes of a tile of float32 numbers, and the decoded values."""
    magnitudes = [abs(Fraction(v)) for v in x if v != 0]
    if not magnitudes:
        return [0] * len(x), [Fraction(0)] * len(x)
    grid = LogGrid(min(magnitudes), max(magnitudes), bits, octaves)
    codes = [logfmt_code(v, grid, rounding) for v in x]
    return codes, [grid[k] for k in codes]


def _float32(code: int) -> Fraction:
    value = exact(decode(code, FLOAT32))
    assert isinstance(value, Fraction)
    return value


def _nearest_power(low: Fraction, high: Fraction, j: int, n: int) -> Fraction:
    """Return the float32 number nearest to low^((n-j)/n) high^(j/n)."""
    target = _times(_power(low, n - j), _power(high, j))
    # Codes of positive float32 numbers ascend: find the last number that does not exceed the target.
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
    """Return a power of a number with a power-of-two denominator."""
    shift = value.denominator.bit_length() - 1
    twos = (value.numerator & -value.numerator).bit_length() - 1
    return (value.numerator >> twos) ** n, (twos - shift) * n


def _times(a: Dyadic, b: Dyadic) -> Dyadic:
    return a[0] * b[0], a[1] + b[1]


def _exceeds(a: Dyadic, b: Dyadic) -> bool:
    least = min(a[1], b[1])
    return a[0] << (a[1] - least) > b[0] << (b[1] - least)
