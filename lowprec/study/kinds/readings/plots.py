"""The figure of a study of readings: one panel a metric, its places along the axis, an arm a line or points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...._files import to_csv, write_text
from ....plot.style import CONTROL, DASHES, FLOOR, NEUTRAL, PALETTE, STYLE
from ...analysis.validity import headline
from ...report.parts import number
from ...report.style import new_figure, require_matplotlib, save, wrapped
from .summary import ReadingSummary

#: How means and their intervals are drawn.
MARKS: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.2, "elinewidth": 0.8}


def draw(summary: ReadingSummary, folder: Path) -> tuple[list[tuple[str, str]], list[Path]]:
    """Draw the figure; return its title and stem, and the files.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    stem = folder / summary.study.name
    with matplotlib.rc_context(STYLE):
        figure, rows = _panels(summary)
        write_text(stem.with_suffix(".csv"), to_csv(rows[0], rows[1:]))
        return [(title(summary), stem.name)], [stem.with_suffix(".csv"), *save(figure, stem)]


def title(summary: ReadingSummary) -> str:
    """Return the finding in a line: the first metric of every treatment, over all places."""
    if summary.broken:
        return headline(summary.broken)
    metric, arms = summary.study.reading.panels[0], summary.study.arms
    told = [arm.name for arm in arms if arm.role in ("treatment", "reference") and arm.name in summary.shown]
    found = [f"{name} {number(float(f'{summary.mean(metric, name):.2g}'))}" for name in told[:6]]
    words = metric.replace("_percent", ", %").replace("_", " ")
    return f"{words.upper() if words.startswith('kl') else words.capitalize()}: {', '.join(found)}"


def colors(summary: ReadingSummary) -> dict[str, str]:
    """Return a color for each arm: the reference dark, the floor light, a control vermilion, the others in order."""
    fixed = {"reference": NEUTRAL, "floor": FLOOR, "control": CONTROL}
    others = [arm.name for arm in summary.study.arms if arm.role not in fixed]
    return {
        arm.name: fixed.get(arm.role) or PALETTE[others.index(arm.name) % len(PALETTE)] for arm in summary.study.arms
    }


def _panels(summary: ReadingSummary) -> tuple[Any, list[Sequence[Any]]]:
    reading, arms, places = summary.study.reading, summary.shown, summary.places
    wide = len(places) > 12
    height = (2.6 if wide else 2.9) * (len(reading.panels) if wide else 1) + 2.0
    figure, top = new_figure(9.2, height, title(summary), summary.size)
    shape = (len(reading.panels), 1) if wide else (1, len(reading.panels))
    right = 0.98 if wide else 0.985
    grid = figure.add_gridspec(
        *shape, hspace=0.35, wspace=0.28, left=0.085, right=right, top=top - 0.42 / height,
        bottom=(2.1 if wide else 1.35) / height,
    )  # fmt: skip
    rows: list[Sequence[Any]] = [("metric", "arm", "place", "mean", "low90", "high90")]
    shades = colors(summary)
    for i, metric in enumerate(reading.panels):
        axes = figure.add_subplot(grid[i, 0] if wide else grid[0, i])
        positive = True
        for j, arm in enumerate(arms):
            means = np.array([summary.mean(metric, arm, place) for place in places])
            halves = np.nan_to_num(np.array([summary.half(metric, arm, place) for place in places]))
            rows += [(metric, arm, place, m, m - h, m + h) for place, m, h in zip(places, means, halves, strict=True)]
            x = np.arange(len(places)) + (0.0 if reading.joined else 0.5 * ((j + 0.5) / len(arms) - 0.5))
            dash = DASHES[j // len(PALETTE) % len(DASHES)] if reading.joined else ""
            axes.errorbar(x, means, halves, color=shades[arm], linestyle=dash, label=arm, **MARKS)
            positive &= bool(np.all(means[~np.isnan(means)] > 0))
        _scale(axes, [row[3] for row in rows if row[0] == metric and not np.isnan(row[3])], positive)
        last = not wide or i == len(reading.panels) - 1
        axes.set_xticks(range(len(places)), places if last else [""] * len(places))
        axes.tick_params(axis="x", labelsize=7.5)
        turned = {"rotation": 90} if wide else {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        for label in axes.get_xticklabels():
            label.set(**turned)
        words = wrapped(reading.metrics[metric], 95 if wide else 95 // len(reading.panels))
        axes.set_title(words, fontsize=8.5, loc="left")
        axes.grid(axis="y", color="#ececec", linewidth=0.7)
        axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7.5, ncols=min(8, len(labels)), frameon=False, loc="lower center",
                  bbox_to_anchor=(0.53, 0.0))  # fmt: skip
    if reading.axis:
        figure.text(0.53, 0.5 / height, reading.axis, ha="center", fontsize=8.5, color="#404040")
    return figure, rows


def _scale(axes: Any, means: Sequence[float], positive: bool) -> None:
    """Let the means decide what is seen, not the interval of a place with few bytes."""
    if not means:
        return
    low, high = min(means), max(means)
    if positive and high > 30 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 2, high * 2)
    elif low >= 0 and high > 1e6:  # a few means of another kind than all others
        axes.set_yscale("symlog", linthresh=1e-3)
        axes.yaxis.get_major_locator().set_params(numticks=7)
        axes.set_ylim(0, 10 * high)
    elif high > low:
        axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
