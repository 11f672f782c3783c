"""Tables of measured claims, as a kind of study: how one is measured, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...._files import to_csv
from ...analysis.estimate import Values
from ...catalogue import registered_in
from ...design.expectations import Finding
from ...report.document import Document, Part, Table, Text
from ...report.parts import EXPECTED_COLUMNS, expected_table
from ...run.store import check_writable
from ..kind import MeasuringKind, Report
from ..measuring import made_of, show_table, write_reports
from .study import Claims, ClaimSetting


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a study found."""

    study: Claims
    setting: ClaimSetting
    values: dict[tuple[str, str], float]
    findings: tuple[Finding, ...]


class ClaimKind(MeasuringKind[Claims, ClaimSetting]):
    """A table of measured claims, about tensors alone."""

    name: ClassVar[str] = "claims"
    study: ClassVar[type] = Claims

    def measure(
        self,
        study: Claims,
        setting: ClaimSetting,
        folder: Path,
        *,
        command: str = "",
        plot: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Measure, and write `table.csv` and the reports; a finding is never a failure.

        Raises
        ------
        StudyError
            If the folder cannot be written.
        """
        began = time.process_time()
        check_writable(folder)
        values = study.measure(setting.seeds)
        if progress is not None:
            progress(1, 1)
        known = registered_in(folder, study.name)
        findings = tuple(
            item.judge(Values(lambda metric, arm, stress: values[metric, arm]), registered=known.covers(item))
            for item in study.expectations
        )
        outcome = Outcome(study, setting, values, findings)
        found = document(outcome, folder, command)
        table = to_csv(("metric", "arm", "value"), [(metric, arm, value) for (metric, arm), value in values.items()])
        files = write_reports(found, as_json(outcome), folder, {"table.csv": table}, plot, began)
        return Report(outcome, found, files, partial(show, outcome), partial(expected_csv, outcome))


def document(outcome: Outcome, folder: Path, command: str) -> Document:
    """Return the report."""
    study = outcome.study
    metrics = list(dict.fromkeys(metric for metric, _ in outcome.values))
    measured = tuple(
        (arm.name, *(f"{outcome.values[metric, arm.name]:.4g}" if (metric, arm.name) in outcome.values else ""
                     for metric in metrics))
        for arm in study.arms
    )  # fmt: skip
    parts: tuple[Part, ...] = (
        expected_table(outcome.findings),
        *([Text(f"Published: {study.published} ({study.source}).")] if study.published else []),
        Table(("arm", *metrics), measured, f"{outcome.setting}; {command}"),
        *([Text(study.notes)] if study.notes else []),
    )
    return Document(study.name, study.question, study.tier, parts, made_of(), folder)


def expected_csv(outcome: Outcome) -> str:
    """Return the table of expectations as CSV."""
    return to_csv(EXPECTED_COLUMNS, expected_table(outcome.findings).rows)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    return {
        "setting": outcome.setting,
        "values": [{"metric": metric, "arm": arm, "value": v} for (metric, arm), v in outcome.values.items()],
        "findings": [
            {"expected": item.expectation.words, "value": item.value, "outcome": item.outcome}
            for item in outcome.findings
        ],
    }


def show(outcome: Outcome, console: Any) -> None:
    """Print the table on a rich console."""
    show_table(console, EXPECTED_COLUMNS, expected_table(outcome.findings).rows, outcome.study.question)
