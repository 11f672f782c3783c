"""What a study of formats reports: tidy numbers, the table of claims, Markdown, JSON, and a table on the screen."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .store import machine, versions
from .tensor_run import COLUMNS

if TYPE_CHECKING:
    from .error_study import ErrorOutcome


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV, floats with every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[repr(cell) if isinstance(cell, float) else cell for cell in row] for row in rows])
    return text.getvalue()


def errors_csv(outcome: ErrorOutcome) -> str:
    """Return all errors as a tidy table, floats exact."""
    rows = [
        [data, seed, *row.as_dict().values()]
        for (_, data), seeds in outcome.errors.items()
        for seed, row in enumerate(seeds)
    ]
    first = next(iter(outcome.errors.values()))[0]
    return to_csv(["data", "seed", *first.as_dict()], rows)


def claims_csv(outcome: ErrorOutcome) -> str:
    """Return the table of claims as CSV."""
    return to_csv(COLUMNS, outcome.rows())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [tuple(header), tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]


def markdown(outcome: ErrorOutcome, figures: Sequence[tuple[str, str]] = ()) -> str:
    """Return the report as Markdown: figures, claims, and every measured table."""
    study = outcome.study
    lines = [f"# {study.name}", "", study.question, ""]
    for name, caption in figures:
        lines += [f"![{caption}]({name})", "", caption, ""]
    if outcome.measured:
        lines += [*_table(COLUMNS[:-1], [row[:-1] for row in outcome.rows()]), ""]
    for measure, words, scale, digits in (
        ("sqnr", "SQNR, dB", 1.0, 2),
        ("relative_rms", "Relative error of a value, root mean square, %", 100.0, 3),
        ("flushed", "Values that became 0, %", 100.0, 3),
    ):
        head = ("format", "bits per value", *study.data)
        body = []
        for arm in study.arms:
            bits = outcome.of(arm.name, study.data[0], "bits_per_value").mean()
            cells = [f"{scale * outcome.of(arm.name, data, measure).mean():.{digits}f}" for data in study.data]
            body.append((arm.label, f"{bits:.4g}", *cells))
        lines += [f"## {words}", "", *_table(head, body), ""]
    octaves = [f"{data} {outcome.of(study.arms[0].name, data, 'octaves').mean():.1f}" for data in study.data]
    lines += [
        f"Mean over seeds; {outcome.setting}; float32 values. Mean range R of tiles of 128, octaves: "
        f"{', '.join(octaves)}.",
        "",
        f"Written down before: {study.expected} ({study.source})",
    ]
    if outcome.command:
        lines += ["", f"Made by `{outcome.command}`."]
    return "\n".join(lines) + "\n"


def as_json(outcome: ErrorOutcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    claims = [
        {**dict(zip(COLUMNS, row, strict=True)), "value": ours.value}
        for row, (_, ours) in zip(outcome.rows(), outcome.measured, strict=True)
    ]
    errors = [
        {"data": data, "seed": seed, **row.as_dict()}
        for (_, data), seeds in outcome.errors.items()
        for seed, row in enumerate(seeds)
    ]
    return {
        "study": outcome.study.name, "question": outcome.study.question, "setting": outcome.setting, "claims": claims,
        "errors": errors, "versions": versions(), "machine": machine(),
    }  # fmt: skip


def show(outcome: ErrorOutcome, console: Any) -> None:
    """Print the table of claims, or of errors where there are none, on a rich console."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    study = outcome.study
    table = Table(title=study.question, title_justify="left", title_style="bold", pad_edge=False, box=box.SIMPLE_HEAD)
    if outcome.measured:
        for name in COLUMNS[:-1]:
            table.add_column(name, overflow="fold")
        for row in outcome.rows():
            table.add_row(*map(escape, row[:4]), f"[{'green' if row[4] == 'yes' else 'red'}]{row[4]}[/]")
    else:
        for name in ("SQNR dB", "bits", *study.data):
            table.add_column(name, justify="left" if name == "SQNR dB" else "right")
        for arm in study.arms:
            cells = [f"{outcome.of(arm.name, data, 'sqnr').mean():.2f}" for data in study.data]
            table.add_row(arm.label, f"{outcome.of(arm.name, study.data[0], 'bits_per_value').mean():.4g}", *cells)
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)
