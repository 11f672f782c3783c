"""Pairs of finished runs: both runs, the distance of their curves, and the 2x2 table of weights and precisions.

Both runs of a pair are evaluated in the arm's forward precision and in BF16. Most of the difference between an arm's
loss in its own precision and the reference's loss in BF16 exists before the first update: it is the error of rounding
weights that BF16 trained. The effect of training on the weights appears if both runs are evaluated in one precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..analysis.paired import Paired, paired, relative_differences
from ..analysis.variance import MeanSquares, PooledRatio, mean_squares
from ..run.branch import BF16, read_windows
from ..run.store import RUN_FILE, RunFolder, StudyError
from .sizes import EFFECTS

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ArmRun:
    """Finished run of one arm in one pair.

    Attributes
    ----------
    checkpoint, seed : int
        Checkpoint and data seed of the pair.
    forward : str
        Key of the forward precision at the end of the run.
    losses : mapping of str to float
        Validation losses by key of the forward precision; "bf16" for BF16.
    curve : float64 array [steps]
        Training loss at every step.
    seconds_per_step : float
        Mean training time per step.
    outcome : tuple
        Everything that a repeat must reproduce.
    max_violation : float
        Maximum violation of the expert load balance, mean over the last quarter of the steps.
    data_exponent : float
        d ln(loss) / d ln(bytes) at the branch point; nan from scratch.
    lacks : str
        Description of missing files.
    windows : mapping of str to float64 array
        Losses of all held-out windows, by the same keys.
    """

    checkpoint: int
    seed: int
    forward: str
    losses: Mapping[str, float]
    curve: NDArray[np.float64]
    seconds_per_step: float
    outcome: tuple[bytes, str, float, float]
    max_violation: float = math.nan
    data_exponent: float = math.nan
    lacks: str = ""
    windows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Validation loss in the run's final precision."""
        return self.losses[self.forward]

    @property
    def loss_bf16(self) -> float:
        """Validation loss in BF16."""
        return self.losses[BF16]


def arm_run(checkpoint: int, seed: int, run: RunFolder, record: dict[str, Any]) -> ArmRun:
    """Read a finished run from its folder; incomplete metrics are treated as missing.

    Raises
    ------
    StudyError
        If files are damaged, or of a version that did not evaluate the reference's weights in the arms' precisions.
    """
    if "forwards" not in record:
        raise StudyError(
            f"{run.path / RUN_FILE} is of an earlier version, which did not evaluate the reference's weights in every "
            "arm's precision, so forward and training effects cannot be separated; run the study again with --restart"
        )
    lacks = run.missing_rows(record)
    columns = {} if lacks else run.columns()
    try:
        steps = int(record.get("timed_steps") or 0)
        own, plain = float(record["validation_loss"]), float(record["validation_loss_bf16"])
        losses = {key: float(value) for key, value in record["forwards"].items()}
        windows = {key: np.array(values) for key, values in read_windows(run.path).items()}
        forward, bf16 = str(record["forward"]), str(record["plain_forward"])
        losses |= {forward: own, BF16: plain}
        windows |= {BF16: windows[bf16]} if bf16 in windows else {}
        seconds = float(record["seconds"]) / steps if steps else math.nan
        exponent = float(record["data_exponent"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StudyError(f"{run.path / RUN_FILE} is damaged ({error}); remove that folder and run again") from None
    return ArmRun(
        checkpoint, seed, forward, losses, np.array(columns.get("loss", []), dtype=np.float64), seconds,
        (run.metrics.read_bytes() if run.metrics.is_file() else b"", str(record.get("weights")), own, plain),
        _late_mean(columns.get("max_violation", [])), exponent, f"{record.get('name')} {lacks}" if lacks else "",
        windows,
    )  # fmt: skip


def mean_run(run: ArmRun, other: ArmRun) -> ArmRun:
    """Return the mean of a pair's two reference runs as a run: the mean of losses, windows and curves."""
    steps = min(run.curve.size, other.curve.size)
    return replace(
        run,
        losses={key: (loss + other.losses[key]) / 2 for key, loss in run.losses.items()},
        windows={key: (values + other.windows[key]) / 2 for key, values in run.windows.items()},
        curve=(run.curve[:steps] + other.curve[:steps]) / 2,
        lacks=run.lacks or other.lacks,
    )


def _late_mean(values: Sequence[float]) -> float:
    """Return the mean of the last quarter of the values; nan without values."""
    return float(np.mean(values[-max(1, len(values) // 4) :])) if values else math.nan


# --- training curves -------------------------------------------------------------------------------------------------


def ema(values: ArrayLike, beta: float = 0.9) -> NDArray[np.float64]:
    """Smooth a curve: e[0] = x[0], e[t] = beta e[t-1] + (1 - beta) x[t].

    Parameters
    ----------
    values : array_like of float, shape (steps,)
        Values to smooth; the result is nan from the first value that is not finite.
    beta : float
        Weight of the past, 0.9 in the DeepSeek-V3 report.

    Returns
    -------
    ndarray of float64, shape (steps,)
        Smoothed curve.

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
    """Return the largest relative difference of two smoothed training curves, the measure of the DeepSeek-V3 report.

    Parameters
    ----------
    arm, reference : array_like of float, shape (steps,)
        Training losses on the same batches.
    beta : float
        Weight of the past in the smoothing, as in `ema`.
    skip : int
        Number of leading steps to ignore while the average settles; at least the last step is always used.

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
        raise ValueError(f"curves of arm and reference must have the same shape, got {ours.shape} and {theirs.shape}")
    a, b = ema(ours, beta), ema(theirs, beta)
    start = min(skip, a.size - 1)
    return float(np.max(np.abs(a[start:] - b[start:]) / b[start:]))


def data_equivalent(effect: float, slope: float) -> float:
    """Return the fraction of the data that, if removed, increases the loss by `effect`, for loss ~ bytes**slope.

    Examples
    --------
    >>> round(data_equivalent(0.0025, -0.24), 4)          # 0.25 % of loss is 1 % of data
    0.0103
    """
    return 1.0 - (1.0 + effect) ** (1.0 / slope) if slope < 0.0 and effect > -1.0 else math.nan


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EffectSamples:
    """Samples of one effect: one value per pair.

    Attributes
    ----------
    values : float64 array [pairs]
        Relative differences; inf if one of the two losses is not finite.
    text : float64 array [pairs, windows]
        Contribution of each held-out window to each difference; empty if unknown.
    checkpoints : tuple of int
        Checkpoint of each pair.
    """

    values: Floats
    text: Floats
    checkpoints: tuple[int, ...]

    @property
    def levels(self) -> MeanSquares | None:
        """Mean squares of the values; None if a value is not finite."""
        return mean_squares(self.values, self.checkpoints) if np.isfinite(self.values).all() else None

    def summarize(self, margin: float, ratio: PooledRatio) -> Paired:
        """Return the statistics of the effect."""
        return paired(self.values, margin, self.checkpoints, ratio=ratio, text=self.text)

    def minus(self, other: EffectSamples) -> EffectSamples:
        """Return this effect minus another arm's, for pairs that both arms have."""
        return self.add(other, -1.0)

    def add(self, other: EffectSamples, weight: float = 1.0) -> EffectSamples:
        """Return this effect plus a multiple of another arm's, for pairs that both arms have."""
        theirs = {key: place for place, key in enumerate(_keys(other.checkpoints))}
        both = [(place, theirs[key]) for place, key in enumerate(_keys(self.checkpoints)) if key in theirs]
        ours, others = [place for place, _ in both], [place for _, place in both]
        finite = np.isfinite(self.values[ours]) & np.isfinite(other.values[others])
        values = np.full(len(both), math.inf)
        values[finite] = (self.values[ours] + weight * other.values[others])[finite]
        text = np.empty((0, 0))
        if self.text.size and other.text.size:
            text = self.text[ours] + weight * other.text[others]
        return EffectSamples(values, text, tuple(self.checkpoints[place] for place in ours))


def _keys(checkpoints: Sequence[int]) -> list[tuple[int, int]]:
    """Return a key of every pair: its checkpoint, and its index among the pairs of that checkpoint, ordered by seed."""
    return [(one, list(checkpoints[:place]).count(one)) for place, one in enumerate(checkpoints)]


def effects_of(pairs: Sequence[tuple[ArmRun, ArmRun]]) -> dict[str, EffectSamples]:
    """Return the `EFFECTS` of (arm, reference) pairs."""
    # L[f](w): loss with the weights w of a run, in forward precision f.
    corners = {
        "forward": ((1, True), (1, False)),
        "training": ((0, False), (1, False)),
        "training_own": ((0, True), (1, True)),
        "total": ((0, True), (1, False)),
    }
    assert corners.keys() == EFFECTS.keys()
    return {name: _differences(pairs, *sides) for name, sides in corners.items()}


def _differences(
    pairs: Sequence[tuple[ArmRun, ArmRun]], above: tuple[int, bool], below: tuple[int, bool]
) -> EffectSamples:
    def keys(side: tuple[int, bool]) -> list[tuple[ArmRun, str]]:
        which, own = side
        return [(pair[which], pair[0].forward if own else BF16) for pair in pairs]

    ours = np.array([run.losses[key] for run, key in keys(above)])
    theirs = np.array([run.losses[key] for run, key in keys(below)])
    fine = np.isfinite(theirs)
    values = np.full(ours.shape, math.inf)
    values[fine] = relative_differences(ours[fine], theirs[fine])
    rows = []
    for (run, key), (other, other_key), r in zip(keys(above), keys(below), values, strict=True):
        a, b = run.windows.get(key), other.windows.get(other_key)
        if a is None or b is None or not math.isfinite(r):
            return EffectSamples(values, np.empty((0, 0)), tuple(run.checkpoint for run, _ in pairs))
        # Contribution of a window to a ratio of means A / B: (a - A / B b) / B.
        rows.append((a - (1.0 + r) * b) / b.mean())
    return EffectSamples(values, np.array(rows), tuple(run.checkpoint for run, _ in pairs))
