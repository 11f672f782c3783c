"""`Tolerance`: bounds and expected errors of a result, and tests of results against them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_real, check_shape
from .._checks import check_real
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..format.catalogue import Format, formats
from ..scaling.quantized import Quantized
from .checksum import Values, half_ulp
from .likelihood import LEAST_P, MARGIN, Model, quantile, tail
from .product import Errors, Product
from .verdict import AtolRtol, BitsEqual, Impossible, Inside, Unlike, Verdict

Flags = NDArray[np.bool_]
#: Function that returns the name of the fault that explains a rejected result, or "".
Namer = Callable[[Any, Values, Values], str]


@dataclass(frozen=True, eq=False, repr=False)
class Tolerance:
    """Bounds and expected errors of the results of an arithmetic on given operands; see `lowprec.tolerance`.

    Attributes
    ----------
    exact : float64 array
        Result without rounding, within 2^-50 of the sum of magnitudes.
    bound : float64 array
        Proven bound on the error of a result in its format; inf where a sum may overflow.
    low, high : float64 arrays
        Smallest and largest possible results.
    expected : float64 array
        Root mean square errors by the model of independent roundings, scaled to the errors of the samples.
    bias : float
        Gain error of the emulation; negative if truncation makes magnitudes smaller.
    samples : tuple of float
        Root mean square errors of the emulation and of each sampled order, relative to the model before scaling.
    out_format : Format
        Format of a result.
    products : tuple of Product
        Products, one per accumulator; empty if the result is not a product.
    """

    exact: Values
    bound: Values
    low: Values
    high: Values
    expected: Values
    bias: float
    samples: tuple[float, ...]
    out_format: Format
    products: tuple[Product, ...]
    _rtol: float
    _results: tuple[NDArray[np.float32], ...]
    _model: Model
    _name: Namer | None
    _addend: tuple[Values, float] | None

    @classmethod
    def of(
        cls,
        errors: Errors,
        target: Format,
        wide: Sequence[NDArray[np.float32]],
        results: Sequence[NDArray[np.float32]],
        *,
        products: tuple[Product, ...] = (),
        name: Namer | None = None,
        rtol: float | None = None,
        addend: Values | None = None,
    ) -> Tolerance:
        """Return the tolerance of results with bounded errors before they are rounded to a format.

        Parameters
        ----------
        errors : Errors
            Exact result, bound and variance of its error before its last rounding.
        target : Format
            Format of a result.
        wide : sequence of float32 arrays
            Results before the last rounding: the emulation's, then those of sampled orders.
        results : sequence of float32 arrays
            Emulated results in the format `target`.
        products : tuple of Product
            See `Tolerance`.
        name : callable, optional
            See `Namer`.
        rtol : float, optional
            Value of rtol for `Tolerance.atol_rtol`; default: half an ulp of the format.
        addend : float64 array, optional
            Known part of the result. Errors proportional to it show that it is missing or wrongly scaled.
        """
        exact, most, variance = errors
        judged = np.isfinite(exact) & np.isfinite(most)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scores = [_mean(np.sqrt(np.nan_to_num(np.square(d - exact) / variance)[judged])) for d in wide]
            margin = MARGIN * max(scores) / max(float(np.median(scores)), 1e-300) if judged.any() else 1.0
            scale = np.sqrt(variance) * (max(scores) * margin if judged.any() else 1.0)
            relative = [np.nan_to_num((d - exact) / scale)[judged] for d in wide]
            # Rounding to a saturating format would make infinite bounds finite.
            unknown = np.isfinite(exact) & np.isinf(most)
            low, high = (
                np.where(
                    unknown, sign * np.inf, round_to(np.where(np.isinf(exact), exact, exact + sign * most), target)
                )
                for sign in (-1, 1)
            )
            rounding = half_ulp(target) * np.abs(exact) / math.sqrt(3) * (not target.same_codes(formats["float32"]))
            error, size = (wide[0] - exact)[judged], exact[judged]
            bound = np.maximum(high - exact, exact - low)
        power = float(np.square(size).sum())
        bias = float((error * size).sum()) / power if power else 0.0
        signs = np.sign(exact[judged])
        tails = max(float(np.abs(z).max(initial=0.0)) for z in relative) / quantile(1 / max(exact.size, 2))
        drift = max(abs(float((z * signs).mean())) if z.size else 0.0 for z in relative)
        expected = np.hypot(scale, rounding)
        along = None
        if addend is not None:
            along = addend, max(abs(_along(d - exact, addend, expected)) for d in wide)
        return cls(
            exact, np.where(np.isnan(exact), np.nan, bound), low, high, expected, bias, tuple(scores),
            target, products, half_ulp(target) if rtol is None else rtol, tuple(results),
            Model(scale, max(tails, 1.0), drift), name, along,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<Tolerance of shape {self.exact.shape}: bound up to {_largest(self.bound):.3g}, "
            f"expected rms error {_mean(self.expected):.3g}, gain error {self.bias:+.2g}>"
        )

    @with_default_fpenv
    def test(self, got: ArrayLike | Quantized, *, name_faults: bool = True) -> Verdict:
        """Judge a result.

        Parameters
        ----------
        got : array_like or Quantized
            Result to judge: values of the format `out_format`, of the shape of `exact`; a `Quantized` is dequantized.
        name_faults : bool
            Whether to search for the fault that explains a result that is not accepted.

        Returns
        -------
        Verdict
            `BitsEqual` or `Inside` if the result is accepted, `Unlike` or `Impossible` if not; classes of
            `lowprec.testing`.

        Raises
        ------
        ValueError
            If the shape is not that of `exact`, or a value is not representable in `out_format`.
        """
        d = self._checked(got)
        if not d.size or any(np.array_equal(d, result, equal_nan=True) for result in self._results):
            return BitsEqual()
        outside, finite = self._outside(d)
        rows = (-1, d.shape[-1] if d.ndim else 1)
        p, z = self._model.probability(d.reshape(rows), self.exact.reshape(rows), finite.reshape(rows), self.out_format)
        if self._addend is not None:
            addend, usual = self._addend
            more = abs(_along(np.where(finite, d - self.exact, 0.0), addend, self.expected)) - usual
            p = min(p, 2 * tail(max(more, 0.0) / MARGIN))
        ranked = np.where(outside, np.inf, z.reshape(d.shape))
        worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(ranked)), d.shape))
        with np.errstate(invalid="ignore"):
            error = float(abs(d[worst] - self.exact[worst]))
        found: dict[str, Any] = {"worst": worst, "error": error, "allowed": float(self.bound[worst]), "p": p}
        if p > LEAST_P and not outside.any():
            return Inside(**found)
        cause = self._name(got, self.expected, d) if name_faults and self._name is not None else ""
        if outside.any():
            return Impossible(**found, cause=cause, outside=int(outside.sum()))
        return Unlike(**found, cause=cause)

    def atol_rtol(self, probability: float = 0.0) -> AtolRtol:
        """Return the smallest atol and rtol that accept every correct result.

        Parameters
        ----------
        probability : float
            Probability in [0, 1) that a correct result is rejected, by the model of independent roundings; 0: the
            proven bound.

        Raises
        ------
        ValueError
            If the probability is not in [0, 1).
        """
        probability = check_real("atol_rtol", "probability", probability)
        if not 0 <= probability < 1:
            raise ValueError(f"atol_rtol: probability must be in [0, 1), got {probability:g}")
        size = self._rtol * np.abs(self.exact)
        allowed = self.bound
        if probability > 0:
            likely = quantile(probability / max(self.exact.size, 1)) * self._model.scale + size
            allowed = np.fmin(likely, self.bound)
        left = np.where(np.isfinite(allowed), allowed - size, 0.0)
        return AtolRtol(float(np.max(left, initial=0.0)), self._rtol, probability)

    # --- parts of a test ----------------------------------------------------------------------------------------------

    def _checked(self, got: ArrayLike | Quantized) -> Values:
        d = as_real("tolerance: got", got.dequantize() if isinstance(got, Quantized) else got).astype(np.float64)
        check_shape("tolerance", "got", d, self.exact.shape)
        wrong = np.isfinite(d) & (round_to(d, self.out_format) != d)
        if wrong.any():
            raise ValueError(
                f"tolerance: got must hold values of out_format={self.out_format}, got {int(wrong.sum())} other "
                f"values, such as {float(d[wrong][0])!r}"
            )
        return d

    def _outside(self, d: Values) -> tuple[Flags, Flags]:
        """Return masks of the outputs that are impossible, and of those that are judged by the size of their errors."""
        judged = np.isfinite(self.bound) & np.isfinite(self.exact)
        infinite = np.isinf(self.low) & (self.low == self.high)
        with np.errstate(invalid="ignore"):
            places = (np.isnan(self.exact) & ~np.isnan(d)) | (infinite & ~((d == self.low) | np.isnan(d)))
            beyond = judged & ~((d >= self.low) & (d <= self.high))
        return places | beyond, judged & np.isfinite(d)


def _along(error: Values, addend: Values, expected: Values) -> float:
    """Return the component of the errors along an addend, in standard deviations of independent errors."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        direction, z = (np.nan_to_num(x / expected, nan=0.0, posinf=0.0, neginf=0.0) for x in (addend, error))
        length = float(np.sqrt(np.square(direction).sum()))
        return float((z * direction).sum()) / length if 0 < length < np.inf else 0.0


def _largest(x: Values) -> float:
    return float(np.max(x[np.isfinite(x)], initial=0.0))


def _mean(x: Values) -> float:
    finite = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.square(finite).mean())) if finite.size else 0.0
