"""From the folders of a study to numbers and sentences that say what was measured and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ablation import Ablation, Arm, Setting
from .statistics import (
    BETTER,
    DIVERGED,
    EQUIVALENT,
    NOT_RESOLVED,
    WORSE,
    Paired,
    holm,
    max_relative_error,
    paired,
    relative_differences,
    spread,
)
from .store import RunFolder, StudyError
from .study import pairs_of, read_study, run_name


@dataclass(frozen=True, eq=False)
class PairRun:
    """One arm of one pair, as it ended; `outcome` is all that a repeat must reproduce."""

    checkpoint: int
    seed: int
    loss: float
    loss_bf16: float
    curve: NDArray[np.float64]
    seconds_per_step: float
    outcome: tuple[bytes, str, float, float]


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
    """

    arm: Arm
    runs: tuple[PairRun, ...]
    differences: NDArray[np.float64]
    own: Paired
    in_bf16: Paired
    train_error: float
    p_holm: float
    identical: bool | None

    @property
    def verdict(self) -> str:
        """The verdict on `own`; a repeat is identical or not."""
        if self.identical is not None:
            return "bit-identical" if self.identical else "NOT bit-identical"
        return self.own.verdict


@dataclass(frozen=True, eq=False)
class StudySummary:
    """A finished study.

    Attributes
    ----------
    ablation, setting : Ablation, Setting
        What was asked, and at which size.
    arms : tuple of ArmSummary
        All arms but the reference.
    reference : tuple of PairRun
        The reference's runs.
    floor : float
        Standard deviation of the floor arm's differences; nan without one.
    tokens_per_step, parameters, active_parameters : int
        Sizes.
    data : str
        Hash of the data.
    """

    ablation: Ablation
    setting: Setting
    arms: tuple[ArmSummary, ...]
    reference: tuple[PairRun, ...]
    floor: float
    tokens_per_step: int
    parameters: int
    active_parameters: int
    data: str

    def arm(self, name: str) -> ArmSummary:
        """Return the summary of an arm."""
        return next(item for item in self.arms if item.arm.name == name)

    @property
    def size(self) -> str:
        """What was trained, in words."""
        setting = self.setting
        before = count(setting.checkpoint_steps * self.tokens_per_step)
        after = count(setting.branch_steps * self.tokens_per_step)
        return (
            f"{setting.config} model, {count(self.active_parameters)} active of {count(self.parameters)} parameters, "
            f"{after} bytes of text after a BF16 checkpoint of {before}, "
            f"{setting.pairs} pairs ({setting.checkpoints} checkpoints x {setting.seeds} data seeds)"
        )

    @property
    def broken(self) -> list[str]:
        """Reasons why the study must not be trusted; empty if there is none."""
        return [
            f"{item.arm.name} is NOT bit-identical to {self.ablation.reference.name}: runs are not reproducible here, "
            "so no difference below can be trusted"
            for item in self.arms
            if item.identical is False
        ]

    def sentence(self, item: ArmSummary) -> str:
        """Return the verdict on one arm in one sentence."""
        return _SENTENCES[item.arm.role](self, item)


def summarize(folder: Path) -> StudySummary:
    """Read a finished study.

    Parameters
    ----------
    folder : Path
        The study's folder.

    Raises
    ------
    StudyError
        If there is no study or some of its runs are missing.
    """
    ablation, setting = read_study(folder)
    runs: dict[str, tuple[PairRun, ...]] = {}
    about: dict[str, Any] = {}
    missing = []
    for arm in ablation.arms:
        found = []
        for checkpoint, seed in pairs_of(arm, setting):
            name = run_name(arm, checkpoint, seed)
            run = RunFolder(folder / name)
            record = run.read()
            if record is None or not run.finished():
                missing.append(name)
                continue
            about = about or record
            found.append(_pair_run(checkpoint, seed, run, record))
        runs[arm.name] = tuple(found)
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise StudyError(f"{folder}: {len(missing)} runs are not finished ({shown}); resume the study first")
    reference = runs[ablation.reference.name]
    arms = [
        _arm_summary(arm, runs[arm.name], reference, ablation.margin)
        for arm in ablation.arms
        if arm.role != "reference"
    ]
    tested = [i for i, item in enumerate(arms) if item.arm.role in ("treatment", "control")]
    adjusted = dict(zip(tested, holm([arms[i].own.p_difference for i in tested]), strict=True))
    floors = [item.differences for item in arms if item.arm.role == "floor"]
    fingerprint = about["fingerprint"]
    return StudySummary(
        ablation,
        setting,
        tuple(replace(item, p_holm=adjusted.get(i, math.nan)) for i, item in enumerate(arms)),
        reference,
        spread(np.concatenate(floors)) if floors else math.nan,
        int(fingerprint["config"]["batch"]) * int(fingerprint["config"]["sequence"]),
        int(fingerprint["parameters"]["total"]),
        int(fingerprint["parameters"]["active"]),
        str(fingerprint["data"]),
    )


def _pair_run(checkpoint: int, seed: int, run: RunFolder, record: dict[str, Any]) -> PairRun:
    columns = run.columns()
    steps = int(record.get("timed_steps") or 0)
    losses = float(record["validation_loss"]), float(record["validation_loss_bf16"])
    return PairRun(
        checkpoint,
        seed,
        *losses,
        np.array(columns.get("loss", []), dtype=np.float64),
        float(record["seconds"]) / steps if steps else math.nan,
        (run.metrics.read_bytes(), str(record.get("weights")), *losses),
    )


def _arm_summary(arm: Arm, runs: Sequence[PairRun], reference: Sequence[PairRun], margin: float) -> ArmSummary:
    partner = {(run.checkpoint, run.seed): run for run in reference}
    pairs = [(run, partner[run.checkpoint, run.seed]) for run in runs]
    theirs = [other.loss for _, other in pairs]
    own = relative_differences([run.loss for run, _ in pairs], theirs)
    in_bf16 = relative_differences([run.loss_bf16 for run, _ in pairs], [other.loss_bf16 for _, other in pairs])
    identical = None
    if arm.role == "repeat":
        identical = all(run.outcome == other.outcome for run, other in pairs)
    return ArmSummary(
        arm=arm,
        runs=tuple(runs),
        differences=own,
        own=paired(own, margin),
        in_bf16=paired(in_bf16, margin),
        train_error=max(max_relative_error(run.curve, other.curve) for run, other in pairs),
        p_holm=math.nan,
        identical=identical,
    )


# --- words -----------------------------------------------------------------------------------------------------------


def percent(value: float, *, sign: bool = True) -> str:
    """Return a relative difference as a percentage with three decimals, without the percent sign.

    Examples
    --------
    >>> percent(0.00062), percent(float("nan")), percent(0.0025, sign=False)
    ('+0.062', 'n/a', '0.250')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{100 * value:+.3f}" if sign else f"{100 * value:.3f}"


def interval(bounds: tuple[float, float]) -> str:
    """Return an interval in per cent.

    Examples
    --------
    >>> interval((-0.001, 0.002))
    '[-0.100, +0.200]'
    """
    return "n/a" if math.isinf(bounds[0]) else f"[{percent(bounds[0])}, {percent(bounds[1])}]"


def count(number: float) -> str:
    """Return a large number in short.

    Examples
    --------
    >>> count(843_392), count(81_920), count(1_433_216)
    ('0.84M', '82k', '1.43M')
    """
    if number >= 500_000:
        return f"{number / 1e6:.3g}M" if number >= 1e7 else f"{number / 1e6:.2f}M"
    return f"{number / 1e3:.0f}k" if number >= 1000 else f"{number:.0f}"


def _measured(item: ArmSummary) -> str:
    pairs = f"{item.own.n} pair" + ("s" if item.own.n > 1 else "")
    if item.own.diverged:
        return f"{item.own.diverged} of {pairs} diverged"
    if item.own.n == 1:
        return f"{percent(item.own.mean)} % (one pair, no interval)"
    return f"{percent(item.own.mean)} % (90 % interval {interval(item.own.ci90)} %, {pairs})"


def _treatment(study: StudySummary, item: ArmSummary) -> str:
    reference, margin = study.ablation.reference.name, f"±{100 * study.ablation.margin:g} %"
    verdict = {
        EQUIVALENT: f"equivalent to {reference} within {margin}",
        WORSE: f"worse than {reference}",
        BETTER: f"better than {reference}",
        NOT_RESOLVED: f"not resolved: neither equivalence within {margin} nor a difference from {reference} is shown",
        DIVERGED: "diverged",
    }[item.own.verdict]
    return f"{item.arm.name}: {_measured(item)}: {verdict}{_nuance(study, item)}."


def _nuance(study: StudySummary, item: ArmSummary) -> str:
    own = item.own
    notes = []
    if own.verdict == EQUIVALENT and own.resolved_difference:
        notes.append("though the 95 % interval excludes 0")
    if own.resolved_difference and not own.diverged and not item.p_holm < 0.05:
        notes.append(f"which does not survive Holm's correction over the arms (p = {item.p_holm:.2g})")
    if math.isfinite(study.floor) and not own.diverged:
        below = abs(own.mean) <= study.floor
        notes.append(f"{'at' if below else 'above'} the noise floor of {percent(study.floor, sign=False)} %")
    return "".join(f", {note}" for note in notes)


def _control(study: StudySummary, item: ArmSummary) -> str:
    detected = item.own.diverged > 0 or item.own.ci95[0] > 0.0
    if detected:
        return f"{item.arm.name} (positive control): {_measured(item)}: detected{_nuance(study, item)}."
    return (
        f"{item.arm.name} (positive control): {_measured(item)}: NOT detected, so this study is too small "
        "to see even a recipe that is known to hurt."
    )


def _floor(study: StudySummary, item: ArmSummary) -> str:
    return (
        f"{item.arm.name} (noise floor): one weight times (1 + 2^-7) moves the loss by {_measured(item)}; "
        f"the standard deviation, {percent(study.floor, sign=False)} %, is the floor."
    )


def _repeat(study: StudySummary, item: ArmSummary) -> str:
    runs = "1 run" if len(item.runs) == 1 else f"{len(item.runs)} runs"
    same = "bit-identical" if item.identical else "NOT bit-identical"
    return f"{item.arm.name} (A/A): {runs} again, every step's metrics, all weights and the validation loss {same}."


_SENTENCES = {"treatment": _treatment, "control": _control, "floor": _floor, "repeat": _repeat}
