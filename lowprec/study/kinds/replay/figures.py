"""The figure of a replay: error of sums against K, against the promotion interval and against fraction bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....plot.style import NEUTRAL, PALETTE
from ...report.sheet import Figure, panels
from .study import AT_FAR, ENOUGH
from .summary import ReplaySummary, spread_of, words_of

#: Colours of the products; extrapolated ones have the same, open and dashed.
COLORS = {"fprop": PALETTE[0], "dgrad": PALETTE[1], "wgrad": PALETTE[2]}
#: Dashes of synthetic operands in the first panel, all grey: not measured in a model.
LINES = {"normal": "-", "channels": (0, (4, 1.5)), "positive": (0, (1, 1.2))}
#: A row of the figure's table.
Row = dict[str, Any]


def figure(summary: ReplaySummary, finding: str) -> Figure:
    """Return the figure; its rows are the points of the three panels."""
    rows = [*_by_length(summary), *_by_interval(summary), *_by_bits(summary)]
    small = (
        f"{summary.size}. Dots: means over layers and checkpoints; bars: 90 % intervals of the mean; thin bars: 5 to "
        "95 % of the multiplications. Open and dashed: extrapolated, with the coherence that was recorded (circles) or "
        "one that falls as 1 / K (squares). Grey: synthetic operands"
    )

    def draw(sheet: Any, top: float) -> None:
        found = panels(sheet, top, 1, 3, head=0.30, foot=0.58, left=0.075, wspace=0.10)
        for axes, panel, drawn in zip(
            found, ("length", "interval", "bits"), (_draw_length, _draw_interval, _draw_bits), strict=True
        ):
            axes.grid(False)
            axes.set_yscale("log")
            drawn(axes, summary, [row for row in rows if row["panel"] == panel])
            axes.axhline(1.0, color="#808080", linewidth=0.8, zorder=0)
            axes.axhline(ENOUGH, color="#808080", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        found[0].set_ylabel("error of sums / error of quantization")

    return Figure(finding, summary.study.name, rows, draw, small, 5.0, 10.4)


# --- the numbers -----------------------------------------------------------------------------------------------------


def _point(summary: ReplaySummary, panel: str, arm: str, where: str, x: float) -> Row:
    found = summary.of("over_quantization", arm, where)
    return {"panel": panel, "class": where, "x": x, "mean": found.mean, "low": found.low, "high": found.high}


def _by_length(summary: ReplaySummary) -> list[Row]:
    """Return what sums cost that are never promoted: synthetic operands, then the classes at their mean K."""
    arm = summary.control.name
    rows: list[Row] = [
        {"panel": "length", "class": family, "x": k, "mean": summary.lines[family, arm, k]["over_quantization"],
         "low": "", "high": ""}
        for family in LINES
        for k in sorted(k for name, other, k in summary.lines if (name, other) == (family, arm))
    ]  # fmt: skip
    for where in (*summary.classes, *summary.far):
        lengths = [item["K"] for item in summary.values[where, arm].values()]
        rows.append(_point(summary, "length", arm, where, sum(lengths) / len(lengths)))
    return rows


def _by_interval(summary: ReplaySummary) -> list[Row]:
    arms = [*(arm for _, arm in summary.intervals), summary.control]
    return [_point(summary, "interval", arm.name, where, i) for where in _shown(summary) for i, arm in enumerate(arms)]


def _by_bits(summary: ReplaySummary) -> list[Row]:
    return [_point(summary, "bits", arm.name, where, bits) for where in _shown(summary) for bits, arm in summary.bits]


def _shown(summary: ReplaySummary) -> Sequence[str]:
    """Return the classes of the right panels: the longest Wgrad, and all others."""
    wgrad = [where for where in summary.classes if _product(where) == "wgrad"]
    return [*(where for where in summary.classes if where not in wgrad), *wgrad[-1:], *summary.far]


# --- the panels ------------------------------------------------------------------------------------------------------


def _product(where: str) -> str:
    return where.partition("_")[0]


def _look(where: str) -> dict[str, Any]:
    color, far = COLORS[_product(where)], AT_FAR in where
    return {"color": color, "linestyle": (0, (4, 2)) if far else "-"}


def _dot(axes: Any, row: Row) -> None:
    where, color = row["class"], COLORS[_product(row["class"])]
    axes.plot([row["x"]] * 2, [row["low"], row["high"]], color=color, linewidth=2.2, zorder=3)
    axes.plot([row["x"]], [row["mean"]], "s" if where.endswith("_diluted") else "o", color=color, markersize=5.5,
              markerfacecolor="white" if AT_FAR in where else color, zorder=4)  # fmt: skip


def _draw_length(axes: Any, summary: ReplaySummary, rows: Sequence[Row]) -> None:
    arm, places = summary.control.name, {row["class"]: (row["x"], row["mean"]) for row in rows}
    axes.set_xscale("log", base=2)
    for family, dashes in LINES.items():
        line = [(row["x"], row["mean"]) for row in rows if row["class"] == family]
        axes.plot(*zip(*line, strict=True), color="#a0a0a0", linewidth=1.2, linestyle=dashes, zorder=1)
        axes.annotate(family, line[-1], xytext=(-2, -11 if family == "normal" else 4), fontsize=8,
                      textcoords="offset points", color="#707070", ha="right")  # fmt: skip
    for row in rows:
        if (where := row["class"]) in LINES:
            continue
        ends = spread_of(item["over_quantization"] for item in summary.values[where, arm].values())
        axes.plot([row["x"]] * 2, ends, color=COLORS[_product(where)], linewidth=0.8, alpha=0.6, zorder=2)
        _dot(axes, row)
        if where in summary.far:
            line = [places[_product(where)], places[where]]
            axes.plot(*zip(*line, strict=True), linewidth=1.0, zorder=2, **_look(where))
    axes.set_title(f"{summary.control.label}, by K", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel("K: products in a sum (of Wgrad: tokens)")
    axes.set_xticks((256, 2048, 16384, 65536), ("256", "2k", "16k", "64k"))
    axes.minorticks_off()


def _draw_interval(axes: Any, summary: ReplaySummary, rows: Sequence[Row]) -> None:
    for where in _shown(summary):
        line = [row for row in rows if row["class"] == where]
        axes.plot([row["x"] for row in line], [row["mean"] for row in line], linewidth=1.2, zorder=2, **_look(where))
        for row in line:
            _dot(axes, row)
    lengths = [*(str(length) for length, _ in summary.intervals), "never"]
    axes.set_xticks(range(len(lengths)), lengths)
    axes.set_title("by the interval of promotion", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel("promoted to FP32 every so many products")


def _draw_bits(axes: Any, summary: ReplaySummary, rows: Sequence[Row]) -> None:
    hopper = next((bits for bits, arm in summary.bits if arm.name == summary.control.name), 13)
    for where in _shown(summary):
        x, mean, low, high = (
            [row[key] for row in rows if row["class"] == where] for key in ("x", "mean", "low", "high")
        )
        marker = "s" if where.endswith("_diluted") else "o"
        axes.plot(x, mean, marker=marker, markersize=3.5, linewidth=1.2, label=words_of(where),
                  markerfacecolor="white" if AT_FAR in where else COLORS[_product(where)], **_look(where))  # fmt: skip
        axes.fill_between(x, low, high, color=COLORS[_product(where)], alpha=0.15, linewidth=0)
    axes.axvline(hopper, color=NEUTRAL, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_title("by fraction bits, never promoted", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel(f"fraction bits (Hopper: {hopper})")
    axes.legend(fontsize=7.5, frameon=False, loc="lower left", borderaxespad=0.0)
    axes.set_ylim(bottom=1e-7)
