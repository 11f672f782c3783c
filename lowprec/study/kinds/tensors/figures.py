"""The figure of a study of GEMMs: error against K, one panel per kind of data, bands over the seeds."""

from __future__ import annotations

import math
from typing import Any

from ...report.sheet import Figure, label_ends, line_styles, panels
from .study import MEASURES, Errors


def figure(errors: Errors) -> Figure:
    """Return the figure; its rows are all measured errors."""
    study, setting = errors.study, errors.setting
    rows = [
        {"data": data.name, "arm": arm.name, "K": k, "seed": seed,
         **dict(zip(MEASURES, errors.values[:, d, i, j, seed].tolist(), strict=True))}
        for d, data in enumerate(study.data)
        for i, arm in enumerate(study.arms)
        for j, k in enumerate(setting.lengths)
        for seed in range(setting.seeds)
    ]  # fmt: skip

    def draw(sheet: Any, top: float) -> None:
        found = panels(sheet, top, 1, len(study.data), head=0.30, foot=0.56, right=0.86, wspace=0.13)
        for axes, data in zip(found, study.data, strict=True):
            ends = _draw(axes, errors, data.name)
            axes.set_title(data.label, fontsize=9.5, loc="left", color="#202020", pad=7)
        label_ends(found[-1], ends)
        found[0].set_ylabel("largest error / mean magnitude (%)")

    small = f"{setting}; lines: mean over seeds, bands: smallest and largest; no line: no error"
    return Figure(study.title(errors), study.name, rows, draw, small)


def _draw(axes: Any, errors: Errors, data: str) -> list[tuple[float, str, str]]:
    """Draw one panel; return the ends of its curves: value, label, color."""
    from matplotlib.ticker import FuncFormatter

    study, lengths, styles = errors.study, errors.setting.lengths, line_styles(errors.study.arms)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for arm in study.arms:
        style, width = styles[arm.name], {"reference": 1.4, "control": 2.4}.get(arm.role, 1.8)
        # Zero is not on a logarithmic axis: a curve begins where every seed has an error.
        shown = [(k, 100 * row) for k in lengths if (row := errors.of(data, arm.name, k)).min() > 0]
        if not shown:
            continue
        at, mean = [k for k, _ in shown], [float(row.mean()) for _, row in shown]
        axes.fill_between(at, [row.min() for _, row in shown], [row.max() for _, row in shown], color=style.color,
                          alpha=0.16, linewidth=0)  # fmt: skip
        axes.plot(at, mean, color=style.color, linestyle=style.dashes, linewidth=width, solid_capstyle="round")
        ends.append((mean[-1], arm.label, style.color))
    for panel, k, error, words in study.marks:
        if panel == data and lengths[0] <= k <= lengths[-1]:
            axes.plot([k], [100 * error], "o", markersize=7, markerfacecolor="none", markeredgecolor="#202020",
                      markeredgewidth=1.3, zorder=5)  # fmt: skip
            axes.annotate(words, (k, 100 * error), (-10, 12), textcoords="offset points", fontsize=8,
                          color="#202020", ha="right")  # fmt: skip
    shown_lengths = lengths[::-2] if len(lengths) > 5 else lengths
    axes.set_xticks(shown_lengths, [f"{k:.0f}" for k in shown_lengths])
    axes.set_xlim(lengths[0] * 0.93, lengths[-1] * 1.07)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if value >= 1e-3 else f"10$^{{{round(math.log10(value))}}}$")
    )
    axes.minorticks_off()
    axes.grid(False, axis="x")
    axes.set_xlabel("K, products in a sum")
    return ends
