"""How arms of branches look in every figure, and the axis of relative differences: margin, reference and floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ....plot.style import CONTROL, DASHES, FLOOR, NEUTRAL, PALETTE
from .summary import StudySummary

Which = Literal["x", "y"]
#: The margin of equivalence, in figures and keys.
MARGIN_LINE: dict[str, Any] = {"color": "#808080", "linewidth": 0.9, "linestyle": (0, (4, 3))}


@dataclass(frozen=True)
class Look:
    """Colour, dashes and width of an arm's line."""

    color: str
    dashes: Any
    width: float


def looks_of(study: StudySummary) -> dict[str, Look]:
    """Return the look of every arm: the reference neutral, controls vermilion, the others by their place."""
    looks = {study.ablation.reference.name: Look(NEUTRAL, "-", 2.6)}
    colored = [item for item in study.arms if item.arm.role in ("treatment", "control")]
    place = 0
    for item in colored:
        if item.arm.role == "control":
            looks[item.arm.name] = Look(CONTROL, "-", 1.6)
        else:
            looks[item.arm.name] = Look(PALETTE[place % len(PALETTE)], DASHES[place % len(DASHES)], 1.6)
            place += 1
    for item in study.arms:
        if item.arm.role == "floor":
            looks[item.arm.name] = Look(FLOOR, "-", 1.0)
    return looks


def draw_rules(axes: Any, which: Which, margin: float, floor: float = math.nan) -> None:
    """Draw the reference at 0, the margin of equivalence dashed, and the noise floor as a band; all in percent."""
    span, line = (axes.axvspan, axes.axvline) if which == "x" else (axes.axhspan, axes.axhline)
    if math.isfinite(floor):
        span(-floor, floor, color=FLOOR, alpha=0.5, linewidth=0, zorder=1)
    line(0, color=NEUTRAL, linewidth=1.2, zorder=2)
    for edge in (-margin, margin):
        line(edge, zorder=2, **MARGIN_LINE)


def set_scale(axes: Any, which: Which, values: Sequence[NDArray[np.float64]], margin: float) -> None:
    """Choose limits that show margin and all values (percent); a symmetric logarithm where some are far out."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    everything = np.concatenate([*values, np.array([-1.4 * margin, 1.4 * margin])])
    everything = everything[np.isfinite(everything)]
    low, high = float(everything.min()), float(everything.max())
    axis = axes.xaxis if which == "x" else axes.yaxis
    set_limits = axes.set_xlim if which == "x" else axes.set_ylim
    if max(-low, high) > 8 * margin:
        (axes.set_xscale if which == "x" else axes.set_yscale)("symlog", linthresh=2 * margin, linscale=1.0)
        axis.set_major_locator(FixedLocator(_ticks(low, high, margin)))
        axis.set_minor_locator(NullLocator())
        set_limits(1.25 * low, 1.25 * high)
    else:
        room = 0.06 * (high - low)
        set_limits(low - room, high + room)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))


def _ticks(low: float, high: float, margin: float) -> list[float]:
    """Return 0, the margin, and beyond it round numbers that double or more."""
    ticks = [0.0, margin]
    while ticks[-1] < max(-low, high):
        ticks.append(next(t for t in _round_numbers() if t > 1.9 * ticks[-1]))
    ticks = [-t for t in reversed(ticks[1:])] + ticks
    return [t for t in ticks if 1.25 * low <= t <= 1.25 * high or abs(t) <= margin]


def _round_numbers() -> list[float]:
    return [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]
