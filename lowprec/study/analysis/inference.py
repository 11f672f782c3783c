"""One mean with its t intervals, the test of a difference and the two one-sided tests of equivalence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

EQUIVALENT = "equivalent"
WORSE = "worse"
WORSE_WITHIN = "worse, but within the margin"
BETTER = "better"
BETTER_WITHIN = "better, but within the margin"
NOT_RESOLVED = "not resolved"
EVERYTHING = (-math.inf, math.inf)
_DOUBLINGS = 12  # of a standard error, after which a ratio has no end
#: What the verdicts mean, for captions.
VERDICTS = (
    "Equivalent: the 90 % interval lies inside the margin (two one-sided tests at 5 %); worse, but within the margin: "
    "so it does, and the 95 % interval excludes 0; worse: the 90 % interval lies beyond the margin, or a run diverged; "
    "otherwise not resolved."
)


@dataclass(frozen=True)
class Inference:
    """A mean with its t intervals and tests; `infer` makes one.

    Attributes
    ----------
    mean, error : float
        Mean and its standard error; `error` is nan without a degree of freedom.
    df : float
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
    df: float
    ci90: tuple[float, float]
    ci95: tuple[float, float]
    p_difference: float
    p_equivalence: float
    margin: float

    @property
    def verdict(self) -> str:
        """One of: equivalent, worse, better, the latter two "but within the margin", not resolved.

        Both sides are tested against the margin: a difference that is real, and neither shown to be smaller than the
        margin nor larger, is not resolved.
        """
        if -self.margin < self.ci90[0] and self.ci90[1] < self.margin:
            if self.resolved_difference:
                return WORSE_WITHIN if self.mean > 0.0 else BETTER_WITHIN
            return EQUIVALENT
        if self.ci90[0] > self.margin:
            return WORSE
        return BETTER if self.ci90[1] < -self.margin else NOT_RESOLVED

    @property
    def resolved_difference(self) -> bool:
        """Whether the 95 % interval excludes 0."""
        return self.ci95[0] > 0.0 or self.ci95[1] < 0.0


def infer(mean: float, error: float, df: float, margin: float) -> Inference:
    """Return intervals and tests of a mean with a standard error.

    Examples
    --------
    >>> infer(0.0002, 0.0001, 5, margin=0.0025).verdict, infer(0.0006, 0.0001, 5, margin=0.0025).verdict
    ('equivalent', 'worse, but within the margin')
    >>> infer(0.0040, 0.0001, 5, margin=0.0025).verdict, infer(0.0026, 0.0001, 5, margin=0.0025).verdict
    ('worse', 'not resolved')
    """
    from scipy import stats

    if not df > 0.0 or math.isnan(mean) or math.isnan(error):
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


@dataclass(frozen=True)
class RatioInference:
    """A ratio of two means with its Fieller interval; `fieller` makes one."""

    value: float
    ci90: tuple[float, float]

    @property
    def bounded(self) -> bool:
        """Whether the interval has two ends: the denominator is told apart from 0."""
        return math.isfinite(self.ci90[0]) and math.isfinite(self.ci90[1])


def fieller(above: float, below: float, variance: Callable[[float], tuple[float, float]]) -> RatioInference:
    """Return the 90 % interval of a ratio of two means (Fieller 1954): the r for which above - r * below may be 0.

    It has no ends where the denominator may be 0. Each r has a variance of its own: what is estimated of three sums
    apart, as the closed form needs, need not go together where variances are shrunken.

    Parameters
    ----------
    above, below : float
        The means.
    variance : callable
        The variance of above - r * below, and its degrees of freedom.

    Examples
    --------
    >>> found = fieller(2.0, 1.0, lambda r: (0.01 * (1 + r**2), 10.0))
    >>> found.bounded, round(found.ci90[0], 2), round(found.ci90[1], 2)
    (True, 1.65, 2.49)
    >>> fieller(2.0, 0.1, lambda r: (0.01 * (1 + r**2), 10.0)).bounded
    False
    """
    from scipy import optimize, stats

    value = above / below if below else math.nan

    def beyond(ratio: float) -> float:
        """Return by how much a difference is beyond what is told from 0; nan where nothing is known of it."""
        var, df = variance(ratio)
        if not df > 0.0:
            return math.nan
        apart = abs(above - ratio * below) if ratio != value else 0.0
        return apart - float(stats.t.ppf(0.95, df)) * math.sqrt(var)

    if not (math.isfinite(value) and beyond(value) <= 0.0):
        return RatioInference(value, EVERYTHING)
    step = max(math.sqrt(variance(value)[0]) / abs(below), 1e-9 * max(abs(value), 1.0))
    ends = []
    for way in (-1.0, 1.0):
        within, out = value, value + way * step
        for _ in range(_DOUBLINGS):
            if beyond(out) > 0.0:
                ends.append(float(optimize.brentq(beyond, within, out)))
                break
            within, out = out, value + 2.0 * (out - value)
    return RatioInference(value, (ends[0], ends[1]) if len(ends) == 2 else EVERYTHING)
