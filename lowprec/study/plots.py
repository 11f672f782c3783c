"""The figure of a study: loss curves over the relative difference to the reference, with the noise floor in sight.

The numbers come first (`curves`) and are saved as CSV beside the PNG and the SVG, so that anyone can draw another
figure from the same data. Matplotlib is imported only when a figure is drawn, and only its file backend.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .smoothing import ema
from .statistics import relative_differences
from .store import StudyError, write_text

if TYPE_CHECKING:
    from .summary import ArmSummary, PairRun, StudySummary

BETA = 0.9
#: The reference is always neutral and a positive control vermilion; other arms go on (Okabe and Ito's palette).
NEUTRAL = "#4d4d4d"
FLOOR = "#bdbdbd"
CONTROL = "#D55E00"
PALETTE = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: Matplotlib's settings for all figures.
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#808080",
    "axes.linewidth": 0.8,
    "xtick.color": "#404040",
    "ytick.color": "#404040",
    "axes.labelcolor": "#202020",
    "svg.hashsalt": "lowprec",
}
DASHES = ("-", (0, (5, 1.5)), "-", (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 1.5)))


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
        standard deviation over the pairs; for "validation" mean and the ends of the 90 % interval.
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


def require_matplotlib() -> None:
    """Make sure that figures can be drawn, before the work and not after it.

    Raises
    ------
    StudyError
        If matplotlib is not installed; the message says how to get it.
    """
    if find_spec("matplotlib") is None:
        raise StudyError("figures need matplotlib: pip install 'lowprec[plot]' (or pass --no-plot)")


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
        high = table.std(axis=0, ddof=1) if len(lines) > 1 else np.abs(table[0])
        low = -high
    return Band(panel, arm, role, bytes_seen, table.mean(axis=0), low, high, len(lines), ended)


def write_csv(path: Path, bands: Sequence[Band]) -> None:
    """Write the bands as a tidy table, floats exact."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", "arm", "role", "bytes", "mean", "low", "high", "pairs", "diverged"])
    for band in bands:
        for row in zip(band.bytes_seen, band.mean, band.low, band.high, strict=True):
            writer.writerow([band.panel, band.arm, band.role, *map(repr, map(float, row)), band.pairs, int(band.ended)])
    write_text(path, text.getvalue())


def title(study: StudySummary) -> str:
    """Return the finding in a line, the arms grouped by verdict: "dsv3: equivalent to bf16 within ±0.25 %; ..."."""
    reference, margin = study.ablation.reference.name, 100 * study.ablation.margin
    long = {"equivalent": f"equivalent to {reference} within ±{margin:g} %", "worse": f"worse than {reference}",
            "better": f"better than {reference}", "not resolved": "not resolved"}  # fmt: skip
    groups: dict[str, list[str]] = {}
    for item in study.arms:
        if item.arm.role in ("treatment", "control"):
            name = item.arm.name + (" (diverged)" if item.own.diverged else "")
            groups.setdefault(item.own.verdict, []).append(name)
    parts = [f"{_and(names)}: {long[verdict]}" for verdict, names in groups.items()]
    if study.broken:
        parts.insert(0, "NOT REPRODUCIBLE")
    return "; ".join(parts)


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
        wrapped = textwrap.fill(title(study), 100)
        below = 0.982 - 0.034 * (wrapped.count("\n") + 1)
        grid = figure.add_gridspec(
            2, 2, width_ratios=(3.6, 1.25), height_ratios=(1.15, 1.0), hspace=0.09, wspace=0.05,
            left=0.085, right=0.985, top=below - 0.055, bottom=0.085,
        )  # fmt: skip
        loss = figure.add_subplot(grid[0, 0])
        relative = figure.add_subplot(grid[1, 0], sharex=loss)
        final = figure.add_subplot(grid[1, 1], sharey=relative)
        key = figure.add_subplot(grid[0, 1])
        looks = _looks(study)
        _draw_loss(loss, bands, looks)
        _draw_relative(relative, study, bands, looks)
        _draw_final(final, study, looks)
        _draw_key(key, study, looks)
        figure.text(0.017, 0.985, wrapped, fontsize=11, fontweight="bold", va="top", linespacing=1.25)
        figure.text(0.017, below, textwrap.fill(study.size, 150), fontsize=8, color="#606060", va="top")
        files = save(figure, stem)
    return [stem.with_suffix(".csv"), *files]


def save(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as `.png` and `.svg`, each in one move, and return the paths."""
    files = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in files:
        part = path.with_name(f".{path.name}.part")
        figure.savefig(part, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
        part.replace(path)
    return files


@dataclass(frozen=True)
class _Look:
    color: str
    dashes: Any
    width: float


def _looks(study: StudySummary) -> dict[str, _Look]:
    looks = {study.ablation.reference.name: _Look(NEUTRAL, "-", 2.6)}
    colored = [item for item in study.arms if item.arm.role in ("treatment", "control")]
    place = 0
    for item in colored:
        if item.arm.role == "control":
            looks[item.arm.name] = _Look(CONTROL, "-", 1.6)
        else:
            looks[item.arm.name] = _Look(PALETTE[place % len(PALETTE)], DASHES[place % len(DASHES)], 1.6)
            place += 1
    for item in study.arms:
        if item.arm.role == "floor":
            looks[item.arm.name] = _Look(FLOOR, "-", 1.0)
    return looks


def _draw_loss(axes: Any, bands: Sequence[Band], looks: dict[str, _Look]) -> None:
    for band in bands:
        if band.panel != "loss" or band.role == "floor":
            continue
        look = looks[band.arm]
        x = band.bytes_seen / 1e3
        if band.role == "reference":
            axes.fill_between(x, band.low, band.high, color=look.color, alpha=0.13, linewidth=0)
        axes.plot(x, band.mean, color=look.color, linestyle=look.dashes, linewidth=look.width)
        _cross(axes, band, x, band.mean, look)
    axes.set_ylabel("training loss (nats/byte), EMA 0.9")
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def _draw_relative(axes: Any, study: StudySummary, bands: Sequence[Band], looks: dict[str, _Look]) -> None:
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
    _rules(axes, margin)
    _scale(axes, study, bands, margin)
    axes.annotate(
        f"equivalence margin ±{margin:g} %", (1.0, margin), (-3, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", fontsize=7.5, color="#606060", ha="right",
    )  # fmt: skip
    axes.set_ylabel(f"difference to {study.ablation.reference.name} (%)")
    axes.set_xlabel("thousand bytes of text after the checkpoint, learning rate going to 0")


def _draw_final(axes: Any, study: StudySummary, looks: dict[str, _Look]) -> None:
    shown = [item for item in study.arms if item.arm.role in ("treatment", "control")]
    if math.isfinite(study.floor):
        axes.axhspan(-100 * study.floor, 100 * study.floor, color=FLOOR, alpha=0.55, linewidth=0, zorder=1)
    _rules(axes, 100 * study.ablation.margin)
    top = axes.get_ylim()[1]
    for place, item in enumerate(shown):
        look = looks[item.arm.name]
        r = 100 * item.differences
        if item.own.diverged:
            axes.plot([place], [0.93], "x", color=look.color, markersize=9, markeredgewidth=2.2, clip_on=False,
                      transform=axes.get_xaxis_transform())  # fmt: skip
            continue
        jitter = 0.26 + 0.0 * r
        axes.plot(place + jitter, np.minimum(r, top), "o", color=look.color, markersize=3.2, alpha=0.45, linewidth=0)
        if item.own.n > 1:
            low, high = 100 * item.own.ci90[0], 100 * item.own.ci90[1]
            axes.plot([place, place], [low, high], color=look.color, linewidth=2.4, solid_capstyle="butt", zorder=3)
        axes.plot([place], [100 * item.own.mean], "o", color=look.color, markersize=5.5, zorder=4,
                  markeredgecolor="white", markeredgewidth=1.0)  # fmt: skip
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_xticks([])
    axes.tick_params(labelleft=False, left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("final validation loss:\nmean, 90 % interval, pairs", fontsize=8.5)


def _draw_key(axes: Any, study: StudySummary, looks: dict[str, _Look]) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    rows: list[tuple[str, str, str]] = [(study.ablation.reference.name, "reference, band over pairs", "")]
    for item in study.arms:
        if item.arm.role in ("treatment", "control"):
            rows.append((item.arm.name, _outcome(item), item.arm.role))
    step = min(0.15, 0.72 / len(rows))
    y = 0.95
    for name, note, _ in rows:
        look = looks[name]
        axes.plot([0.02, 0.15], [y, y], color=look.color, linestyle=look.dashes, linewidth=look.width)
        axes.text(0.19, y, name, fontsize=9.5, fontweight="bold", color=look.color, va="center")
        axes.text(0.19, y - 0.062, note, fontsize=8, color="#404040", va="center")
        y -= step
    if any(item.arm.role == "floor" for item in study.arms):
        axes.fill_between([0.02, 0.15], y - 0.025, y + 0.025, color=FLOOR, alpha=0.7, linewidth=0)
        axes.text(0.19, y, "noise floor", fontsize=9.5, fontweight="bold", color="#707070", va="center")
        axes.text(0.19, y - 0.062, "one weight times (1 + 2⁻⁷)", fontsize=8, color="#404040", va="center")


def _outcome(item: ArmSummary) -> str:
    if item.own.diverged:
        return f"diverged in {item.own.diverged} of {item.own.n}"
    return f"{100 * item.own.mean:+.2f} %: {item.own.verdict}"


def _rules(axes: Any, margin: float) -> None:
    axes.axhline(0, color=NEUTRAL, linewidth=1.2, zorder=2)
    for y in (-margin, margin):
        axes.axhline(y, color="#808080", linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)


def _scale(axes: Any, study: StudySummary, bands: Sequence[Band], margin: float) -> None:
    """Choose limits that show the margin and all arms; a symmetric logarithm where they are far apart."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values = [100 * part for band in bands if band.panel == "relative" for part in (band.low, band.high) if part.size]
    values += [100 * item.differences[np.isfinite(item.differences)] for item in study.arms]
    everything = np.concatenate([*values, np.array([-1.4 * margin, 1.4 * margin])])
    low, high = float(everything.min()), float(everything.max())
    room = 0.06 * (high - low)
    if max(-low, high) > 8 * margin:
        axes.set_yscale("symlog", linthresh=2 * margin, linscale=1.0)
        ticks = [0.0, margin]
        while ticks[-1] < max(-low, high):
            ticks.append(next(t for t in _round_numbers() if t > 1.9 * ticks[-1]))
        ticks = [-t for t in reversed(ticks[1:])] + ticks
        axes.yaxis.set_major_locator(
            FixedLocator([t for t in ticks if 1.25 * low <= t <= 1.25 * high or abs(t) <= margin])
        )
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(1.25 * low, 1.25 * high)
    else:
        axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axes.grid(axis="y", color="#efefef", linewidth=0.7)
    axes.set_axisbelow(True)


def _round_numbers() -> list[float]:
    return [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]


def _cross(axes: Any, band: Band, x: NDArray[np.float64], y: NDArray[np.float64], look: _Look) -> None:
    if band.ended and x.size:
        axes.plot(x[-1:], y[-1:], "x", color=look.color, markersize=9, markeredgewidth=2.2, clip_on=False, zorder=5)
