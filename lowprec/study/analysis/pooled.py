"""One estimate from several studies: a random-effects mean over groups, one per model and corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats


@dataclass(frozen=True)
class RandomEffects:
    """Mean over groups that differ by more than their errors.

    Attributes
    ----------
    mean, error : float
        The mean and its standard error.
    between : float
        Standard deviation of the groups' true values.
    groups : int
        Number of groups.
    df : int
        Degrees of freedom of the interval.
    """

    mean: float
    error: float
    between: float
    groups: int
    df: int

    @property
    def ci90(self) -> tuple[float, float]:
        """The 90 % interval of the mean."""
        half = float(stats.t.ppf(0.95, self.df)) * self.error
        return self.mean - half, self.mean + half


def random_effects(values: ArrayLike, errors: ArrayLike, df: int) -> RandomEffects:
    """Return the random-effects mean of groups.

    The variance between groups is Paule and Mandel's; the interval is Hartung and Knapp's, never narrower than the
    groups' own errors allow. A single group is its own mean.

    Parameters
    ----------
    values, errors : array_like of float, shape (groups,)
        Estimates and their standard errors.
    df : int
        Degrees of freedom of an error, for a single group.

    Returns
    -------
    RandomEffects

    Examples
    --------
    >>> found = random_effects([1.0, 2.0, 3.0], [0.1, 0.1, 0.1], df=3)
    >>> round(found.mean, 9), round(found.between, 3), [round(end, 2) for end in found.ci90]
    (2.0, 0.995, [0.31, 3.69])
    """
    y, variances = np.asarray(values, dtype=np.float64), np.asarray(errors, dtype=np.float64) ** 2
    if y.size == 1:
        return RandomEffects(float(y[0]), math.sqrt(variances[0]), 0.0, 1, df)

    def excess(between: float) -> float:
        weights = 1.0 / (variances + between)
        mean = np.sum(weights * y) / np.sum(weights)
        return float(np.sum(weights * (y - mean) ** 2)) - (y.size - 1)

    most = float(np.sum((y - y.mean()) ** 2)) + float(variances.max())
    between = float(optimize.brentq(excess, 0.0, most)) if excess(0.0) > 0.0 else 0.0
    weights = 1.0 / (variances + between)
    mean = float(np.sum(weights * y) / np.sum(weights))
    scale = max(1.0, float(np.sum(weights * (y - mean) ** 2)) / (y.size - 1))
    return RandomEffects(mean, math.sqrt(scale / float(np.sum(weights))), math.sqrt(between), y.size, y.size - 1)
