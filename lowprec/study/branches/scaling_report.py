"""Report of a scaling study: tables, sentences, numbers and the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...plot.style import NEUTRAL
from ..report.parts import Table, bullets, finding_sentence, plural, short_count, warning
from ..report.results import Results, expected_blocks, last_blocks, made_of, summary_json
from ..report.sheet import Figure, LineStyle, bar, csv_of, line_styles, panels
from .scaling_results import ScalingSummary
from .sizes import FITTED, Cell

#: Units of slopes along each axis, for text.
PER = {"parameters": "per 10 times the parameters", "bytes": "per 10 times the bytes"}


def per(summary: ScalingSummary, axis: str) -> str:
    """Return the unit of a slope along an axis."""
    return PER.get(axis, f"{summary.corpora[-1]} less {summary.corpora[0]}")


def _cell(found: tuple[float, float, float]) -> str:
    middle, low, high = found
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"


def _trend(found: tuple[float, float, float]) -> str:
    return "rises" if found[1] > 0 else "falls" if found[2] < 0 else "is not seen to change"


def lines_table(summary: ScalingSummary) -> Table:
    """Return the table of fitted lines: the centre and every slope, for both effects."""
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
    """Return the table of results in the individual cells."""
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
    """Return the findings as sentences, most important first."""
    return [*summary_sentences(summary), *map(finding_sentence, summary.findings)]


def summary_sentences(summary: ScalingSummary) -> list[str]:
    """Return sentences on void results, on the signs of the slopes of every effect, and on void cells."""
    lines = list(summary.void)
    for effect in FITTED:
        for axis in summary.axes:
            trends: dict[str, list[str]] = {"rises": [], "falls": [], "is not seen to change": []}
            for arm in [item.name for item in summary.study.arms if item.role in ("treatment", "control")]:
                found = summary.fit(arm, effect).at(summary.slope(axis))
                trends[_trend(found)].append(f"{arm} ({_cell(found)} %)")
            ways = "; ".join(f"{word} for {', '.join(arms)}" for word, arms in trends.items() if arms)
            lines.append(f"The {effect} effect, {per(summary, axis)}: {ways}.")
    return [*lines, *_void_alone(summary)]


def _void_alone(summary: ScalingSummary) -> list[str]:
    """Return a sentence on cells with void verdicts, if there are any; the fit over all cells still uses their data."""
    void = {cell.name: found.invalid_reasons for cell, found in summary.cells.items() if found.invalid_reasons}
    return [
        f"{plural(len(void), 'cell')} of {len(summary.cells)} alone would be void: "
        + "; ".join(f"{name} ({', '.join(reasons)})" for name, reasons in void.items())
        + "."
    ] if void else []  # fmt: skip


def title(summary: ScalingSummary) -> str:
    """Return a title with the finding: the slopes of both effects of the first treatment along the first axis."""
    if summary.void:
        return f"Void: {summary.void[0]}"
    arm = next(item.name for item in summary.study.arms if item.role == "treatment")
    axis = summary.axes[0] if summary.axes else ""
    ways = []
    for effect in FITTED:
        found = summary.fit(arm, effect).at(summary.slope(axis) if axis else summary.row())
        ways.append(f"{effect} effect {_trend(found)} ({_cell(found)} %)")
    return f"{arm}: {' and '.join(ways)} {per(summary, axis) if axis else ''}".strip()


def results(summary: ScalingSummary, folder: Path) -> Results:
    """Return the report of a study of which some or all cells are finished."""
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
        summary, title=title(summary), trustworthy=not summary.void, missing=summary.missing, lines=fitted,
        told=summary_sentences(summary), sentences=sentences(summary),
    )  # fmt: skip
    shown = Table(lines.head, lines.rows, lines.caption, study.question)
    # Cells may differ in their text.
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json,
                   made_of(summary.about, "code", "versions"), [shown], sentences(summary),
                   summary.void)  # fmt: skip


# --- the figure: both effects against parameters, bytes and corpus, with the fitted lines ----------------------------

#: Labels of the axes, with the size of DeepSeek-V3, which is far to the right of the cells.
LABELS = {
    "parameters": "active parameters (DeepSeek-V3: 37B →)",
    "bytes": "bytes before the branch (DeepSeek-V3: 14.8T tokens →)",
    "corpus": "corpus",
}
#: Limit of the linear part of the axis, in percent.
LINEAR = 0.1
MARKERS = ("o", "s", "D", "^")
Row = dict[str, Any]


def figure(summary: ScalingSummary, finding: str) -> Figure:
    """Return the figure; the rows of its table are the dots, and the points of the lines."""
    axes_shown = summary.axes or ["bytes"]
    rows = [
        {"effect": effect, "axis": axis, "arm": arm, **row}
        for effect in FITTED
        for axis in axes_shown
        for arm in _styles(summary)
        for row in [*(_dot(summary, effect, axis, arm, cell) for cell in summary.cells),
                    *_line(summary, effect, axis, arm)]
    ]  # fmt: skip
    small = (
        f"{summary.size}. Dots: cells, means over checkpoints; bars: 90 % intervals; lines: least squares over all "
        "cells, at the centre of the other axes; bands: 90 % intervals over checkpoints. Grey: noise floor. Linear up "
        f"to {LINEAR:g} %, logarithmic beyond"
    )

    def draw(sheet: Any, top: float) -> None:
        columns = len(axes_shown)
        found = panels(sheet, top, 2, columns, head=0.32, foot=0.54, left=0.09, wspace=0.06, hspace=0.14)
        for place, axes in enumerate(found):
            effect, axis = FITTED[place // columns], axes_shown[place % columns]
            _draw(axes, summary, [row for row in rows if (row["effect"], row["axis"]) == (effect, axis)], axis)
            axes.tick_params(labelbottom=place >= columns)
            axes.set_xlabel(LABELS[axis] if place >= columns else "", fontsize=9)
            axes.set_ylabel("" if place % columns else f"{effect} effect (% of loss)")
        for arm, style in _styles(summary).items():
            found[0].plot([], [], color=style.color, marker="o", markersize=4.5, label=arm)
        for corpus in summary.corpora:
            found[0].plot([], [], _marker(summary, corpus), color=NEUTRAL, markersize=4.5, label=corpus)
        found[0].legend(loc="lower left", bbox_to_anchor=(-0.03, 1.0), ncols=12, frameon=False, fontsize=8.5,
                        handlelength=1.6, columnspacing=1.2)  # fmt: skip

    return Figure(finding, summary.study.name, rows, draw, small, 6.4, max(6.4, 3.5 * len(axes_shown) + 1.2))


def _styles(summary: ScalingSummary) -> dict[str, LineStyle]:
    return {name: style for name, style in line_styles(summary.study.arms).items() if name in summary.shown}


def _marker(summary: ScalingSummary, corpus: str) -> str:
    return MARKERS[summary.corpora.index(corpus) % len(MARKERS)]


def _dot(summary: ScalingSummary, effect: str, axis: str, arm: str, cell: Cell) -> Row:
    found, where = summary.cells[cell].arm(arm).effects[effect], summary.at(cell)
    x = float(where[axis]) if axis != "corpus" else float(summary.corpora.index(str(where["corpus"])))
    low, high = found.ci90
    return {"x": x, "percent": 100 * found.mean, "low": 100 * low, "high": 100 * high, "what": cell.name}


def _line(summary: ScalingSummary, effect: str, axis: str, arm: str) -> list[Row]:
    if axis == "corpus" or axis not in summary.axes:
        return []
    ends = [float(summary.at(cell)[axis]) for cell in summary.cells]
    fit, place = summary.fit(arm, effect), {"parameters": "parameters", "bytes": "size"}[axis]
    return [
        dict(zip(("x", "percent", "low", "high", "what"), (x, *fit.at(summary.row(**{place: x})), "line"), strict=True))
        for x in np.geomspace(min(ends), max(ends), 9).tolist()
    ]


def _draw(axes: Any, summary: ScalingSummary, rows: list[Row], axis: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    styles, corpora = _styles(summary), {cell.name: str(summary.at(cell)["corpus"]) for cell in summary.cells}
    axes.axhline(0.0, color="#808080", linewidth=0.8, zorder=0)
    axes.grid(False)
    for place, (arm, style) in enumerate(styles.items()):
        shift = place - (len(styles) - 1) / 2
        line = [row for row in rows if row["arm"] == arm and row["what"] == "line"]
        for row in [row for row in rows if row["arm"] == arm and row["what"] != "line"]:
            at = row["x"] + 0.06 * shift if axis == "corpus" else row["x"] * 1.03**shift
            bar(axes, "y", at, (row["low"], row["high"]), row["percent"], style.color,
                _marker(summary, corpora[row["what"]]), width=1.1)  # fmt: skip
        if line:
            x, mean, low, high = ([row[key] for row in line] for key in ("x", "percent", "low", "high"))
            axes.plot(x, mean, color=style.color, linewidth=1.5, zorder=2)
            if np.isfinite(low).all():
                axes.fill_between(x, low, high, color=style.color, alpha=0.15, linewidth=0)
    axes.set_yscale("symlog", linthresh=LINEAR)
    sizes = (0.05, 0.1, 0.3, 1.0, 3.0, 10.0)
    axes.yaxis.set_major_locator(FixedLocator([*(-size for size in sizes), 0.0, *sizes]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if axis == "corpus":
        axes.set_xticks(range(len(summary.corpora)), summary.corpora)
        axes.set_xlim(-0.5, len(summary.corpora) - 0.5)
    else:
        at = sorted({float(summary.at(cell)[axis]) for cell in summary.cells})
        axes.set_xscale("log")
        axes.set_xticks(at, [short_count(value) for value in at])
    axes.minorticks_off()
