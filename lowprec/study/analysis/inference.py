"""One mean with its t intervals, the test of a difference and the two one-sided tests of equivalence."""

from __future__ import annotations

import math
from dataclasses import dataclass

EQUIVALENT = "equivalent"
WORSE = "worse"
BETTER = "better"
NOT_RESOLVED = "not resolved"
EVERYTHING = (-math.inf, math.inf)


@dataclass(frozen=True)
class Inference:
    """A mean with its t intervals and tests; `infer` makes one.

    Attributes
    ----------
    mean, error : float
        Mean and its standard error; `error` is nan without a degree of freedom.
    df : int
        Degrees of freedom of the error.
    ci90, ci95 : (float, float)
        t intervals; (-inf, inf) without a degree of freedom.
    p_difference : float
        Two-sided p of mean = 0.
    p_equivalence : float
        The larger p of the two one-sided tests against the margin.
    margin : float
        Equivalence margin.
    """

    mean: float
    error: float
    df: int
    ci90: tuple[float, float]
    ci95: tuple[float, float]
    p_difference: float
    p_equivalence: float
    margin: float

    @property
    def verdict(self) -> str:
        """One of: equivalent, worse, better, not resolved.

        "Equivalent" comes first: a difference can be both real and smaller than the margin.
        """
        if -self.margin < self.ci90[0] and self.ci90[1] < self.margin:
            return EQUIVALENT
        if self.ci95[0] > 0.0:
            return WORSE
        return BETTER if self.ci95[1] < 0.0 else NOT_RESOLVED

    @property
    def resolved_difference(self) -> bool:
        """Whether the 95 % interval excludes 0."""
        return self.ci95[0] > 0.0 or self.ci95[1] < 0.0


def infer(mean: float, error: float, df: int, margin: float) -> Inference:
    """Return intervals and tests of a mean with a standard error.

    Examples
    --------
    >>> infer(0.0006, 0.0001, 5, margin=0.0025).verdict
    'equivalent'
    """
    from scipy import stats

    if df < 1 or math.isnan(mean):
        return Inference(mean, math.nan, 0, EVERYTHING, EVERYTHING, math.nan, math.nan, margin)

    def interval(level: float) -> tuple[float, float]:
        half = float(stats.t.ppf(0.5 + level / 2, df)) * error
        return (mean - half, mean + half)

    def upper_tail(distance: float) -> float:
        # A spread of exactly 0 leaves no doubt about where the mean is.
        if error == 0.0:
            return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
        return float(stats.t.sf(distance / error, df))

    p_difference = min(1.0, 2.0 * upper_tail(abs(mean)))
    p_equivalence = max(upper_tail(margin - mean), upper_tail(margin + mean))
    return Inference(mean, error, df, interval(0.90), interval(0.95), p_difference, p_equivalence, margin)
