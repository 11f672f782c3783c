"""What a study of scaling found: on screen, as a document, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...._files import to_csv
from ...report.document import Bullets, Document, Figure, Heading, Part, Table
from ...report.parts import finding_sentence, several
from ...report.sheet import write_figures
from ..kind import Report
from ..measuring import show_table
from ..written import as_json, expected_parts, last_parts, made_of, show_sentences, written
from .figures import figure
from .study import FITTED
from .summary import ScalingSummary, summarize

#: Axes in words: what a slope along one is per.
PER = {"parameters": "per 10 times the parameters", "bytes": "per 10 times the bytes"}


def per(summary: ScalingSummary, axis: str) -> str:
    """Return what a slope along an axis is per."""
    return PER.get(axis, f"{summary.corpora[-1]} less {summary.corpora[0]}")


def _cell(found: tuple[float, float, float]) -> str:
    middle, low, high = found
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"


def _way(found: tuple[float, float, float]) -> str:
    return "rises" if found[1] > 0 else "falls" if found[2] < 0 else "is not seen to change"


def lines_table(summary: ScalingSummary) -> Table:
    """Return the fitted lines: the centre and every slope, of both effects."""
    rows = []
    for arm in summary.shown:
        for effect in FITTED:
            found = summary.fit(arm, effect)
            slopes = (_cell(found.at(summary.slope(axis))) for axis in summary.axes)
            rows.append((arm, effect, _cell(found.at(summary.row())), *slopes))
    head = ("arm", "effect", "at the centre", *(per(summary, axis) for axis in summary.axes))
    caption = (
        "Per cent of loss, with 90 % intervals over checkpoints. Forward: rounding in the forward pass of weights that "
        f"BF16 trained; training: what training did to the weights, read in BF16. {summary.size}."
    )
    return Table(head, tuple(rows), caption)


def cells_table(summary: ScalingSummary) -> Table:
    """Return what every cell says by itself."""
    rows = []
    for cell, found in summary.cells.items():
        for arm in summary.shown:
            effects = found.arm(arm).effects
            cells = [
                _cell((100 * effects[name].mean, 100 * effects[name].ci90[0], 100 * effects[name].ci90[1]))
                for name in FITTED
            ]
            rows.append((cell.name, arm, *cells, found.arm(arm).word))
    head = ("cell", "arm", *(f"{name} %" for name in FITTED), "verdict on training")
    return Table(head, tuple(rows), "Every cell: model, steps before the branch, corpus; 90 % intervals.")


def sentences(summary: ScalingSummary) -> list[str]:
    """Return what was found, most important first."""
    return [*told(summary), *map(finding_sentence, summary.findings)]


def told(summary: ScalingSummary) -> list[str]:
    """Return which way every effect goes along every axis, and what stands against that."""
    lines = list(summary.void)
    for effect in FITTED:
        for axis in summary.axes:
            said: dict[str, list[str]] = {"rises": [], "falls": [], "is not seen to change": []}
            for arm in [item.name for item in summary.study.arms if item.role in ("treatment", "control")]:
                found = summary.fit(arm, effect).at(summary.slope(axis))
                said[_way(found)].append(f"{arm} ({_cell(found)} %)")
            ways = "; ".join(f"{word} for {', '.join(arms)}" for word, arms in said.items() if arms)
            lines.append(f"The {effect} effect, {per(summary, axis)}: {ways}.")
    return [*lines, *_void_alone(summary)]


def _void_alone(summary: ScalingSummary) -> list[str]:
    """Return which cells conclude nothing by themselves; in the fit of all of them they are data like others."""
    void = {cell.name: found.broken for cell, found in summary.cells.items() if found.broken}
    return [
        f"{several(len(void), 'cell')} of {len(summary.cells)} alone would be void: "
        + "; ".join(f"{name} ({', '.join(reasons)})" for name, reasons in void.items())
        + "."
    ] if void else []  # fmt: skip


def title(summary: ScalingSummary) -> str:
    """Return the finding in a line: how the first treatment's two effects go with size."""
    if summary.void:
        return f"Void: {summary.void[0]}"
    arm = next(item.name for item in summary.study.arms if item.role == "treatment")
    axis = summary.axes[0] if summary.axes else ""
    ways = []
    for effect in FITTED:
        found = summary.fit(arm, effect).at(summary.slope(axis) if axis else summary.row())
        ways.append(f"{effect} effect {_way(found)} ({_cell(found)} %)")
    return f"{arm}: {' and '.join(ways)} {per(summary, axis) if axis else ''}".strip()


def document(summary: ScalingSummary, folder: Path, figures: Sequence[tuple[str, str]]) -> Document:
    """Return the report."""
    study = summary.study
    parts: list[Part] = [Figure(*figure) for figure in figures]
    if summary.missing:
        parts.append(Bullets((f"Not finished, and left out: {', '.join(summary.missing)}.",), warning=True))
    parts.append(Bullets(tuple(sentences(summary))))
    parts += expected_parts(study, summary.findings)
    parts += [Heading("Measured"), lines_table(summary), cells_table(summary)]
    recipes = next(iter(summary.cells.values())).recipes
    parts += last_parts(study, summary.about, recipes)
    made = made_of(summary.about, "code", "versions")
    return Document(study.name, study.question, study.tier, tuple(parts), made, folder)


def table_csv(summary: ScalingSummary) -> str:
    """Return every checkpoint's effects as a tidy table, floats exact."""
    rows = [
        (cell.name, *summary.at(cell).values(), arm, effect, checkpoint, value)
        for cell in summary.cells
        for arm in summary.shown
        for effect in FITTED
        for checkpoint, value in summary.by_checkpoint(cell, arm, effect).items()
    ]
    return to_csv(("cell", "parameters", "bytes", "corpus", "arm", "effect", "checkpoint", "percent"), rows)


def outcome(summary: ScalingSummary) -> dict[str, Any]:
    """Return the whole outcome in JSON's types; what is not finite becomes "nan" or "inf"."""
    lines = [
        {"arm": arm, "effect": effect, "at": what, "percent": found[0], "low90": found[1], "high90": found[2]}
        for arm in summary.shown
        for effect in FITTED
        for what, row in [("centre", summary.row()), *((axis, summary.slope(axis)) for axis in summary.axes)]
        for found in [summary.fit(arm, effect).at(row)]
    ]
    return as_json(
        summary, title=title(summary), trustworthy=not summary.broken, missing=summary.missing, lines=lines,
        told=told(summary), sentences=sentences(summary),
    )  # fmt: skip


def report(folder: Path, plot: bool) -> Report:
    """Write everything about a study of scaling into its folder."""
    summary = summarize(folder)
    drawn, files = write_figures([figure(summary, title(summary))], folder, plot)
    found = document(summary, folder, [(figure.title, figure.stem) for figure in drawn])
    return written(summary, found, table_csv, outcome(summary), show, files, summary.broken)


def show(summary: ScalingSummary, console: Any) -> None:
    """Print the lines and what became of the expectations."""
    found = lines_table(summary)
    show_table(console, found.head, found.rows, summary.study.question, found.caption, right=found.head[2:])
    show_sentences(console, sentences(summary))
