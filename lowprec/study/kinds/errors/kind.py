"""Studies of formats, as a kind of study: how one is run, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...._files import to_csv, write_text
from ...report.document import Document, Figure, Heading, Part, Table, Text
from ...report.sheet import write_figures
from ...run.store import check_writable
from ..kind import MeasuringKind, Report
from ..measuring import claims_csv, claims_json, claims_table, made_of, show_claims, show_table, write_reports
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
        plot: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Measure, and write ``<name>.csv``, figures and the reports.

        Raises
        ------
        StudyError
            If the folder cannot be written, or matplotlib is missing.
        """
        began = time.process_time()
        check_writable(folder)
        swept = sweep(study, setting, progress)
        pairs = [pair for table in study.tables for pair in claims_of(table, swept)]
        pairs += [(claim, claim.measure()) for claim in study.claims]
        outcome = replace(swept, command=command, measured=tuple(pairs))
        files = [folder / f"{study.name}.csv"]
        write_text(files[0], errors_csv(outcome))
        drawn, more = write_figures((figure(outcome) for figure in study.figures), folder, plot)
        files += more
        figures = [(figure.caption, figure.stem) for figure in drawn]
        found, tables = document(outcome, folder, figures), {"claims.csv": claims_csv(outcome)}
        files += write_reports(found, as_json(outcome), folder, tables, plot, began)
        return Report(outcome, found, files, partial(show, outcome), partial(claims_csv, outcome), holds=outcome.holds)


def errors_csv(outcome: ErrorOutcome) -> str:
    """Return all errors as a tidy table, floats exact."""
    rows = _errors(outcome)
    return to_csv(list(rows[0]), [list(row.values()) for row in rows])


def _errors(outcome: ErrorOutcome) -> list[dict[str, Any]]:
    return [
        {"data": data, "seed": seed, **row.as_dict()}
        for (_, data), seeds in outcome.errors.items()
        for seed, row in enumerate(seeds)
    ]


def document(outcome: ErrorOutcome, folder: Path = Path(), figures: Sequence[tuple[str, str]] = ()) -> Document:
    """Return the report: figures (pairs of caption and stem), claims, and every measured table."""
    study = outcome.study
    parts: list[Part] = []
    for caption, stem in figures:
        parts += [Figure(caption, stem), Text(caption)]
    if outcome.measured:
        parts.append(claims_table(outcome))
    for measure, words, scale, digits in TABLES:
        head = ("format", "bits per value", *study.data)
        body = []
        for arm in study.arms:
            bits = outcome.of(arm.name, study.data[0], "bits_per_value").mean()
            cells = [f"{scale * outcome.of(arm.name, data, measure).mean():.{digits}f}" for data in study.data]
            body.append((arm.label, f"{bits:.4g}", *cells))
        parts += [Heading(words), Table(head, tuple(body))]
    octaves = [f"{data} {outcome.of(study.arms[0].name, data, 'octaves').mean():.1f}" for data in study.data]
    ranges = f"Mean range R of tiles of 128, octaves: {', '.join(octaves)}."
    parts.append(Text(f"Mean over seeds; {outcome.setting}; float32 values. {ranges}"))
    parts.append(Text(f"Written down before: {study.expected} ({study.source})"))
    if outcome.command:
        parts.append(Text(f"Made by `{outcome.command}`."))
    return Document(study.name, study.question, study.tier, tuple(parts), made_of(), folder)


def as_json(outcome: ErrorOutcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    return {"setting": outcome.setting, "claims": claims_json(outcome), "errors": _errors(outcome)}


def show(outcome: ErrorOutcome, console: Any) -> None:
    """Print the table of claims, or of errors where there are none, on a rich console."""
    study = outcome.study
    if outcome.measured:
        show_claims(outcome, console, study.question)
        return
    head = ("SQNR dB", "bits", *study.data)
    rows = []
    for arm in study.arms:
        cells = [f"{outcome.of(arm.name, data, 'sqnr').mean():.2f}" for data in study.data]
        rows.append((arm.label, f"{outcome.of(arm.name, study.data[0], 'bits_per_value').mean():.4g}", *cells))
    show_table(console, head, rows, study.question, right=head[1:])
