"""1/x in float32 as attention kernels compute it: correctly rounded, in place of instructions with a documented bound.

PTX ISA 9.1 bounds ``rcp.approx.f32`` at 1 ulp and ``div.full.f32``, to which ``1.0f / x`` compiles under
``--use_fast_math``, at 2 ulp.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._checks import check_int
from .._values import Value, normalize_fields

Floats = NDArray[np.float32]


class Reciprocal(Value):
    """Base class of functions that compute 1/x of row sums."""

    @property
    @abstractmethod
    def is_published(self) -> bool:
        """Whether the bits are known; if not, a substitute within the documented bound computes them."""

    @abstractmethod
    def __call__(self, x: Floats) -> Floats:
        """Return 1/x of an array of any shape."""

    @abstractmethod
    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the smallest and the largest result that the documentation allows for positive numbers."""

    def divide(self, factor: Floats | np.float32, x: Floats) -> Floats:
        """Return factor / x: the reciprocal times the factor, which rounds twice."""
        return self(x) * factor

    def divide_bounds(self, factor: Floats | np.float32, x: Floats) -> tuple[Floats, Floats]:
        """Return bounds on factor / x for positive numbers x; a negative factor exchanges them."""
        low, high = self.bounds(x)
        return low * factor, high * factor

    @property
    def relative_error(self) -> float:
        """Bound on the relative error by the documentation; inf where no bound is known."""
        return math.inf


@dataclass(frozen=True, eq=False, repr=False)
class RoundedReciprocal(Reciprocal):
    """1/x, correctly rounded to nearest even.

    Parameters
    ----------
    ulps : int
        Documented error of the instruction that it stands in for.
    flush : bool
        Whether subnormal numbers and results count as zero, as in ``rcp.approx.ftz.f32`` and ``div.full.ftz.f32``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([3.0], np.float32)
    >>> RoundedReciprocal()(x), RoundedReciprocal().bounds(x)
    (array([0.33333334], dtype=float32), (array([0.33333328], dtype=float32), array([0.3333334], dtype=float32)))
    """

    ulps: int = 2
    flush: bool = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_int("RoundedReciprocal", "ulps", self.ulps, 0)

    @property
    def is_published(self) -> bool:
        """Whether the function is that of IEEE 754, not a substitute for an instruction."""
        return self.ulps == 0

    @property
    def relative_error(self) -> float:
        """Bound on the relative error: `ulps` from the correctly rounded result, plus its rounding of half an ulp."""
        return (self.ulps + 0.5) * 2.0**-23

    def __call__(self, x: Floats) -> Floats:
        """Return 1/x of an array of any shape."""
        return flushed(np.float32(1) / flushed(x)) if self.flush else np.float32(1) / x

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return numbers `ulps` below and above the rounded result; the lower bound is 0 for x above 2^126."""
        low, high = around(np.float32(1) / x, self.ulps)
        return np.where(x > np.float32(2.0**126), np.float32(0), low), high


def flushed(x: Floats | np.float32) -> Floats:
    """Return an array in which subnormal numbers are zeros of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def around(x: Floats, ulps: int) -> tuple[Floats, Floats]:
    """Return the float32 numbers `ulps` below and above non-negative numbers; NaN and infinities stay.

    Below a power of two, numbers are twice as dense, so the lower number is 2 * `ulps` steps away if it crosses one.

    Examples
    --------
    >>> import numpy as np
    >>> [float(y[0]) - 1 for y in around(np.array([1], np.float32), 2)]
    [-2.384185791015625e-07, 2.384185791015625e-07]
    """
    bits = x.view(np.int32)
    down = np.where((bits & 0x7FFFFF) < ulps, 2 * ulps, ulps)
    fixed = ~np.isfinite(x)
    low, high = np.maximum(bits - down, 0), np.minimum(bits + np.int32(ulps), 0x7F800000)
    return tuple(np.where(fixed, x, y.astype(np.int32).view(np.float32)) for y in (low, high))  # type: ignore[return-value]
