"""The forest plot of a study: every pair, every mean with its interval, margin and floor, in both evaluations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...._files import to_csv, write_text
from ...analysis.statistics import Paired, relative_differences
from ...analysis.validity import headline
from ...report.parts import percent
from ...report.style import NEUTRAL, STYLE, new_figure, require_matplotlib, save
from .looks import draw_rules, looks_of, set_scale
from .measured import ArmSummary
from .summary import StudySummary


def title(study: StudySummary) -> str:
    """Return the finding: the largest mean difference among the treatments, and what the pairs could have seen."""
    if study.void:
        return headline(study.void)
    shown = [
        item for item in study.arms
        if item.arm.role == "treatment" and math.isfinite(item.own.mean) and not item.void
    ]  # fmt: skip
    if not shown:
        return "Paired differences of the validation loss"
    worst = max(shown, key=lambda item: abs(item.own.mean))
    seen = f"; {worst.own.n} pairs resolve {percent(worst.power.detectable, sign=False)} %"
    return f"Largest difference of a treatment: {worst.arm.name}, {percent(worst.own.mean)} %" + (
        seen if math.isfinite(worst.power.detectable) else ""
    )


def draw(study: StudySummary, stem: Path) -> list[Path]:
    """Draw the figure and write `.csv`, `.png` and `.svg`.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    shown = [item for item in study.arms if item.arm.role in ("treatment", "control", "floor")]
    rows: list[tuple[Any, ...]] = [("arm", "role", "evaluation", "checkpoint", "seed", "r")]
    with matplotlib.rc_context(STYLE):
        height = 1.6 + 0.55 * len(shown)
        size = f"{study.size}. Filled: evaluated in the arm's own precision, open: in BF16; bars: 90 % intervals"
        figure, top = new_figure(9.2, height, title(study), size)
        axes = figure.add_axes((0.19, 0.62 / height, 0.79, top - 0.70 / height))
        margin = 100 * study.ablation.margin
        draw_rules(axes, "x", margin, 100 * study.floor)
        values = [100 * item.differences for item in shown] + [100 * np.array(item.own.ci90) for item in shown]
        set_scale(axes, "x", values, margin)
        looks = looks_of(study)
        for y, item in enumerate(reversed(shown)):
            color = NEUTRAL if item.arm.role == "floor" else looks[item.arm.name].color
            _arm(axes, y, item, color)
            for evaluation, differences in (("own", item.differences), ("bf16", in_bf16(study, item))):
                rows += [
                    (item.arm.name, item.arm.role, evaluation, run.checkpoint, run.seed, float(r))
                    for run, r in zip(item.runs, differences, strict=True)
                ]
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_yticks(range(len(shown)), [item.arm.name for item in reversed(shown)])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(
            f"difference of the validation loss to {study.ablation.reference.name} (%); dashed: margin of equivalence, "
            "grey: noise floor", fontsize=9,
        )  # fmt: skip
        write_text(stem.with_suffix(".csv"), to_csv(rows[0], rows[1:]))
        return [stem.with_suffix(".csv"), *save(figure, stem)]


def in_bf16(study: StudySummary, item: ArmSummary) -> Any:
    """Return the relative differences of an arm evaluated in BF16."""
    partner = {(run.checkpoint, run.seed): run.loss_bf16 for run in study.reference}
    theirs = [partner[run.checkpoint, run.seed] for run in item.runs]
    return relative_differences([run.loss_bf16 for run in item.runs], theirs)


def _arm(axes: Any, y: int, item: ArmSummary, color: str) -> None:
    if item.own.diverged:
        axes.plot([0.97], [y], "x", color=color, markersize=9, markeredgewidth=2.2, clip_on=False,
                  transform=axes.get_yaxis_transform())  # fmt: skip
        axes.text(0.955, y, f"diverged in {item.own.diverged} of {item.own.n}", transform=axes.get_yaxis_transform(),
                  ha="right", va="center", fontsize=8.5, color=color)  # fmt: skip
        return
    axes.plot(100 * item.differences, [y + 0.27] * item.own.n, "|", color=color, markersize=6, alpha=0.6)
    _mean(axes, y + 0.08, item.own, color, color)
    _mean(axes, y - 0.17, item.in_bf16, color, "white")


def _mean(axes: Any, y: float, found: Paired, color: str, fill: str) -> None:
    if found.n > 1 and not math.isinf(found.ci90[0]):
        axes.plot([100 * found.ci90[0], 100 * found.ci90[1]], [y, y], color=color, linewidth=2.0,
                  solid_capstyle="butt", zorder=3)  # fmt: skip
    axes.plot([100 * found.mean], [y], "o", color=color, markerfacecolor=fill, markersize=5.5, zorder=4)
