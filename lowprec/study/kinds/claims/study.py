"""Studies that are a table of measured claims: what was published, what is expected, what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...._files import to_csv
from ...design.expectations import Expectation, Finding
from ...report.document import Document, Part, Table, Text
from ...report.findings_table import EXPECTED_COLUMNS, expected_table
from ...run.store import check_writable
from ..measuring import made_of, show_table, sized, write_reports

__all__ = ["ClaimArm", "ClaimSetting", "Claims", "Outcome", "claims_csv", "document", "run", "show", "sized"]

#: Given the seeds to draw data with, returns the measured numbers by (metric, arm).
Measure = Callable[[int], dict[tuple[str, str], float]]


@dataclass(frozen=True)
class ClaimArm:
    """Something that is compared, by name."""

    name: str


@dataclass(frozen=True)
class ClaimSetting:
    """How large the study is: data of so many seeds."""

    seeds: int

    def __post_init__(self) -> None:
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < 1:
            raise ValueError(f"seeds must be a whole number of at least 1, not {self.seeds!r}")

    def __str__(self) -> str:
        return f"data of {self.seeds} seeds"


@dataclass(frozen=True)
class Claims:
    """One question about tensors alone, answered by a table.

    Parameters
    ----------
    name, question : str
        As in `Ablation`.
    arms : tuple of ClaimArm
        What is compared.
    expectations : tuple of Expectation
        What was written down before the first run.
    measure : callable
        Returns the numbers that the expectations name.
    published, source : str
        The published result, and where.
    quick, full : ClaimSetting
        Two sizes.
    notes : str
        What has to be said beside the table.
    """

    name: str
    question: str
    arms: tuple[ClaimArm, ...]
    expectations: tuple[Expectation, ...]
    measure: Measure
    published: str = ""
    source: str = ""
    quick: ClaimSetting = ClaimSetting(2)
    full: ClaimSetting = ClaimSetting(8)
    notes: str = ""
    tier: ClassVar[str] = "T1"
    runner: ClassVar[str] = "lowprec.study.kinds.claims.study"

    def __post_init__(self) -> None:
        known = {arm.name for arm in self.arms}
        for item in self.expectations:
            for name in (item.arm, item.over or item.arm):
                if name not in known:
                    raise ValueError(f"study {self.name!r}: expectation {item.words!r} names the unknown arm {name!r}")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a study found; a finding is never a failure, so `holds` is always true."""

    study: Claims
    setting: ClaimSetting
    values: dict[tuple[str, str], float]
    findings: tuple[Finding, ...]
    holds: bool = True


def run(
    study: Claims,
    setting: ClaimSetting,
    folder: Path,
    *,
    command: str = "",
    plot: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, list[Path]]:
    """Measure as `lowprec.study.catalogue.Study` asks of a runner, and write `table.csv` and the reports.

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
    findings = tuple(item.judge(lambda metric, arm, stress: values[metric, arm]) for item in study.expectations)
    outcome = Outcome(study, setting, values, findings)
    found = document(outcome, folder, command)
    rows = [(metric, arm, value) for (metric, arm), value in values.items()]
    table = to_csv(("metric", "arm", "value"), rows)
    return outcome, write_reports(found, as_json(outcome), folder, {"table.csv": table}, plot, began)


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


def claims_csv(outcome: Outcome) -> str:
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
