"""Figures of measurements: the headline by arm, error by layer, accuracy against bits, and metrics by condition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..analysis.findings import void_title
from ..analysis.recipe_bits import COSTS, bits_of
from ..report.parts import number
from ..report.sheet import Figure, line_styles, panels, rows_of_arms, scale_sizes, wrapped
from ..report.tradeoff import Point, differing, draw_tradeoff, front, height_of
from .results import Samples

MARKERS = ("o", "s", "D", "^", "v")


def title(summary: Samples) -> str:
    """Return a title with the finding: the treatments with the smallest and the largest headline metric."""
    if summary.invalid_reasons:
        return void_title(summary.invalid_reasons)
    metric = summary.study.first
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


def by_arm(summary: Samples) -> Figure:
    """Return the figure of headline metric and gradient error by arm (row), condition (marker) and batch (tick)."""
    metrics = list(dict.fromkeys([summary.study.first, "gradient_error"]))
    arms, several = summary.shown, len(summary.conditions) > 1
    rows = [
        {"metric": metric, "arm": arm, "condition": condition, "checkpoint_and_batch": i, "value": value}
        for metric in metrics
        for arm in reversed(arms)
        for condition in summary.conditions
        for i, value in enumerate(summary.column(metric, arm, condition))
    ]

    def draw(sheet: Any, top: float) -> None:
        found = panels(sheet, top, 1, len(metrics), head=0.30 if several else 0.12, foot=0.62, left=0.20, right=0.98,
                       wspace=0.08)  # fmt: skip
        for axes, metric in zip(found, metrics, strict=True):
            _draw_arms(axes, summary, metric)
        rows_of_arms(found[0], arms)
        if several:
            found[-1].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(summary.conditions), frameon=False,
                             fontsize=8.5, handletextpad=0.1, columnspacing=1.0, borderaxespad=0.1)  # fmt: skip

    height = 1.75 + 0.36 * len(arms) + 0.1 * len(summary.conditions)
    return Figure(title(summary), summary.study.name, rows, draw, summary.size, height)


def _draw_arms(axes: Any, summary: Samples, metric: str) -> None:
    arms, styles = summary.shown, line_styles(summary.study.arms)
    every = [
        value for arm in arms for condition in summary.conditions for value in summary.column(metric, arm, condition)
    ]
    logarithmic = scale_sizes(axes, "x", every)
    for y, arm in enumerate(reversed(arms)):
        for place, condition in enumerate(summary.conditions):
            at, marker = y + 0.16 * ((len(summary.conditions) - 1) / 2 - place), MARKERS[place % len(MARKERS)]
            seen = [value for value in summary.column(metric, arm, condition) if value > 0 or not logarithmic]
            axes.plot(seen, [at] * len(seen), "|", color=styles[arm].color, markersize=7, alpha=0.45)
            mean = summary.mean(metric, arm, condition)
            if mean > 0 or not logarithmic:
                axes.plot([mean], [at], marker, color=styles[arm].color, markersize=6, markeredgecolor="white",
                          markeredgewidth=0.8, zorder=3)  # fmt: skip
    for place, condition in enumerate(summary.conditions):
        axes.plot([], [], MARKERS[place % len(MARKERS)], color="#404040", label=condition)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{_name(metric)}\n({summary.study.metrics[metric]})", fontsize=8.5)


def by_layer(summary: Samples) -> Figure:
    """Return heat maps of the gradient error in the first condition, by layer and kind: one panel for each arm."""
    stem = f"{summary.study.name}_layers"
    arms = [arm for arm in summary.shown if (arm, summary.conditions[0]) in summary.layers][:6]
    tables = {arm: summary.layers[arm, summary.conditions[0]] for arm in arms}
    errors = {(arm, *place): found["gradient_error"] for arm, table in tables.items() for place, found in table.items()}
    positive = [error for error in errors.values() if math.isfinite(error) and error > 0]
    if not positive:
        return Figure("", stem, [])
    asked = [arm.name for arm in summary.study.arms if arm.role == "treatment" and arm.name in tables] or arms
    most = max((key for key in errors if key[0] in asked and not math.isnan(errors[key])), key=errors.__getitem__)
    arm, layer, kind = most
    where = f"layer {layer} {kind}" if layer >= 0 else kind
    finding = f"Gradient error by layer: largest in {where} of {arm} ({number(errors[most])})"
    rows = [
        {"arm": arm, "layer": layer, "kind": kind, **found}
        for arm, table in tables.items()
        for (layer, kind), found in table.items()
    ]
    places = list(tables[arms[0]])
    kinds = list(dict.fromkeys(kind for _, kind in places))
    depth = sorted({layer for layer, _ in places}, key=lambda layer: (layer < 0, layer))
    ends = min(positive), max(max(positive), 1.01 * min(positive))

    def draw(sheet: Any, top: float) -> None:
        from matplotlib.colors import LogNorm

        found = panels(sheet, top, 1, len(arms), head=0.28, left=0.17, right=0.90, wspace=0.06)
        for axes, arm in zip(found, arms, strict=True):
            grid = [[errors.get((arm, layer, kind), math.nan) for layer in depth] for kind in kinds]
            axes.grid(False)
            axes.set_facecolor("#f2f2f2")
            image = axes.imshow(np.array(grid), norm=LogNorm(*ends), cmap="cividis_r", aspect="auto")
            axes.set_title(arm, fontsize=8.5, loc="left")
            axes.set_xticks(range(len(depth)), [str(layer) if layer >= 0 else "-" for layer in depth], fontsize=8)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        found[0].set_yticks(range(len(kinds)), kinds, fontsize=7.5)
        height = sheet.get_figheight()
        sheet.text(0.535, 0.16 / height, "layer (- : outside of layers)", fontsize=8.5, ha="center", color="#202020")
        scale = sheet.add_axes((0.915, 0.5 / height, 0.013, top - 0.78 / height))
        sheet.colorbar(image, cax=scale)
        scale_sizes(scale, "y", ends)
        scale.set_ylim(*ends)
        scale.tick_params(labelsize=7.5)

    finding = void_title(summary.invalid_reasons) if summary.invalid_reasons else finding
    return Figure(finding, stem, rows, draw, summary.size,
                  height=1.5 + 0.20 * len(kinds))  # fmt: skip


def by_cost(summary: Samples) -> Figure:
    """Return the figure of the headline metric against bits per value, for the costs in which arms differ."""
    metric, styles = summary.study.first, line_styles(summary.study.arms)
    config, stem = summary.about["fingerprint"]["config"], f"{summary.study.name}_cost"
    points = [
        Point(arm, bits_of(summary.recipes[arm], config), summary.mean(metric, arm), styles[arm].color,
              without="not finite")
        for arm in summary.shown
    ]  # fmt: skip
    costs = {name: COSTS[name] for name in differing(points, COSTS)}
    if not costs or len(points) < 3:
        return Figure("", stem, [])
    fronts = {cost: front(points, cost) for cost in costs}
    finding = f"Accuracy against bits: {', '.join(fronts[next(iter(costs))])} on the front"
    rows = [
        {"arm": point.name, **point.costs, metric: point.value,
         **{f"on_front_{cost}": int(point.name in fronts[cost]) for cost in costs}}
        for point in points
    ]  # fmt: skip

    def draw(sheet: Any, top: float) -> None:
        found = draw_tradeoff(sheet, top, points, costs, _name(metric),
                              lambda axes: scale_sizes(axes, "y", [point.value for point in points]))  # fmt: skip
        for axes, cost in zip(found, costs, strict=True):
            axes.plot(*_edge(points, fronts[cost], cost), color="#b0b0b0", linewidth=1.0, zorder=1)

    finding = void_title(summary.invalid_reasons) if summary.invalid_reasons else finding
    return Figure(finding, stem, rows, draw, summary.size,
                  height_of([*costs]))  # fmt: skip


def _edge(points: Sequence[Point], names: Sequence[str], cost: str) -> tuple[list[float], list[float]]:
    edge = sorted((point.costs[cost], point.value) for point in points if point.name in names)
    return [x for x, _ in edge], [y for _, y in edge]


# --- metrics by condition --------------------------------------------------------------------------------------------

#: Style of means and their intervals.
MARKS: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.2, "elinewidth": 0.8}


def by_condition(summary: Samples) -> list[Figure]:
    """Return figures of the metrics; the rows of each table are mean and interval by metric, arm and condition."""
    measurement = summary.study.measurement
    wide = len(summary.conditions) > 12
    rows = [
        {"metric": metric, "arm": arm, "condition": condition, "mean": mean, "low90": mean - half,
         "high90": mean + half}
        for metric in measurement.panels
        for arm in summary.shown
        for condition in summary.conditions
        for mean, half in [
            (summary.mean(metric, arm, condition), np.nan_to_num(summary.half(metric, arm, condition)))
        ]
    ]  # fmt: skip
    height = (2.6 if wide else 2.9) * (len(measurement.panels) if wide else 1) + 2.0
    return [
        Figure(overall_title(summary), summary.study.name, rows,
               lambda sheet, top: _draw_conditions(sheet, top, summary, rows), summary.size, height)
    ]  # fmt: skip


def overall_title(summary: Samples) -> str:
    """Return a title with the finding: the first panel's metric of treatments and reference, over all conditions."""
    if summary.invalid_reasons:
        return void_title(summary.invalid_reasons)
    metric, arms = summary.study.measurement.panels[0], summary.study.arms
    shown = [arm.name for arm in arms if arm.role in ("treatment", "reference") and arm.name in summary.shown]
    found = [f"{name} {number(float(f'{summary.mean(metric, name):.2g}'))}" for name in shown[:6]]
    words = metric.replace("_percent", ", %").replace("_", " ")
    return f"{words.upper() if words.startswith('kl') else words.capitalize()}: {', '.join(found)}"


def _draw_conditions(sheet: Any, top: float, summary: Samples, rows: Sequence[dict[str, Any]]) -> None:
    measurement, arms, places = summary.study.measurement, summary.shown, summary.conditions
    wide, count, styles = len(places) > 12, len(measurement.panels), line_styles(summary.study.arms)
    found = panels(sheet, top, *((count, 1) if wide else (1, count)), head=0.42, foot=2.1 if wide else 1.35,
                   share_y=False, hspace=0.35, wspace=0.28)  # fmt: skip
    for axes, metric in zip(found, measurement.panels, strict=True):
        shown = [row for row in rows if row["metric"] == metric]
        for j, arm in enumerate(arms):
            mine = [row for row in shown if row["arm"] == arm]
            means = [row["mean"] for row in mine]
            x = np.arange(len(places)) + (0.0 if measurement.joined else 0.5 * ((j + 0.5) / len(arms) - 0.5))
            axes.errorbar(x, means, [row["high90"] - row["mean"] for row in mine], color=styles[arm].color,
                          linestyle=styles[arm].dashes if measurement.joined else "", label=arm, **MARKS)  # fmt: skip
        _scale_means(axes, [row["mean"] for row in shown if not np.isnan(row["mean"])])
        axes.set_xticks(range(len(places)), places if not wide or axes is found[-1] else [""] * len(places))
        axes.tick_params(axis="x", labelsize=7.5)
        turned = {"rotation": 90} if wide else {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        for label in axes.get_xticklabels():
            label.set(**turned)
        axes.set_title(wrapped(measurement.metrics[metric], 95 if wide else 95 // count), fontsize=8.5, loc="left")
        axes.grid(False, axis="x")
    handles, labels = found[0].get_legend_handles_labels()
    fitting = int(16 * sheet.get_figwidth()) // (6 + max(map(len, labels)))  # columns as wide as the longest name
    sheet.legend(handles, labels, fontsize=7.5, ncols=min(8, len(labels), fitting), frameon=False, loc="lower center",
                 bbox_to_anchor=(0.53, 0.0))  # fmt: skip
    if measurement.axis:
        sheet.text(0.53, 0.5 / sheet.get_figheight(), measurement.axis, ha="center", fontsize=8.5, color="#404040")


def _scale_means(axes: Any, means: Sequence[float]) -> None:
    """Set limits that show the means; intervals of conditions with few bytes may exceed the limits."""
    if not means:
        return
    low, high = min(means), max(means)
    if low > 0 and high > 30 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 2, high * 2)
    elif low >= 0 and high > 1e6:  # a few means far from all others
        axes.set_yscale("symlog", linthresh=1e-3)
        axes.yaxis.get_major_locator().set_params(numticks=7)
        axes.set_ylim(0, 10 * high)
    elif high > low:
        axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
