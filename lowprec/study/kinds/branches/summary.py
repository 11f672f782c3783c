"""From the folders of a study of branches to numbers: each arm against the reference, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...analysis.power import detectable_difference, equivalence_power, pairs_needed
from ...analysis.smoothing import max_relative_error
from ...analysis.statistics import Paired, bootstrap_interval, holm, paired, relative_differences, root_mean_square
from ...design.arms import Arm
from ...design.expectations import Finding
from ...report.parts import count, several
from ...run.fingerprint import check_mixture, unfinished_error
from ...run.store import RunFolder
from .ablation import Ablation, Setting, pairs_of, read_study, run_name


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
    max_violation: float = math.nan


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
        Root mean square of the floor arm's differences; nan without one.
    tokens_per_step, parameters, active_parameters : int
        Sizes.
    data : str
        Hash of the data.
    about : dict
        `run.json` of one run: versions, host.
    recipes : dict
        The arms' recipes in full.
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
    about: dict[str, Any] = field(default_factory=dict)
    recipes: dict[str, Any] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What became of the expectations."""
        return tuple(item.judge(lambda metric, arm, _: self.mean(metric, arm)) for item in self.ablation.expectations)

    def mean(self, metric: str, name: str) -> float:
        """Return the mean of one of `BRANCH_METRICS` over an arm's pairs; inf or nan where a run diverged."""
        item = None if name == self.ablation.reference.name else self.arm(name)
        runs = self.reference if item is None else item.runs
        if metric == "max_violation":
            return float(np.mean([run.max_violation for run in runs]))
        if metric == "diverged":
            return float(np.mean([not math.isfinite(run.loss) for run in runs]))
        if item is None:
            return 0.0
        if metric == "loss_percent":
            return 100 * item.own.mean
        return 100 * (item.in_bf16.mean if metric == "loss_percent_bf16" else item.train_error)

    def arm(self, name: str) -> ArmSummary:
        """Return the summary of an arm."""
        return next(item for item in self.arms if item.arm.name == name)

    @property
    def size(self) -> str:
        """What was trained, in words."""
        setting = self.setting
        before = f"after a BF16 checkpoint of {count(setting.checkpoint_steps * self.tokens_per_step)}"
        scratch = setting.from_scratch
        starts = several(
            setting.checkpoints, "initial weights" if scratch else "checkpoint", "initial weights" * scratch
        )
        after = count(setting.branch_steps * self.tokens_per_step)
        return (
            f"{setting.config} model, {count(self.active_parameters)} active of {count(self.parameters)} parameters, "
            f"{after} bytes of text {'from scratch' if scratch else before}, "
            f"{several(setting.pairs, 'pair')} ({starts} x {several(setting.seeds, 'data seed')})"
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
    varied = {f"config.{key}" for arm in ablation.arms for key in arm.config}
    found_recipe: dict[str, dict[str, Any]] = {}
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
            check_mixture(folder, name, record, about, found_recipe.setdefault(arm.name, record), varied)
            found.append(_pair_run(checkpoint, seed, run, record))
        runs[arm.name] = tuple(found)
    if missing:
        raise unfinished_error(folder, missing)
    reference = runs[ablation.reference.name]
    arms = [
        _arm_summary(arm, runs[arm.name], reference, ablation.margin)
        for arm in ablation.arms
        if arm.role != "reference"
    ]
    tested = [i for i, item in enumerate(arms) if item.arm.role in ("treatment", "control")]
    adjusted = dict(zip(tested, holm([arms[i].own.here.p_difference for i in tested]), strict=True))
    floors = [item.differences for item in arms if item.arm.role == "floor"]
    fingerprint = about["fingerprint"]
    floor = root_mean_square(np.concatenate(floors)) if floors else math.nan
    return StudySummary(
        ablation,
        setting,
        tuple(
            replace(item, p_holm=adjusted.get(i, math.nan), at_floor=abs(item.own.mean) <= floor)
            for i, item in enumerate(arms)
        ),
        reference,
        floor,
        int(fingerprint["config"]["batch"]) * int(fingerprint["config"]["sequence"]),
        int(fingerprint["parameters"]["total"]),
        int(fingerprint["parameters"]["active"]),
        str(fingerprint["data"]),
        about,
        {name: _recipe(record["fingerprint"]) for name, record in found_recipe.items()},
    )


def _recipe(fingerprint: dict[str, Any]) -> Any:
    """Return what an arm ran in, the tail included."""
    recipe = fingerprint["recipe"]
    return {**recipe, "tail": fingerprint["tail"]} if "tail" in fingerprint else recipe


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
        _late_mean(columns.get("max_violation", [])),
    )


def _late_mean(values: Sequence[float]) -> float:
    """Return the mean of the last quarter, nan if there is nothing."""
    return float(np.mean(values[-max(1, len(values) // 4) :])) if values else math.nan


def _arm_summary(arm: Arm, runs: Sequence[PairRun], reference: Sequence[PairRun], margin: float) -> ArmSummary:
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
        train_error=max(max_relative_error(run.curve, other.curve) for run, other in pairs),
        p_holm=math.nan,
        identical=identical,
        bootstrap90=bootstrap_interval(own, 0.90),
        power=_power(measured),
    )


def _power(own: Paired) -> Power:
    # The spread that the interval is made of: within checkpoints, if there is one.
    sd, df = own.here.error * math.sqrt(own.n), own.here.df
    return Power(
        detectable_difference(sd, own.n, df),
        equivalence_power(sd, own.n, own.margin, df),
        pairs_needed(sd, own.margin) if math.isfinite(sd) else 0,
    )
