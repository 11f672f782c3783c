"""The numbers behind the figure of a study: curves over the steps of the branch, with their spread over the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..._files import to_csv, write_text
from .smoothing import ema
from .statistics import relative_differences

if TYPE_CHECKING:
    from .summary import PairRun, StudySummary

BETA = 0.9


@dataclass(frozen=True, eq=False)
class Band:
    """A curve over the steps of the branch, with its spread over the pairs.

    Attributes
    ----------
    panel : {"loss", "relative", "validation"}
        Smoothed training loss, its relative difference to the reference, or the final validation result.
    arm, role : str
        The arm.
    bytes_seen : ndarray of float64, shape (points,)
        Bytes trained on since the checkpoint.
    mean, low, high : ndarray of float64, shape (points,)
        For curves mean, smallest and largest over the pairs; for the floor's relative difference minus and plus the
        root mean square over the pairs; for "validation" mean and the ends of the 90 % interval.
    pairs : int
        How many pairs.
    ended : bool
        Whether a run of the arm diverged before the last step.
    """

    panel: str
    arm: str
    role: str
    bytes_seen: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    pairs: int
    ended: bool = False


def curves(study: StudySummary) -> list[Band]:
    """Return everything that the figure shows, as numbers.

    Parameters
    ----------
    study : StudySummary
        The study.

    Returns
    -------
    list of Band
        Curves of the reference and of every arm but repeats, then the final results.
    """
    partner = {(run.checkpoint, run.seed): run for run in study.reference}
    reference = study.ablation.reference
    bands = [_band(study, "loss", reference.name, "reference", [ema(run.curve, BETA) for run in study.reference])]
    shown = [item for item in study.arms if item.arm.role != "repeat"]
    for item in shown:
        bands.append(_band(study, "loss", item.arm.name, item.arm.role, [ema(run.curve, BETA) for run in item.runs]))
    for item in shown:
        relative = [_relative(run, partner[run.checkpoint, run.seed]) for run in item.runs]
        bands.append(_band(study, "relative", item.arm.name, item.arm.role, relative))
    end = np.array([float(study.setting.branch_steps * study.tokens_per_step)])
    for item in shown:
        own = item.own
        bands.append(
            Band(
                "validation", item.arm.name, item.arm.role, end, np.array([own.mean]), np.array([own.ci90[0]]),
                np.array([own.ci90[1]]), own.n, own.diverged > 0,
            )
        )  # fmt: skip
    return bands


def _relative(run: PairRun, other: PairRun) -> NDArray[np.float64]:
    ours, theirs = ema(run.curve, BETA), ema(other.curve, BETA)
    steps = min(ours.size, theirs.size)
    difference = relative_differences(ours[:steps], theirs[:steps])
    difference[~np.isfinite(difference)] = np.nan
    return difference


def _band(study: StudySummary, panel: str, arm: str, role: str, lines: Sequence[NDArray[np.float64]]) -> Band:
    # Only as far as all pairs go: a mean over the survivors would flatter an arm that diverges.
    steps = min(int(np.argmax(np.isnan(line))) if np.isnan(line).any() else line.size for line in lines)
    table = np.array([line[:steps] for line in lines])
    bytes_seen = study.tokens_per_step * np.arange(1, steps + 1, dtype=np.float64)
    ended = steps < study.setting.branch_steps
    if steps == 0:
        nothing = np.empty(0)
        return Band(panel, arm, role, nothing, nothing, nothing, nothing, len(lines), ended)
    low, high = table.min(axis=0), table.max(axis=0)
    if role == "floor" and panel == "relative":
        high = np.sqrt(np.mean(table * table, axis=0))
        low = -high
    return Band(panel, arm, role, bytes_seen, table.mean(axis=0), low, high, len(lines), ended)


def write_csv(path: Path, bands: Sequence[Band]) -> None:
    """Write the bands as a tidy table, floats exact."""
    rows = [
        (band.panel, band.arm, band.role, *map(float, row), band.pairs, int(band.ended))
        for band in bands
        for row in zip(band.bytes_seen, band.mean, band.low, band.high, strict=True)
    ]
    head = ("panel", "arm", "role", "bytes", "mean", "low", "high", "pairs", "diverged")
    write_text(path, to_csv(head, rows))
