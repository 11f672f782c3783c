"""The forest plot of a study: every arm's forward effect, training effect and total with intervals, and every pair."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...._files import to_csv, write_text
from ....plot.style import NEUTRAL, STYLE
from ...analysis.statistics import Paired
from ...analysis.validity import headline
from ...report.parts import interval, percent
from ...report.style import new_figure, require_matplotlib, save
from .ablation import EFFECTS
from .looks import draw_rules, looks_of, set_scale
from .measured import ArmSummary
from .sentences import named
from .summary import StudySummary

#: Effects that are drawn: how high in a row, and the marker.
DRAWN = {"forward": (0.26, "^"), "training": (0.0, "o"), "total": (-0.26, "s")}


def title(study: StudySummary) -> str:
    """Return the finding: the treatment with the largest effect, and the one with the largest forward effect."""
    if study.void:
        return headline(study.void)
    answer = study.ablation.answer
    shown = [
        item for item in study.arms
        if item.arm.role == "treatment" and math.isfinite(item.own.mean) and not item.void
    ]  # fmt: skip
    if not shown:
        return "Forward effect, training effect and total"
    worst = max(shown, key=lambda item: abs(item.own.mean))
    told = f"Largest {named(answer)}: {worst.arm.name}, {percent(worst.own.mean)} % {interval(worst.own.ci90)}"
    if answer != "forward":
        read = max(shown, key=lambda item: abs(item.effects["forward"].mean))
        told += f"; largest forward effect: {read.arm.name}, {percent(read.effects['forward'].mean)} %"
    return told


def draw(study: StudySummary, stem: Path) -> list[Path]:
    """Draw the figure and write `.csv`, `.png` and `.svg`.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib

    shown = _shown(study)
    with matplotlib.rc_context(STYLE):
        height = 1.8 + 0.66 * len(shown)
        size = (
            f"{study.size}. Bars: 90 % intervals, ticks: pairs of the {named(study.ablation.answer)}. Dashed: margin "
            "of equivalence"
        )
        size += ", grey band: a pair's noise floor" if math.isfinite(study.floor) else ""
        figure, top = new_figure(9.2, height, title(study), size)
        axes = figure.add_axes((0.19, 0.62 / height, 0.79, top - 0.95 / height))
        margin = 100 * study.ablation.margin
        draw_rules(axes, "x", margin, 100 * study.floor)
        values = [100 * item.differences for item in shown]
        values += [100 * np.array([*item.effects[name].ci90, item.effects[name].mean]) for item in shown
                   for name in DRAWN]  # fmt: skip
        set_scale(axes, "x", values, margin)
        looks = looks_of(study)
        for y, item in enumerate(reversed(shown)):
            color = NEUTRAL if item.arm.role == "floor" else looks[item.arm.name].color
            _arm(axes, y, item, color, study.ablation.answer)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_yticks(range(len(shown)), [item.arm.name for item in reversed(shown)])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"difference of the validation loss to {study.ablation.reference.name} (%)", fontsize=9)
        _key(axes)
        write_text(stem.with_suffix(".csv"), pairs_csv(study))
        return [stem.with_suffix(".csv"), *save(figure, stem)]


def pairs_csv(study: StudySummary) -> str:
    """Return every pair's difference r in every effect, and what the intervals of their mean rest on beside them.

    `text_error` is the standard error that the held-out text brings into the mean over an arm's pairs, the same in each
    of them; with the r of the pairs it gives the interval (`lowprec.study.analysis.statistics.paired`).
    """
    rows = [
        (item.arm.name, item.arm.role, name, run.checkpoint, run.seed, float(r), item.effects[name].text_error)
        for item in _shown(study)[::-1]
        for name in EFFECTS
        for run, r in zip(item.runs, item.by_effect[name].values, strict=True)
    ]
    return to_csv(("arm", "role", "effect", "checkpoint", "seed", "r", "text_error"), rows)


def _shown(study: StudySummary) -> list[ArmSummary]:
    return [item for item in study.arms if item.arm.role in ("treatment", "control", "floor")]


def _key(axes: Any) -> None:
    from matplotlib.lines import Line2D

    words = {"forward": "forward effect (rounding)", "training": "training effect (weights)", "total": "total"}
    handles = [
        Line2D([], [], color=NEUTRAL, marker=marker, markersize=5, linewidth=1.6, label=words[name],
               markerfacecolor=NEUTRAL if name == "training" else "white")
        for name, (_, marker) in DRAWN.items()
    ]  # fmt: skip
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, fontsize=8.5,
                borderaxespad=0.1, handlelength=2.2)  # fmt: skip


def _arm(axes: Any, y: int, item: ArmSummary, color: str, answer: str) -> None:
    if item.own.diverged:
        axes.plot([0.97], [y], "x", color=color, markersize=9, markeredgewidth=2.2, clip_on=False,
                  transform=axes.get_yaxis_transform())  # fmt: skip
        axes.text(0.955, y, f"diverged in {item.own.diverged} of {item.own.n}", transform=axes.get_yaxis_transform(),
                  ha="right", va="center", fontsize=8.5, color=color)  # fmt: skip
        return
    for name, (above, marker) in DRAWN.items():
        if name == answer:
            axes.plot(
                100 * item.differences, [y + above + 0.11] * item.own.n, "|", color=color, markersize=5, alpha=0.6
            )
        _mean(axes, y + above, item.effects[name], color, marker, color if name == "training" else "white")


def _mean(axes: Any, y: float, found: Paired, color: str, marker: str, fill: str) -> None:
    if math.isfinite(found.ci90[0]):
        axes.plot([100 * found.ci90[0], 100 * found.ci90[1]], [y, y], color=color, linewidth=2.0,
                  solid_capstyle="butt", zorder=3)  # fmt: skip
    axes.plot([100 * found.mean], [y], marker, color=color, markerfacecolor=fill, markersize=5, zorder=4)
