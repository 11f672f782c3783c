"""Special functions in norms: the logarithm of PyTorch on CPUs, and functions with a documented error bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice, check_int
from .._values import Value, normalize_fields
from ..order.exact import fma
from ..special.reciprocal import around

Floats = NDArray[np.float32]
_F = np.float32
_LN_2, _LN_2_LOW = _F(0.69314718246459960938), _F(-1.904654323148236017e-09)
_LOG = tuple(map(_F, (0.3027294874, 0.3996108174, 0.6666694880)))
_EXACT: dict[str, Callable[[Any], Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "log": np.log,
    "identity": np.positive,
}  # fmt: skip


class SpecialFunction(Protocol):
    """Monotonic function, applied to arrays [rows, n], such as `lowprec.special.exp2.Exp2`."""

    @property
    def is_published(self) -> bool:
        """Whether the bits of the function are public; if not, results are a substitute within the documented error."""

    def __call__(self, x: Floats) -> Floats:
        """Return the values of the function."""

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the smallest and the largest result that the documentation allows."""


@dataclass(frozen=True, eq=False, repr=False)
class Approximate(Value):
    """A function with a documented error, computed in float64 and rounded to float32 in place of the unknown bits.

    Parameters
    ----------
    function : {"rsqrt", "sqrt", "exp", "exp2", "log", "identity"}
        The function; "identity" for a result, such as a quotient, that is not rounded to the nearest number.
    ulps : int
        Documented error in units in the last place of float32.

    Examples
    --------
    >>> rsqrt = Approximate("rsqrt", 1)
    >>> x = np.array([3.0], np.float32)
    >>> float(rsqrt(x)[0]), [float(y[0]) for y in rsqrt.bounds(x)]
    (0.5773502588272095, [0.5773501992225647, 0.5773503184318542])
    """

    function: Literal["rsqrt", "sqrt", "exp", "exp2", "log", "identity"]
    ulps: int = 2

    is_published = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice("Approximate", "function", self.function, tuple(_EXACT))
        check_int("Approximate", "ulps", self.ulps, 0)

    def __call__(self, x: Floats) -> Floats:
        """Return the function of an array of any shape, rounded to float32."""
        with np.errstate(all="ignore"):
            found: Floats = _EXACT[self.function](x.astype(np.float64)).astype(np.float32)
        return found

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the float32 values `ulps` below and above the rounded result; only ``log`` may be negative."""
        y = self(x)
        low, high = around(np.abs(y), self.ulps)
        if self.function == "log":
            low = np.where(y == 0, -high, low)
        return np.where(y < 0, -high, low), np.where(y < 0, -low, high)


@dataclass(frozen=True, eq=False, repr=False)
class SleefLog(Value):
    """SLEEF's ``logf_u10`` with fused multiply-adds, for finite arguments of at least 2^-126.

    The logarithm of 2^exponent and that of the significand m, 2 atanh((m - 1) / (m + 1)), are both computed as a
    float32 value and its rounding error.

    Examples
    --------
    >>> SleefLog()(np.array([1.0, 3.0], np.float32))
    array([0.       , 1.0986123], dtype=float32)
    """

    is_published = True

    def __call__(self, x: Floats) -> Floats:
        """Return ln x of an array of any shape."""
        exponent = np.frexp(x * _F(1 / 0.75))[1] - 1
        m, exponent = np.ldexp(x, -exponent), exponent.astype(np.float32)
        (top, top_low), (bottom, bottom_low) = _sum(_F(-1), m), _sum(_F(1), m)
        inverse = _F(1) / bottom
        ratio = top * inverse
        error = fma(-bottom_low, inverse, fma(-bottom, inverse, _F(1)))
        ratio_low = fma(ratio, error, fma(top_low, inverse, fma(inverse, top, -ratio)))
        square = ratio * ratio
        series = square * ratio * fma(fma(_LOG[0], square, _LOG[1]), square, _LOG[2])
        high = _LN_2 * exponent
        low = fma(_LN_2_LOW, exponent, fma(_LN_2, exponent, -high))
        total = high + ratio * _F(2)
        low = high - total + ratio * _F(2) + low + ratio_low * _F(2)
        last = total + series
        found: Floats = last + (total - last + series + low)
        return found

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds, because its bits are known."""
        y = self(x)
        return y, y


def _sum(a: Any, b: Floats) -> tuple[Floats, Floats]:
    """Return a sum and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
