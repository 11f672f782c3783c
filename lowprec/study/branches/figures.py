"""Figures of branch studies: the forest plot of effects, and accuracy against bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...plot.style import NEUTRAL
from ..analysis.findings import void_title
from ..analysis.paired import (
    BETTER_WITHIN,
    EQUIVALENT,
    WORSE_WITHIN,
)
from ..analysis.recipe_bits import COSTS, bits_of, with_tail
from ..design.arms import Arm
from ..report.parts import interval, percent
from ..report.sheet import (
    Figure,
    bar,
    cross,
    draw_margin,
    line_styles,
    panels,
    rows_of_arms,
    scale_differences,
)
from ..report.tradeoff import Point, differing, draw_tradeoff, height_of
from .arms import INSENSITIVE, ArmSummary
from .results import StudySummary
from .sentences import named
from .sizes import EFFECTS

#: Effects in the forest plot: vertical offset, marker and name.
DRAWN = {
    "forward": (0.26, "^", "forward effect (rounding)"), "training": (0.0, "o", "training effect (weights)"),
    "total": (-0.26, "s", "total"),
}  # fmt: skip
#: Verdicts of arms within the margin.
WITHIN = (EQUIVALENT, INSENSITIVE, WORSE_WITHIN, BETTER_WITHIN)


# --- the forest plot -------------------------------------------------------------------------------------------------


def forest(study: StudySummary) -> Figure:
    """Return the figure of forward effect, training effect and total of every arm, with intervals and pairs.

    The rows of its table are the pairs. `text_error` is the contribution of the held-out text to the standard error of
    the mean over an arm's pairs, repeated in each row. Together with the pairs' relative differences r it determines
    the interval (`lowprec.study.analysis.paired.paired`).
    """
    shown = study.shown("floor")
    rows = [
        {"arm": item.arm.name, "role": item.arm.role, "effect": name, "checkpoint": run.checkpoint, "seed": run.seed,
         "r": float(r), "text_error": item.effects[name].text_error}
        for item in shown[::-1]
        for name in EFFECTS
        for run, r in zip(item.runs, item.by_effect[name].values, strict=True)
    ]  # fmt: skip
    small = (
        f"{study.size}. Bars: 90 % intervals, ticks: pairs of the {named(study.ablation.primary_effect)}. Dashed: "
        "margin of equivalence" + (", grey band: noise floor of a mean" if math.isfinite(study.floor) else "")
    )
    return Figure(_forest_title(study), f"{study.ablation.name}_pairs", rows,
                  lambda sheet, top: _draw_forest(sheet, top, study, shown), small,
                  height=1.8 + 0.66 * len(shown))  # fmt: skip


def _forest_title(study: StudySummary) -> str:
    if study.void:
        return void_title(study.void)
    shown = [item for item in study.arms
             if item.arm.role == "treatment" and math.isfinite(item.primary.mean) and not item.void]  # fmt: skip
    if not shown:
        return "Forward effect, training effect and total"
    worst = max(shown, key=lambda item: abs(item.primary.mean))
    name, mean = named(study.ablation.primary_effect), percent(worst.primary.mean)
    found = f"Largest {name}: {worst.arm.name}, {mean} % {interval(worst.primary.ci90)}"
    if study.ablation.primary_effect != "forward":
        most = max(shown, key=lambda item: abs(item.effects["forward"].mean))
        found += f"; largest forward effect: {most.arm.name}, {percent(most.effects['forward'].mean)} %"
    return found


def _draw_forest(sheet: Any, top: float, study: StudySummary, shown: Sequence[ArmSummary]) -> None:
    (axes,) = panels(sheet, top, head=0.33, foot=0.62, left=0.19, right=0.98)
    margin, styles = 100 * study.ablation.margin, line_styles(study.ablation.arms)
    draw_margin(axes, "x", margin, 100 * study.mean_floor)
    values = [100 * item.differences for item in shown]
    values += [100 * np.array([*item.effects[name].ci90, item.effects[name].mean]) for item in shown for name in DRAWN]
    scale_differences(axes, "x", values, margin)
    axes.grid(False)
    for y, item in enumerate(reversed(shown)):
        color = styles[item.arm.name].color
        if item.primary.diverged:
            cross(axes, 0.97, y, color, axes.get_yaxis_transform())
            axes.text(0.955, y, f"diverged in {item.primary.diverged} of {item.primary.n}", ha="right", va="center",
                      fontsize=8.5, color=color, transform=axes.get_yaxis_transform())  # fmt: skip
            continue
        for name, (above, marker, _) in DRAWN.items():
            if name == study.ablation.primary_effect:
                ticks = 100 * item.differences
                axes.plot(ticks, [y + above + 0.11] * len(ticks), "|", color=color, markersize=5, alpha=0.6)
            low, high = item.effects[name].ci90
            bar(axes, "x", y + above, (100 * low, 100 * high), 100 * item.effects[name].mean, color, marker,
                color if name == "training" else "white")  # fmt: skip
    rows_of_arms(axes, [item.arm.name for item in shown])
    axes.set_xlabel(f"difference of the validation loss to {study.ablation.reference.name} (%)", fontsize=9)
    for name, (_, marker, words) in DRAWN.items():
        axes.plot([], [], color=NEUTRAL, marker=marker, markersize=5, linewidth=1.6, label=words,
                  markerfacecolor=NEUTRAL if name == "training" else "white")  # fmt: skip
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, fontsize=8.5, borderaxespad=0.1,
                handlelength=2.2)  # fmt: skip


# --- accuracy against bits -------------------------------------------------------------------------------------------


def costs(study: StudySummary) -> dict[str, dict[str, float] | None]:
    """Return the result of `bits_of` for every arm, None for a recipe that does not name all its formats."""
    return {arm.name: _costs(study, arm) for arm in study.ablation.arms}


def _costs(study: StudySummary, arm: Arm) -> dict[str, float] | None:
    recipe = dict(study.recipes.get(arm.name) or {})
    tail = recipe.pop("tail", None)
    try:
        config = {**study.about["fingerprint"]["config"], **arm.config}
        bits = bits_of(recipe, config)
        if tail:
            steps = study.setting.branch_steps
            bits = with_tail(bits, bits_of(tail["recipe"], config), (steps - tail["from_step"]) / steps)
    except (LookupError, ValueError, TypeError):
        return None
    return bits


def points_of(study: StudySummary) -> list[Point]:
    """Return the points of the reference, treatments and controls with known cost, with effects in percent."""
    styles, spent = line_styles(study.ablation.arms), costs(study)
    reference = study.ablation.reference.name
    found = [Point(reference, bits, 0.0, styles[reference].color)] if (bits := spent[reference]) is not None else []
    for item in study.shown():
        if (bits := spent[item.arm.name]) is not None:
            own = item.primary
            ends = (100 * own.ci90[0], 100 * own.ci90[1]) if own.n > 1 else (math.nan, math.nan)
            value = math.nan if own.diverged else 100 * own.mean
            found.append(Point(item.arm.name, bits, value, styles[item.arm.name].color, ends))
    return found


def note(study: StudySummary) -> str:
    """Return a note on arms that are not drawn, with reasons; empty if all arms are drawn."""
    missing = [name for name, bits in costs(study).items() if bits is None]
    found = f"Without a cost, since the recipe does not name all its formats: {', '.join(missing)}." if missing else ""
    points = points_of(study)
    if len(points) > 1 and not differing(points, COSTS):
        every = ", ".join(f"{value:.3g} {COSTS[name]}" for name, value in points[0].costs.items())
        found = f"Accuracy against cost is not drawn: all arms spend the same ({every}). {found}".strip()
    return found


def cost(study: StudySummary) -> Figure:
    """Return the figure of paired differences against bits; it is drawn only if at least two arms differ in cost."""
    spent, first = costs(study), study.ablation.reference
    found: list[tuple[Any, ...]] = [(first, len(study.reference), 0, "", "", "")]
    found += [
        (item.arm, item.primary.n, item.primary.diverged, *map(float, (item.primary.mean, *item.primary.ci90)))
        for item in study.arms
    ]
    rows = [
        {"arm": arm.name, "role": arm.role, "recipe": arm.recipe_name,
         **{name: (spent[arm.name] or {}).get(name, "") for name in COSTS},
         **dict(zip(("pairs", "diverged", "mean", "ci90_low", "ci90_high"), numbers, strict=True))}
        for arm, *numbers in found
    ]  # fmt: skip
    points = points_of(study)
    names = {name: COSTS[name] for name in differing(points, COSTS)}
    stem, margin = f"{study.ablation.name}_cost", 100 * study.ablation.margin
    if not names:
        return Figure("", stem, rows)

    def scale(axes: Any) -> None:
        draw_margin(axes, "y", margin, 100 * study.mean_floor)
        scale_differences(axes, "y", [[point.value, *point.interval] for point in points], margin)

    small = (
        f"{study.size}. Mean difference with its 90 % interval over bits with those of scales; dashed: margin of "
        f"equivalence, grey: noise floor of a mean. {note(study)}"
    )
    label = f"validation loss against {first.name} (%)"
    return Figure(_cost_title(study, points, next(iter(names))), stem, rows,
                  lambda sheet, top: draw_tradeoff(sheet, top, points, names, label, scale), small,
                  height=height_of([*names]))  # fmt: skip


def _cost_title(study: StudySummary, points: Sequence[Point], cost: str) -> str:
    """Return the finding: the cheapest arm within the margin, by the first cost in which arms differ."""
    if study.void:
        return f"Accuracy against cost: {void_title(study.void)}"
    reference = study.ablation.reference.name
    bits = {point.name: point.costs[cost] for point in points}
    good = [
        item.arm.name for item in study.arms
        if item.arm.name in bits and not item.primary.diverged and item.verdict in WITHIN
        and bits[item.arm.name] < bits.get(reference, math.inf)
    ]  # fmt: skip
    if not good:
        return f"Accuracy against cost: no arm with fewer bits than {reference} is shown to be within the margin"
    name = min(good, key=bits.__getitem__)
    what = {"operands": "an operand", "wires": "a value sent", "kept": "a value kept", "states": "a parameter"}[cost]
    before = f", {reference} {bits[reference]:.3g}" if reference in bits else ""
    return f"Accuracy against cost: {name} is the cheapest arm within the margin ({bits[name]:.3g} bits {what}{before})"
