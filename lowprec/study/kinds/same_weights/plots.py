"""Figures of a study of the same weights: the headline by arm, error by layer, and accuracy against bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...._files import to_csv, write_text
from ....plot.style import CONTROL, NEUTRAL, PALETTE, STYLE
from ...analysis.costs_of_recipes import COSTS, bits_of
from ...analysis.validity import headline
from ...report.cost_panels import Point, differing, draw_panels, front, height_of
from ...report.parts import number
from ...report.style import new_figure, require_matplotlib, save
from .study import METRICS
from .summary import WeightsSummary

MARKERS = ("o", "s", "D", "^", "v")


def draw(summary: WeightsSummary, folder: Path) -> tuple[list[tuple[str, str]], list[Path]]:
    """Draw all figures that the study has numbers for.

    Returns
    -------
    list of (str, str), list of Path
        Title and stem of every figure, and the files.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    figures, files = [], []
    with matplotlib.rc_context(STYLE):
        for suffix, drawn in (("", _by_arm), ("_layers", _by_layer), ("_cost", _by_cost)):
            stem = folder / f"{summary.study.name}{suffix}"
            found = drawn(summary)
            if found is None:
                for ending in (".csv", ".png", ".svg"):
                    stem.with_suffix(ending).unlink(missing_ok=True)
                continue
            title, figure, rows = found
            write_text(stem.with_suffix(".csv"), to_csv(rows[0], rows[1:]))
            files += [stem.with_suffix(".csv"), *save(figure, stem)]
            figures.append((title, stem.name))
    return figures, files


def title(summary: WeightsSummary) -> str:
    """Return the finding in a line: what is asked about, from the least to the largest headline; controls are known."""
    if summary.broken:
        return headline(summary.broken)
    metric = summary.study.headline
    asked = [arm.name for arm in summary.study.arms if arm.role == "treatment" and arm.name in summary.shown]
    order = sorted(asked or summary.shown, key=lambda arm: _rank(summary.mean(metric, arm)))
    if len(order) < 2:
        return f"{order[0]}: {_name(metric)} {number(summary.mean(metric, order[0]))}" if order else summary.study.name
    best, worst = order[0], order[-1]
    low, high = summary.mean(metric, best), summary.mean(metric, worst)
    ratio = f", {number(float(f'{high / low:.2g}'))} times" if low > 0 and high / low < 1e4 else ""
    return f"{_name(metric)}: {best} least ({number(low)}), {worst} most ({number(high)}{ratio})"


def _rank(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _name(metric: str) -> str:
    return {"kl_percent": "KL, % of the loss", "gradient_error": "Gradient error"}.get(
        metric, metric.replace("_", " ").capitalize()
    )


def _colors(summary: WeightsSummary) -> dict[str, str]:
    """BF16 is neutral, a control vermilion, the others in order."""
    colors, place = {}, 0
    for arm in summary.study.arms:
        if arm.recipe_name == "bf16" or arm.role in ("reference", "floor"):
            colors[arm.name] = NEUTRAL
        elif arm.role == "control":
            colors[arm.name] = CONTROL
        else:
            colors[arm.name] = PALETTE[place % len(PALETTE)]
            place += 1
    return colors


def _by_arm(summary: WeightsSummary) -> Any:
    """One row an arm: the headline and the gradient error, one marker a condition, small ones for batches."""
    metrics = list(dict.fromkeys([summary.study.headline, "gradient_error"]))
    arms, colors = summary.shown, _colors(summary)
    height = 1.75 + 0.36 * len(arms) + 0.1 * len(summary.stresses)
    finding = title(summary)
    figure, top = new_figure(9.2, height, finding, summary.size)
    grid = figure.add_gridspec(
        1, len(metrics), wspace=0.08, left=0.20, right=0.98, top=top - 0.25 / height, bottom=0.62 / height
    )
    rows: list[Sequence[Any]] = [("metric", "arm", "stress", "checkpoint_and_batch", "value")]
    for column, metric in enumerate(metrics):
        axes = figure.add_subplot(grid[0, column])
        every = [row[metric] for arm in arms for stress in summary.stresses for row in summary.values[arm, stress]]
        positive = [value for value in every if value > 0]
        if positive and max(positive) > 8 * min(positive):
            axes.set_xscale("log")
        for y, arm in enumerate(reversed(arms)):
            for place, stress in enumerate(summary.stresses):
                at = y + 0.16 * ((len(summary.stresses) - 1) / 2 - place)
                values = [row[metric] for row in summary.values[arm, stress]]
                rows += [(metric, arm, stress, i, value) for i, value in enumerate(values)]
                seen = [value for value in values if value > 0 or axes.get_xscale() == "linear"]
                axes.plot(seen, [at] * len(seen), "|", color=colors[arm], markersize=7, alpha=0.45)
                mean = summary.mean(metric, arm, stress)
                if mean > 0 or axes.get_xscale() == "linear":
                    axes.plot([mean], [at], MARKERS[place % len(MARKERS)], color=colors[arm], markersize=6,
                              markeredgecolor="white", markeredgewidth=0.8, zorder=3)  # fmt: skip
        axes.set_ylim(-0.6, len(arms) - 0.4)
        axes.set_yticks(range(len(arms)), [*reversed(arms)] if column == 0 else [""] * len(arms))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(color="#ececec", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.set_xlabel(f"{_name(metric)}\n({METRICS[metric]})", fontsize=8.5)
        _plain_ticks(axes.xaxis)
    if len(summary.stresses) > 1:
        words = "    ".join(f"{'●■◆▲▼'[i % len(MARKERS)]} {stress}" for i, stress in enumerate(summary.stresses))
        figure.text(0.98, top - 0.02, words, fontsize=8.5, ha="right", va="top", color="#404040")
    return finding, figure, rows


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _by_layer(summary: WeightsSummary) -> Any:
    """Heat map of the gradient error by layer and kind, one panel an arm, one scale."""
    from matplotlib.colors import LogNorm

    arms = [arm for arm in summary.shown if (arm, summary.stresses[0]) in summary.layers][:6]
    tables = {arm: summary.layers[arm, summary.stresses[0]] for arm in arms}
    if not tables:
        return None
    places = list(next(iter(tables.values())))
    kinds = list(dict.fromkeys(kind for _, kind in places))
    depth = list(dict.fromkeys(layer for layer, _ in places))
    depth = sorted(layer for layer in depth if layer >= 0) + [layer for layer in depth if layer < 0]
    values = {
        arm: np.array([[table.get((layer, kind), {}).get("gradient_error", math.nan) for layer in depth]
                       for kind in kinds])
        for arm, table in tables.items()
    }  # fmt: skip
    every = np.concatenate([grid[np.isfinite(grid) & (grid > 0)] for grid in values.values()])
    if not every.size:
        return None
    told = [arm.name for arm in summary.study.arms if arm.role == "treatment" and arm.name in tables] or arms
    worst = max(
        ((value, arm, place) for arm, table in tables.items() for place, found in table.items()
         if arm in told and not math.isnan(value := found["gradient_error"])),
        key=lambda item: item[0],
    )  # fmt: skip
    where = f"layer {worst[2][0]} {worst[2][1]}" if worst[2][0] >= 0 else worst[2][1]
    finding = f"Gradient error by layer: largest in {where} of {worst[1]} ({number(worst[0])})"
    finding = headline(summary.broken) if summary.broken else finding
    height = 1.5 + 0.20 * len(kinds)
    figure, top = new_figure(9.2, height, finding, summary.size)
    grid = figure.add_gridspec(
        1, len(arms), wspace=0.06, left=0.17, right=0.90, top=top - 0.28 / height, bottom=0.5 / height
    )
    scale = LogNorm(float(every.min()), max(float(every.max()), 1.01 * float(every.min())))
    image = None
    for column, arm in enumerate(arms):
        axes = figure.add_subplot(grid[0, column])
        axes.set_facecolor("#f2f2f2")
        image = axes.imshow(values[arm], norm=scale, cmap="cividis_r", aspect="auto")
        axes.set_title(arm, fontsize=8.5, loc="left")
        axes.set_xticks(range(len(depth)), [str(layer) if layer >= 0 else "-" for layer in depth], fontsize=8)
        axes.set_yticks(range(len(kinds)), kinds if column == 0 else [""] * len(kinds), fontsize=7.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.text(0.535, 0.16 / height, "layer (- : outside of layers)", fontsize=8.5, ha="center", color="#202020")
    bar = figure.add_axes((0.915, 0.5 / height, 0.013, top - 0.78 / height))
    figure.colorbar(image, cax=bar)
    _plain_ticks(bar.yaxis)
    bar.tick_params(labelsize=7.5)
    rows: list[Sequence[Any]] = [("arm", "layer", "kind", *next(iter(next(iter(tables.values())).values())))]
    rows += [
        (arm, layer, kind, *found.values()) for arm, table in tables.items() for (layer, kind), found in table.items()
    ]
    return finding, figure, rows


def _by_cost(summary: WeightsSummary) -> Any:
    """Headline against the bits that a value takes, of what the arms differ in."""
    metric, colors = summary.study.headline, _colors(summary)
    config = summary.about["fingerprint"]["config"]
    points = [
        Point(arm, bits_of(summary.recipes[arm], config), summary.mean(metric, arm), colors[arm], without="not finite")
        for arm in summary.shown
    ]
    costs = differing(points)
    if not costs or len(points) < 3:
        return None
    finding = f"Accuracy against bits: {', '.join(front(points, costs[0]))} on the front"
    finding = headline(summary.broken) if summary.broken else finding
    figure, top = new_figure(9.2, 0.9 + height_of(costs), finding, summary.size)
    positive = [point.value for point in points if point.value > 0]
    logarithm = bool(positive) and max(positive) > 8 * min(positive)

    def scale(axes: Any) -> None:
        values = positive if logarithm else [point.value for point in points if math.isfinite(point.value)]
        if logarithm:
            axes.set_yscale("log")
            axes.set_ylim(0.8 * min(values), 1.25 * max(values))
        elif values:
            room = 0.12 * (max(values) - min(values)) or 1.0
            axes.set_ylim(min(values) - room, max(values) + room)
        _plain_ticks(axes.yaxis)

    panels = draw_panels(figure, top, points, costs, _name(metric), scale)
    for axes, cost in zip(panels, costs, strict=True):
        edge = [point for point in points if point.arm in front(points, cost)]
        edge.sort(key=lambda point: point.bits[cost])
        axes.plot([point.bits[cost] for point in edge], [point.value for point in edge], color="#b0b0b0",
                  linewidth=1.0, zorder=1)  # fmt: skip
    rows: list[Sequence[Any]] = [("arm", *COSTS, metric, *(f"on_front_{cost}" for cost in costs))]
    rows += [
        (point.arm, *point.bits.values(), point.value, *(int(point.arm in front(points, cost)) for cost in costs))
        for point in points
    ]
    return finding, figure, rows
