"""2**x in float32 as attention kernels compute it: correctly rounded, by a published polynomial, or by both.

NVIDIA has not published the bits of MUFU.EX2, which implements ``ex2.approx.ftz.f32``; PTX ISA 9.1 bounds its
error at 2 ulp from the correctly rounded result. `RoundedExp2` stands in for it, and `Exp2.bounds` has the bound.
FlashAttention-4 computes part of the elements with a polynomial that is public: `PolynomialExp2`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._checks import check_int
from .._values import Value, normalize_fields
from ..kernels import attn as kernels
from .reciprocal import around

Floats = NDArray[np.float32]
_ULPS, _LEAST_NORMAL, LN_2 = 2, np.float32(2.0**-126), np.float32(math.log(2))


class Exp2(Value):
    """Base class of functions that compute 2**x for a tile of scores."""

    #: Whether the function is e**x, so that no factor log2(e) is part of the scale.
    is_natural = False

    @property
    @abstractmethod
    def is_published(self) -> bool:
        """Whether the hardware's bits are public; if not, a substitute within the documented bound computes them."""

    @abstractmethod
    def __call__(self, x: Floats) -> Floats:
        """Return 2**x of a tile [rows, keys], C-contiguous; the column decides which instruction computes a number."""

    @abstractmethod
    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the smallest and the largest result that the documentation allows; equal where the result is known.

        Results for zeros, infinities and NaN are documented exactly.
        """

    @property
    def relative_error(self) -> float:
        """Documented bound on the relative error of normal results; inf if no bound is known."""
        return math.inf

    def factors(self, growth: Floats) -> Floats:
        """Return the factors [M] by which rows are rescaled."""
        return self(growth[:, None])[:, 0]

    def factor_bounds(self, growth: Floats) -> tuple[Floats, Floats]:
        """Return bounds on the factors [M]."""
        low, high = self.bounds(growth[:, None])
        return low[:, 0], high[:, 0]

    def log2(self, x: Floats) -> Floats:
        """Return log2 of sums [M], correctly rounded."""
        out = np.empty_like(x)
        kernels.log2(x, out)
        return out

    def log(self, x: Floats) -> Floats:
        """Return the natural logarithms of sums [M]: log2 times ln 2, both rounded."""
        return self.log2(x) * LN_2


@dataclass(frozen=True, eq=False, repr=False)
class RoundedExp2(Exp2):
    """2**x, correctly rounded to nearest even.

    Parameters
    ----------
    flush : bool
        Whether subnormal results become zero, as those of ``ex2.approx.ftz.f32``.

    Examples
    --------
    >>> import numpy as np
    >>> RoundedExp2()(np.array([[0.5, -126.5]], np.float32))
    array([[1.4142135, 0.       ]], dtype=float32)
    """

    flush: bool = True

    def __post_init__(self) -> None:
        normalize_fields(self)

    @property
    def is_published(self) -> bool:
        """False, because the results of the hardware instruction are not published bit for bit."""
        return False

    @property
    def relative_error(self) -> float:
        """Bound on the relative error: 2 ulp from the correctly rounded result, plus its rounding of half an ulp."""
        return (_ULPS + 0.5) * 2.0**-23

    def __call__(self, x: Floats) -> Floats:
        """Return 2**x of an array of any shape."""
        out = np.empty_like(x)
        kernels.exp2(x.reshape(-1), out.reshape(-1), self.flush)
        return out

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return numbers 2 ulp below and above the correctly rounded result; subnormal ones become zero if `flush`."""
        rounded = self.with_(flush=False)(x)
        known = (np.abs(x) < _LEAST_NORMAL) | ~np.isfinite(x)  # subnormal inputs are flushed: 2**0
        found = [np.where(known, rounded, y) for y in around(rounded, _ULPS)]
        if self.flush:
            found = [np.where(y < _LEAST_NORMAL, np.float32(0), y) for y in found]
        return found[0], found[1]


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialExp2(Exp2):
    """2**x by a polynomial in the fraction of x, evaluated by fused multiply-adds in Horner's scheme.

    x below -127 is replaced by -127. The floor of x is added to the exponent bits of the polynomial's value, unchecked.

    Parameters
    ----------
    coefficients : tuple of float
        Coefficients of rising powers, rounded to float32.
    period, emulated : int
        In every `period` consecutive columns of a fragment, the last `emulated` ones use the polynomial, the others
        `RoundedExp2`; both columns of a pair use the same. With ``emulated = period``, all use the polynomial.
    first_fragment : int
        Fragments before this one, and the last one of a tile, do not use the polynomial, unless ``emulated = period``.
    fragment : int
        Number of columns of a fragment.
    source : str
        Reference for the constants.

    Examples
    --------
    >>> import numpy as np
    >>> PolynomialExp2((1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625))(
    ...     np.array([[0.5, -1.0]], np.float32)
    ... )
    array([[1.414104, 0.5     ]], dtype=float32)
    """

    coefficients: tuple[float, ...]
    period: int = 1
    emulated: int = 1
    first_fragment: int = 0
    fragment: int = 32
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = type(self).__name__
        for name, low in (("period", 1), ("emulated", 0), ("first_fragment", 0), ("fragment", 1)):
            check_int(caller, name, getattr(self, name), low)
        if not self.coefficients:
            raise ValueError(f"{caller}: coefficients must be at least one number, got ()")

    @property
    def is_published(self) -> bool:
        """Whether every column uses the polynomial."""
        return self.emulated >= self.period

    @functools.cached_property
    def relative_error(self) -> float:
        """Bound on the relative error: that of the polynomial, and the roundings of Horner's scheme."""
        own, step = np.array(self.coefficients, np.float32).astype(np.float64), 2.0**-16
        x, sizes = np.arange(0, 1 + step, step), np.abs(own)
        error = np.abs(np.polynomial.Polynomial(own)(x) / np.exp2(x) - 1)
        slope = float((np.arange(len(sizes)) * sizes).sum() + sizes.sum())
        rounding = 2 * len(sizes) * 2.0**-24 * float(sizes.sum())
        found = float(error.max()) + slope * step / 2 + rounding
        return found if self.is_published else max(found, RoundedExp2().relative_error)

    def chosen(self, columns: int) -> NDArray[np.bool_]:
        """Return which columns of a tile use the polynomial."""
        if self.is_published:
            return np.ones(columns, bool)
        column = np.arange(columns)
        fragment, place = np.divmod(column, self.fragment)
        place -= place % 2
        last = -(-columns // self.fragment) - 1
        inside = (fragment >= self.first_fragment) & (fragment < last)
        return inside & (place % self.period >= self.period - self.emulated)

    def __call__(self, x: Floats) -> Floats:
        """Return 2**x of a tile [rows, keys]."""
        out = np.empty_like(x) if self.is_published else RoundedExp2()(x)
        kernels.exp2_polynomial(x, np.array(self.coefficients, np.float32), self.chosen(x.shape[1]), out)
        return out

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return lower and upper bounds; both are the polynomial's value in the columns that use it."""
        out = self(x)
        low, high = RoundedExp2().bounds(x)
        chosen = self.chosen(x.shape[1])
        return np.where(chosen, out, low), np.where(chosen, out, high)
