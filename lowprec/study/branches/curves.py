"""Figure of a branch study: loss curves, their differences from the reference, and the final validation loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plot.style import FLOOR
from ..analysis.findings import VOID, void_title
from ..analysis.paired import (
    BETTER,
    BETTER_WITHIN,
    EQUIVALENT,
    NOT_RESOLVED,
    WORSE,
    WORSE_WITHIN,
    relative_differences,
)
from ..design.arms import Arm
from ..report.sheet import (
    MARGIN_LINE,
    Figure,
    bar,
    cross,
    draw_margin,
    line_styles,
    panels,
    scale_differences,
)
from .arms import INSENSITIVE, ArmSummary, floor_of_mean
from .pairs import ArmRun, ema
from .results import StudySummary
from .sentences import effect_cell, named

BETA = 0.9
#: Row of a figure's table.
Row = dict[str, Any]


def curve_rows(study: StudySummary) -> list[Row]:
    """Return the curves of the reference and of all arms except repeats, then the final results.

    Panels are "loss" (smoothed training loss), "relative" (its relative difference to the reference) and "validation".
    For curves, `mean`, `low` and `high` are mean, minimum and maximum over the pairs. For the floor's relative
    difference, `low` and `high` are minus and plus the root mean square. For "validation" they are the ends of the 90 %
    interval.
    """
    partner = {(run.checkpoint, run.seed): run for run in study.reference}
    shown = [item for item in study.arms if item.arm.role != "repeat"]
    found = _curve(study, "loss", study.ablation.reference, [ema(run.curve, BETA) for run in study.reference])
    for item in shown:
        found += _curve(study, "loss", item.arm, [ema(run.curve, BETA) for run in item.runs])
    for item in shown:
        lines = [_relative(run, partner[run.checkpoint, run.seed]) for run in item.runs]
        found += _curve(study, "relative", item.arm, lines)
    end = float(study.setting.branch_steps * study.tokens_per_step)
    for item in shown:
        numbers = [[end, float(item.primary.mean), *map(float, item.primary.ci90)]]
        found += _rows("validation", item.arm, numbers, item.primary.n, item.primary.diverged > 0)
    return found


def _relative(run: ArmRun, other: ArmRun) -> NDArray[np.float64]:
    ours, theirs = ema(run.curve, BETA), ema(other.curve, BETA)
    steps = min(ours.size, theirs.size)
    difference = relative_differences(ours[:steps], theirs[:steps])
    difference[~np.isfinite(difference)] = np.nan
    return difference


def _curve(study: StudySummary, panel: str, arm: Arm, lines: Sequence[NDArray[np.float64]]) -> list[Row]:
    # Only up to the first divergence: a mean over the surviving pairs would flatter an arm that diverges.
    steps = min(int(np.argmax(np.isnan(line))) if np.isnan(line).any() else line.size for line in lines)
    table = np.array([line[:steps] for line in lines])
    if not steps:
        return []
    low, high = table.min(axis=0), table.max(axis=0)
    if arm.role == "floor" and panel == "relative":
        rms = np.sqrt(np.mean(table * table, axis=0))
        high = rms * floor_of_mean(1.0, len(lines), study.references)
        low = -high
    seen = study.tokens_per_step * np.arange(1, steps + 1, dtype=np.float64)
    numbers = np.stack([seen, table.mean(axis=0), low, high], axis=1).tolist()
    return _rows(panel, arm, numbers, len(lines), steps < study.setting.branch_steps)


def _rows(panel: str, arm: Arm, numbers: list[list[float]], pairs: int, ended: bool) -> list[Row]:
    return [
        {"panel": panel, "arm": arm.name, "role": arm.role, "bytes": seen, "mean": mean, "low": low, "high": high,
         "pairs": pairs, "diverged": int(ended)}
        for seen, mean, low, high in numbers
    ]  # fmt: skip


def _of_panel(rows: Sequence[Row], panel: str) -> list[tuple[Row, NDArray[np.float64]]]:
    """Return a panel's curves: the first row of each, and arrays of bytes in thousands, mean, low and high."""
    curves: dict[str, list[Row]] = {}
    for row in rows:
        if row["panel"] == panel:
            curves.setdefault(row["arm"], []).append(row)
    return [
        (mine[0], np.array([[row["bytes"] / 1e3, row["mean"], row["low"], row["high"]] for row in mine]).T)
        for mine in curves.values()
    ]


def curves(study: StudySummary, rows: Sequence[Row] | None = None, finding: str = "") -> Figure:
    """Return the figure of losses, differences from the reference, and final validation losses.

    `rows` are those of `curve_rows`, by default computed from the study's runs; `finding` replaces `title`.
    """
    rows = curve_rows(study) if rows is None else rows

    def draw(sheet: Any, top: float) -> None:
        loss, key, relative, final = panels(
            sheet, top, 2, 2, share_y=False, foot=0.54, width_ratios=(3.6, 1.25), height_ratios=(1.15, 1.0),
            hspace=0.09, wspace=0.05,
        )  # fmt: skip
        relative.sharex(loss)
        final.sharey(relative)
        _draw_loss(loss, study, rows)
        _draw_relative(relative, study, rows)
        _draw_final(final, study)
        _draw_key(key, study)

    return Figure(finding or title(study), study.ablation.name, rows, draw, study.size, height=6.4)


def title(study: StudySummary) -> str:
    """Return a title with the finding; arms are grouped by verdict: "dsv3: equivalent to bf16 within ±0.25 %; ..."."""
    if study.void:
        return void_title(study.void)
    if study.interim_pairs:
        return interim_sentence(study)
    reference, margin = study.ablation.reference.name, 100 * study.ablation.margin
    long = {
        EQUIVALENT: f"equivalent to {reference} within ±{margin:g} %", WORSE: f"worse than {reference}",
        INSENSITIVE: INSENSITIVE,
        WORSE_WITHIN: f"worse than {reference}, but within ±{margin:g} %", BETTER: f"better than {reference}",
        BETTER_WITHIN: f"better than {reference}, but within ±{margin:g} %", NOT_RESOLVED: "not resolved",
        VOID: "void, since runs are incomplete",
    }  # fmt: skip
    groups: dict[str, list[str]] = {}
    for item in study.shown():
        name = item.arm.name + (" (diverged)" if item.primary.diverged else "")
        groups.setdefault(item.word, []).append(name)
    return "; ".join(f"{_and(names)}: {long[verdict]}" for verdict, names in groups.items())


def interim_sentence(study: StudySummary) -> str:
    """Return the numbers of a running study as a sentence, without a verdict."""
    effects = "; ".join(f"{item.arm.name} {effect_cell(item.primary)} %" for item in study.shown())
    done, name = study.interim_pairs, named(study.ablation.primary_effect)
    return f"So far, {done} of {study.setting.pairs} pairs, {name} (90 % interval): {effects}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _draw_loss(axes: Any, study: StudySummary, rows: Sequence[Row]) -> None:
    styles = line_styles(study.ablation.arms)
    for first, (x, mean, low, high) in _of_panel(rows, "loss"):
        if first["role"] == "floor":
            continue
        style = styles[first["arm"]]
        if first["role"] == "reference":
            for edge in (low, high):  # no band: grey is the noise floor
                axes.plot(x, edge, color=style.color, linewidth=0.6, alpha=0.7)
        axes.plot(x, mean, color=style.color, linestyle=style.dashes, linewidth=style.width)
        if first["diverged"]:
            cross(axes, x[-1], mean[-1], style.color)
    axes.set_ylabel("training loss (nats/byte), EMA 0.9")
    axes.tick_params(labelbottom=False)
    axes.grid(False, axis="x")
    axes.margins(x=0.01)


def _draw_relative(axes: Any, study: StudySummary, rows: Sequence[Row]) -> None:
    margin, styles = 100 * study.ablation.margin, line_styles(study.ablation.arms)
    values = [100 * item.differences for item in study.arms]
    for first, (x, *numbers) in _of_panel(rows, "relative"):
        style, is_floor = styles[first["arm"]], first["role"] == "floor"
        mean, low, high = (100 * number for number in numbers)
        values += [low, high]
        color, alpha = (FLOOR, 0.6) if is_floor else (style.color, 0.14)
        axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0, zorder=1 if is_floor else 2)
        if not is_floor:
            axes.plot(x, mean, color=style.color, linestyle=style.dashes, linewidth=style.width, zorder=3)
            if first["diverged"]:
                cross(axes, x[-1], mean[-1], style.color)
    draw_margin(axes, "y", margin)
    scale_differences(axes, "y", values, margin)
    axes.grid(False, axis="x")
    axes.set_ylabel(f"difference to {study.ablation.reference.name} (%)")
    since = "from scratch" if study.setting.from_scratch else "after the checkpoint"
    axes.set_xlabel(f"thousand bytes of text {since}, learning rate going to 0")


def _draw_final(axes: Any, study: StudySummary) -> None:
    shown, styles = study.shown(), line_styles(study.ablation.arms)
    draw_margin(axes, "y", 100 * study.ablation.margin, 100 * study.mean_floor)
    bottom, top = axes.get_ylim()
    for place, item in enumerate(shown):
        color = styles[item.arm.name].color
        if item.primary.diverged:
            cross(axes, place, 0.93, color, axes.get_xaxis_transform())
            continue
        r = np.clip(100 * item.differences, bottom, top)
        axes.plot([place + 0.26] * len(r), r, "o", color=color, markersize=3.2, alpha=0.45, linewidth=0)
        low, high = ends = (100 * item.primary.ci90[0], 100 * item.primary.ci90[1])
        bar(axes, "y", place, ends, 100 * item.primary.mean, color, width=2.4)
        for beyond, edge, marker in ((low < bottom, bottom, "v"), (high > top, top, "^")):
            if beyond and math.isfinite(low):  # an arrow where the bar continues beyond the axis
                axes.plot([place], [edge], marker, color=color, markersize=8, clip_on=False, zorder=5)
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_xticks([])
    axes.grid(False)
    axes.tick_params(labelleft=False, left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{named(study.ablation.primary_effect)} at the end:\nmean, 90 % interval, pairs", fontsize=8.5)


def _draw_key(axes: Any, study: StudySummary) -> None:
    """Draw the legend: arms with their results, floor and margin; one line each if there are many."""
    shown, styles = study.shown(), line_styles(study.ablation.arms)
    short, margin = len(shown) > 4, f"±{100 * study.ablation.margin:g} %"
    break_ = ": " if short else "\n"
    names = {study.ablation.reference.name: "reference" if short else "reference, thin: ends over pairs"}
    names |= {item.arm.name: _outcome(item, short) for item in shown}
    for name, found in names.items():
        style, text = styles[name], f"{name}{break_}{found}"
        axes.plot([], [], color=style.color, linestyle=style.dashes, linewidth=style.width, label=text)
    if any(item.arm.role == "floor" for item in study.arms):
        text = f"noise floor of a mean{break_}{'±1 rms' if short else 'one weight times (1 + 2⁻⁷)'}"
        axes.fill_between([], [], [], color=FLOOR, alpha=0.7, linewidth=0, label=text)
    axes.plot([], [], label=f"margin{break_}{margin if short else f'of equivalence, {margin}'}", **MARGIN_LINE)
    axes.set_axis_off()
    colors = [styles[name].color for name in names]
    axes.legend(loc="upper left", bbox_to_anchor=(-0.05, 1.05), frameon=False, handlelength=1.8, labelspacing=0.7,
                labelcolor=[*colors, "#606060", "#606060"],
                prop={"weight": "bold" if short else "normal", "size": 8})  # fmt: skip


def _outcome(item: ArmSummary, short: bool) -> str:
    if item.primary.diverged:
        return "diverged" if short else f"diverged in {item.primary.diverged} of {item.primary.n}"
    word = item.word.replace("but within the margin", "in the margin")  # as many characters as fit into the legend
    word = "small, as is the control" if word == INSENSITIVE else word
    return f"{100 * item.primary.mean:+.2f} %" + (f": {word}" if word and not short else "")
