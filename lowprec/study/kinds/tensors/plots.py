"""The figure of a study of GEMMs: error against K, one panel for each kind of data, bands over the seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ....plot.style import CONTROL, DASHES, NEUTRAL, PALETTE, STYLE
from ...report.style import require_matplotlib, save, wrapped
from .study import Errors, TensorArm

#: Least distance of two labels, as a share of the axis.
LABEL_STEP = 0.052


def draw(errors: Errors, stem: Path) -> list[Path]:
    """Draw the figure.

    Parameters
    ----------
    errors : Errors
        What was measured.
    stem : Path
        Path without ending.

    Returns
    -------
    list of Path
        The PNG and the SVG.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    study = errors.study
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.9), dpi=160)
        FigureCanvasAgg(figure)
        finding = wrapped(study.title(errors), 100)
        below = 0.975 - 0.046 * (finding.count("\n") + 1)
        grid = figure.add_gridspec(
            1, len(study.data), wspace=0.13, left=0.085, right=0.86, top=below - 0.115, bottom=0.115
        )
        first = None
        for column, data in enumerate(study.data):
            axes = figure.add_subplot(grid[0, column], sharey=first)
            first = first or axes
            _panel(axes, errors, data.name, labels=column == len(study.data) - 1)
            axes.set_title(data.label, fontsize=9.5, loc="left", color="#202020", pad=7)
            if column:
                axes.tick_params(labelleft=False)
        assert first is not None
        first.set_ylabel("largest error / mean magnitude (%)")
        figure.text(0.017, 0.98, finding, fontsize=11, fontweight="bold", va="top", linespacing=1.25)
        size = f"{errors.setting}; lines: mean over seeds, bands: smallest and largest; no line: no error"
        figure.text(0.017, below, wrapped(size, 150), fontsize=8, color="#606060", va="top")
        return save(figure, stem)


def _look(arm: TensorArm, place: int) -> tuple[str, Any, float]:
    """Return color, dashes and width."""
    if arm.role == "reference":
        return NEUTRAL, "-", 1.4
    if arm.role == "control":
        return CONTROL, "-", 2.4
    return PALETTE[place % len(PALETTE)], DASHES[place % len(DASHES)], 1.8


def _panel(axes: Any, errors: Errors, data: str, labels: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    lengths = errors.setting.lengths
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    treatments = [arm.name for arm in errors.study.arms if arm.role == "treatment"]
    for arm in errors.study.arms:
        color, dashes, width = _look(arm, treatments.index(arm.name) if arm.name in treatments else 0)
        # A logarithm has no place for zero: a curve begins where no seed is without error any more.
        shown = [(k, 100 * row) for k in lengths if (row := errors.of(data, arm.name, k)).min() > 0]
        if not shown:
            continue
        at = [k for k, _ in shown]
        axes.fill_between(at, [row.min() for _, row in shown], [row.max() for _, row in shown], color=color, alpha=0.16,
                          linewidth=0)  # fmt: skip
        mean = [float(row.mean()) for _, row in shown]
        axes.plot(at, mean, color=color, linestyle=dashes, linewidth=width, solid_capstyle="round")
        ends.append((mean[-1], arm.label, color))
    for panel, k, error, words in errors.study.marks:
        if panel == data and lengths[0] <= k <= lengths[-1]:
            axes.plot([k], [100 * error], "o", markersize=7, markerfacecolor="none", markeredgecolor="#202020",
                      markeredgewidth=1.3, zorder=5)  # fmt: skip
            axes.annotate(words, (k, 100 * error), (-10, 12), textcoords="offset points", fontsize=8,
                          color="#202020", ha="right")  # fmt: skip
    axes.set_xlim(lengths[0] * 0.93, lengths[-1] * 1.07)
    axes.xaxis.set_major_locator(FixedLocator(lengths[::-2] if len(lengths) > 5 else lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value >= 1e-3 else _power(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("K, products in a sum")
    if labels:
        _label(axes, ends)


def _power(value: float) -> str:
    return f"10$^{{{round(math.log10(value))}}}$"


def _label(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    """Write the arms' names beside the ends of their curves, apart from each other."""
    axes.figure.canvas.draw()
    low, high = map(math.log10, axes.get_ylim())
    places = sorted(((math.log10(value) - low) / (high - low), label, color) for value, label, color in ends)
    heights: list[float] = []
    for place, _, _ in places:
        heights.append(max(place, heights[-1] + LABEL_STEP) if heights else place)
    for height, (_, label, color) in zip(heights, places, strict=True):
        axes.text(1.03, height, label, transform=axes.transAxes, color=color, fontsize=9, fontweight="bold",
                  va="center")  # fmt: skip
