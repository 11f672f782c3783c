"""Evaluation of a measurement study: means with intervals, and outcomes of expectations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis.estimates import all_nonnegative, crossed_variance, estimate, half_width, weighted_rows
from ..analysis.findings import Finding, judge, not_detected, not_identical
from ..analysis.paired import spread
from ..analysis.recipe_bits import short_k_note
from ..design.registration import registered_in
from ..design.study import CheckpointSize
from ..measurements.measurement import ALL_CONDITIONS, LAYERS_FILE, ROWS_FILE, missing_rows, read_rows
from ..report.parts import plural, short_count
from ..report.results import collect

Values = NDArray[np.float64]
#: Key of values: arm and condition.
Key = tuple[str, str]
#: Key of layer metrics: layer (-1 for none) and kind of parameter.
Place = tuple[int, str]


@dataclass(frozen=True, eq=False)
class Samples:
    """Results of a measurement study.

    Attributes
    ----------
    study, setting : MeasurementStudy, CheckpointSize
        The study and its size.
    conditions : tuple of str
        The conditions, in order.
    values : dict
        Rows (checkpoint, batch, metrics ...), one per measurement, by arm and condition.
    layers : dict
        Layer metrics by arm and condition, for every layer and kind, averaged over batches; may be empty.
    about : dict
        Content of the first run's `run.json`.
    recipes : dict of str to dict
        Complete recipes of the arms.
    findings : tuple of Finding
        Outcomes of the expectations.
    invalid_reasons : list of str
        Reasons not to trust the study.
    """

    study: Any
    setting: CheckpointSize
    conditions: tuple[str, ...]
    values: dict[Key, Values]
    layers: dict[Key, dict[Place, dict[str, float]]]
    about: dict[str, Any]
    recipes: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    invalid_reasons: tuple[str, ...] = ()

    def column(self, metric: str, arm: str, condition: str) -> Values:
        """Return the values of a metric for every measurement of an arm under a condition."""
        place = 2 + [*self.study.metrics].index(metric)
        found = self.values.get((arm, condition))
        return np.empty(0) if found is None else found[:, place]

    def of(self, metric: str, arm: str, condition: str = "") -> Values:
        """Return rows (checkpoint, batch, value) of a metric, without nan.

        Without a condition, return rows of the first or of all conditions, as the measurement defines.
        """
        default = self.conditions[:1] if self.study.measurement.first_alone else self.conditions
        default = (ALL_CONDITIONS,) if ALL_CONDITIONS in self.conditions else default
        place = 2 + [*self.study.metrics].index(metric)
        chosen = [self.values.get((arm, name)) for name in ((condition,) if condition else default)]
        rows = np.concatenate([np.empty((0, 3)), *(table[:, [0, 1, place]] for table in chosen if table is not None)])
        found: Values = rows[~np.isnan(rows[:, 2])]
        return found

    def mean(self, metric: str, arm: str, condition: str = "") -> float:
        """Return a metric's mean; nan if it was never measured."""
        values = self.of(metric, arm, condition)[:, 2]
        return float(np.sum(values)) / len(values) if len(values) else math.nan

    def sd(self, metric: str, arm: str, condition: str = "") -> float:
        """Return the standard deviation over batches and checkpoints; nan for a single measurement."""
        return spread(self.of(metric, arm, condition)[:, 2])

    def half(self, metric: str, arm: str, condition: str = "") -> float:
        """Return half the width of the mean's 90 % interval; nan for a single measurement."""
        return half_width(self.of(metric, arm, condition))

    def variance(self, metric: str, condition: str, weights: Mapping[str, float]) -> tuple[float, float]:
        """Return the variance of a weighted sum of arms' means, with checkpoints and batches as samples."""
        return crossed_variance(weighted_rows({arm: self.of(metric, arm, condition) for arm in weights}, weights))

    def is_nonnegative(self, metric: str, arm: str, condition: str = "") -> bool:
        """Return whether a metric of an arm was never negative."""
        return all_nonnegative(self.of(metric, arm, condition))

    @property
    def shown(self) -> list[str]:
        """Names of the arms, without repeats, and without the reference if its first metric is 0."""
        return [
            arm.name
            for arm in self.study.arms
            if arm.role != "repeat" and (arm.role != "reference" or self.mean(self.study.first, arm.name) != 0.0)
        ]

    @property
    def size(self) -> str:
        """Description of the measured model and its data."""
        fingerprint, setting = self.about["fingerprint"], self.setting
        config, parameters = fingerprint["config"], fingerprint["parameters"]
        tokens = int(config["batch"]) * int(config["sequence"])
        model = ", ".join(
            [f"{setting.config} model", *(f"{name} {value}" for name, value in self.study.config.items())]
        )
        model += f", {short_count(parameters['active'])} active of {short_count(parameters['total'])} parameters"
        trained = f"BF16 checkpoints of {short_count(setting.checkpoint_steps * tokens)} bytes of text"
        checkpoints, held_out = plural(setting.checkpoints, "checkpoint"), f"{short_count(tokens)} held-out bytes"
        if self.study.measurement.layer_metrics:
            batches = plural(setting.checkpoints * setting.seeds, "batch", "batches")
            return (
                f"{model}{short_k_note(config)}, {trained}, {batches} of {held_out} ({checkpoints} x {setting.seeds})"
            )
        return f"{model}, {trained}, {checkpoints} x {plural(setting.seeds, 'batch', 'batches')} of {held_out}"


def summarize(study: Any, setting: CheckpointSize, folder: Path) -> Samples:
    """Read the runs of a finished `MeasurementStudy`.

    Raises
    ------
    StudyError
        If some runs are missing, or cannot be compared.
    """
    rows: dict[Key, list[list[float]]] = {}
    layers: dict[Key, dict[Place, list[list[float]]]] = {}
    contents: dict[str, list[bytes]] = {}
    lost = []
    runs = {f"{arm.name}/c{number}": (arm.name, number) for arm in study.arms for number in range(setting.checkpoints)}
    stored = collect(folder, runs)
    for name, (run, record) in stored.found.items():
        arm, checkpoint = runs[name]
        if lacks := missing_rows(run.path, record):
            lost.append(f"{name} {lacks}")
            continue
        files = [run.path / file for file in (ROWS_FILE, *([LAYERS_FILE] if study.measurement.layer_metrics else []))]
        contents.setdefault(arm, []).extend(path.read_bytes() for path in files)
        for row in read_rows(files[0]):
            numbers = [float(checkpoint), float(row["batch"]), *(float(row[metric]) for metric in study.metrics)]
            rows.setdefault((arm, row["condition"]), []).append(numbers)
        for row in read_rows(files[1]) if len(files) > 1 else ():
            numbers = [float(row[metric]) for metric in study.measurement.layer_metrics]
            places = layers.setdefault((arm, row["condition"]), {})
            places.setdefault((int(row["layer"]), row["kind"]), []).append(numbers)
    found = Samples(
        study, setting, tuple(dict.fromkeys(condition for _, condition in rows)),
        {key: np.array(table) for key, table in rows.items()},
        {
            key: {place: dict(zip(study.measurement.layer_metrics, map(_mean, zip(*table, strict=True)), strict=True))
                  for place, table in places.items()}
            for key, places in layers.items()
        },
        stored.about, {name: record["fingerprint"]["recipe"] for name, record in stored.first.items()},
    )  # fmt: skip
    broken = (*lost, *_not_identical(study, contents), *([] if lost else _not_detected(found)))
    known, measured = registered_in(folder, study.name), partial(estimate, found)
    findings = tuple(judge(item, measured, broken, registered=known.covers(item)) for item in study.expectations)
    return replace(found, findings=findings, invalid_reasons=broken)


def _not_identical(study: Any, contents: dict[str, list[bytes]]) -> list[str]:
    """Return a reason for each repeat that differs, in its files, from the first other arm with the same recipe."""
    found = []
    for arm in study.arms_of("repeat"):
        other = next((one.name for one in study.arms if one.name != arm.name and one.recipe == arm.recipe), arm.name)
        if arm.name in contents and other in contents and contents[arm.name] != contents[other]:
            found.append(not_identical(arm.name, other))
    return found


def _not_detected(samples: Samples) -> list[str]:
    """Return a reason for each control that differs from the reference no more than a floor arm in the first metric."""
    study = samples.study

    def distance(arm: str, condition: str) -> float:
        return abs(
            samples.mean(study.first, arm, condition) - samples.mean(study.first, study.reference.name, condition)
        )

    def is_seen(arm: str, condition: str) -> bool:
        floor = max((distance(other.name, condition) for other in study.arms_of("floor")), default=0.0)
        return distance(arm, condition) > floor

    asked = samples.conditions if study.measurement.first_alone else ("",)
    return [
        not_detected(arm.name) for arm in study.arms_of("control") if not all(is_seen(arm.name, one) for one in asked)
    ]


def _mean(values: Any) -> float:
    seen = [value for value in values if not math.isnan(value)]
    return float(np.sum(seen)) / len(seen) if seen else math.nan
