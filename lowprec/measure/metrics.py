"""Differences of two arrays: decibels, relative errors, units in the last place, bits.

All computation is in float64, whatever the input. Where both arrays have the same NaN or infinity there is no error;
any other NaN or infinity counts as an infinite error. Zeros of different sign are equal values with different bits.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lowprec._checks import check_positive
from lowprec._fpenv import with_default_fpenv

from .pairs import Wide, errors, narrow, norm, pair, place, ratio, share


@with_default_fpenv
def sqnr(actual: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return 10 log10(sum r^2 / sum (a - r)^2), the signal to quantization noise ratio in dB.

    Parameters
    ----------
    actual, reference : array_like of one shape
        Real numbers a and r.

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
    x, r = pair(actual, reference)
    noise, signal = norm(errors(x, r)), norm(r[np.isfinite(r)])
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 20 * (math.log10(signal) - math.log10(noise))


def relative_error(actual: npt.ArrayLike, reference: npt.ArrayLike) -> Wide:
    """Return ``|a - r| / |r|`` of each element: NaN where only r is 0, 0 where both are.

    Parameters
    ----------
    actual, reference : array_like of one shape
        Real numbers a and r.

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
    x, r = pair(actual, reference)
    error = np.abs(errors(x, r))
    size = np.abs(r)
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = np.asarray(error / size)
    quotient[error == 0] = 0.0
    quotient[(size == 0) & (error != 0)] = np.nan
    quotient[~np.isfinite(size) & (error != 0)] = np.inf
    return quotient


def ulp_difference(actual: npt.ArrayLike, reference: npt.ArrayLike) -> Wide:
    """Return the distance between elements, counted in float32 numbers: 0 for equal ones, 1 for neighbours.

    Parameters
    ----------
    actual, reference : array_like of one shape
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
    x, r = pair(actual, reference)
    distance = np.asarray(np.abs(place(x) - place(r)).astype(np.float64))
    nan_x, nan_r = np.isnan(x), np.isnan(r)
    distance[nan_x | nan_r] = np.inf
    distance[nan_x & nan_r] = 0.0
    return distance


def bit_match_fraction(actual: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the share of elements that are the same float32 number, sign of zero included; NaN equals NaN.

    Parameters
    ----------
    actual, reference : array_like of one shape
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
    >>> bit_match_fraction([0.0, 1.0, np.nan, 2.0], [-0.0, 1.0, np.nan, 2.0])
    0.75
    """
    x, r = pair(actual, reference)
    same = narrow(x).view(np.uint32) == narrow(r).view(np.uint32)
    return share(same | (np.isnan(x) & np.isnan(r)))


def underflow(actual: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the share of the nonzero elements of the reference that are 0 in `actual`.

    Parameters
    ----------
    actual, reference : array_like of one shape
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
    x, r = pair(actual, reference)
    return share(x[r != 0] == 0)


def saturation(actual: npt.ArrayLike, reference: npt.ArrayLike, limit: float) -> float:
    """Return the share of elements that saturated: `reference` exceeds a limit in magnitude, and `actual` equals it.

    Parameters
    ----------
    actual, reference : array_like of one shape
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
    x, r = pair(actual, reference)
    limit = check_positive("saturation", "limit", limit, zero=True)
    return share((np.abs(r) > limit) & (np.abs(x) == limit))


def magnitude_bias(actual: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return ``mean |a| / mean |r| - 1``: whether a rounding shrinks or grows magnitudes on average.

    Parameters
    ----------
    actual, reference : array_like of one shape
        Real numbers a and r.

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
    x, r = pair(actual, reference)
    finite = np.isfinite(r)
    return ratio(float(np.abs(x[finite]).sum() - np.abs(r[finite]).sum()), float(np.abs(r[finite]).sum()))


def gain_error(actual: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the gain error sum(a r) / sum(r^2) - 1, which is the relative amplification of values on average.

    Parameters
    ----------
    actual, reference : array_like of one shape
        Real numbers a and r.

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
    >>> gain_error([0.5, -3.0], [1.0, -3.0])
    -0.05
    """
    x, r = pair(actual, reference)
    finite = np.isfinite(r) & np.isfinite(x)
    with np.errstate(over="ignore", invalid="ignore"):
        power, common = float((r[finite] ** 2).sum()), float((x[finite] * r[finite]).sum())
    return ratio(common - power, power)


def calc_diff(actual: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return 1 - 2 sum(a r) / sum(a^2 + r^2), the acceptance measure of DeepGEMM's tests.

    Parameters
    ----------
    actual, reference : array_like of one shape
        Real numbers a and r.

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
    x, r = pair(actual, reference)
    with np.errstate(over="ignore", invalid="ignore"):
        total, common = float((x * x + r * r).sum()), float((x * r).sum())
    return 1.0 - 2.0 * common / total if total else 0.0
