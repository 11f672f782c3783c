"""The figure of a study of readings: one panel per metric, places along the axis, a line or points per arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.findings import void_title
from ...report.parts import number
from ...report.sheet import Figure, line_styles, panels, wrapped
from .summary import ReadingSummary

#: How means and their intervals are drawn.
MARKS: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.2, "elinewidth": 0.8}


def figures(summary: ReadingSummary) -> list[Figure]:
    """Return the figure, whose rows are mean and interval of each metric, arm and place."""
    reading = summary.study.reading
    wide = len(summary.places) > 12
    rows = [
        {"metric": metric, "arm": arm, "place": place, "mean": mean, "low90": mean - half, "high90": mean + half}
        for metric in reading.panels
        for arm in summary.shown
        for place in summary.places
        for mean, half in [(summary.mean(metric, arm, place), np.nan_to_num(summary.half(metric, arm, place)))]
    ]
    height = (2.6 if wide else 2.9) * (len(reading.panels) if wide else 1) + 2.0
    return [Figure(title(summary), summary.study.name, rows, lambda sheet, top: _draw(sheet, top, summary, rows),
                   summary.size, height)]  # fmt: skip


def title(summary: ReadingSummary) -> str:
    """Return the finding in a line: the first metric of every treatment, over all places."""
    if summary.broken:
        return void_title(summary.broken)
    metric, arms = summary.study.reading.panels[0], summary.study.arms
    shown = [arm.name for arm in arms if arm.role in ("treatment", "reference") and arm.name in summary.shown]
    found = [f"{name} {number(float(f'{summary.mean(metric, name):.2g}'))}" for name in shown[:6]]
    words = metric.replace("_percent", ", %").replace("_", " ")
    return f"{words.upper() if words.startswith('kl') else words.capitalize()}: {', '.join(found)}"


def _draw(sheet: Any, top: float, summary: ReadingSummary, rows: Sequence[dict[str, Any]]) -> None:
    reading, arms, places = summary.study.reading, summary.shown, summary.places
    wide, count, styles = len(places) > 12, len(reading.panels), line_styles(summary.study.arms)
    found = panels(sheet, top, *((count, 1) if wide else (1, count)), head=0.42, foot=2.1 if wide else 1.35,
                   share_y=False, hspace=0.35, wspace=0.28)  # fmt: skip
    for axes, metric in zip(found, reading.panels, strict=True):
        shown = [row for row in rows if row["metric"] == metric]
        for j, arm in enumerate(arms):
            mine = [row for row in shown if row["arm"] == arm]
            means = [row["mean"] for row in mine]
            x = np.arange(len(places)) + (0.0 if reading.joined else 0.5 * ((j + 0.5) / len(arms) - 0.5))
            axes.errorbar(x, means, [row["high90"] - row["mean"] for row in mine], color=styles[arm].color,
                          linestyle=styles[arm].dashes if reading.joined else "", label=arm, **MARKS)  # fmt: skip
        _scale(axes, [row["mean"] for row in shown if not np.isnan(row["mean"])])
        axes.set_xticks(range(len(places)), places if not wide or axes is found[-1] else [""] * len(places))
        axes.tick_params(axis="x", labelsize=7.5)
        turned = {"rotation": 90} if wide else {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        for label in axes.get_xticklabels():
            label.set(**turned)
        axes.set_title(wrapped(reading.metrics[metric], 95 if wide else 95 // count), fontsize=8.5, loc="left")
        axes.grid(False, axis="x")
    handles, labels = found[0].get_legend_handles_labels()
    sheet.legend(handles, labels, fontsize=7.5, ncols=min(8, len(labels)), frameon=False, loc="lower center",
                 bbox_to_anchor=(0.53, 0.0))  # fmt: skip
    if reading.axis:
        sheet.text(0.53, 0.5 / sheet.get_figheight(), reading.axis, ha="center", fontsize=8.5, color="#404040")


def _scale(axes: Any, means: Sequence[float]) -> None:
    """Set limits from the means, not from the interval of a place with few bytes."""
    if not means:
        return
    low, high = min(means), max(means)
    if low > 0 and high > 30 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 2, high * 2)
    elif low >= 0 and high > 1e6:  # a few means of another kind than all others
        axes.set_yscale("symlog", linthresh=1e-3)
        axes.yaxis.get_major_locator().set_params(numticks=7)
        axes.set_ylim(0, 10 * high)
    elif high > low:
        axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
