"""The figure of branches: loss curves over the relative difference to the reference, with the noise floor in sight.

The numbers come first and are saved as CSV beside PNG and SVG, so that anyone can draw another figure from the same
data. Matplotlib is imported only when a figure is drawn, and only its file backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...._files import to_csv, write_text
from ....plot.style import FLOOR, STYLE
from ...analysis.inference import BETTER, BETTER_WITHIN, EQUIVALENT, NOT_RESOLVED, WORSE, WORSE_WITHIN
from ...analysis.smoothing import ema
from ...analysis.statistics import relative_differences
from ...analysis.validity import VOID, headline
from ...report.style import require_matplotlib, save, wrapped
from .looks import MARGIN_LINE, Look, draw_rules, looks_of, set_scale
from .measured import ArmSummary
from .runs import PairRun
from .sentences import effect_cell, named
from .summary import StudySummary

BETA = 0.9
#: Its row in the key.
MARGIN = "margin"


@dataclass(frozen=True, eq=False)
class Band:
    """A curve over the steps of the branch, with its spread over the pairs.

    Attributes
    ----------
    panel : {"loss", "relative", "validation"}
        Smoothed training loss, its relative difference to the reference, or the final validation result.
    arm, role : str
        The arm.
    bytes_seen : ndarray of float64, shape (points,)
        Bytes trained on since the checkpoint.
    mean, low, high : ndarray of float64, shape (points,)
        For curves mean, smallest and largest over the pairs; for the floor's relative difference minus and plus the
        root mean square over the pairs; for "validation" mean and the ends of the 90 % interval.
    pairs : int
        How many pairs.
    ended : bool
        Whether a run of the arm diverged before the last step.
    """

    panel: str
    arm: str
    role: str
    bytes_seen: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    pairs: int
    ended: bool = False


def curves(study: StudySummary) -> list[Band]:
    """Return everything that the figure shows, as numbers.

    Parameters
    ----------
    study : StudySummary
        The study.

    Returns
    -------
    list of Band
        Curves of the reference and of every arm but repeats, then the final results.
    """
    partner = {(run.checkpoint, run.seed): run for run in study.reference}
    reference = study.ablation.reference
    bands = [_band(study, "loss", reference.name, "reference", [ema(run.curve, BETA) for run in study.reference])]
    shown = [item for item in study.arms if item.arm.role != "repeat"]
    for item in shown:
        bands.append(_band(study, "loss", item.arm.name, item.arm.role, [ema(run.curve, BETA) for run in item.runs]))
    for item in shown:
        relative = [_relative(run, partner[run.checkpoint, run.seed]) for run in item.runs]
        bands.append(_band(study, "relative", item.arm.name, item.arm.role, relative))
    end = np.array([float(study.setting.branch_steps * study.tokens_per_step)])
    for item in shown:
        own = item.own
        bands.append(
            Band(
                "validation", item.arm.name, item.arm.role, end, np.array([own.mean]), np.array([own.ci90[0]]),
                np.array([own.ci90[1]]), own.n, own.diverged > 0,
            )
        )  # fmt: skip
    return bands


def _relative(run: PairRun, other: PairRun) -> NDArray[np.float64]:
    ours, theirs = ema(run.curve, BETA), ema(other.curve, BETA)
    steps = min(ours.size, theirs.size)
    difference = relative_differences(ours[:steps], theirs[:steps])
    difference[~np.isfinite(difference)] = np.nan
    return difference


def _band(study: StudySummary, panel: str, arm: str, role: str, lines: Sequence[NDArray[np.float64]]) -> Band:
    # Only as far as all pairs go: a mean over the survivors would flatter an arm that diverges.
    steps = min(int(np.argmax(np.isnan(line))) if np.isnan(line).any() else line.size for line in lines)
    table = np.array([line[:steps] for line in lines])
    bytes_seen = study.tokens_per_step * np.arange(1, steps + 1, dtype=np.float64)
    ended = steps < study.setting.branch_steps
    if steps == 0:
        nothing = np.empty(0)
        return Band(panel, arm, role, nothing, nothing, nothing, nothing, len(lines), ended)
    low, high = table.min(axis=0), table.max(axis=0)
    if role == "floor" and panel == "relative":
        high = np.sqrt(np.mean(table * table, axis=0))
        low = -high
    return Band(panel, arm, role, bytes_seen, table.mean(axis=0), low, high, len(lines), ended)


def write_csv(path: Path, bands: Sequence[Band]) -> None:
    """Write the bands as a tidy table, floats exact."""
    rows = [
        (band.panel, band.arm, band.role, *map(float, row), band.pairs, int(band.ended))
        for band in bands
        for row in zip(band.bytes_seen, band.mean, band.low, band.high, strict=True)
    ]
    head = ("panel", "arm", "role", "bytes", "mean", "low", "high", "pairs", "diverged")
    write_text(path, to_csv(head, rows))


# --- the drawing -----------------------------------------------------------------------------------------------------


def title(study: StudySummary) -> str:
    """Return the finding in a line, the arms grouped by verdict: "dsv3: equivalent to bf16 within ±0.25 %; ..."."""
    if study.void:
        return headline(study.void)
    if study.pairs_so_far:
        return so_far(study)
    reference, margin = study.ablation.reference.name, 100 * study.ablation.margin
    long = {
        EQUIVALENT: f"equivalent to {reference} within ±{margin:g} %", WORSE: f"worse than {reference}",
        WORSE_WITHIN: f"worse than {reference}, but within ±{margin:g} %", BETTER: f"better than {reference}",
        BETTER_WITHIN: f"better than {reference}, but within ±{margin:g} %", NOT_RESOLVED: "not resolved",
        VOID: "void, since runs are incomplete",
    }  # fmt: skip
    groups: dict[str, list[str]] = {}
    for item in study.arms:
        if item.arm.role in ("treatment", "control"):
            name = item.arm.name + (" (diverged)" if item.own.diverged else "")
            groups.setdefault(item.word, []).append(name)
    return "; ".join(f"{_and(names)}: {long[verdict]}" for verdict, names in groups.items())


def so_far(study: StudySummary) -> str:
    """Return the numbers of a study that still runs, without a verdict."""
    shown = [item for item in study.arms if item.arm.role in ("treatment", "control")]
    effects = "; ".join(f"{item.arm.name} {effect_cell(item.own)} %" for item in shown)
    done, name = study.pairs_so_far, named(study.ablation.answer)
    return f"So far, {done} of {study.setting.pairs} pairs, {name} (90 % interval): {effects}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def draw(study: StudySummary, stem: Path) -> list[Path]:
    """Draw the figure.

    Parameters
    ----------
    study : StudySummary
        The study.
    stem : Path
        Path without ending; `.csv`, `.png` and `.svg` are written.

    Returns
    -------
    list of Path
        The three files.

    Raises
    ------
    StudyError
        If matplotlib is missing.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bands = curves(study)
    write_csv(stem.with_suffix(".csv"), bands)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 6.4), dpi=160)
        FigureCanvasAgg(figure)
        finding = wrapped(title(study), 92)
        below = 0.982 - 0.034 * (finding.count("\n") + 1)
        grid = figure.add_gridspec(
            2, 2, width_ratios=(3.6, 1.25), height_ratios=(1.15, 1.0), hspace=0.09, wspace=0.05,
            left=0.085, right=0.985, top=below - 0.055, bottom=0.085,
        )  # fmt: skip
        loss = figure.add_subplot(grid[0, 0])
        relative = figure.add_subplot(grid[1, 0], sharex=loss)
        final = figure.add_subplot(grid[1, 1], sharey=relative)
        key = figure.add_subplot(grid[0, 1])
        looks = looks_of(study)
        _draw_loss(loss, bands, looks)
        _draw_relative(relative, study, bands, looks)
        _draw_final(final, study, looks)
        _draw_key(key, study, looks)
        figure.text(0.017, 0.985, finding, fontsize=11, fontweight="bold", va="top", linespacing=1.25)
        figure.text(0.017, below, wrapped(study.size, 150), fontsize=8, color="#606060", va="top")
        files = save(figure, stem)
    return [stem.with_suffix(".csv"), *files]


def _draw_loss(axes: Any, bands: Sequence[Band], looks: dict[str, Look]) -> None:
    for band in bands:
        if band.panel != "loss" or band.role == "floor":
            continue
        look = looks[band.arm]
        x = band.bytes_seen / 1e3
        if band.role == "reference":
            for edge in (band.low, band.high):  # no band: grey is the noise floor
                axes.plot(x, edge, color=look.color, linewidth=0.6, alpha=0.7)
        axes.plot(x, band.mean, color=look.color, linestyle=look.dashes, linewidth=look.width)
        _cross(axes, band, x, band.mean, look)
    axes.set_ylabel("training loss (nats/byte), EMA 0.9")
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def _draw_relative(axes: Any, study: StudySummary, bands: Sequence[Band], looks: dict[str, Look]) -> None:
    margin = 100 * study.ablation.margin
    for band in bands:
        if band.panel != "relative" or not band.mean.size:
            continue
        look, x = looks[band.arm], band.bytes_seen / 1e3
        low, mean, high = (100 * values for values in (band.low, band.mean, band.high))
        if band.role == "floor":
            axes.fill_between(x, low, high, color=look.color, alpha=0.6, linewidth=0, zorder=1)
            continue
        axes.fill_between(x, low, high, color=look.color, alpha=0.14, linewidth=0, zorder=2)
        axes.plot(x, mean, color=look.color, linestyle=look.dashes, linewidth=look.width, zorder=3)
        _cross(axes, band, x, mean, look)
    draw_rules(axes, "y", margin)
    _scale(axes, study, bands, margin)
    axes.set_ylabel(f"difference to {study.ablation.reference.name} (%)")
    since = "from scratch" if study.setting.from_scratch else "after the checkpoint"
    axes.set_xlabel(f"thousand bytes of text {since}, learning rate going to 0")


def _draw_final(axes: Any, study: StudySummary, looks: dict[str, Look]) -> None:
    shown = [item for item in study.arms if item.arm.role in ("treatment", "control")]
    draw_rules(axes, "y", 100 * study.ablation.margin, 100 * study.floor)
    bottom, top = axes.get_ylim()
    for place, item in enumerate(shown):
        look = looks[item.arm.name]
        r = 100 * item.differences
        if item.own.diverged:
            axes.plot([place], [0.93], "x", color=look.color, markersize=9, markeredgewidth=2.2, clip_on=False,
                      transform=axes.get_xaxis_transform())  # fmt: skip
            continue
        jitter = 0.26 + 0.0 * r
        axes.plot(
            place + jitter, np.clip(r, bottom, top), "o", color=look.color, markersize=3.2, alpha=0.45, linewidth=0
        )
        if item.own.n > 1:
            low, high = 100 * item.own.ci90[0], 100 * item.own.ci90[1]
            axes.plot([place, place], [low, high], color=look.color, linewidth=2.4, solid_capstyle="butt", zorder=3)
            for beyond, edge, marker in ((low < bottom, bottom, "v"), (high > top, top, "^")):
                if beyond:  # an arrow where the bar goes on beyond the axis
                    axes.plot([place], [edge], marker, color=look.color, markersize=8, clip_on=False, zorder=5)
        axes.plot([place], [100 * item.own.mean], "o", color=look.color, markersize=5.5, zorder=4,
                  markeredgecolor="white", markeredgewidth=1.0)  # fmt: skip
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_xticks([])
    axes.tick_params(labelleft=False, left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{named(study.ablation.answer)} at the end:\nmean, 90 % interval, pairs", fontsize=8.5)


def _draw_key(axes: Any, study: StudySummary, looks: dict[str, Look]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    rows: list[tuple[str, str, str]] = [
        (study.ablation.reference.name, "reference, thin: ends over pairs", "reference")
    ]
    for item in study.arms:
        if item.arm.role in ("treatment", "control"):
            short = "diverged" if item.own.diverged else f"{100 * item.own.mean:+.2f} %"
            rows.append((item.arm.name, _outcome(item), short))
    if any(item.arm.role == "floor" for item in study.arms):
        rows.append(("noise floor", "one weight times (1 + 2⁻⁷)", "±1 rms"))
    margin = f"±{100 * study.ablation.margin:g} %"
    rows.append((MARGIN, f"of equivalence, {margin}", margin))
    step = min(0.15, 0.95 / len(rows))
    for place, (name, note, short) in enumerate(rows):
        y = 0.95 - place * step
        color = "#707070"
        if name in looks:
            color = looks[name].color
            axes.plot([0.02, 0.15], [y, y], color=color, linestyle=looks[name].dashes, linewidth=looks[name].width)
        elif name == MARGIN:
            axes.plot([0.02, 0.15], [y, y], **MARGIN_LINE)
        else:
            axes.fill_between([0.02, 0.15], y - 0.025, y + 0.025, color=FLOOR, alpha=0.7, linewidth=0)
        if step < 0.125:  # no room for two lines each
            axes.text(0.19, y, name, fontsize=8, fontweight="bold", color=color, va="center_baseline")
            axes.text(1.03, y, short, fontsize=7.5, color="#404040", va="center_baseline", ha="right")
            continue
        axes.text(0.19, y, name, fontsize=9.5, fontweight="bold", color=color, va="center")
        axes.text(0.19, y - 0.062, note, fontsize=8, color="#404040", va="center")


def _outcome(item: ArmSummary) -> str:
    if item.own.diverged:
        return f"diverged in {item.own.diverged} of {item.own.n}"
    word = item.word.replace("but within the margin", "in the margin")  # as long as the key is wide
    return f"{100 * item.own.mean:+.2f} %: {word}"


def _scale(axes: Any, study: StudySummary, bands: Sequence[Band], margin: float) -> None:
    values = [100 * part for band in bands if band.panel == "relative" for part in (band.low, band.high)]
    set_scale(axes, "y", [*values, *(100 * item.differences for item in study.arms)], margin)
    axes.grid(axis="y", color="#efefef", linewidth=0.7)
    axes.set_axisbelow(True)


def _cross(axes: Any, band: Band, x: NDArray[np.float64], y: NDArray[np.float64], look: Look) -> None:
    if band.ended and x.size:
        axes.plot(x[-1:], y[-1:], "x", color=look.color, markersize=9, markeredgewidth=2.2, clip_on=False, zorder=5)
