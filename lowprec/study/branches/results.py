"""Evaluation of a branch study's folders: each arm relative to the reference, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis.estimates import all_nonnegative, crossed_variance, estimate, weighted_rows
from ..analysis.findings import Finding, judge, unique
from ..analysis.paired import Paired, holm, root_mean_square, t_interval
from ..analysis.recipe_bits import short_k_note
from ..analysis.variance import pooled_ratio
from ..design.arms import Arm
from ..design.registration import Registration, registered_in
from ..report.parts import plural, short_count
from ..report.results import StoredRuns, collect
from .arms import ArmSummary, arm_summary, floor_of_mean, judged, pairs_with, sensitivity
from .pairs import ArmRun, EffectSamples, arm_run, effects_of, mean_run
from .sizes import EFFECTS, Setting, pairs_of, run_name

#: Metrics of `BRANCH_METRICS` that are not differences of losses, so that undetected controls do not void them.
NOT_LOSSES = ("diverged", "max_violation")


@dataclass(frozen=True, eq=False)
class Contrast:
    """Paired difference of two arms: the effect of one ingredient.

    Attributes
    ----------
    arm, baseline : str
        Names of the two arms.
    found : Paired
        Statistics of their difference in the effect that answers the question.
    together90 : (float, float)
        Simultaneous interval: with probability 90 %, all intervals of the table contain their true values.
    p_holm : float
        p value of a difference, adjusted for the number of contrasts in the study.
    """

    arm: str
    baseline: str
    found: Paired
    together90: tuple[float, float]
    p_holm: float


@dataclass(frozen=True, eq=False)
class StudySummary:
    """Results of a branch study.

    Attributes
    ----------
    ablation, setting : Ablation, Setting
        The study and its size.
    arms : tuple of ArmSummary
        All arms except the reference.
    contrasts : tuple of Contrast
        Arms relative to the study's baseline; empty without a baseline.
    reference : tuple of ArmRun
        Runs of the reference.
    floor : float
        Noise floor of a pair: root mean square of the floor arm's differences; nan without that arm.
    tokens_per_step, parameters, active_parameters : int
        Number of tokens per step, and of all and of active parameters of the model.
    data : str
        Hash of the data.
    about : dict
        Versions and host, from the `run.json` of one run.
    recipes : dict
        Complete recipes of the arms.
    faulty_runs, undetected_controls : tuple of str
        Reasons that void all verdicts, as in `ArmSummary`.
    registered : Registration
        Expectations registered before the study.
    interim_pairs : int
        Number of complete pairs while the study is running, when verdicts are not available; 0 for a finished study.
    """

    ablation: Any
    setting: Setting
    arms: tuple[ArmSummary, ...]
    contrasts: tuple[Contrast, ...]
    reference: tuple[ArmRun, ...]
    floor: float
    tokens_per_step: int
    parameters: int
    active_parameters: int
    data: str
    about: dict[str, Any] = field(default_factory=dict)
    recipes: dict[str, Any] = field(default_factory=dict)
    faulty_runs: tuple[str, ...] = ()
    undetected_controls: tuple[str, ...] = ()
    registered: Registration = field(default_factory=Registration)
    interim_pairs: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Outcomes of the expectations."""
        return tuple(
            judge(
                item,
                partial(estimate, self),
                self._void(item.metric, item.arm, item.other),
                registered=self.registered.covers(item),
            )
            for item in self.ablation.expectations
        )

    def _void(self, metric: str, *names: str) -> tuple[str, ...]:
        """Return the reasons that void a metric of the named arms."""
        damage = [reason for item in self.arms if item.arm.name in names for reason in item.faulty_runs]
        return unique([*self.faulty_runs, *damage, *(() if metric in NOT_LOSSES else self.undetected_controls)])

    def mean(self, metric: str, name: str, _: str = "") -> float:
        """Return the mean of one of `BRANCH_METRICS` over an arm's pairs; inf or nan if a run diverged."""
        if metric in NOT_LOSSES:
            return float(np.mean(self._by_run(metric, name)[:, 2]))
        if name == self.ablation.reference.name:
            return 0.0
        item = self.arm(name)
        if metric == "train_error_percent":
            return 100 * item.train_error
        return 100 * item.effects[metric.removesuffix("_percent")].mean

    def _by_run(self, metric: str, name: str) -> NDArray[np.float64]:
        """Return rows (checkpoint, seed, value) of one of `NOT_LOSSES`."""
        runs = self.reference if name == self.ablation.reference.name else self.arm(name).runs
        return np.array([
            (run.checkpoint, run.seed, run.max_violation if metric == "max_violation" else not math.isfinite(run.loss))
            for run in runs
        ], dtype=np.float64)  # fmt: skip

    def variance(self, metric: str, _: str, weights: Mapping[str, float]) -> tuple[float, float]:
        """Return the variance of a weighted sum of arms' means; nan for the training error, which is a maximum."""
        if metric in NOT_LOSSES:
            tables = {name: self._by_run(metric, name) for name in weights}
            return crossed_variance(weighted_rows(tables, weights))
        effect = metric.removesuffix("_percent")
        if effect not in EFFECTS:
            return math.nan, 0.0
        reference = self.ablation.reference.name
        terms = [(self.arm(name).by_effect[effect], w) for name, w in weights.items() if name != reference]
        if not terms:
            return 0.0, 1.0
        (first, scale), *others = terms

        def added(differences: EffectSamples) -> EffectSamples:
            for other, weight in others:
                differences = differences.add(other, weight / scale)
            return differences

        # As in the table of contrasts, pool over the arms that could replace the first one.
        roles = ("treatment", "control") if others else ("treatment", "control", "floor")
        same_role = [item.by_effect[effect] for item in self.arms if item.arm.role in roles]
        same_role = [item for item in same_role if not any(item is other for other, _ in others)]
        shrunk = pooled_ratio(levels for item in same_role if (levels := added(item).levels) is not None)
        total = added(first)
        found = total.summarize(self.ablation.margin, shrunk)
        return (100 * scale * found.error) ** 2, found.df

    def is_nonnegative(self, metric: str, arm: str, _: str = "") -> bool:
        """Return whether a metric cannot be negative; False for effects."""
        return metric in NOT_LOSSES and all_nonnegative(self._by_run(metric, arm))

    def shown(self, *more: str) -> list[ArmSummary]:
        """Return the arms with the role treatment, control, or one of `more`."""
        return [item for item in self.arms if item.arm.role in ("treatment", "control", *more)]

    def arm(self, name: str) -> ArmSummary:
        """Return the summary of an arm."""
        return next(item for item in self.arms if item.arm.name == name)

    @property
    def size(self) -> str:
        """Description of the trained model and its data."""
        setting = self.setting
        before = f"after a BF16 checkpoint of {short_count(setting.checkpoint_steps * self.tokens_per_step)}"
        scratch = setting.from_scratch
        starts = plural(
            setting.checkpoints, "initial weights" if scratch else "checkpoint", "initial weights" * scratch
        )
        after = short_count(setting.branch_steps * self.tokens_per_step)
        return (
            f"{setting.config} model, {short_count(self.active_parameters)} active of "
            f"{short_count(self.parameters)} parameters"
            f"{short_k_note(self.about['fingerprint']['config']) if self.about else ''}, "
            f"{after} bytes of text {'from scratch' if scratch else before}, "
            f"{plural(setting.pairs, 'pair')} ({starts} x {plural(setting.seeds, 'data seed')})"
            f"{self._two_references}"
        )

    @property
    def _two_references(self) -> str:
        ablation = self.ablation
        names = f"{ablation.reference.name} and {ablation.second_reference}"
        return f", against the mean of {names}" if ablation.second_reference else ""

    @property
    def mean_floor(self) -> float:
        """Noise floor of a mean over all pairs."""
        return floor_of_mean(self.floor, self.interim_pairs or self.setting.pairs, self.references)

    @property
    def references(self) -> int:
        """Number of reference runs that are averaged for the comparison with a treatment's run."""
        return 2 if self.ablation.second_reference else 1

    @property
    def void(self) -> tuple[str, ...]:
        """Reasons that void every verdict of the study; empty if some verdicts are valid."""
        return self.faulty_runs + self.undetected_controls

    @property
    def damaged(self) -> list[str]:
        """Reasons not to trust the study, except undetected controls, which may only mean that there are few pairs."""
        return [reason for reason in self.invalid_reasons if reason not in self.undetected_controls]

    @property
    def invalid_reasons(self) -> list[str]:
        """Reasons not to trust the study, or one of its arms."""
        return [*unique([*self.void, *(reason for item in self.arms for reason in item.void)])]


def summarize(ablation: Any, setting: Setting, folder: Path) -> StudySummary:
    """Read the runs of a finished study.

    Parameters
    ----------
    ablation : Ablation
        The study.
    setting : Setting
        Size of the study.
    folder : Path
        Folder of the study.

    Raises
    ------
    StudyError
        If runs are missing, or cannot be compared.
    """
    return _summary(ablation, setting, *_read_runs(folder, ablation, setting), registered_in(folder, ablation.name))


def summarize_interim(ablation: Any, setting: Setting, folder: Path) -> StudySummary | None:
    """Return the summary of the complete pairs of a running study, None before the first is complete."""
    runs, stored = _read_runs(folder, ablation, setting, partial=True)
    there = {(run.checkpoint, run.seed) for run in runs[ablation.reference.name]}
    runs = {
        name: tuple(run for run in found if (run.checkpoint, run.seed) in there) for name, found in runs.items()
    }  # fmt: skip
    arms = tuple(arm for arm in ablation.arms if runs[arm.name])
    if not any(arm.role == "treatment" for arm in arms):
        return None
    kept = replace(ablation, arms=arms, expectations=(), contrast_with="")
    found = _summary(kept, setting, runs, stored, registered_in(folder, ablation.name))
    return replace(
        found, undetected_controls=(), interim_pairs=max(len(runs[arm.name]) for arm in arms if arm.role == "treatment")
    )


def _read_runs(
    folder: Path, ablation: Any, setting: Setting, partial: bool = False
) -> tuple[dict[str, tuple[ArmRun, ...]], StoredRuns]:
    """Return the finished runs of every arm."""
    pairs = {run_name(arm, *pair): (arm.name, *pair) for arm in ablation.arms for pair in pairs_of(arm, setting)}
    varied = {f"config.{key}" for arm in ablation.arms for key in arm.config}
    stored = collect(folder, pairs, varied, partial=partial)
    runs: dict[str, list[ArmRun]] = {arm.name: [] for arm in ablation.arms}
    for name, (run, record) in stored.found.items():
        arm, checkpoint, seed = pairs[name]
        runs[arm].append(arm_run(checkpoint, seed, run, record))
    return {name: tuple(found) for name, found in runs.items()}, stored


def _summary(
    ablation: Any, setting: Setting, runs: dict[str, tuple[ArmRun, ...]], stored: StoredRuns, registered: Registration
) -> StudySummary:
    """Return the summary of the given runs."""
    reference = runs[ablation.reference.name]
    arms, contrasts = _compared(ablation, runs, reference)
    arms, damage, blind = judged(arms, ablation.reference.name, reference)
    tested = [i for i, item in enumerate(arms) if item.arm.role in ("treatment", "control")]
    adjusted = dict(zip(tested, holm([arms[i].primary.p_difference for i in tested]), strict=True))
    floors = [item.differences for item in arms if item.arm.role == "floor"]
    fingerprint = stored.about["fingerprint"]
    floor, bounds = root_mean_square(np.concatenate(floors)) if floors else math.nan, sensitivity(arms)
    return StudySummary(
        ablation,
        setting,
        tuple(
            replace(
                item,
                p_holm=adjusted.get(i, math.nan),
                sensitivity=bounds,
                mean_floor=floor_of_mean(floor, item.primary.n, _references(ablation, item.arm)),
            )
            for i, item in enumerate(arms)
        ),
        contrasts,
        reference,
        floor,
        int(fingerprint["config"]["batch"]) * int(fingerprint["config"]["sequence"]),
        int(fingerprint["parameters"]["total"]),
        int(fingerprint["parameters"]["active"]),
        str(fingerprint["data"]),
        stored.about,
        {name: _recipe(record["fingerprint"]) for name, record in stored.first.items()},
        damage,
        blind,
        registered,
    )


def _references(ablation: Any, arm: Arm) -> int:
    """Return the number of reference runs that are averaged for the comparison with an arm's run."""
    return 2 if ablation.second_reference and arm.role not in ("repeat", "floor") else 1


def _compared(
    ablation: Any, runs: dict[str, tuple[ArmRun, ...]], reference: tuple[ArmRun, ...]
) -> tuple[list[ArmSummary], tuple[Contrast, ...]]:
    """Return every arm relative to the reference, and relative to the study's baseline."""
    arms = {arm.name: arm for arm in ablation.arms if arm.role != "reference"}
    second = pairs_with(runs[ablation.second_reference], reference) if ablation.second_reference else ()
    means = [mean_run(run, other) for other, run in second]
    pairs = {
        name: pairs_with(runs[name], means if _references(ablation, arm) == 2 else reference)
        for name, arm in arms.items()
    }
    by_arm = {name: effects_of(found) for name, found in pairs.items()}
    ratios = {
        effect: pooled_ratio(
            levels for name, found in by_arm.items()
            if arms[name].role != "repeat" and (levels := found[effect].levels) is not None
        )
        for effect in EFFECTS
    }  # fmt: skip
    found = [
        arm_summary(arm, pairs[name], by_arm[name], ratios, ablation.margin, ablation.primary_effect)
        for name, arm in arms.items()
    ]
    return found, _contrasts(ablation, {name: effects[ablation.primary_effect] for name, effects in by_arm.items()})


def _contrasts(ablation: Any, answers: dict[str, EffectSamples]) -> tuple[Contrast, ...]:
    baseline = ablation.contrast_with
    if not baseline:
        return ()
    others = [arm.name for arm in ablation.arms_of("treatment", "control") if arm.name != baseline]
    differences = [answers[name].minus(answers[baseline]) for name in others]
    ratio = pooled_ratio(levels for item in differences if (levels := item.levels) is not None)
    judged_ = [item.summarize(ablation.margin, ratio) for item in differences]
    adjusted = holm([item.p_difference for item in judged_])
    level = 1 - 0.10 / max(1, len(others))  # Bonferroni
    return tuple(
        Contrast(name, baseline, item, t_interval(item.mean, item.error, item.df, level), p)
        for name, item, p in zip(others, judged_, adjusted, strict=True)
    )


def _recipe(fingerprint: dict[str, Any]) -> Any:
    """Return the recipe of an arm, with its tail."""
    recipe = fingerprint["recipe"]
    return {**recipe, "tail": fingerprint["tail"]} if "tail" in fingerprint else recipe
