"""The figure of a study of scaling: both effects against parameters, bytes and corpus, with the fitted lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...._files import to_csv, write_text
from ....plot.style import CONTROL, NEUTRAL, PALETTE, STYLE
from ...report.parts import count
from ...report.style import new_figure, require_matplotlib, save
from .study import FITTED, Cell
from .summary import ScalingSummary

#: Where DeepSeek-V3 lies, whose recipe this is about, is further to the right than any paper is wide.
LABELS = {
    "parameters": "active parameters (DeepSeek-V3: 37B →)",
    "bytes": "bytes before the branch (DeepSeek-V3: 14.8T tokens →)",
    "corpus": "corpus",
}
#: Effects up to so much, in per cent, stand on a linear part of the axis.
LINEAR = 0.1
MARKERS = ("o", "s", "D", "^")
Row = tuple[Any, ...]


def draw(summary: ScalingSummary, finding: str, stem: Path) -> list[Path]:
    """Draw the figure and write `.csv`, `.png` and `.svg`.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    axes_shown = summary.axes or ["bytes"]
    rows: list[Row] = [("effect", "axis", "arm", "x", "percent", "low", "high", "what")]
    with matplotlib.rc_context(STYLE):
        small = (
            f"{summary.size}. Dots: cells, means over checkpoints; bars: 90 % intervals; lines: least squares over all "
            "cells, at the centre of the other axes; bands: 90 % intervals over checkpoints. Grey: noise floor. Linear "
            f"up to {LINEAR:g} %, logarithmic beyond"
        )
        figure, top = new_figure(3.5 * len(axes_shown) + 1.2, 6.4, finding, small)
        grid = figure.add_gridspec(2, len(axes_shown), wspace=0.06, hspace=0.14, left=0.09, right=0.985,
                                   top=top - 0.05, bottom=0.085)  # fmt: skip
        for line, effect in enumerate(FITTED):
            first = None
            for column, axis in enumerate(axes_shown):
                panel = figure.add_subplot(grid[line, column], sharey=first)
                first = first or panel
                rows += _panel(panel, summary, effect, axis)
                if column:
                    panel.tick_params(labelleft=False)
                if line == 0:
                    panel.tick_params(labelbottom=False)
                else:
                    panel.set_xlabel(LABELS[axis], fontsize=9)
            assert first is not None
            first.set_ylabel(f"{effect} effect (% of loss)")
        _legend(figure, summary, top)
        write_text(stem.with_suffix(".csv"), to_csv(rows[0], rows[1:]))
        return [stem.with_suffix(".csv"), *save(figure, stem)]


def colors(summary: ScalingSummary) -> dict[str, str]:
    """Return the arms' colours."""
    found, place = {}, 0
    for arm in summary.study.arms:
        if arm.role in ("treatment", "control") and arm.name in summary.shown:
            found[arm.name] = CONTROL if arm.role == "control" else PALETTE[place % len(PALETTE)]
            place += arm.role == "treatment"
        elif arm.name in summary.shown:
            found[arm.name] = NEUTRAL
    return found


def _legend(figure: Any, summary: ScalingSummary, top: float) -> None:
    from matplotlib.lines import Line2D

    looks = colors(summary)
    handles = [Line2D([], [], color=color, marker="o", markersize=4.5, label=arm) for arm, color in looks.items()]
    handles += [
        Line2D([], [], color=NEUTRAL, marker=MARKERS[i % len(MARKERS)], linestyle="none", markersize=4.5, label=corpus)
        for i, corpus in enumerate(summary.corpora)
    ]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.075, top), ncols=len(handles), frameon=False,
                  fontsize=8.5, handlelength=1.6, columnspacing=1.2)  # fmt: skip


def _panel(panel: Any, summary: ScalingSummary, effect: str, axis: str) -> list[Row]:
    rows: list[Row] = []
    arms = colors(summary)
    if axis != "corpus":
        panel.set_xscale("log")
    panel.axhline(0.0, color="#808080", linewidth=0.8, zorder=0)
    for place, (arm, color) in enumerate(arms.items()):
        shift = place - (len(arms) - 1) / 2
        for cell in summary.cells:
            rows.append((effect, axis, arm, *_dot(panel, summary, effect, axis, arm, cell, color, shift), cell.name))
        if axis != "corpus" and axis in summary.axes:
            rows += [(effect, axis, arm, *found, "line") for found in _line(panel, summary, effect, axis, arm, color)]
    if axis == "corpus":
        panel.set_xticks(range(len(summary.corpora)), summary.corpora)
        panel.set_xlim(-0.5, len(summary.corpora) - 0.5)
    else:
        _ticks(panel, sorted({float(summary.at(cell)[axis]) for cell in summary.cells}))
    _percent_ticks(panel)
    return rows


def _ticks(panel: Any, at: list[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    panel.xaxis.set_major_locator(FixedLocator(at))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))


def _percent_ticks(panel: Any) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    panel.set_yscale("symlog", linthresh=LINEAR, linscale=1.0)
    ticks = [sign * size for size in (0.05, 0.1, 0.3, 1.0, 3.0, 10.0) for sign in (-1, 1)]
    panel.yaxis.set_major_locator(FixedLocator([*ticks, 0.0]))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _dot(
    panel: Any, summary: ScalingSummary, effect: str, axis: str, arm: str, cell: Cell, color: str, shift: float
) -> Row:
    found = summary.cells[cell].arm(arm).effects[effect]
    low, high = (100 * end for end in found.ci90)
    where = summary.at(cell)
    x = float(where[axis]) if axis != "corpus" else float(summary.corpora.index(str(where["corpus"])))
    at = x * 1.03**shift if axis != "corpus" else x + 0.06 * shift
    if np.isfinite([low, high]).all():
        panel.plot([at, at], [low, high], color=color, linewidth=1.1, alpha=0.6)
    marker = MARKERS[summary.corpora.index(str(where["corpus"])) % len(MARKERS)]
    panel.plot([at], [100 * found.mean], marker, color=color, markersize=4.2, markeredgecolor="white",
               markeredgewidth=0.5, zorder=3)  # fmt: skip
    return x, 100 * found.mean, low, high


def _line(panel: Any, summary: ScalingSummary, effect: str, axis: str, arm: str, color: str) -> list[Row]:
    ends = [float(summary.at(cell)[axis]) for cell in summary.cells]
    xs = np.geomspace(min(ends), max(ends), 9)
    fitted = summary.fit(arm, effect)
    found = [
        fitted.at(summary.row(parameters=float(x)) if axis == "parameters" else summary.row(size=float(x))) for x in xs
    ]
    panel.plot(xs, [middle for middle, _, _ in found], color=color, linewidth=1.5, zorder=2)
    if np.isfinite([low for _, low, _ in found]).all():
        panel.fill_between(xs, [low for _, low, _ in found], [high for _, _, high in found], color=color, alpha=0.15,
                           linewidth=0)  # fmt: skip
    return [(float(x), *values) for x, values in zip(xs, found, strict=True)]
