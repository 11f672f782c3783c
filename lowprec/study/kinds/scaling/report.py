"""What a study of scaling found: tables, sentences and numbers of its report."""

from __future__ import annotations

from pathlib import Path

from ...report.parts import Table, bullets, finding_sentence, several, warning
from ...report.results import Results, expected_blocks, last_blocks, made_of, summary_json
from ...report.sheet import csv_of
from .figures import figure
from .study import FITTED
from .summary import ScalingSummary

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


def results(summary: ScalingSummary, folder: Path) -> Results:
    """Return the report of a study whose cells, or some of them, are finished."""
    study, lines = summary.study, lines_table(summary)
    rows = [
        {
            "cell": cell.name,
            **summary.at(cell),
            "arm": arm,
            "effect": effect,
            "checkpoint": number,
            "percent": value,
        }
        for cell in summary.cells
        for arm in summary.shown
        for effect in FITTED
        for number, value in summary.by_checkpoint(cell, arm, effect).items()
    ]
    fitted = [
        {"arm": arm, "effect": effect, "at": what, "percent": found[0], "low90": found[1], "high90": found[2]}
        for arm in summary.shown
        for effect in FITTED
        for what, row in [("centre", summary.row()), *((axis, summary.slope(axis)) for axis in summary.axes)]
        for found in [summary.fit(arm, effect).at(row)]
    ]
    missing = [f"Not finished, and left out: {', '.join(summary.missing)}."] if summary.missing else []
    recipes = next(iter(summary.cells.values())).recipes
    body = [
        figure(summary, title(summary)), warning(missing), bullets(sentences(summary)),
        *expected_blocks(study, summary.findings), "## Measured", lines, cells_table(summary),
        *last_blocks(study, summary.about, recipes),
    ]  # fmt: skip
    json = summary_json(
        summary, title=title(summary), trustworthy=not summary.broken, missing=summary.missing, lines=fitted,
        told=told(summary), sentences=sentences(summary),
    )  # fmt: skip
    shown = Table(lines.head, lines.rows, lines.caption, study.question)
    # Cells differ in their text.
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json,
                   made_of(summary.about, "code", "versions"), [shown], sentences(summary), summary.broken)  # fmt: skip
