"""The figure of a study of scaling: both effects against parameters, bytes and corpus, with the fitted lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....plot.style import NEUTRAL
from ...report.parts import count
from ...report.sheet import Figure, LineStyle, bar, line_styles, panels
from .study import FITTED, Cell
from .summary import ScalingSummary

#: DeepSeek-V3, whose recipe this is about, is far to the right of both axes.
LABELS = {
    "parameters": "active parameters (DeepSeek-V3: 37B →)",
    "bytes": "bytes before the branch (DeepSeek-V3: 14.8T tokens →)",
    "corpus": "corpus",
}
#: Effects up to this size, in percent, are on the linear part of the axis.
LINEAR = 0.1
MARKERS = ("o", "s", "D", "^")
Row = dict[str, Any]


def figure(summary: ScalingSummary, finding: str) -> Figure:
    """Return the figure; its rows are the dots and the points of the lines."""
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
        axes.set_xticks(at, [count(value) for value in at])
    axes.minorticks_off()
