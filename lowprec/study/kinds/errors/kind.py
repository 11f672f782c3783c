"""Studies of formats, as a kind of study: how one is run, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ...report.parts import Table
from ...report.results import Block, Results
from ...report.sheet import csv_of
from ...run.store import check_writable
from ..kind import MeasuringKind
from ..measuring import claims_csv, claims_json, claims_table, made_of, summary_json
from .study import ErrorOutcome, ErrorSetting, ErrorStudy, claims_of, sweep

#: Measures that have a table, in words, with scale and decimals.
TABLES = (
    ("sqnr", "SQNR, dB", 1.0, 2),
    ("relative_rms", "Relative error of a value, root mean square, %", 100.0, 3),
    ("flushed", "Values that became 0, %", 100.0, 3),
)


class ErrorKind(MeasuringKind[ErrorStudy, ErrorSetting]):
    """What each codec loses on each kind of values, published tables beside our own."""

    name: ClassVar[str] = "errors"
    study: ClassVar[type] = ErrorStudy

    def measure(
        self,
        study: ErrorStudy,
        setting: ErrorSetting,
        folder: Path,
        *,
        command: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> Results:
        """Measure.

        Raises
        ------
        StudyError
            If the folder cannot be written.
        """
        began = time.process_time()
        check_writable(folder)
        swept = sweep(study, setting, progress)
        pairs = [pair for table in study.tables for pair in claims_of(table, swept)]
        pairs += [(claim, claim.measure()) for claim in study.claims]
        outcome = replace(swept, command=command, measured=tuple(pairs))
        rows = _errors(outcome)
        files = {"claims.csv": claims_csv(outcome), f"{study.name}.csv": csv_of(rows)}
        json = {"setting": setting, "claims": claims_json(outcome), "errors": rows}
        body = [*(figure(outcome) for figure in study.figures), *_body(outcome)]
        shown = _table(outcome, "SQNR dB", "bits", TABLES[0], study.question)
        if outcome.measured:
            shown = claims_table(outcome, title=study.question)
        return Results(study, folder, outcome, body, files, summary_json(json, began), made_of(), [shown],
                       holds=outcome.holds)  # fmt: skip


def _errors(outcome: ErrorOutcome) -> list[dict[str, Any]]:
    return [
        {"data": data, "seed": seed, **row.as_dict()}
        for (_, data), seeds in outcome.errors.items()
        for seed, row in enumerate(seeds)
    ]


def _table(outcome: ErrorOutcome, first: str, second: str, measure: tuple[str, str, float, int], title: str) -> Table:
    """Return a measure of every format on every kind of data."""
    name, _, scale, digits = measure
    data = outcome.study.data
    rows = [
        (arm.label, f"{outcome.of(arm.name, data[0], 'bits_per_value').mean():.4g}",
         *(f"{scale * outcome.of(arm.name, one, name).mean():.{digits}f}" for one in data))
        for arm in outcome.study.arms
    ]  # fmt: skip
    return Table((first, second, *data), rows, title=title)


def _body(outcome: ErrorOutcome) -> list[Block]:
    """Return claims and every measured table."""
    study = outcome.study
    blocks: list[Block] = [claims_table(outcome)] if outcome.measured else []
    for measure in TABLES:
        blocks += [f"## {measure[1]}", _table(outcome, "format", "bits per value", measure, "")]
    octaves = [f"{data} {outcome.of(study.arms[0].name, data, 'octaves').mean():.1f}" for data in study.data]
    ranges = f"Mean range R of tiles of 128, octaves: {', '.join(octaves)}."
    blocks.append(f"Mean over seeds; {outcome.setting}; float32 values. {ranges}")
    blocks.append(f"Written down before: {study.expected} ({study.source})")
    return blocks + ([f"Made by `{outcome.command}`."] if outcome.command else [])
