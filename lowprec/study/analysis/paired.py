"""Inference from pairs of runs: intervals, equivalence tests, and verdicts, which include "not resolved".

Every arm is compared with the reference run from the same checkpoint on the same batches. One pair gives one number,
the relative difference r of validation losses. From these follow:

* t intervals for the mean of r (90 and 95 %), with a variance that treats seeds, checkpoints and text as samples;
  bootstrap intervals are reported in addition (`bootstrap_interval`);
* equivalence by two one-sided tests (TOST) at the 5 % level: equivalent exactly if the 90 % interval is inside the
  margin (Schuirmann 1987); the opposite tests show that a difference exceeds the margin;
* a difference inside the margin whose 95 % interval excludes 0 is real but does not matter; a difference that is shown
  neither inside nor beyond the margin is not resolved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .variance import MeanSquares, PooledRatio, mean_squares, mean_variance, satterthwaite, text_variance

EQUIVALENT = "equivalent"
WORSE = "worse"
WORSE_WITHIN = "worse, but within the margin"
BETTER = "better"
BETTER_WITHIN = "better, but within the margin"
NOT_RESOLVED = "not resolved"
EVERYTHING = (-math.inf, math.inf)
#: Explanation of the verdicts, for captions.
VERDICTS = (
    "Equivalent: the 90 % interval is inside the margin (two one-sided tests at 5 %); worse, but within the margin: "
    "the same, and the 95 % interval excludes 0; worse: the 90 % interval is beyond the margin, or a run diverged; "
    "otherwise not resolved."
)
#: Number of pairs from which the bootstrap is bias-corrected and accelerated; with fewer it uses percentiles.
BCA_FROM = 8


@dataclass(frozen=True)
class Inference:
    """A mean with t intervals and tests, computed by `infer`.

    Attributes
    ----------
    mean, error : float
        Mean and its standard error; `error` is nan without degrees of freedom.
    df : float
        Degrees of freedom of the error.
    ci90, ci95 : (float, float)
        t intervals; (-inf, inf) without degrees of freedom.
    p_difference : float
        Two-sided p value of the hypothesis that the mean is 0.
    p_equivalence : float
        Larger p value of the two one-sided tests against the margin.
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
        """Verdict: equivalent; worse or better; worse or better, but within the margin; or not resolved.

        Both sides are tested against the margin. A real difference that is shown neither to be smaller than the margin
        nor to be larger is not resolved.
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

    def upper_tail(distance: float) -> float:
        # With a spread of exactly 0 the mean is known exactly.
        if error == 0.0:
            return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
        return float(stats.t.sf(distance / error, df))

    p_difference = min(1.0, 2.0 * upper_tail(abs(mean)))
    p_equivalence = max(upper_tail(margin - mean), upper_tail(margin + mean))
    ci90, ci95 = (t_interval(mean, error, df, level) for level in (0.90, 0.95))
    return Inference(mean, error, df, ci90, ci95, p_difference, p_equivalence, margin)


def t_interval(mean: float, error: float, df: float, level: float) -> tuple[float, float]:
    """Return Student's interval of a mean; (-inf, inf) without degrees of freedom.

    Examples
    --------
    >>> [round(end, 3) for end in t_interval(1.0, 0.5, 10, 0.9)]
    [0.094, 1.906]
    """
    from scipy import stats

    if not df > 0.0:
        return EVERYTHING
    half = float(stats.t.ppf(0.5 + level / 2, df)) * error
    return (mean - half, mean + half)


@dataclass(frozen=True)
class Paired(Inference):
    """Paired relative differences and their statistics: inference on the mean over checkpoints, seeds and text.

    Attributes
    ----------
    n, checkpoints : int
        Number of pairs, including diverged ones, and number of checkpoints.
    diverged : int
        Number of pairs with a difference that is not finite; the mean is nan if there are any.
    sd : float
        Sample standard deviation of all pairs; nan for one pair, or if a pair diverged.
    pairs_error, text_error : float
        Contributions to the standard error: of checkpoints and seeds, and of the held-out text.
    p_checkpoints : float
        p value of the hypothesis that all checkpoints have the same mean (one-way analysis of variance); nan if it
        cannot be tested.
    """

    n: int
    checkpoints: int
    diverged: int = 0
    sd: float = math.nan
    pairs_error: float = math.nan
    text_error: float = math.nan
    p_checkpoints: float = math.nan

    @property
    def verdict(self) -> str:
        """Verdict of `Inference`, or "worse" if the arm diverged in any pair."""
        return WORSE if self.diverged else super().verdict


def relative_differences(arm: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Return (arm - reference) / reference for each pair.

    Parameters
    ----------
    arm, reference : array_like of float, shape (n,)
        Losses; those of a diverged arm are nan or inf.

    Returns
    -------
    ndarray of float64, shape (n,)
        +inf where the arm is not finite.

    Raises
    ------
    ValueError
        If the shapes differ or a reference loss is not finite and positive.

    Examples
    --------
    >>> relative_differences([1.5, float("nan")], [1.2, 1.2]).tolist()
    [0.25000000000000006, inf]
    """
    ours, theirs = np.asarray(arm, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape:
        raise ValueError(f"arm and reference must have the same shape, got {ours.shape} and {theirs.shape}")
    if not np.all(np.isfinite(theirs) & (theirs > 0)):
        raise ValueError(f"losses of the reference must be positive and finite, got {theirs.tolist()}")
    difference = np.full(ours.shape, np.inf)
    ok = np.isfinite(ours)
    difference[ok] = (ours[ok] - theirs[ok]) / theirs[ok]
    return difference


def paired(
    differences: ArrayLike,
    margin: float = 0.0025,
    checkpoints: Sequence[int] | None = None,
    *,
    ratio: PooledRatio | None = None,
    text: NDArray[np.float64] | None = None,
) -> Paired:
    """Summarise paired relative differences.

    Parameters
    ----------
    differences : array_like of float, shape (n,), n >= 1
        One r per pair, from `relative_differences`.
    margin : float
        Equivalence margin on r.
    checkpoints : sequence of int, length n, optional
        Checkpoint of each pair; by default, all pairs have the same one.
    ratio : PooledRatio, optional
        Variance between checkpoints relative to the variance between seeds, pooled over all arms of the study.
    text : float64 array [n, windows], optional
        Contribution of each held-out window to each difference.

    Returns
    -------
    Paired
        Mean, spread, intervals, p values, and `.verdict`.

    Raises
    ------
    ValueError
        If `differences` is empty, one of them is nan, the margin is not positive and finite, or the number of
        checkpoints differs from that of the differences.

    Examples
    --------
    >>> paired([0.0001, 0.0002, -0.0001]).verdict
    'equivalent'
    >>> paired([0.0001]).verdict                                   # the spread of a single pair is unknown
    'not resolved'
    >>> paired([0.0010, 0.0012, 0.0002, 0.0004], checkpoints=[0, 0, 1, 1]).verdict     # two checkpoints that disagree
    'not resolved'
    """
    r = np.asarray(differences, dtype=np.float64)
    if r.ndim != 1 or r.size == 0:
        raise ValueError(f"paired differences must be one value at least, got shape {r.shape}")
    if np.any(np.isnan(r)):
        raise ValueError(f"paired differences must not be NaN, got {r.tolist()}")
    if not 0.0 < margin < math.inf:
        raise ValueError(f"margin must be positive and finite, got {margin!r}")
    labels = [0] * r.size if checkpoints is None else list(checkpoints)
    if len(labels) != r.size:
        raise ValueError(f"checkpoints must be {r.size}, one per paired difference, got {len(labels)}")
    n, diverged = int(r.size), int(np.count_nonzero(np.isinf(r)))
    if diverged:
        return Paired(
            **vars(infer(math.nan, math.nan, 0, margin)), n=n, checkpoints=len(set(labels)), diverged=diverged
        )
    levels = mean_squares(r, labels)
    sd = math.sqrt(math.fsum((r - levels.mean) ** 2) / (n - 1)) if n > 1 else math.nan
    pairs = mean_variance(levels, ratio or PooledRatio())
    added = (0.0, 0.0) if text is None or not text.size else text_variance(text)
    variance, df = satterthwaite(pairs, added)
    found = infer(levels.mean, math.sqrt(variance), df, margin)
    return Paired(
        **vars(found), n=n, checkpoints=levels.checkpoints, sd=sd, pairs_error=math.sqrt(pairs[0]),
        text_error=math.sqrt(added[0]), p_checkpoints=_same_means(levels),
    )  # fmt: skip


def _same_means(levels: MeanSquares) -> float:
    from scipy import stats

    above, below = levels.df
    if above < 1 or below < 1 or levels.within == 0.0:
        return math.nan
    return float(stats.f.sf(levels.between / levels.within, above, below))


def bootstrap_interval(
    differences: ArrayLike, level: float = 0.90, *, resamples: int = 4999, seed: int = 0
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean: bias-corrected and accelerated for eight or more pairs, else percentile.

    It does not assume a normal distribution, but is too narrow for few pairs: with six pairs, a 90 % percentile
    interval covers the true mean in about 81 % of cases. Verdicts therefore use the t interval; this one is reported in
    addition.

    Parameters
    ----------
    differences : array_like of float, shape (n,)
        One r per pair.
    level : float
        Confidence level.
    resamples, seed : int
        Number of resamples, and seed of the bootstrap; equal seeds give equal intervals.

    Returns
    -------
    (float, float)
        (-inf, inf) for fewer than two pairs, or if one diverged.

    Examples
    --------
    >>> low, high = bootstrap_interval([0.0005, 0.0007, 0.0006, 0.0004])
    >>> 0.0004 < low < 0.00055 < high < 0.0007
    True
    """
    from scipy import stats

    r = np.asarray(differences, dtype=np.float64)
    if r.size < 2 or not np.all(np.isfinite(r)):
        return EVERYTHING
    if np.all(r == r[0]):
        return (float(r[0]), float(r[0]))
    method = "BCa" if r.size >= BCA_FROM else "percentile"
    found = stats.bootstrap(
        (r,), np.mean, confidence_level=level, n_resamples=resamples, method=method, rng=np.random.default_rng(seed)
    ).confidence_interval
    return (float(found.low), float(found.high))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for multiple comparisons (Holm 1979); nan remains nan and is not counted.

    Parameters
    ----------
    p_values : sequence of float
        One per hypothesis.

    Returns
    -------
    list of float
        Adjusted values, in the same order.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def spread(values: ArrayLike) -> float:
    """Return the sample standard deviation of the finite values, nan for fewer than two.

    Examples
    --------
    >>> spread([0.001, -0.001, 0.0])
    0.001
    """
    r = np.asarray(values, dtype=np.float64)
    r = r[np.isfinite(r)]
    return float(np.std(r, ddof=1)) if r.size >= 2 else math.nan


def root_mean_square(differences: ArrayLike) -> float:
    """Return the root mean square of the finite differences; nan if none is finite.

    Use it as the spread of differences whose mean is known to be 0, as for a change without effect. A standard
    deviation of a few such differences would subtract their common part as a mean.

    Examples
    --------
    >>> root_mean_square([0.004, 0.003, float("inf"), -0.005])
    0.00408248290463863
    """
    r = np.asarray(differences, dtype=np.float64)
    r = r[np.isfinite(r)]
    return float(np.sqrt(np.mean(r * r))) if r.size else math.nan
