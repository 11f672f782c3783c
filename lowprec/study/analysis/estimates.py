"""Estimates of a study's numbers, of one arm or of two, with 90 % intervals.

Kinds of studies differ in the sources of variance of their means. Each provides the same interface: the mean of a
metric for an arm, and the variance of a weighted sum of such means over arms, which are correlated because arms see
the same batches. Intervals of differences and ratios are computed from these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .paired import EVERYTHING, infer

#: Measured numbers by (metric, arm): one number, or one for each seed, whose mean then has an interval.
Values = Mapping[tuple[str, str], float | Sequence[float]]
NOWHERE, RESAMPLES = (math.nan, math.nan), 2000
_DOUBLINGS = 12  # of the distance from the ratio, from one standard error; beyond, an interval is unbounded


class VarianceModel(Protocol):
    """Interface of the means of a study's metrics and of the variances of these means."""

    def mean(self, metric: str, arm: str, condition: str = "", /) -> float:
        """Return a metric's mean for an arm, under a condition."""

    def variance(self, metric: str, condition: str, weights: Mapping[str, float], /) -> tuple[float, float]:
        """Return the variance of the sum of weight * mean over arms, and its degrees of freedom; nan if unknown."""

    def is_nonnegative(self, metric: str, arm: str, condition: str = "", /) -> bool:
        """Return whether a metric of an arm cannot be negative in any sample, such as an error or a share."""


@dataclass(frozen=True)
class SeedMeans:
    """Means over seeds, and their variances; a single number has no sampling error.

    Examples
    --------
    >>> SeedMeans({("error", "ring"): [1.0, 2.0, 3.0]}).variance("error", "", {"ring": 1.0})
    (0.3333333333333333, 2.0)
    """

    values: Values

    def mean(self, metric: str, arm: str, condition: str = "", /) -> float:
        """Return the mean over seeds."""
        return float(np.mean(self.values[metric, arm]))

    def variance(self, metric: str, condition: str, weights: Mapping[str, float], /) -> tuple[float, float]:
        """Return the variance of a weighted sum of means, which is paired by seed, and its degrees of freedom."""
        rows = {arm: weight * np.asarray(self.values[metric, arm]) for arm, weight in weights.items()}
        seeds = {arm: row.size if row.ndim else None for arm, row in rows.items()}
        if len({*seeds.values()}) > 1:
            raise ValueError(f"SeedMeans: {metric} must have as many seeds for all arms compared, got {seeds}")
        if not np.ndim(total := np.sum([*rows.values()], axis=0)):
            return 0.0, math.inf
        return (float(np.var(total, ddof=1)) / len(total), len(total) - 1.0) if len(total) > 1 else (math.nan, 0.0)

    def is_nonnegative(self, metric: str, arm: str, condition: str = "", /) -> bool:
        """Return whether the numbers of the seeds are positive; False for a single number."""
        return bool(np.ndim(rows := self.values[metric, arm]) and np.greater(rows, 0).all())


@dataclass(frozen=True)
class Estimate:
    """A number and its 90 % interval.

    Attributes
    ----------
    value : float
        The number.
    ci90 : (float, float)
        The interval; nan if unknown.
    as_difference : (float, float, float) or None
        Difference and its interval, for a ratio that is meaningless because its denominator is not distinguishable from
        0; otherwise None.
    """

    value: float
    ci90: tuple[float, float] = NOWHERE
    as_difference: tuple[float, float, float] | None = None


def estimate(
    means: VarianceModel, metric: str, arm: str, condition: str = "", *, over: str = "", minus: str = ""
) -> Estimate:
    """Return an arm's metric, divided by that of arm `over` or minus that of arm `minus` if either is given.

    The interval of a ratio of two non-negative metrics is that of its logarithm (delta method). For a ratio of two
    effects it is Fieller's interval; where that is unbounded, because the denominator may be 0, the difference is
    estimated instead. Both use variances of weighted sums.

    Examples
    --------
    >>> class Known:
    ...     def mean(self, metric, arm, condition=""):
    ...         return {"a": 2.0, "b": 1.0, "none": 0.01}[arm]
    ...
    ...     def variance(self, metric, condition, weights):
    ...         return 0.01 * sum(weight**2 for weight in weights.values()), 10.0
    ...
    ...     def is_nonnegative(self, metric, arm, condition=""):
    ...         return False
    >>> found = estimate(Known(), "loss", "a", over="b")
    >>> found.value, [round(end, 2) for end in found.ci90]
    (2.0, [1.65, 2.49])
    >>> [round(number, 2) for number in estimate(Known(), "loss", "a", over="none").as_difference]
    [1.99, 1.73, 2.25]
    """
    value = means.mean(metric, arm, condition)
    if not over:
        other = {minus: -1.0} if minus else {}
        value -= means.mean(metric, minus, condition) if minus else 0.0
        return Estimate(value, _interval(value, *means.variance(metric, condition, {arm: 1.0} | other)))
    below = means.mean(metric, over, condition)
    ratio = value / below if below else math.copysign(math.inf, value) if value else math.nan
    if arm == over:
        return Estimate(ratio, (ratio, ratio))

    def variance(weight: float, other: float) -> tuple[float, float]:
        return means.variance(metric, condition, {arm: weight, over: other})

    if math.isnan(variance(1.0, -1.0)[0]):
        return Estimate(ratio)
    if (
        value > 0.0 < below
        and means.is_nonnegative(metric, arm, condition)
        and means.is_nonnegative(metric, over, condition)
    ):
        ends = _interval(math.log(ratio), *variance(1 / value, -1 / below))
        return Estimate(ratio, (math.exp(ends[0]), math.exp(ends[1])))
    var_below, df = means.variance(metric, condition, {over: 1.0})
    if _interval(abs(below), var_below, df)[0] > 0.0:
        ends = fieller(value, below, lambda r: variance(1.0, -r))
        if ends != EVERYTHING:
            return Estimate(ratio, ends)
    difference = estimate(means, metric, arm, condition, minus=over)
    return Estimate(ratio, NOWHERE, (difference.value, *difference.ci90))


def resampled_estimate(
    of: Callable[[str, str, str], Resampled], metric: str, arm: str, condition: str = "", *, over: str = "",
    minus: str = "",
) -> Estimate:  # fmt: skip
    """Return the number that `estimate` describes, with an interval from the resamples `of(metric, condition, arm)`."""
    found = of(metric, condition, arm)
    if over:
        return found.over(of(metric, condition, over))
    return (found.minus(of(metric, condition, minus)) if minus else found).estimate


@dataclass(frozen=True, eq=False)
class Resampled:
    """A number and its values in resamples of the data; the n-th draws of two numbers are from the same resample.

    Attributes
    ----------
    value : float
        The number.
    draws : float64 array
        Values in the resamples, nan where undefined; empty if nothing is resampled.
    """

    value: float
    draws: NDArray[np.float64]

    @property
    def estimate(self) -> Estimate:
        """Estimate with the percentile interval of the draws."""
        return Estimate(self.value, quantiles(self.draws))

    def minus(self, other: Resampled) -> Resampled:
        """Return the difference from another number."""
        return Resampled(self.value - other.value, self.draws - other.draws)

    def over(self, other: Resampled) -> Estimate:
        """Return the ratio to another number; it has no interval if the other is not distinguishable from 0.

        Examples
        --------
        >>> draws = np.random.default_rng(0).normal(0, 0.1, 1000)
        >>> two, one, none = (Resampled(value, value + draws) for value in (2.0, 1.0, 0.05))
        >>> found = two.over(one)
        >>> found.value, found.ci90[0] < 2 < found.ci90[1], found.as_difference
        (2.0, True, None)
        >>> [round(number, 2) for number in two.over(none).as_difference]
        [1.95, 1.95, 1.95]
        """
        low, high = quantiles(other.draws)
        if low <= 0 <= high:
            difference = self.minus(other).estimate
            return Estimate(self.value / other.value, NOWHERE, (difference.value, *difference.ci90))
        return Resampled(self.value / other.value, self.draws / other.draws).estimate


def quantiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 90 % interval of resampled numbers, nan without resamples."""
    if np.isnan(draws).all():  # np.nanquantile would warn
        return NOWHERE
    low, high = np.nanquantile(draws, (0.05, 0.95))
    return float(low), float(high)


def _interval(value: float, variance: float, df: float) -> tuple[float, float]:
    if math.isnan(variance) or not math.isfinite(value):
        return NOWHERE
    if variance == 0.0:
        return value, value
    if not df > 0.0:
        return NOWHERE
    return infer(value, math.sqrt(variance), df, 1.0).ci90


def crossed_variance(rows: NDArray[np.float64]) -> tuple[float, float]:
    """Return the variance of a mean over rows (checkpoint, batch, value), and its degrees of freedom.

    Checkpoints and batches are crossed samples, since every checkpoint sees the same batches. The variance of
    the mean over checkpoints and that of the mean over batches are added. The degrees of freedom are those of the
    smaller sample, which is conservative.

    Examples
    --------
    >>> crossed_variance(np.array([[c, b, c + b] for c in range(3) for b in range(3)], float))
    (0.6666666666666666, 2.0)
    """
    variance, least = 0.0, math.inf
    for column in (0, 1):
        names = np.unique(rows[:, column])
        if len(names) > 1:
            of_each = [float(np.mean(rows[rows[:, column] == name, 2])) for name in names]
            variance += float(np.var(of_each, ddof=1)) / len(of_each)
            least = min(least, len(of_each) - 1)
    return (variance, float(least)) if math.isfinite(least) else (math.nan, 0.0)


def half_width(rows: NDArray[np.float64]) -> float:
    """Return half the width of the 90 % interval of a mean over rows (checkpoint, batch, value); nan for a single row.

    Examples
    --------
    >>> table = np.array([[c, b, c + b] for c in range(3) for b in range(3)], float)
    >>> round(half_width(table), 3)
    2.384
    """
    if not len(rows):
        return math.nan
    low, high = _interval(0.0, *crossed_variance(rows))
    return (high - low) / 2


def all_nonnegative(rows: NDArray[np.float64]) -> bool:
    """Return whether all values of rows (checkpoint, batch, value) are >= 0 and some are > 0.

    Examples
    --------
    >>> all_nonnegative(np.array([[0.0, 0.0, 0.2], [0.0, 1.0, 0.0]])), all_nonnegative(np.array([[0.0, 0.0, -0.2]]))
    (True, False)
    """
    return bool((rows[:, 2] >= 0.0).all() and (rows[:, 2] > 0.0).any())


def weighted_rows(tables: Mapping[str, NDArray[np.float64]], weights: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the weighted sum of arms' rows (checkpoint, batch, value), over the batches that all arms have.

    Examples
    --------
    >>> tables = {"a": np.array([[0.0, 0.0, 3.0], [0.0, 1.0, 5.0]]), "b": np.array([[0.0, 1.0, 4.0]])}
    >>> weighted_rows(tables, {"a": 1.0, "b": -1.0}).tolist()
    [[0.0, 1.0, 1.0]]
    """
    by_arm = {arm: _by_batch(tables[arm]) for arm in weights}
    first = next(iter(by_arm.values()))
    keys = [key for key in first if all(key in rows for rows in by_arm.values())]
    rows = [[*key[:2], math.fsum(weights[arm] * by_arm[arm][key] for arm in weights)] for key in keys]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _by_batch(rows: NDArray[np.float64]) -> dict[tuple[float, float, int], float]:
    """Return values by (checkpoint, batch, index within that batch)."""
    seen: Counter[tuple[float, float]] = Counter()
    found = {}
    for checkpoint, batch, value in rows.tolist():
        found[checkpoint, batch, seen[checkpoint, batch]] = value
        seen[checkpoint, batch] += 1
    return found


def fieller(above: float, below: float, variance: Callable[[float], tuple[float, float]]) -> tuple[float, float]:
    """Return the 90 % interval of a ratio of two means (Fieller 1954): all r for which above - r * below may be 0.

    The interval is unbounded if the denominator may be 0. The variance is given as a function of r. The closed form
    has three terms instead; estimated separately from shrunken variances, they may be inconsistent.

    Parameters
    ----------
    above, below : float
        Means of the numerator and of the denominator.
    variance : callable
        Returns the variance of above - r * below and its degrees of freedom, for a given r.

    Examples
    --------
    >>> [round(end, 2) for end in fieller(2.0, 1.0, lambda r: (0.01 * (1 + r**2), 10.0))]
    [1.65, 2.49]
    >>> fieller(2.0, 0.1, lambda r: (0.01 * (1 + r**2), 10.0))
    (-inf, inf)
    """
    from scipy import optimize, stats

    value = above / below if below else math.nan

    def beyond(ratio: float) -> float:
        """Return the margin by which above - ratio * below differs from 0; nan if its variance is unknown."""
        var, df = variance(ratio)
        if not df > 0.0:
            return math.nan
        distance = abs(above - ratio * below) if ratio != value else 0.0
        return distance - float(stats.t.ppf(0.95, df)) * math.sqrt(var)

    if not (math.isfinite(value) and beyond(value) <= 0.0):
        return EVERYTHING
    step = max(math.sqrt(variance(value)[0]) / abs(below), 1e-9 * max(abs(value), 1.0))
    ends = []
    for way in (-1.0, 1.0):
        within, out = value, value + way * step
        for _ in range(_DOUBLINGS):
            if beyond(out) > 0.0:
                ends.append(float(optimize.brentq(beyond, within, out)))
                break
            within, out = out, value + 2.0 * (out - value)
    return (ends[0], ends[1]) if len(ends) == 2 else EVERYTHING


@dataclass(frozen=True)
class BootstrapMean:
    """A mean and its 90 % bootstrap interval.

    Attributes
    ----------
    mean, low, high : float
        The mean and the ends of the interval; nan if no value is finite.
    largest : float
        The largest value.
    count : int
        Number of values.
    resampled : Resampled
        The mean in resamples. Means over equal keys and with equal seeds share their resamples, so they can be paired.
    """

    mean: float
    low: float
    high: float
    largest: float
    count: int
    resampled: Resampled = field(compare=False, repr=False)


def pigeonhole_bootstrap(values: Mapping[tuple[Hashable, Hashable], float], *, seed: int = 0) -> BootstrapMean:
    """Return the mean of values indexed by two factors, and its 90 % interval.

    The factors are crossed, as checkpoints and layers: every layer is measured in every checkpoint, so that neither the
    layers of one checkpoint nor the checkpoints of one layer are independent. Both factors are resampled (Owen, The
    pigeonhole bootstrap, Annals of Applied Statistics 2007), which is conservative. A factor with one level adds
    nothing to the interval.

    Parameters
    ----------
    values : mapping of (first, second) to float
        Values; pairs may be missing, and nan is ignored.
    seed : int
        Seed of the bootstrap; equal seeds give equal intervals.

    Examples
    --------
    >>> found = pigeonhole_bootstrap({(i, j): i + j for i in range(4) for j in range(20)})
    >>> found.mean, found.low < 10 < found.mean < 12 < found.high, found.count
    (11.0, True, 80)
    """
    seen = {key: value for key, value in values.items() if not math.isnan(value)}
    if not seen:
        return BootstrapMean(math.nan, math.nan, math.nan, math.nan, 0, Resampled(math.nan, np.empty(0)))
    first, second = (list(dict.fromkeys(key[side] for key in seen)) for side in (0, 1))
    table, there = np.zeros((len(first), len(second))), np.zeros((len(first), len(second)))
    for (a, b), value in seen.items():
        place = first.index(a), second.index(b)
        table[place], there[place] = value, 1.0
    rng = np.random.default_rng(seed)
    rows, columns = (rng.multinomial(size, [1 / size] * size, RESAMPLES) for size in table.shape)
    sums, counts = (np.einsum("ri,ij,rj->r", rows, grid, columns) for grid in (table, there))
    means = np.divide(sums, counts, out=np.full(RESAMPLES, math.nan), where=counts > 0)
    everything = list(seen.values())
    found = Resampled(math.fsum(everything) / len(everything), means)
    return BootstrapMean(found.value, *found.estimate.ci90, max(everything), len(everything), found)
