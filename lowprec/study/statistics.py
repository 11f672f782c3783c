"""What pairs of runs say: intervals, equivalence, and a verdict that knows the word "unresolved".

Every arm is compared with the reference run that started from the same checkpoint and saw the same batches, so one
pair gives one number, the relative difference r = (L_arm - L_reference) / L_reference of the validation loss. On these:

* a t interval for the mean of r (90 and 95 %);
* equivalence by two one-sided tests (TOST): equivalent within the margin at the 5 % level exactly if the 90 %
  interval lies inside it (Schuirmann 1987);
* worse (or better) if the 95 % interval excludes 0 on that side; otherwise not resolved.

Pairs that share a checkpoint are treated as independent: the inference is conditional on the checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

EQUIVALENT = "equivalent"
WORSE = "worse"
BETTER = "better"
NOT_RESOLVED = "not resolved"
DIVERGED = "diverged"


@dataclass(frozen=True)
class Paired:
    """Paired relative differences and what follows from them.

    Attributes
    ----------
    n : int
        Pairs, diverged ones included.
    diverged : int
        Pairs whose difference is not finite.
    mean, sd : float
        Mean and sample standard deviation; `sd` is nan for one pair, both are nan if a pair diverged.
    ci90, ci95 : (float, float)
        t intervals for the mean; (-inf, inf) for a single pair.
    p_difference : float
        Two-sided p of mean = 0.
    p_equivalence : float
        The larger p of the two one-sided tests against the margin.
    margin : float
        Equivalence margin.
    """

    n: int
    diverged: int
    mean: float
    sd: float
    ci90: tuple[float, float]
    ci95: tuple[float, float]
    p_difference: float
    p_equivalence: float
    margin: float

    @property
    def verdict(self) -> str:
        """One of: equivalent, worse, better, not resolved, diverged.

        "Equivalent" comes first: a difference can be both real and smaller than the margin.
        """
        if self.diverged:
            return DIVERGED
        if -self.margin < self.ci90[0] and self.ci90[1] < self.margin:
            return EQUIVALENT
        if self.ci95[0] > 0.0:
            return WORSE
        if self.ci95[1] < 0.0:
            return BETTER
        return NOT_RESOLVED

    @property
    def resolved_difference(self) -> bool:
        """Whether the 95 % interval excludes 0."""
        return self.ci95[0] > 0.0 or self.ci95[1] < 0.0


def relative_differences(arm: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Return (arm - reference) / reference, one number a pair.

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
        raise ValueError(f"pairs do not match: arm has shape {ours.shape}, reference {theirs.shape}")
    if not np.all(np.isfinite(theirs) & (theirs > 0)):
        raise ValueError(f"the reference losses must be positive and finite, got {theirs.tolist()}")
    difference = np.full(ours.shape, np.inf)
    ok = np.isfinite(ours)
    difference[ok] = (ours[ok] - theirs[ok]) / theirs[ok]
    return difference


def paired(differences: ArrayLike, margin: float = 0.0025) -> Paired:
    """Summarise paired relative differences.

    Parameters
    ----------
    differences : array_like of float, shape (n,), n >= 1
        One r per pair, as `relative_differences` gives them.
    margin : float
        Equivalence margin on r.

    Returns
    -------
    Paired
        Mean, spread, intervals, p values; `.verdict` says it in a word.

    Raises
    ------
    ValueError
        If there is no pair, a difference is nan, or the margin is not positive.

    Examples
    --------
    >>> paired([0.0005, 0.0007, 0.0006]).verdict
    'equivalent'
    >>> paired([0.0005]).verdict                                   # one pair says nothing about its own spread
    'not resolved'
    """
    from scipy import stats

    r = np.asarray(differences, dtype=np.float64)
    if r.ndim != 1 or r.size == 0:
        raise ValueError(f"at least one paired difference is needed, got an array of shape {r.shape}")
    if np.any(np.isnan(r)):
        raise ValueError(f"a paired difference is nan: {r.tolist()}")
    if not 0.0 < margin < math.inf:
        raise ValueError(f"margin must be positive and finite, not {margin!r}")
    n = int(r.size)
    nothing: tuple[float, float] = (-math.inf, math.inf)
    diverged = int(np.count_nonzero(np.isinf(r)))
    if diverged:
        return Paired(n, diverged, math.nan, math.nan, nothing, nothing, math.nan, math.nan, margin)
    mean = math.fsum(r) / n
    if n == 1:
        return Paired(n, 0, mean, math.nan, nothing, nothing, math.nan, math.nan, margin)
    sd = math.sqrt(math.fsum((r - mean) ** 2) / (n - 1))
    error = sd / math.sqrt(n)

    def interval(level: float) -> tuple[float, float]:
        half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * error
        return (mean - half, mean + half)

    def upper_tail(distance: float) -> float:
        # A spread of exactly 0 leaves no doubt about where the mean is.
        if error == 0.0:
            return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
        return float(stats.t.sf(distance / error, n - 1))

    p_difference = min(1.0, 2.0 * upper_tail(abs(mean)))
    p_equivalence = max(upper_tail(margin - mean), upper_tail(margin + mean))
    return Paired(n, 0, mean, sd, interval(0.90), interval(0.95), p_difference, p_equivalence, margin)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm 1979); nan stays nan and does not count.

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


def spread(differences: ArrayLike) -> float:
    """Return the sample standard deviation of the finite differences, nan for fewer than two.

    Examples
    --------
    >>> spread([0.001, -0.001, 0.0])
    0.001
    """
    r = np.asarray(differences, dtype=np.float64)
    r = r[np.isfinite(r)]
    return float(np.std(r, ddof=1)) if r.size >= 2 else math.nan


def ema(values: ArrayLike, beta: float = 0.9) -> NDArray[np.float64]:
    """Smooth a curve: e[0] = x[0], e[t] = beta e[t-1] + (1 - beta) x[t].

    Parameters
    ----------
    values : array_like of float, shape (steps,)
        The raw curve; from the first value that is not finite on, the result is nan.
    beta : float
        Weight of the past, 0.9 in the DeepSeek-V3 report.

    Returns
    -------
    ndarray of float64, shape (steps,)

    Examples
    --------
    >>> ema([1.0, 2.0], beta=0.5).tolist()
    [1.0, 1.5]
    """
    x = np.asarray(values, dtype=np.float64)
    smooth = np.full(x.shape, np.nan)
    level: Any = None
    for t, value in enumerate(x):
        if not math.isfinite(value):
            break
        level = value if level is None else beta * level + (1.0 - beta) * value
        smooth[t] = level
    return smooth


def max_relative_error(arm: ArrayLike, reference: ArrayLike, *, beta: float = 0.9, skip: int = 10) -> float:
    """Return the largest relative distance of two smoothed training curves, as the DeepSeek-V3 report gives it.

    Parameters
    ----------
    arm, reference : array_like of float, shape (steps,)
        Training losses on the same batches.
    beta : float
        Smoothing.
    skip : int
        Leading steps left out, while the average is still settling (at least the last step is always used).

    Returns
    -------
    float
        max |ema(arm) - ema(reference)| / ema(reference); inf if the arm diverged.

    Examples
    --------
    >>> max_relative_error([2.0, 2.02], [2.0, 2.0], beta=0.0, skip=0)
    0.010000000000000009
    """
    ours, theirs = np.asarray(arm, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if ours.size < theirs.size or not np.all(np.isfinite(ours)):
        return math.inf
    if ours.shape != theirs.shape or ours.size == 0:
        raise ValueError(f"curves do not match: arm has shape {ours.shape}, reference {theirs.shape}")
    a, b = ema(ours, beta), ema(theirs, beta)
    start = min(skip, a.size - 1)
    return float(np.max(np.abs(a[start:] - b[start:]) / b[start:]))
