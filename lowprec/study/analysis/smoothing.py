"""Training curves: smoothing, how far two of them are apart, and what data is worth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


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


def data_lost(effect: float, slope: float) -> float:
    """Return the share of the data that a relative rise of the loss is worth, where the loss goes as bytes**slope.

    Examples
    --------
    >>> round(data_lost(0.0025, -0.24), 4)          # 0.25 % of loss is 1 % of data
    0.0103
    """
    return 1.0 - (1.0 + effect) ** (1.0 / slope) if slope < 0.0 and effect > -1.0 else math.nan
