"""Pairs of arrays in float64: their errors, norms and positions among the float32 numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._arrays import as_real

Wide = npt.NDArray[np.float64]


def as_wide(name: str, x: npt.ArrayLike) -> Wide:
    """Return an array as float64 in C order; errors name the calling function.

    The memory order determines the order of NumPy's sums, so that a sum over a transposed view could differ in the last
    bit.
    """
    return as_real(name, x).astype(np.float64, order="C")


def pair(a: npt.ArrayLike, reference: npt.ArrayLike) -> tuple[Wide, Wide]:
    """Return two arrays as float64 and check that their shapes agree."""
    x, r = as_wide("compare", a), as_wide("compare", reference)
    if x.shape != r.shape:
        raise ValueError(f"compare: both arrays must have the same shape, got {x.shape} and {r.shape}")
    return x, r


def errors(x: Wide, r: Wide) -> Wide:
    """Return x - r; 0 where both are NaN or the same infinity, inf elsewhere unless both are finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.asarray(x - r)
        same = (x == r) | (np.isnan(x) & np.isnan(r))
    error[same] = 0.0
    error[np.isnan(error)] = np.inf
    return error


def norm(x: Wide) -> float:
    """Return the Euclidean norm, scaled so that no square overflows or underflows."""
    largest: float = float(np.abs(x).max(initial=0.0))
    if largest == 0 or largest == math.inf:
        return largest
    scaled = x / largest
    return largest * math.sqrt(float((scaled * scaled).sum()))


def rms(x: Wide) -> float:
    """Return the root mean square, 0 for an empty array."""
    return norm(x) / math.sqrt(max(1, x.size))


def narrow(x: Wide) -> npt.NDArray[np.float32]:
    """Round to float32; values that overflow become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(np.float32))


def place(x: Wide) -> npt.NDArray[np.int64]:
    """Return the position of each float32 value in the order of all float32 values; both zeros are at 0."""
    bits = narrow(x).view(np.int32).astype(np.int64)
    return np.asarray(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))


def share(flags: Any) -> float:
    """Return the share of flags that are set, 0 for an empty array."""
    return float(np.mean(flags)) if flags.size else 0.0


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient: 0 for 0 / 0, infinity for any other division by 0."""
    return numerator / denominator if denominator else (0.0 if numerator == 0 else math.inf)


def binomial_interval(successes: float, trials: float, tail: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval for a probability.

    The probability is below the interval with a chance of at most `tail`, and above it with the same bound.

    Examples
    --------
    >>> [round(end, 3) for end in binomial_interval(9, 10, 0.05)]
    [0.606, 0.995]
    """
    from scipy import stats

    low = float(stats.beta.ppf(tail, successes, trials - successes + 1)) if successes > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high
