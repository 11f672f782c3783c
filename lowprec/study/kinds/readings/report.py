"""What a study of readings found: on screen, as a document, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...._files import to_csv
from ...report.document import Bullets, Document, Figure, Heading, Part, Table
from ...report.parts import finding_sentence, number
from ...report.sheet import write_figures
from ..kind import Report
from ..measuring import show_table
from ..written import as_json, expected_parts, last_parts, made_of, show_sentences, written
from .figures import figures
from .summary import EVERYWHERE, ReadingSummary, summarize


def cell(summary: ReadingSummary, metric: str, arm: str, place: str = EVERYWHERE) -> str:
    """Return a mean with half the width of its 90 % interval."""
    mean, half = summary.mean(metric, arm, place), summary.half(metric, arm, place)
    return number(mean) if math.isnan(half) or half == 0 else f"{number(mean)} ± {half:.1g}"


def overview(summary: ReadingSummary) -> Table:
    """Return the table of arms and metrics over all places."""
    metrics = [*summary.study.reading.metrics]
    rows = tuple((arm, *(cell(summary, metric, arm) for metric in metrics)) for arm in summary.shown)
    words = "; ".join(f"{name}: {text}" for name, text in summary.study.reading.metrics.items())
    caption = f"{summary.size}. Means over everything measured, ± half of a 90 % interval. {words}."
    return Table(("arm", *(metric.replace("_", " ") for metric in metrics)), rows, caption)


def by_place(summary: ReadingSummary, metric: str) -> Table:
    """Return the table of one metric: places and arms."""
    head = (summary.study.reading.axis, *summary.shown)
    rows = tuple((place, *(cell(summary, metric, arm, place) for arm in summary.shown)) for place in summary.places)
    return Table(head, rows, summary.study.reading.metrics[metric])


def sentences(summary: ReadingSummary) -> list[str]:
    """Return what was found, most important first."""
    lines = [*summary.broken, *(finding_sentence(item) for item in summary.findings)]
    same = [arm.name for arm in summary.study.arms if arm.role == "repeat"]
    if same and not summary.broken:
        lines.append(f"{', '.join(same)} (A/A): every number bit-identical.")
    return lines


def document(summary: ReadingSummary, folder: Path, figures: Sequence[tuple[str, str]]) -> Document:
    """Return the report: figures are pairs of title and stem."""
    study = summary.study
    parts: list[Part] = []
    if summary.broken:
        parts.append(Bullets(tuple(summary.broken), warning=True))
    parts += [Figure(words, stem) for words, stem in figures]
    parts += expected_parts(study, summary.findings)
    parts += [Heading("Measured"), overview(summary)]
    if len(summary.places) > 1:
        for metric in study.reading.panels:
            parts += [Heading(f"{metric.replace('_', ' ').capitalize()} by {study.reading.axis}"),
                      by_place(summary, metric)]  # fmt: skip
    parts += last_parts(study, summary.about, summary.recipes)
    return Document(study.name, study.question, study.tier, tuple(parts), made_of(summary.about), folder)


def _rows(summary: ReadingSummary) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "place": place, "metric": metric,
            "mean": summary.mean(metric, arm.name, place), "half90": summary.half(metric, arm.name, place),
            "count": len(summary.of(metric, arm.name, place)),
        }
        for arm in summary.study.arms
        for place in (EVERYWHERE, *summary.places)
        for metric in summary.study.reading.metrics
    ]  # fmt: skip


def table_csv(summary: ReadingSummary) -> str:
    """Return the mean of every metric at every place as CSV, floats exact; no place: over all."""
    rows = _rows(summary)
    return to_csv(tuple(rows[0]), [tuple(row.values()) for row in rows])


def outcome(summary: ReadingSummary) -> dict[str, Any]:
    """Return the whole outcome in JSON's types; what is not finite becomes "nan" or "inf"."""
    study = summary.study
    data, reference = summary.about["fingerprint"]["data"], study.reference.name
    return as_json(
        summary, data_sha256=data, trustworthy=not summary.broken, reference=reference, readings=_rows(summary)
    )


def report(folder: Path, plot: bool) -> Report:
    """Write everything about a finished study into its folder."""
    summary = summarize(folder)
    drawn, files = write_figures(figures(summary), folder, plot)
    found = document(summary, folder, [(figure.title, figure.stem) for figure in drawn])
    return written(summary, found, table_csv, outcome(summary), show, files, summary.broken)


def show(summary: ReadingSummary, console: Any) -> None:
    """Print the table and what became of the expectations."""
    found = overview(summary)
    show_table(console, found.head, found.rows, summary.study.question, summary.size, right=found.head[1:])
    show_sentences(console, sentences(summary))
