"""One arm of branches against the reference: its runs as they ended, its numbers, its verdict and what voids that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...analysis.power import detectable_difference, equivalence_power, pairs_needed
from ...analysis.smoothing import max_relative_error
from ...analysis.statistics import Paired, bootstrap_interval, paired, relative_differences
from ...analysis.validity import said
from ...design.arms import Arm
from ...run.store import RUN_FILE, RunFolder, StudyError


@dataclass(frozen=True, eq=False)
class PairRun:
    """One arm of one pair, as it ended; `outcome` is all that a repeat must reproduce, `lacks` what is not on disk."""

    checkpoint: int
    seed: int
    loss: float
    loss_bf16: float
    curve: NDArray[np.float64]
    seconds_per_step: float
    outcome: tuple[bytes, str, float, float]
    max_violation: float = math.nan
    lacks: str = ""


@dataclass(frozen=True)
class Power:
    """What a number of pairs with a spread can see.

    Attributes
    ----------
    detectable : float
        True difference that is found with 80 % probability.
    equivalence : float
        Probability of showing equivalence if there is no difference.
    pairs : int
        Pairs that would make it 80 %.
    """

    detectable: float
    equivalence: float
    pairs: int


@dataclass(frozen=True, eq=False)
class ArmSummary:
    """One arm against the reference.

    Attributes
    ----------
    arm : Arm
        The arm.
    runs : tuple of PairRun
        Its runs.
    differences : ndarray of float64, shape (pairs,)
        Relative differences of the validation loss in the arm's own precision; inf for a diverged run.
    own, in_bf16 : Paired
        Relative difference of the validation loss, evaluated in the arm's own precision and in BF16.
    train_error : float
        Largest smoothed relative difference of the training loss over all pairs and steps (DeepSeek-V3's measure).
    p_holm : float
        p of a difference, adjusted for the number of treatments and controls; nan for the other roles.
    identical : bool or None
        For a repeat: whether every step and result has the reference's bits.
    bootstrap90 : (float, float)
        Bootstrap interval beside `own.ci90`.
    power : Power
        What this many pairs with this spread can see.
    at_floor : bool
        Whether the mean is no larger than the floor, so that it cannot be told from a change that does not matter.
    damage : tuple of str
        Why its numbers cannot be trusted: incomplete runs, its own or those that it is judged by, or a repeat that
        differs.
    blind : tuple of str
        Positive controls that were not detected, so that differences of losses are not seen.
    """

    arm: Arm
    runs: tuple[PairRun, ...]
    differences: NDArray[np.float64]
    own: Paired
    in_bf16: Paired
    train_error: float
    p_holm: float
    identical: bool | None
    bootstrap90: tuple[float, float]
    power: Power
    at_floor: bool = False
    damage: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()

    @property
    def void(self) -> tuple[str, ...]:
        """Why there is no verdict; empty if there is one."""
        return self.damage + self.blind

    @property
    def verdict(self) -> str:
        """The verdict on `own`, for a repeat whether it is identical; "void: " and why, where it cannot be trusted."""
        found = self.own.verdict
        if self.identical is not None:
            found = "bit-identical" if self.identical else "NOT bit-identical"
        return said(found, self.void)

    @property
    def word(self) -> str:
        """The verdict without the reasons for which it is void."""
        return self.verdict.partition(":")[0]

    @property
    def detected(self) -> bool:
        """Whether the arm is seen to hurt."""
        return self.own.diverged > 0 or self.own.ci95[0] > 0.0


def pair_run(checkpoint: int, seed: int, run: RunFolder, record: dict[str, Any]) -> PairRun:
    """Return a finished run as its folder has it; metrics that are incomplete are none.

    Raises
    ------
    StudyError
        If its files are damaged.
    """
    lacks = run.lacks(record)
    columns = {} if lacks else run.columns()
    try:
        steps = int(record.get("timed_steps") or 0)
        losses = float(record["validation_loss"]), float(record["validation_loss_bf16"])
        seconds = float(record["seconds"]) / steps if steps else math.nan
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{run.path / RUN_FILE} is damaged ({error}); remove that folder and run again") from None
    return PairRun(
        checkpoint,
        seed,
        *losses,
        np.array(columns.get("loss", []), dtype=np.float64),
        seconds,
        (run.metrics.read_bytes() if run.metrics.is_file() else b"", str(record.get("weights")), *losses),
        _late_mean(columns.get("max_violation", [])),
        f"{record.get('name')} {lacks}" if lacks else "",
    )


def _late_mean(values: Sequence[float]) -> float:
    """Return the mean of the last quarter, nan if there is nothing."""
    return float(np.mean(values[-max(1, len(values) // 4) :])) if values else math.nan


def arm_summary(arm: Arm, runs: Sequence[PairRun], reference: Sequence[PairRun], margin: float) -> ArmSummary:
    """Return an arm against the reference, pair by pair."""
    partner = {(run.checkpoint, run.seed): run for run in reference}
    pairs = [(run, partner[run.checkpoint, run.seed]) for run in runs]
    theirs = [other.loss for _, other in pairs]
    own = relative_differences([run.loss for run, _ in pairs], theirs)
    in_bf16 = relative_differences([run.loss_bf16 for run, _ in pairs], [other.loss_bf16 for _, other in pairs])
    groups = [run.checkpoint for run, _ in pairs]
    measured = paired(own, margin, groups)
    identical = None
    if arm.role == "repeat":
        identical = all(run.outcome == other.outcome for run, other in pairs)
    return ArmSummary(
        arm=arm,
        runs=tuple(runs),
        differences=own,
        own=measured,
        in_bf16=paired(in_bf16, margin, groups),
        train_error=_train_error(pairs),
        p_holm=math.nan,
        identical=identical,
        bootstrap90=bootstrap_interval(own, 0.90),
        power=_power(measured),
    )


def _train_error(pairs: Sequence[tuple[PairRun, PairRun]]) -> float:
    if any(run.lacks or other.lacks for run, other in pairs):
        return math.nan
    return max(max_relative_error(run.curve, other.curve) for run, other in pairs)


def _power(own: Paired) -> Power:
    # The spread that the interval is made of: within checkpoints, if there is one.
    sd, df = own.here.error * math.sqrt(own.n), own.here.df
    return Power(
        detectable_difference(sd, own.n, df),
        equivalence_power(sd, own.n, own.margin, df),
        pairs_needed(sd, own.margin) if math.isfinite(sd) else 0,
    )
