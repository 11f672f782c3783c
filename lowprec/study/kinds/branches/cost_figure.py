"""The figure of accuracy against cost of a study of branches: paired differences over the bits that arms spend."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...._files import to_csv, write_text
from ....plot.style import STYLE
from ...analysis.costs_of_recipes import COSTS, bits_of, with_tail
from ...analysis.inference import BETTER_WITHIN, EQUIVALENT, WORSE_WITHIN
from ...analysis.validity import headline
from ...design.arms import Arm
from ...report.cost_panels import Point, differing, draw_panels, height_of
from ...report.style import new_figure, require_matplotlib, save
from .looks import draw_rules, looks_of, set_scale
from .summary import StudySummary

#: Verdicts of arms that the margin holds.
WITHIN = (EQUIVALENT, WORSE_WITHIN, BETTER_WITHIN)
COLUMNS = ("arm", "role", "recipe", *COSTS, "pairs", "diverged", "mean", "ci90_low", "ci90_high")


def costs(study: StudySummary) -> dict[str, dict[str, float] | None]:
    """Return what every arm spends, None where its recipe does not say it in full."""
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
    """Return what is drawn: reference, treatments and controls that have a cost; in percent."""
    looks, spent = looks_of(study), costs(study)
    reference = study.ablation.reference.name
    points = []
    if (bits := spent[reference]) is not None:
        points.append(Point(reference, bits, 0.0, looks[reference].color))
    for item in study.arms:
        name = item.arm.name
        if item.arm.role in ("treatment", "control") and (bits := spent[name]) is not None:
            value = math.nan if item.own.diverged else 100 * item.own.mean
            low, high = (100 * end for end in item.own.ci90)
            points.append(
                Point(name, bits, value, looks[name].color, (low, high) if item.own.n > 1 else (math.nan,) * 2)
            )
    return points


def note(study: StudySummary) -> str:
    """Return what is not drawn, and why; empty if everything is."""
    missing = [name for name, bits in costs(study).items() if bits is None]
    told = f"Without a cost, since the recipe does not name all its formats: {', '.join(missing)}." if missing else ""
    points = points_of(study)
    if len(points) > 1 and not differing(points):
        every = ", ".join(f"{number} {COSTS[name]}" for name, number in _numbers(points[0]).items())
        told = f"Accuracy against cost is not drawn: all arms spend the same ({every}). {told}".strip()
    return told


def _numbers(point: Point) -> dict[str, str]:
    return {name: f"{value:.3g}" for name, value in point.bits.items()}


def title(study: StudySummary) -> str:
    """Return the finding: the cheapest arm that is within the margin, by the first cost in which arms differ."""
    if study.void:
        return f"Accuracy against cost: {headline(study.void)}"
    points, reference = points_of(study), study.ablation.reference.name
    cost = differing(points)[0]
    bits = {point.arm: point.bits[cost] for point in points}
    good = [
        item for item in study.arms
        if item.arm.name in bits and not item.own.diverged and item.verdict in WITHIN
        and bits[item.arm.name] < bits.get(reference, math.inf)
    ]  # fmt: skip
    if not good:
        return f"Accuracy against cost: no arm with fewer bits than {reference} is shown to be within the margin"
    name = min(good, key=lambda item: bits[item.arm.name]).arm.name
    what = {"operands": "an operand", "wires": "a value sent", "kept": "a value kept", "states": "a parameter"}[cost]
    before = f", {reference} {bits[reference]:.3g}" if reference in bits else ""
    return f"Accuracy against cost: {name} is the cheapest arm within the margin ({bits[name]:.3g} bits {what}{before})"


def table(study: StudySummary) -> str:
    """Return the numbers behind the figure as CSV, floats exact: every arm, what has no cost with empty cells."""
    spent, arm = costs(study), study.ablation.reference
    found: list[tuple[Arm, tuple[Any, ...]]] = [(arm, (len(study.reference), 0, "", "", ""))]
    found += [
        (item.arm, (item.own.n, item.own.diverged, float(item.own.mean), *map(float, item.own.ci90)))
        for item in study.arms
    ]
    rows = []
    for arm, numbers in found:
        bits = spent[arm.name] or {}
        rows.append((arm.name, arm.role, arm.recipe_name, *(bits.get(name, "") for name in COSTS), *numbers))
    return to_csv(COLUMNS, rows)


def draw(study: StudySummary, stem: Path) -> list[Path]:
    """Draw the figure and write `.csv`, `.png` and `.svg`; the CSV alone where no two arms differ in cost.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    write_text(stem.with_suffix(".csv"), table(study))
    points = points_of(study)
    names = differing(points)
    if not names:
        for ending in (".png", ".svg"):
            stem.with_suffix(ending).unlink(missing_ok=True)
        return [stem.with_suffix(".csv")]
    margin = 100 * study.ablation.margin
    values = [np.array([point.value, *point.interval]) for point in points]

    def scale(axes: Any) -> None:
        draw_rules(axes, "y", margin, 100 * study.floor)
        set_scale(axes, "y", values, margin)

    size = (
        f"{study.size}. Mean difference with its 90 % interval over bits with those of scales; dashed: margin of "
        f"equivalence, grey: noise floor. {note(study)}"
    )
    with matplotlib.rc_context(STYLE):
        figure, top = new_figure(9.2, 0.9 + height_of(names), title(study), size)
        draw_panels(figure, top, points, names, f"validation loss against {study.ablation.reference.name} (%)", scale)
        return [stem.with_suffix(".csv"), *save(figure, stem)]
