"""Studies that are a table of measured claims: what was published, what is expected, what came out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .document import Document, Part, Table, Text, markdown
from .expectations import Expectation, Finding, span
from .store import check_writable, code_hash, machine, versions, write_json, write_text

COLUMNS = ("expected", "quantity", "expected range", "published range", "found", "which happened")
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
    runner: ClassVar[str] = "lowprec.study.claims"

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

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table."""
        return [
            (
                item.expectation.words, item.expectation.quantity, span(item.expectation.expected),
                span(item.expectation.published), f"{item.value:.4g}", item.outcome,
            )
            for item in self.findings
        ]  # fmt: skip


def sized(study: Claims, quick: bool, seeds: int | None) -> ClaimSetting:
    """Return the setting that a command asks for."""
    setting = study.quick if quick else study.full
    return setting if seeds is None else ClaimSetting(seeds)


def run(
    study: Claims,
    setting: ClaimSetting,
    folder: Path,
    *,
    command: str = "",
    plot: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, list[Path]]:
    """Measure, and write `table.csv`, `report.md`, `document.json` and `summary.json`.

    Raises
    ------
    StudyError
        If the folder cannot be written.
    """
    check_writable(folder)
    values = study.measure(setting.seeds)
    if progress is not None:
        progress(1, 1)
    findings = tuple(item.judge(lambda metric, arm, stress: values[metric, arm]) for item in study.expectations)
    outcome = Outcome(study, setting, values, findings)
    found = document(outcome, folder, command)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "arm", "value"])
    writer.writerows([metric, arm, repr(value)] for (metric, arm), value in values.items())
    write_text(folder / "table.csv", text.getvalue())
    write_text(folder / "report.md", markdown(found))
    found.write(folder)
    write_json(folder / "summary.json", as_json(outcome))
    return outcome, [folder / name for name in ("table.csv", "report.md", "document.json", "summary.json")]


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
        Table(COLUMNS, tuple(outcome.rows())),
        *([Text(f"Published: {study.published} ({study.source}).")] if study.published else []),
        Table(("arm", *metrics), measured, f"{outcome.setting}; {command}"),
        *([Text(study.notes)] if study.notes else []),
    )
    made_of = {"code": code_hash(), "versions": versions()}
    return Document(study.name, study.question, study.tier, parts, made_of, folder)


def claims_csv(outcome: Outcome) -> str:
    """Return the table of expectations as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *outcome.rows()])
    return text.getvalue()


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    return {
        "study": outcome.study.name, "question": outcome.study.question, "setting": outcome.setting,
        "values": [{"metric": metric, "arm": arm, "value": v} for (metric, arm), v in outcome.values.items()],
        "findings": [
            {"expected": item.expectation.words, "value": item.value, "outcome": item.outcome}
            for item in outcome.findings
        ],
        "versions": versions(), "machine": machine(),
    }  # fmt: skip


def show(outcome: Outcome, console: Any) -> None:
    """Print the table on a rich console."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Screen

    screen = Screen(title=outcome.study.question, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
                    pad_edge=False)  # fmt: skip
    for name in COLUMNS:
        screen.add_column(name, overflow="fold")
    for row in outcome.rows():
        screen.add_row(*map(escape, row))
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(screen)
