"""Panels of accuracy against bits: one for each cost in which the arms differ, all with the same vertical axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.costs_of_recipes import COSTS
from .labels import Label, write_labels

#: Least distance of two costs that are told apart, bits.
_APART = 0.005
#: Where arms without a value stand, as a share of the axis: above everything that has one.
_TOP = 1.0


@dataclass(frozen=True)
class Point:
    """One arm.

    Attributes
    ----------
    arm : str
        Its name, written beside the point.
    bits : mapping
        Its costs, as `bits_of` returns them.
    value : float
        On the vertical axis; nan for an arm that has none, a diverged one, and stands at the top with a cross.
    color : str
        Of point and name.
    interval : (float, float), optional
        Drawn as a bar if it is finite.
    without : str
        Why there is no value, in a word.
    """

    arm: str
    bits: Mapping[str, float]
    value: float
    color: str
    interval: tuple[float, float] = (math.nan, math.nan)
    without: str = "diverged"


def differing(points: Sequence[Point]) -> list[str]:
    """Return the costs in which arms differ."""
    found = []
    for name in COSTS:
        every = [point.bits[name] for point in points]
        if every and max(every) - min(every) > _APART:
            found.append(name)
    return found


def front(points: Sequence[Point], cost: str) -> list[str]:
    """Return the arms that no other beats in both cost and value, the cheapest first."""
    best, found = math.inf, []
    for point in sorted(points, key=lambda point: (point.bits[cost], point.value)):
        if point.value < best:
            found.append(point.arm)
            best = point.value
    return found


def height_of(costs: Sequence[str]) -> float:
    """Return the height that `draw_panels` needs, inches."""
    return 3.3 * _lines(costs)


def _lines(costs: Sequence[str]) -> int:
    return 1 if len(costs) < 4 else 2


def draw_panels(
    figure: Any,
    top: float,
    points: Sequence[Point],
    costs: Sequence[str],
    label: str,
    scale: Callable[[Any], None],
) -> list[Any]:
    """Draw a panel for each cost below `top` (0 to 1), up to three in a row; `scale` sets up the vertical axis of each.

    Returns
    -------
    list
        The axes.
    """
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    height = float(figure.get_figheight())
    lines = _lines(costs)
    columns = math.ceil(len(costs) / lines)
    grid = figure.add_gridspec(
        lines, columns, wspace=0.06, hspace=0.30, left=0.085, right=0.985, top=top - 0.08 / height, bottom=0.5 / height
    )
    panels = []
    for place, cost in enumerate(costs):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        xs = [point.bits[cost] for point in points]
        room = max(xs) - min(xs)
        # Names stand to the right of their points; the dearest arm's needs that much more.
        axes.set_xlim(min(xs) - 0.07 * room, max(xs) + (0.07 + 0.09 * columns) * room)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.grid(color="#ececec", linewidth=0.7)
        axes.set_axisbelow(True)
        scale(axes)
        for point in points:
            _draw_point(axes, point, cost)
        axes.set_xlabel(COSTS[cost], fontsize=9)
        if place % columns == 0:
            axes.set_ylabel(label)
        else:
            axes.tick_params(axis="y", which="both", labelleft=False)
        panels.append(axes)
    figure.canvas.draw()  # places of points in pixels are known from here on
    for axes, cost in zip(panels, costs, strict=True):
        write_labels(axes, [_label(axes, point, cost) for point in points])
    return panels


def _draw_point(axes: Any, point: Point, cost: str) -> None:
    x, color = point.bits[cost], point.color
    if math.isnan(point.value):
        axes.plot([x], [_TOP], "x", color=color, markersize=9, markeredgewidth=2.2, zorder=5, clip_on=False,
                  transform=axes.get_xaxis_transform())  # fmt: skip
        return
    if all(map(math.isfinite, point.interval)):
        axes.plot([x, x], point.interval, color=color, linewidth=2.0, solid_capstyle="butt", zorder=3)
    axes.plot([x], [point.value], "o", color=color, markersize=6.5, markeredgecolor="white", markeredgewidth=0.9,
              zorder=4)  # fmt: skip


def _place(axes: Any, point: Point, cost: str) -> tuple[float, float]:
    x = point.bits[cost]
    if math.isnan(point.value):
        found = axes.get_xaxis_transform().transform((x, _TOP))
    else:
        found = axes.transData.transform((x, point.value))
    return float(found[0]), float(found[1])


def _label(axes: Any, point: Point, cost: str) -> Label:
    text = point.arm + (f" ({point.without})" if math.isnan(point.value) else "")
    return Label(text, point.color, _place(axes, point, cost))
