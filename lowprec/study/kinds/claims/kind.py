"""Tables of measured claims, as a kind of study: how one is measured, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...._files import to_csv
from ...analysis.estimates import ByVariance, ConstantMetrics
from ...analysis.findings import Finding, judge
from ...catalogue import registered_in
from ...report.parts import Table, expected_table
from ...report.results import Block, Results
from ...report.sheet import csv_of
from ...run.store import check_writable
from ..kind import MeasuringKind
from ..measuring import made_of, summary_json
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
        progress: Callable[[int, int], None] | None = None,
    ) -> Results:
        """Measure; a finding is never a failure.

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
        means = ByVariance(ConstantMetrics(lambda metric, arm, stress: values[metric, arm]))
        findings = tuple(judge(item, means, registered=known.covers(item)) for item in study.expectations)
        outcome = Outcome(study, setting, values, findings)
        rows = [{"metric": metric, "arm": arm, "value": value} for (metric, arm), value in values.items()]
        found = expected_table(findings)
        metrics = list(dict.fromkeys(metric for metric, _ in values))
        measured = [
            (arm.name, *(f"{values[metric, arm.name]:.4g}" if (metric, arm.name) in values else ""
                         for metric in metrics))
            for arm in study.arms
        ]  # fmt: skip
        body: list[Block] = [found, f"Published: {study.published} ({study.source})." if study.published else ""]
        body += [Table(("arm", *metrics), measured, f"{setting}; {command}"), study.notes]
        return Results(
            study, folder, outcome, body, {"table.csv": csv_of(rows)}, summary_json(as_json(outcome), began),
            made_of(), [Table(found.head, found.rows, title=study.question)], printed=to_csv(found.head, found.rows),
        )  # fmt: skip


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
