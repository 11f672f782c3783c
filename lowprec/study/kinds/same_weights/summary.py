"""From the folders of a study of the same weights to means over batches, and which expectations came true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...analysis.estimates import ByVariance, all_nonnegative, crossed_variance, half_width, weighted_rows
from ...analysis.findings import Finding, judge, not_detected, not_identical
from ...analysis.paired import spread
from ...analysis.recipe_bits import short_k_note
from ...catalogue import registered_in
from ...design.study import CheckpointSize
from ...measurements.gradients import GradientComparison
from ...measurements.measurement import LAYERS_FILE, ROWS_FILE, missing_rows, read_rows
from ...report.parts import count, several
from ...run.fingerprint import check_mixture, unfinished_error
from ...run.store import RunFolder
from .study import METRICS, SameWeights, read_study

LAYER_METRICS = GradientComparison.layer_metrics
#: Arm and condition.
Key = tuple[str, str]
#: Layer (-1 for none) and kind of parameter.
Place = tuple[int, str]


@dataclass(frozen=True, eq=False)
class WeightsSummary:
    """A finished study of the same weights.

    Attributes
    ----------
    study, setting : SameWeights, CheckpointSize
        What was asked, and at which size.
    values : dict
        By arm and condition: one dict of metrics for every batch of every checkpoint.
    layers : dict
        By arm and condition: the metrics of every layer and kind, means over batches.
    findings : tuple of Finding
        What became of the expectations.
    broken : list of str
        Reasons why the study must not be trusted.
    about : dict
        `run.json` of the first run: sizes, versions, host.
    recipes : dict of str to dict
        The arms' recipes in full.
    """

    study: SameWeights
    setting: CheckpointSize
    values: dict[Key, list[dict[str, float]]]
    layers: dict[Key, dict[Place, dict[str, float]]]
    findings: tuple[Finding, ...]
    broken: list[str]
    about: dict[str, Any]
    recipes: dict[str, Any]

    def mean(self, metric: str, arm: str, stress: str = "") -> float:
        """Return a metric's mean over batches and checkpoints; the first condition is the default."""
        return _mean([row[metric] for row in self.values[arm, stress or self.stresses[0]]])

    def sd(self, metric: str, arm: str, stress: str = "") -> float:
        """Return the standard deviation over batches and checkpoints, nan for a single one."""
        return spread([row[metric] for row in self.values[arm, stress or self.stresses[0]]])

    def rows(self, metric: str, arm: str, stress: str = "") -> NDArray[np.float64]:
        """Return rows (checkpoint, batch, value) of a metric; nan is left out."""
        values = [row[metric] for row in self.values[arm, stress or self.stresses[0]]]
        found = np.array([[*divmod(i, self.setting.seeds), value] for i, value in enumerate(values)], dtype=np.float64)
        found = found.reshape(-1, 3)
        return found[~np.isnan(found[:, 2])]

    def variance(self, metric: str, stress: str, weights: Mapping[str, float]) -> tuple[float, float]:
        """Return the variance of a weighted sum of arms' means: checkpoints and batches are samples."""
        return crossed_variance(weighted_rows({arm: self.rows(metric, arm, stress) for arm in weights}, weights))

    def is_nonnegative(self, metric: str, arm: str, stress: str = "") -> bool:
        """Tell whether a metric of an arm was never negative."""
        return all_nonnegative(self.rows(metric, arm, stress))

    def half(self, metric: str, arm: str, stress: str = "") -> float:
        """Return half the width of the mean's 90 % interval, nan for a single batch."""
        return half_width(self.rows(metric, arm, stress))

    @property
    def stresses(self) -> tuple[str, ...]:
        """Names of the conditions."""
        return tuple(stress.name for stress in self.study.stresses)

    @property
    def shown(self) -> list[str]:
        """Names of the arms that differ from the reference, in order."""
        return [arm.name for arm in self.study.arms if arm.role not in ("reference", "repeat")]

    @property
    def size(self) -> str:
        """What was measured, in words."""
        fingerprint, setting = self.about["fingerprint"], self.setting
        tokens = int(fingerprint["config"]["batch"]) * int(fingerprint["config"]["sequence"])
        parameters = fingerprint["parameters"]
        return (
            f"{setting.config} model, {count(parameters['active'])} active of {count(parameters['total'])} parameters"
            f"{short_k_note(fingerprint['config'])}, "
            f"BF16 checkpoints of {count(setting.checkpoint_steps * tokens)} bytes of text, "
            f"{several(setting.checkpoints * setting.seeds, 'batch', 'batches')} of {count(tokens)} held-out bytes "
            f"({several(setting.checkpoints, 'checkpoint')} x {setting.seeds})"
        )


def summarize(folder: Path) -> WeightsSummary:
    """Read a finished study.

    Raises
    ------
    StudyError
        If there is no study, some of its runs are missing, or they cannot be compared.
    """
    study, setting = read_study(folder)
    values: dict[Key, list[dict[str, float]]] = {
        (arm.name, stress.name): [] for arm in study.arms for stress in study.stresses
    }
    collected: dict[Key, dict[Place, list[list[float]]]] = {}
    about: dict[str, Any] = {}
    records: dict[str, dict[str, Any]] = {}
    contents: dict[str, list[bytes]] = {}
    missing, lost = [], []
    for arm in study.arms:
        for checkpoint in range(setting.checkpoints):
            run = RunFolder(folder / f"{arm.name}/c{checkpoint}")
            record = run.read()
            if record is None or not run.finished():
                missing.append(f"{arm.name}/c{checkpoint}")
                continue
            about = about or record
            check_mixture(folder, record["name"], record, about, records.setdefault(arm.name, record))
            if lacks := missing_rows(run.path, record):
                lost.append(f"{record['name']} {lacks}")
                continue
            contents.setdefault(arm.name, []).append(
                (run.path / ROWS_FILE).read_bytes() + (run.path / LAYERS_FILE).read_bytes()
            )  # fmt: skip
            for row in read_rows(run.path / ROWS_FILE):
                values.setdefault((arm.name, row["condition"]), []).append({key: float(row[key]) for key in METRICS})
            for row in read_rows(run.path / LAYERS_FILE):
                place = int(row["layer"]), row["kind"]
                numbers = [float(row[key]) for key in LAYER_METRICS]
                collected.setdefault((arm.name, row["condition"]), {}).setdefault(place, []).append(numbers)
    if missing:
        raise unfinished_error(folder, missing)
    layers = {
        key: {place: dict(zip(LAYER_METRICS, map(_mean, zip(*rows, strict=True)), strict=True))
              for place, rows in places.items()}
        for key, places in collected.items()
    }  # fmt: skip
    recipes = {name: record["fingerprint"]["recipe"] for name, record in records.items()}
    unjudged = WeightsSummary(study, setting, values, layers, (), [], about, recipes)
    broken = lost + _not_identical(study, contents) + ([] if lost else _not_detected(unjudged))
    known = registered_in(folder, study.name)
    findings = tuple(
        judge(item, ByVariance(unjudged), broken, registered=known.covers(item)) for item in study.expectations
    )
    return WeightsSummary(study, setting, values, layers, findings, broken, about, recipes)


def _not_identical(study: SameWeights, contents: dict[str, list[bytes]]) -> list[str]:
    return [
        not_identical(arm.name, other)
        for arm in study.arms
        if arm.role == "repeat"
        for other in _same_recipe(study, arm.name)
        if arm.name in contents and other in contents and contents[arm.name] != contents[other]
    ]


def _not_detected(summary: WeightsSummary) -> list[str]:
    """Return the controls whose headline, under some condition, is no larger than what storing in BF16 costs."""
    metric, arms = summary.study.headline, summary.study.arms
    found = []
    for arm in arms:
        if arm.role == "control":
            floors = [other.name for other in arms if other.role == "floor"]
            seen = all(
                summary.mean(metric, arm.name, stress)
                > max((summary.mean(metric, floor, stress) for floor in floors), default=0.0)
                for stress in summary.stresses
            )
            if not seen:
                found.append(not_detected(arm.name))
    return found


def _same_recipe(study: SameWeights, name: str) -> list[str]:
    """Return the first other arm with the same recipe."""
    recipe = next(arm.recipe for arm in study.arms if arm.name == name)
    return [arm.name for arm in study.arms if arm.name != name and arm.recipe == recipe][:1]


def _mean(values: Any) -> float:
    seen = [value for value in values if not math.isnan(value)]
    return float(np.sum(seen)) / len(seen) if seen else math.nan
