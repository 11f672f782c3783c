"""Differences of two arrays: decibels, relative errors, units in the last place, bits.

All computation is in float64, whatever the input. Where both arrays have the same NaN or infinity there is no error;
any other NaN or infinity counts as an infinite error. Zeros of different sign are equal values with different bits.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._arrays import positive, real_numbers
from lowprec._ieee import standard
from lowprec._show import table

Wide = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: one field per measure.

    Attributes
    ----------
    sqnr : float
        Signal to quantization noise ratio, dB; inf if no value differs.
    relative_rms, relative_max : float
        Root mean square and maximum of ``|a - r| / |r|`` over the elements where r is not 0.
    norm_error : float
        ``||a - r|| / ||r||`` of the whole arrays.
    absolute_max : float
        Largest ``|a - r|``.
    ulp_max : float
        Largest distance in float32 units in the last place.
    equal_bits : float
        Share of elements with the same float32 bits (all NaN count as equal).
    underflow : float
        Share of nonzero reference elements that became 0.
    magnitude_bias : float
        ``mean |a| / mean |r| - 1``.
    calc_diff : float
        1 - 2 sum(a r) / sum(a^2 + r^2), the measure of DeepGEMM's tests.

    Examples
    --------
    >>> row = compare([1.0, 2.0, 0.0], [1.0, 2.5, 1e-9])
    >>> row.absolute_max, row.underflow, list(row.as_dict())[:2]
    (0.5, 0.3333333333333333, ['sqnr', 'relative_rms'])
    """

    sqnr: float
    relative_rms: float
    relative_max: float
    norm_error: float
    absolute_max: float
    ulp_max: float
    equal_bits: float
    underflow: float
    magnitude_bias: float
    calc_diff: float

    def as_dict(self) -> dict[str, float]:
        """Return the fields as a dictionary, one row of a table."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        return (
            f"Comparison({self.sqnr:.2f} dB, relative error rms {self.relative_rms:.3g} max {self.relative_max:.3g},"
            f" {100 * self.equal_bits:.4g} % equal bits, up to {self.ulp_max:.6g} ulp,"
            f" {100 * self.underflow:.3g} % underflow, magnitude bias {self.magnitude_bias:+.2e})"
        )

    def _repr_html_(self) -> str:
        return table([(name, f"{value:.6g}") for name, value in self.as_dict().items()], title="Comparison")


@standard
def compare(a: npt.ArrayLike, reference: npt.ArrayLike) -> Comparison:
    """Compare an array with a reference.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers; bits and units in the last place are those of their float32 values.

    Returns
    -------
    Comparison
        All measures of this module.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> r = np.linspace(1, 2, 1000, dtype=np.float32)
    >>> compare(r * np.float32(1.001), r)
    Comparison(60.00 dB, relative error rms 0.001 max 0.001, 0 % equal bits, up to 16761 ulp, 0 % underflow,
    magnitude bias +1.00e-03)
    """
    x, r = _pair(a, reference)
    relative = _relative(x, r)
    return Comparison(
        sqnr=_sqnr(x, r),
        relative_rms=_rms(relative),
        relative_max=float(relative.max(initial=0.0)),
        norm_error=_ratio(_norm(_error(x, r)), _norm(r[np.isfinite(r)])),
        absolute_max=float(np.abs(_error(x, r)).max(initial=0.0)),
        ulp_max=float(ulp_difference(x, r).max(initial=0.0)),
        equal_bits=equal_bits(x, r),
        underflow=underflow(x, r),
        magnitude_bias=magnitude_bias(x, r),
        calc_diff=calc_diff(x, r),
    )


@standard
def sqnr(a: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return 10 log10(sum r^2 / sum (a - r)^2), the signal to quantization noise ratio in dB.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float
        Ratio in dB: inf if no value differs, -inf if an error is infinite or the reference is all zeros.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> round(sqnr([1.0, 2.01], [1.0, 2.0]), 2)
    46.99
    """
    return _sqnr(*_pair(a, reference))


def relative_error(a: npt.ArrayLike, reference: npt.ArrayLike) -> Wide:
    """Return ``|a - r| / |r|`` of each element: NaN where only r is 0, 0 where both are.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float64 array of that shape
        Relative errors.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> relative_error([1.5, 0.0, 0.0], [1.0, 0.0, 4.0])
    array([0.5, 0. , 1. ])
    """
    x, r = _pair(a, reference)
    error = np.abs(_error(x, r))
    size = np.abs(r)
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = np.asarray(error / size)
    quotient[error == 0] = 0.0
    quotient[(size == 0) & (error != 0)] = np.nan
    quotient[~np.isfinite(size) & (error != 0)] = np.inf
    return quotient


def ulp_difference(a: npt.ArrayLike, reference: npt.ArrayLike) -> Wide:
    """Return the distance of two values in float32 numbers: 0 if they are equal, 1 if they are neighbours.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers, rounded to float32 first. +0 and -0 count as equal.

    Returns
    -------
    float64 array of that shape
        Integers; inf where only one of the two is NaN, 0 where both are.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> ulp_difference(np.float32([1, 0.0]), np.float32([1 + 2**-22, -(2.0**-149)]))
    array([2., 1.])
    """
    x, r = _pair(a, reference)
    distance = np.asarray(np.abs(_place(x) - _place(r)).astype(np.float64))
    nan_x, nan_r = np.isnan(x), np.isnan(r)
    distance[nan_x | nan_r] = np.inf
    distance[nan_x & nan_r] = 0.0
    return distance


def equal_bits(a: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the share of elements that are the same float32 number, sign of zero included; NaN equals NaN.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float
        Share in [0, 1]; 0 for empty arrays.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> equal_bits([0.0, 1.0, np.nan, 2.0], [-0.0, 1.0, np.nan, 2.0])
    0.75
    """
    x, r = _pair(a, reference)
    same = _narrow(x).view(np.uint32) == _narrow(r).view(np.uint32)
    return _share(same | (np.isnan(x) & np.isnan(r)))


def underflow(a: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the share of the nonzero elements of the reference that are 0 in `a`.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float
        Share in [0, 1]; 0 if the reference is all zeros.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> underflow([0.0, 0.0, 1.0], [0.0, 1e-9, 1.0])
    0.5
    """
    x, r = _pair(a, reference)
    return _share(x[r != 0] == 0)


def saturation(a: npt.ArrayLike, reference: npt.ArrayLike, limit: float) -> float:
    """Return the share of elements that saturated: the reference is beyond a limit, and `a` is at it.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.
    limit : float
        Largest magnitude of the format, 448 for e4m3fn.

    Returns
    -------
    float
        Share in [0, 1]; 0 for empty arrays.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> saturation([448.0, 448.0, 3.0], [500.0, 448.0, 3.0], limit=448.0)
    0.3333333333333333
    """
    x, r = _pair(a, reference)
    limit = positive("saturation", "limit", limit, zero=True)
    return _share((np.abs(r) > limit) & (np.abs(x) == limit))


def magnitude_bias(a: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return ``mean |a| / mean |r| - 1``: whether a rounding shrinks or grows magnitudes on average.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float
        Bias, negative if magnitudes shrink; infinities and NaN of the reference are left out.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> magnitude_bias([0.5, -3.0], [1.0, -3.0])
    -0.125
    """
    x, r = _pair(a, reference)
    finite = np.isfinite(r)
    return _ratio(float(np.abs(x[finite]).sum() - np.abs(r[finite]).sum()), float(np.abs(r[finite]).sum()))


def gain_bias(a: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return sum(a r) / sum(r^2) - 1: the gain error, by how much values are amplified on average.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float
        Gain error, negative if values shrink; elements that are not finite in both are left out.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> gain_bias([0.5, -3.0], [1.0, -3.0])
    -0.05
    """
    x, r = _pair(a, reference)
    finite = np.isfinite(r) & np.isfinite(x)
    with np.errstate(over="ignore", invalid="ignore"):
        power, common = float((r[finite] ** 2).sum()), float((x[finite] * r[finite]).sum())
    return _ratio(common - power, power)


def calc_diff(a: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return 1 - 2 sum(a r) / sum(a^2 + r^2), the acceptance measure of DeepGEMM's tests.

    Parameters
    ----------
    a, reference : array_like of one shape
        Real numbers.

    Returns
    -------
    float
        Difference: 0 for equal arrays, NaN if one of them is not finite.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> calc_diff([1.0, 0.0], [1.0, 1.0])
    0.33333333333333337
    """
    x, r = _pair(a, reference)
    with np.errstate(over="ignore", invalid="ignore"):
        total, common = float((x * x + r * r).sum()), float((x * r).sum())
    return 1.0 - 2.0 * common / total if total else 0.0


def as_wide(name: str, x: npt.ArrayLike) -> Wide:
    """Return an array as float64 in C order; errors name the calling function.

    C order determines the order of NumPy's sums: a transposed view could have another last bit.
    """
    return real_numbers(name, x).astype(np.float64, order="C")


def _pair(a: npt.ArrayLike, reference: npt.ArrayLike) -> tuple[Wide, Wide]:
    x, r = as_wide("compare", a), as_wide("compare", reference)
    if x.shape != r.shape:
        raise ValueError(f"compare: shapes differ: {x.shape} against a reference of {r.shape}")
    return x, r


def _error(x: Wide, r: Wide) -> Wide:
    """Return a - r; 0 where both are the same infinity or NaN, inf where only one is finite or they differ."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.asarray(x - r)
        same = (x == r) | (np.isnan(x) & np.isnan(r))
    error[same] = 0.0
    error[np.isnan(error)] = np.inf
    return error


def _relative(x: Wide, r: Wide) -> Wide:
    return np.asarray(relative_error(x, r)[r != 0])


def _sqnr(x: Wide, r: Wide) -> float:
    noise, signal = _norm(_error(x, r)), _norm(r[np.isfinite(r)])
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 20 * (math.log10(signal) - math.log10(noise))


def _norm(x: Wide) -> float:
    """Return the Euclidean norm, scaled so that no square overflows or underflows."""
    largest: float = float(np.abs(x).max(initial=0.0))
    if largest == 0 or largest == math.inf:
        return largest
    scaled = x / largest
    return largest * math.sqrt(float((scaled * scaled).sum()))


def _rms(x: Wide) -> float:
    return _norm(x) / math.sqrt(max(1, x.size))


def _narrow(x: Wide) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(np.float32))


def _place(x: Wide) -> npt.NDArray[np.int64]:
    """Return the rank of each float32 value in their order, both zeros being 0."""
    bits = _narrow(x).view(np.int32).astype(np.int64)
    return np.asarray(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))


def _share(flags: Any) -> float:
    return float(np.mean(flags)) if flags.size else 0.0


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else (0.0 if numerator == 0 else math.inf)
