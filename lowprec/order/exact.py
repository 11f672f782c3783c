"""Sums and multiply-adds with a single rounding, in NumPy, and variants that flush subnormals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..cast.casts import round_to
from ..format.catalogue import formats

Array = NDArray[Any]
Floats = NDArray[np.float32]
_SPLITTER = 134217729.0  # 2^27 + 1 splits the 53 bits of a float64 in two (Veltkamp)
_LEAST_NORMAL = np.float32(2.0**-126)
_LARGE, _SMALL = 2.0**480, 2.0**-480  # the parts of products of factors between them neither overflow nor underflow


def cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers rounded once to a dtype.

    ml_dtypes itself rounds float64 and integers twice, to float32 and then to bfloat16.
    """
    if dtype.name == "bfloat16" and x.dtype.itemsize > 2 and x.dtype != np.float32:
        x = round_to(x, formats["bfloat16"], policy="ieee")
    return x.astype(dtype)


def exact_sum(columns: Sequence[Array], dtype: np.dtype[Any], from_zero: bool) -> Array:
    """Return the exact sums of columns [n, width], or of their products, each rounded once to a dtype.

    With `from_zero`, the sum of -0 is +0.

    Raises
    ------
    ValueError
        If float64 does not represent the products exactly.
    """
    if len(columns) == 2 and columns[0].dtype.itemsize == 8:
        raise ValueError("Order.dot: dtype must be 'float32' or narrower where sums are exact, got 'float64'")
    terms = columns[0].astype(np.float64)
    if len(columns) == 2:
        terms *= columns[1].astype(np.float64)
    rounded = np.array([_rounded_sum(column, dtype, from_zero) for column in terms.T.tolist()])
    return cast(rounded.reshape(terms.shape[1]), dtype)


def _rounded_sum(terms: list[float], dtype: np.dtype[Any], from_zero: bool) -> float:
    """Return the exact sum as a float64 that rounds to the dtype as the exact sum does."""
    if not all(map(math.isfinite, terms)):
        return float(np.sum([term for term in terms if not math.isfinite(term)]))
    try:
        total = math.fsum(terms)
        error = math.fsum([*terms, -total]) if math.isfinite(total) else 0.0  # its sign is exact
    except OverflowError:  # a partial sum overflowed
        exact = sum(map(Fraction, terms), Fraction(0))
        total = _round_fraction(exact)
        error = 0.0 if math.isinf(total) else float(exact > total) - float(exact < total)
    if total == 0:
        return -0.0 if not (from_zero or any(terms)) and all(math.copysign(1, term) < 0 for term in terms) else 0.0
    if dtype.itemsize < 8 and error and not np.float64(total).view(np.int64) & 1:  # round to odd: no tie of the dtype
        total = math.nextafter(total, math.copysign(math.inf, error))
    return total


def _round_fraction(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Floats:
    """Return ``a * b + c`` in float32 with one rounding, as a GPU's fused multiply-add.

    Parameters
    ----------
    a, b, c : float32 arrays that broadcast
        Operands.

    Returns
    -------
    float32 array
        Result, rounded to nearest even; the product is exact in float64, and the sum is rounded there to odd, so the
        second rounding never sees a false tie.

    Examples
    --------
    >>> x = np.float32(1 + 2**-12)
    >>> fma(x, x, np.float32(-1)) == 2**-11 + 2**-24, x * x - np.float32(1) == 2**-11
    (np.True_, np.True_)
    """
    wide = [np.asarray(value, dtype=np.float32).astype(np.float64) for value in (a, b, c)]
    with np.errstate(invalid="ignore", over="ignore"):
        result: Floats = _add_to_odd(wide[0] * wide[1], wide[2]).astype(np.float32)
    return result


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` with one rounding, for arrays of float32 or of float64.

    Float64 follows Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008), theorem 5: the product and
    the sum are split into parts, the smallest of which are added with rounding to odd.

    Examples
    --------
    >>> x = np.array([1 + 2.0**-30])
    >>> float(fused_multiply_add(x, x, -x)[0]) == 2.0**-30 + 2.0**-60
    True
    """
    if c.dtype == np.float32:
        return fma(a, b, c)
    with np.errstate(all="ignore"):
        high = a * b
        upper, upper_low = _two_sum(c, _product_error(a, b, high))
        total, lower = _two_sum(high, upper)
        result: Array = total + _add_to_odd(upper_low, lower)
    sizes = [np.abs(x) for x in (a, b, c)]
    usual = (sizes[2] == 0) | ((sizes[2] < _LARGE) & (sizes[2] > _SMALL))
    for size in sizes[:2]:
        usual &= (size < _LARGE) & (size > _SMALL)
    for i in np.flatnonzero(~usual):
        result.flat[i] = _exactly(float(a.flat[i]), float(b.flat[i]), float(c.flat[i]))
    return result


def flushed(x: Array) -> Array:
    """Return float32 numbers with subnormals replaced by zeros of the same sign."""
    found: Array = np.where(np.abs(x) < _LEAST_NORMAL, x * 0, x)
    return found


def flushed_sum(a: Array, b: Array) -> Array:
    """Return a + b of float64 arrays, rounded once to float32; results below 2^-126 after rounding become zeros.

    Results are rounded as if the exponent were unbounded before they are compared with 2^-126, as on x86.
    """
    with np.errstate(all="ignore"):
        total = _add_to_odd(a, b)
        near = np.abs((total * 2.0**64).astype(np.float32))
        is_tiny = (np.abs(total) < 2.0**-125) & (near < 2.0**-62)
        found: Array = np.where(is_tiny, total * 0, total).astype(np.float32)
    return found


def _exactly(a: float, b: float, c: float) -> float:
    if not (a and b and math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return c if math.isinf(c) and math.isfinite(a) and math.isfinite(b) else float(np.float64(a) * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return 0.0
    return _round_fraction(exact) or math.copysign(0.0, exact)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its error, which is exact (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    high_a, high_b = ((_SPLITTER * x) - ((_SPLITTER * x) - x) for x in (a, b))
    low_a, low_b = a - high_a, b - high_b
    error: Array = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
    return error


def _add_to_odd(a: Array, b: Array) -> Array:
    """Return a + b rounded to odd: an inexact sum becomes the neighbour with last bit 1."""
    total, error = _two_sum(a, b)
    even = (np.asarray(total).view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & (error != 0) & even
    moved: Array = np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    return moved
