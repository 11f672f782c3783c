"""From the folders of a study of readings to means with intervals, and which expectations came true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...._files import read_csv
from ...analysis.estimates import ByVariance, all_nonnegative, crossed_variance, half_width, weighted_rows
from ...analysis.findings import Finding, judge, not_detected, not_identical
from ...catalogue import registered_in
from ...design.study import CheckpointSize
from ...measurements.measurement import ALL_CONDITIONS, ROWS_FILE, missing_rows
from ...report.parts import count, several
from ...run.fingerprint import check_mixture, unfinished_error
from ...run.store import RunFolder
from .study import Readings, read_study

#: The mean over all places: what a reading says of `ALL_CONDITIONS` of them, else their mean.
EVERYWHERE = ""


@dataclass(frozen=True, eq=False)
class ReadingSummary:
    """A finished study of readings.

    Attributes
    ----------
    study, setting : Readings, CheckpointSize
        What was asked, and at which size.
    places : tuple of str
        The places, in order.
    values : dict
        By arm and place: one row (checkpoint, batch, metrics ...) for each time that it was measured there.
    findings : tuple of Finding
        What became of the expectations.
    broken : list of str
        Reasons why the study must not be trusted.
    about : dict
        `run.json` of the first run.
    recipes : dict of str to dict
        The arms' recipes in full.
    """

    study: Readings
    setting: CheckpointSize
    places: tuple[str, ...]
    values: dict[tuple[str, str], NDArray[np.float64]]
    findings: tuple[Finding, ...]
    broken: list[str]
    about: dict[str, Any]
    recipes: dict[str, Any]

    def of(self, metric: str, arm: str, place: str = EVERYWHERE) -> NDArray[np.float64]:
        """Return rows (checkpoint, batch, value) of a metric; nan is left out."""
        column = 2 + [*self.study.reading.metrics].index(metric)
        everywhere = (ALL_CONDITIONS,) if ALL_CONDITIONS in self.places else self.places
        places = everywhere if place == EVERYWHERE else (place,)
        rows = np.concatenate([self.values[arm, name][:, [0, 1, column]] for name in places])
        found: NDArray[np.float64] = rows[~np.isnan(rows[:, 2])]
        return found

    def mean(self, metric: str, arm: str, place: str = EVERYWHERE) -> float:
        """Return a metric's mean, over all places if none is named; nan if it was never measured."""
        values = self.of(metric, arm, place)[:, 2]
        return float(np.sum(values)) / len(values) if len(values) else math.nan

    def half(self, metric: str, arm: str, place: str = EVERYWHERE) -> float:
        """Return half the width of the mean's 90 % interval, nan for a single batch."""
        return half_width(self.of(metric, arm, place))

    def variance(self, metric: str, place: str, weights: Mapping[str, float]) -> tuple[float, float]:
        """Return the variance of a weighted sum of arms' means: checkpoints and batches are samples."""
        tables = {arm: self.of(metric, arm, place) for arm in weights}
        return crossed_variance(weighted_rows(tables, weights))

    def is_nonnegative(self, metric: str, arm: str, place: str = EVERYWHERE) -> bool:
        """Tell whether a metric of an arm was never negative."""
        return all_nonnegative(self.of(metric, arm, place))

    @property
    def shown(self) -> list[str]:
        """Names of the arms but repeats, and but a reference that differs from itself in nothing."""
        metric = self.study.reading.panels[0]
        return [
            arm.name
            for arm in self.study.arms
            if arm.role != "repeat" and (arm.role != "reference" or self.mean(metric, arm.name) != 0.0)
        ]

    @property
    def size(self) -> str:
        """What was measured, in words."""
        fingerprint, setting = self.about["fingerprint"], self.setting
        config, parameters = fingerprint["config"], fingerprint["parameters"]
        tokens = int(config["batch"]) * int(config["sequence"])
        differs = [f"{name} {value}" for name, value in self.study.config.items()]
        return (
            f"{', '.join([f'{setting.config} model', *differs])}, {count(parameters['active'])} active of "
            f"{count(parameters['total'])} parameters, BF16 checkpoints of {count(setting.checkpoint_steps * tokens)} "
            f"bytes of text, {several(setting.checkpoints, 'checkpoint')} x "
            f"{several(setting.seeds, 'batch', 'batches')} of {count(tokens)} held-out bytes"
        )


def summarize(folder: Path) -> ReadingSummary:
    """Read a finished study.

    Raises
    ------
    StudyError
        If there is no study, some of its runs are missing, or they cannot be compared.
    """
    study, setting = read_study(folder)
    collected: dict[tuple[str, str], list[list[float]]] = {}
    places: dict[str, None] = {}
    about: dict[str, Any] = {}
    records: dict[str, dict[str, Any]] = {}
    contents: dict[str, list[bytes]] = {}
    missing, broken = [], []
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
                broken.append(f"{record['name']} {lacks}")
            path = run.path / ROWS_FILE
            contents.setdefault(arm.name, []).append(path.read_bytes())
            for batch, place, *row in read_csv(path)[1]:
                places[place] = None
                collected.setdefault((arm.name, place), []).append(
                    [checkpoint, float(batch), *(float(value) for value in row)]
                )
    if missing:
        raise unfinished_error(folder, missing)
    recipes = {name: record["fingerprint"]["recipe"] for name, record in records.items()}
    values = {key: np.array(rows) for key, rows in collected.items()}
    unjudged = ReadingSummary(study, setting, tuple(places), values, (), [], about, recipes)
    broken += _not_identical(study, contents) + _not_detected(unjudged)
    known = registered_in(folder, study.name)
    findings = tuple(
        judge(item, ByVariance(unjudged), broken, registered=known.covers(item)) for item in study.expectations
    )
    return ReadingSummary(study, setting, tuple(places), values, findings, broken, about, recipes)


def _not_identical(study: Readings, contents: dict[str, list[bytes]]) -> list[str]:
    reference = study.reference.name
    repeats = [arm.name for arm in study.arms if arm.role == "repeat"]
    return [not_identical(name, reference) for name in repeats if contents[name] != contents[reference]]


def _not_detected(summary: ReadingSummary) -> list[str]:
    """Return the controls whose first metric is not further from the reference's than the floor's is."""
    metric, arms = summary.study.reading.panels[0], summary.study.arms
    base = summary.mean(metric, summary.study.reference.name)
    floor = max((abs(summary.mean(metric, arm.name) - base) for arm in arms if arm.role == "floor"), default=0.0)
    controls = [arm.name for arm in arms if arm.role == "control"]
    return [not_detected(name) for name in controls if not abs(summary.mean(metric, name) - base) > floor]
