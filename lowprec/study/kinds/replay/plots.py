"""The figure of a replay: what sums cost against K, against the interval of promotion and against fraction bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...._files import to_csv, write_text
from ....plot.style import NEUTRAL, PALETTE, STYLE
from ...report.style import new_figure, require_matplotlib, save
from .study import AT_FAR, ENOUGH
from .summary import ReplaySummary, spread_of, words_of

#: Colours of the products; extrapolated ones have the same, open and dashed.
COLORS = {"fprop": PALETTE[0], "dgrad": PALETTE[1], "wgrad": PALETTE[2]}
#: Lines of synthetic operands in the first panel, all grey: not measured in a model.
LINES = {"normal": "-", "channels": (0, (4, 1.5)), "positive": (0, (1, 1.2))}
Row = tuple[Any, ...]


def draw(summary: ReplaySummary, finding: str, stem: Path) -> list[Path]:
    """Draw the figure and write `.csv`, `.png` and `.svg`.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    rows: list[Row] = [("panel", "class", "x", "mean", "low", "high")]
    with matplotlib.rc_context(STYLE):
        small = (
            f"{summary.size}. Dots: means over layers and checkpoints; bars: 90 % intervals of the mean; thin bars: 5 "
            "to 95 % of the multiplications. Open and dashed: extrapolated, with the coherence that was recorded "
            "(circles) or one that falls as 1 / K (squares). Grey: synthetic operands"
        )
        figure, top = new_figure(10.4, 5.0, finding, small)
        grid = figure.add_gridspec(1, 3, wspace=0.10, left=0.075, right=0.985, top=top - 0.06, bottom=0.115)
        panels = [figure.add_subplot(grid[0, 0])]
        panels += [figure.add_subplot(grid[0, i], sharey=panels[0]) for i in (1, 2)]
        rows += _by_length(panels[0], summary)
        rows += _by_interval(panels[1], summary)
        rows += _by_bits(panels[2], summary)
        for axes in panels:
            axes.axhline(1.0, color="#808080", linewidth=0.8, zorder=0)
            axes.axhline(ENOUGH, color="#808080", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        for axes in panels[1:]:
            axes.tick_params(labelleft=False)
        panels[0].set_ylabel("error of sums / error of quantization")
        write_text(stem.with_suffix(".csv"), to_csv(rows[0], rows[1:]))
        return [stem.with_suffix(".csv"), *save(figure, stem)]


def _product(where: str) -> str:
    return where.partition("_")[0]


def _look(where: str) -> dict[str, Any]:
    color, far = COLORS[_product(where)], AT_FAR in where
    marker = "s" if where.endswith("_diluted") else "o"
    return {"color": color, "markerfacecolor": "white" if far else color, "marker": marker,
            "linestyle": (0, (4, 2)) if far else "-"}  # fmt: skip


def _point(axes: Any, summary: ReplaySummary, arm: str, where: str, x: float) -> Row:
    found = summary.of("over_quantization", arm, where)
    look = {**_look(where), "linestyle": "none"}
    axes.plot([x, x], [found.low, found.high], color=look["color"], linewidth=2.2, zorder=3)
    axes.plot([x], [found.mean], markersize=5.5, zorder=4, **look)
    return where, x, found.mean, found.low, found.high


def _by_length(axes: Any, summary: ReplaySummary) -> list[Row]:
    """Never promoted: means of the classes at their K, and synthetic operands."""
    rows: list[Row] = []
    arm = summary.control.name
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for family, dashes in LINES.items():
        known = sorted(k for name, other, k in summary.lines if (name, other) == (family, arm))
        values = [summary.lines[family, arm, k]["over_quantization"] for k in known]
        axes.plot(known, values, color="#a0a0a0", linewidth=1.2, linestyle=dashes, zorder=1)
        axes.annotate(family, (known[-1], values[-1]), xytext=(-2, -11 if family == "normal" else 4), fontsize=8,
                      textcoords="offset points", color="#707070", ha="right")  # fmt: skip
        rows += [("length", family, k, value, "", "") for k, value in zip(known, values, strict=True)]
    for where in (*summary.classes, *summary.far):
        numbers = summary.values[where, arm].values()
        x = sum(item["K"] for item in numbers) / len(numbers)
        low, high = spread_of(item["over_quantization"] for item in numbers)
        axes.plot([x, x], [low, high], color=COLORS[_product(where)], linewidth=0.8, alpha=0.6, zorder=2)
        rows.append(("length", *_point(axes, summary, arm, where, x)))
    for where in summary.far:
        ends = [summary.values[name, arm].values() for name in (_product(where), where)]
        xs = [sum(item["K"] for item in end) / len(end) for end in ends]
        ys = [summary.of("over_quantization", arm, name).mean for name in (_product(where), where)]
        axes.plot(xs, ys, color=COLORS[_product(where)], linewidth=1.0, linestyle=(0, (4, 2)), zorder=2)
    axes.set_title(f"{summary.control.label}, by K", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel("K: products in a sum (of Wgrad: tokens)")
    _ticks(axes, (256, 2048, 16384, 65536))
    return rows


def _by_interval(axes: Any, summary: ReplaySummary) -> list[Row]:
    """By the interval of promotion, never being the last."""
    rows: list[Row] = []
    arms = [*(arm for _, arm in summary.intervals), summary.control]
    for where in _told(summary):
        found = [_point(axes, summary, arm.name, where, i) for i, arm in enumerate(arms)]
        axes.plot(range(len(arms)), [row[2] for row in found], linewidth=1.2, zorder=2,
                  **{key: value for key, value in _look(where).items() if key in ("color", "linestyle")})  # fmt: skip
        rows += [("interval", *row) for row in found]
    axes.set_xticks(range(len(arms)), [*(str(length) for length, _ in summary.intervals), "never"])
    axes.set_title("by the interval of promotion", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel("promoted to FP32 every so many products")
    return rows


def _by_bits(axes: Any, summary: ReplaySummary) -> list[Row]:
    """By fraction bits, never promoted."""
    rows: list[Row] = []
    for where in _told(summary):
        found = [(bits, summary.of("over_quantization", arm.name, where)) for bits, arm in summary.bits]
        axes.plot([bits for bits, _ in found], [item.mean for _, item in found], markersize=3.5, linewidth=1.2,
                  label=words_of(where), **_look(where))  # fmt: skip
        axes.fill_between([bits for bits, _ in found], [item.low for _, item in found],
                          [item.high for _, item in found], color=COLORS[_product(where)], alpha=0.15,
                          linewidth=0)  # fmt: skip
        rows += [("bits", where, bits, item.mean, item.low, item.high) for bits, item in found]
    axes.axvline(_hopper(summary), color=NEUTRAL, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_title("by fraction bits, never promoted", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel(f"fraction bits (Hopper: {_hopper(summary)})")
    axes.legend(fontsize=7.5, frameon=False, loc="lower left", borderaxespad=0.0)
    axes.set_ylim(bottom=1e-7)
    return rows


def _told(summary: ReplaySummary) -> Sequence[str]:
    """Return the classes of the right panels: the shortest and longest Wgrad, and all others."""
    wgrad = [where for where in summary.classes if _product(where) == "wgrad"]
    return [*(where for where in summary.classes if where not in wgrad), *wgrad[-1:], *summary.far]


def _hopper(summary: ReplaySummary) -> int:
    return next((bits for bits, arm in summary.bits if arm.name == summary.control.name), 13)


def _ticks(axes: Any, at: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(list(at)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}")
    )
