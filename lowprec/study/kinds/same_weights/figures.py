"""Figures of a study of the same weights: the headline by arm, error by layer, and accuracy against bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.findings import void_title
from ...analysis.recipe_bits import COSTS, bits_of
from ...report.parts import number
from ...report.sheet import Figure, line_styles, panels, rows_of_arms, scale_sizes
from ...report.tradeoff import Point, differing, draw_tradeoff, front, height_of
from .study import METRICS
from .summary import WeightsSummary

MARKERS = ("o", "s", "D", "^", "v")


def title(summary: WeightsSummary) -> str:
    """Return the finding in a line: the treatments with the smallest and the largest headline."""
    if summary.broken:
        return void_title(summary.broken)
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


def by_arm(summary: WeightsSummary) -> Figure:
    """Return the headline and the gradient error: one row per arm, one marker per condition, ticks for batches."""
    metrics = list(dict.fromkeys([summary.study.headline, "gradient_error"]))
    arms, several = summary.shown, len(summary.stresses) > 1
    rows = [
        {"metric": metric, "arm": arm, "stress": stress, "checkpoint_and_batch": i, "value": row[metric]}
        for metric in metrics
        for arm in reversed(arms)
        for stress in summary.stresses
        for i, row in enumerate(summary.values[arm, stress])
    ]

    def draw(sheet: Any, top: float) -> None:
        found = panels(sheet, top, 1, len(metrics), head=0.30 if several else 0.12, foot=0.62, left=0.20, right=0.98,
                       wspace=0.08)  # fmt: skip
        for axes, metric in zip(found, metrics, strict=True):
            _draw_arms(axes, summary, metric)
        rows_of_arms(found[0], arms)
        if several:
            found[-1].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(summary.stresses), frameon=False,
                             fontsize=8.5, handletextpad=0.1, columnspacing=1.0, borderaxespad=0.1)  # fmt: skip

    height = 1.75 + 0.36 * len(arms) + 0.1 * len(summary.stresses)
    return Figure(title(summary), summary.study.name, rows, draw, summary.size, height)


def _draw_arms(axes: Any, summary: WeightsSummary, metric: str) -> None:
    arms, styles = summary.shown, line_styles(summary.study.arms)
    every = [row[metric] for arm in arms for stress in summary.stresses for row in summary.values[arm, stress]]
    logarithmic = scale_sizes(axes, "x", every)
    for y, arm in enumerate(reversed(arms)):
        for place, stress in enumerate(summary.stresses):
            at, marker = y + 0.16 * ((len(summary.stresses) - 1) / 2 - place), MARKERS[place % len(MARKERS)]
            values = [row[metric] for row in summary.values[arm, stress]]
            seen = [value for value in values if value > 0 or not logarithmic]
            axes.plot(seen, [at] * len(seen), "|", color=styles[arm].color, markersize=7, alpha=0.45)
            mean = summary.mean(metric, arm, stress)
            if mean > 0 or not logarithmic:
                axes.plot([mean], [at], marker, color=styles[arm].color, markersize=6, markeredgecolor="white",
                          markeredgewidth=0.8, zorder=3)  # fmt: skip
    for place, stress in enumerate(summary.stresses):
        axes.plot([], [], MARKERS[place % len(MARKERS)], color="#404040", label=stress)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{_name(metric)}\n({METRICS[metric]})", fontsize=8.5)


def by_layer(summary: WeightsSummary) -> Figure:
    """Return the heat map of the gradient error by layer and kind: one panel per arm, one scale."""
    stem = f"{summary.study.name}_layers"
    arms = [arm for arm in summary.shown if (arm, summary.stresses[0]) in summary.layers][:6]
    tables = {arm: summary.layers[arm, summary.stresses[0]] for arm in arms}
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

    return Figure(void_title(summary.broken) if summary.broken else finding, stem, rows, draw, summary.size,
                  height=1.5 + 0.20 * len(kinds))  # fmt: skip


def by_cost(summary: WeightsSummary) -> Figure:
    """Return the headline against the bits per value, for the costs in which arms differ."""
    metric, styles = summary.study.headline, line_styles(summary.study.arms)
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

    return Figure(void_title(summary.broken) if summary.broken else finding, stem, rows, draw, summary.size,
                  height_of([*costs]))  # fmt: skip


def _edge(points: Sequence[Point], names: Sequence[str], cost: str) -> tuple[list[float], list[float]]:
    edge = sorted((point.costs[cost], point.value) for point in points if point.name in names)
    return [x for x, _ in edge], [y for _, y in edge]
