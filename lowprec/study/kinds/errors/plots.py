"""Drawing of the figures of format errors. Matplotlib is imported when a figure is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....plot.style import CONTROL, NEUTRAL, PALETTE, STYLE
from ...report.style import require_matplotlib, save, wrapped
from .study import ErrorOutcome, Row

#: One color for each family, the casts neutral.
FAMILIES = {
    "LogFMT": PALETTE[0], "INT": PALETTE[1], "FP8 tiles": CONTROL, "MX": PALETTE[2], "NVFP4": PALETTE[4],
    "cast": NEUTRAL, "E5M6": PALETTE[3],
}  # fmt: skip
GREY = "#606060"
#: Where labels stand beside their points, in points.
SHIFTS = {
    "LogFMT": (6, -8), "INT": (-7, 3), "E4M3 1x128 f32": (7, 5), "E5M2 1x128 f32": (7, -2),
    "MXFP8 E4M3": (7, -3), "MXFP8 E5M2": (7, -10), "MXFP6 E3M2": (-7, -4), "MXFP6 E2M3": (-7, 5), "MXFP4": (-5, 6),
    "INT4 1x128": (-7, -6),
}  # fmt: skip
#: Below this step (in nats) chance hides the bias of 2^20 values.
SMALLEST_STEP = 0.04


def new_figure(
    title: str, subtitle: str, panels: int, right: float = 0.97, *, shared: bool = True, gap: float = 0.09
) -> tuple[Any, list[Any]]:
    """Return a figure with a finding above it and its axes side by side."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.9), dpi=160)
    FigureCanvasAgg(figure)
    finding = wrapped(title, 100)
    below = 0.975 - 0.046 * (finding.count("\n") + 1)
    grid = figure.add_gridspec(
        1, panels, wspace=gap, left=0.085, right=right, top=below - 0.12 - 0.02 * (len(subtitle) > 150), bottom=0.115
    )
    axes: list[Any] = []
    for column in range(panels):
        axes.append(figure.add_subplot(grid[0, column], sharey=axes[0] if axes and shared else None))
        if column and shared:
            axes[-1].tick_params(labelleft=False)
        axes[-1].grid(color="#ececec", linewidth=0.7)
        axes[-1].set_axisbelow(True)
    figure.text(0.017, 0.98, finding, fontsize=11, fontweight="bold", va="top", linespacing=1.25)
    figure.text(0.017, below, wrapped(subtitle, 150), fontsize=8, color=GREY, va="top")
    return figure, axes


def style() -> Any:
    """Return a context with the settings of all figures."""
    require_matplotlib()
    import matplotlib

    return matplotlib.rc_context(STYLE)


def front_line(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the stairs through the points of a front, by rising cost."""
    xs: list[float] = []
    ys: list[float] = []
    for x, y in sorted(points):
        if xs:
            xs.append(x)
            ys.append(ys[-1])
        xs.append(x)
        ys.append(y)
    return xs, ys


def draw_pareto(rows: list[Row], outcome: ErrorOutcome, stem: Path) -> list[Path]:
    """Draw SQNR against bits per value: a line a family, the front as stairs with ringed points."""
    data = list(dict.fromkeys(row["data"] for row in rows))
    families = list(dict.fromkeys(row["family"] for row in rows))
    with style():
        figure, axes = new_figure(
            "Per bit, integer blocks lead on experts' outputs; on heavier tails LogFMT does",
            f"SQNR against bits per value, scales included (LogFMT's ends as bfloat16); {outcome.setting}; grey stairs "
            "and rings: the Pareto front",
            len(data),
        )
        for panel, name in zip(axes, data, strict=True):
            here = [row for row in rows if row["data"] == name]
            panel.plot(*front_line([(r["bits_per_value"], r["sqnr"]) for r in here if r["on_front"]]), color="#d0d0d0",
                       linewidth=5, solid_joinstyle="round", zorder=1)  # fmt: skip
            for family in families:
                points = [row for row in here if row["family"] == family]
                color = FAMILIES[family]
                best = {row["bits_per_value"]: row["sqnr"] for row in sorted(points, key=lambda row: row["sqnr"])}
                panel.plot(sorted(best), [best[bits] for bits in sorted(best)], color=color, linewidth=1.5, zorder=3)
                panel.plot([row["bits_per_value"] for row in points], [row["sqnr"] for row in points], "o",
                           color=color, markersize=4.5, zorder=3, label=family)  # fmt: skip
                for row in points:
                    at = (row["bits_per_value"], row["sqnr"])
                    if row["on_front"]:
                        panel.plot(*at, "o", markersize=9, markerfacecolor="none", markeredgecolor="#202020",
                                   markeredgewidth=0.9, zorder=4)  # fmt: skip
                    shift = SHIFTS.get(row["label"], SHIFTS.get(family, (7, -3)))
                    panel.annotate(_short(row["label"], family), at, shift, textcoords="offset points", fontsize=7,
                                   color=color, ha="right" if shift[0] < 0 else "left", zorder=5)  # fmt: skip
            panel.set_xlabel("bits per value, scales included")
            panel.set_title(_about(name), fontsize=9.5, loc="left", color="#202020", pad=7)
            panel.set_xlim(2.7, 17.4)
        axes[0].set_ylabel("SQNR (dB)")
        axes[0].legend(fontsize=8, frameon=False, loc="upper left", handlelength=1.2)
        return save(figure, stem)


def _short(label: str, family: str) -> str:
    """Return what is left of a label beside its family's name."""
    for gone in (" 1x128", " f32", "LogFMT-", "MX", "INT"):
        label = label.replace(gone, "")
    return {"E5M6 pow2": "", "E4M3 pow2": "", family: ""}.get(label, label)


def _about(data: str) -> str:
    from lowprec.measure.distributions import distributions

    return f"{data}: {distributions[data].about}"


def draw_magnitude(rows: list[Row], outcome: ErrorOutcome, stem: Path) -> list[Path]:
    """Draw the relative error of a value against its distance from the largest of its tile."""
    with style():
        figure, (panel,) = new_figure(
            "LogFMT's relative error is that of the whole tile; integers lose a bit an octave, E4M3 from 2⁻¹⁴ on",
            f"{_about(rows[0]['data'])}; {outcome.setting.rows} x {outcome.setting.columns} values, octaves with fewer "
            "than 30 left out; 100 %: flushed to 0",
            1, right=0.83,
        )  # fmt: skip
        ends = []
        families = {arm.name: arm.family for arm in outcome.study.arms}
        seen: dict[str, int] = {}
        for name in dict.fromkeys(row["format"] for row in rows):
            here = [row for row in rows if row["format"] == name]
            color = FAMILIES[families[name]]
            nth = seen[families[name]] = seen.get(families[name], -1) + 1
            x = [row["octaves_below_amax"] for row in here]
            y = [100 * row["relative_rms"] for row in here]
            panel.plot(x, y, color=color, linestyle=("-", (0, (5, 1.5)), (0, (1.5, 1.2)))[nth % 3], linewidth=1.8)
            ends.append((y[-1], here[0]["label"], color))
        panel.set_yscale("log")
        panel.set_ylim(0.08, 160)
        panel.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        panel.minorticks_off()
        panel.set_xticks(range(0, 1 + max(row["octaves_below_amax"] for row in rows), 2))
        panel.set_xlabel("octaves below the largest magnitude of the tile (0: the largest)")
        panel.set_ylabel("relative error, root mean square (%)")
        panel.set_xlim(-0.3, max(row["octaves_below_amax"] for row in rows) + 0.3)
        label_ends(panel, ends)
        return save(figure, stem)


def label_ends(panel: Any, ends: list[tuple[float, str, str]], least: float = 0.043) -> None:
    """Write names beside the right ends of curves on a logarithmic axis, apart from each other."""
    import math

    low, high = map(math.log10, panel.get_ylim())
    places = sorted(((math.log10(value) - low) / (high - low), label, color) for value, label, color in ends)
    heights = [place for place, _, _ in places]
    for _ in range(200):  # push neighbours apart until none overlaps
        for i in range(1, len(heights)):
            gap = heights[i] - heights[i - 1]
            if gap < least:
                heights[i] += (least - gap) / 2
                heights[i - 1] -= (least - gap) / 2
    for height, (_, label, color) in zip(heights, places, strict=True):
        panel.text(1.015, height, label, transform=panel.transAxes, color=color, fontsize=8.5, fontweight="bold",
                   va="center")  # fmt: skip


def draw_bias(rows: list[Row], outcome: ErrorOutcome, stem: Path) -> list[Path]:
    """Draw the bias of magnitudes against the step, a panel for each threshold, with the theory's lines."""
    import numpy as np

    marks = dict(zip(dict.fromkeys(row["data"] for row in rows), "os^D", strict=False))
    titles = {
        "linear": ("thresholds in linear space", "-s²/12", -1 / 12),
        "log": ("thresholds in log space", "+s²/24", 1 / 24),
        "logmean": ("thresholds at the logarithmic mean", "0 to the order of s²", 0.0),
    }
    with style():
        figure, axes = new_figure(
            "Rounding in linear space shrinks magnitudes, in log space it inflates them by half as much",
            "LogFMT, 4 to 8 bits; bias of the mean magnitude divided by s², s the step in nats; a uniform density has "
            "none in linear space, the paper's sense of unbiased; 2²⁰ values, bars: 2 standard errors",
            3,
        )
        for panel, (rounding, (words, theory, slope)) in zip(axes, titles.items(), strict=True):
            panel.axhline(0, color="#909090", linewidth=0.8)
            if slope:
                panel.axhline(slope, color="#202020", linewidth=1.4, linestyle=(0, (5, 1.5)))
            panel.text(0.97, slope - 0.006, theory, fontsize=9, color="#202020", ha="right", va="top",
                       transform=panel.get_yaxis_transform())  # fmt: skip
            for i, (data, mark) in enumerate(marks.items()):
                here = [r for r in rows if r["data"] == data and r["rounding"] == rounding and r["s"] >= SMALLEST_STEP]
                s = np.array([row["s"] for row in here])
                y = np.array([row["magnitude_bias"] for row in here]) / s**2
                noise = 2 * 1.5 / np.sqrt(12 * 2.0**20) / s  # errors of s / sqrt(12) each; 1.5: rms over mean magnitude
                color = (*PALETTE[:3], NEUTRAL)[i]
                panel.errorbar(s, y, yerr=noise, fmt=mark, color=color, markersize=5, linewidth=1, label=data,
                               linestyle="-" if i < 3 else (0, (1, 1)))  # fmt: skip
            panel.set_xscale("log")
            panel.set_xlim(0.04, 2)
            panel.set_xticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
            panel.minorticks_off()
            panel.set_ylim(-0.135, 0.135)
            panel.set_title(words, fontsize=9.5, loc="left", color="#202020", pad=7)
            panel.set_xlabel("step s (nats)")
        axes[0].set_ylabel("bias of the mean magnitude / s²")
        axes[0].legend(fontsize=8, frameon=False, loc="upper left")
        return save(figure, stem)
