"""Plots of accuracy against cost: a panel per cost in which points differ, Pareto front, and names of the points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .sheet import bar, cross, panels

#: Smallest relevant difference of two costs, in bits.
_APART = 0.005


@dataclass(frozen=True)
class Point:
    """One arm in the plot.

    Attributes
    ----------
    name : str
        Name, written next to the point.
    costs : mapping
        Costs by name.
    value : float
        Vertical position; nan for an arm without a value, which is drawn as a cross at the top.
    color : str
        Color of point and name.
    interval : (float, float), optional
        Interval, drawn as a bar if finite.
    without : str
        Reason for a missing value, one word.
    """

    name: str
    costs: Mapping[str, float]
    value: float
    color: str
    interval: tuple[float, float] = (math.nan, math.nan)
    without: str = "diverged"


def differing(points: Sequence[Point], costs: Mapping[str, str]) -> list[str]:
    """Return the costs in which the points differ."""
    every = {name: [point.costs[name] for point in points] for name in costs}
    return [name for name, values in every.items() if values and max(values) - min(values) > _APART]


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return whether each (cost, quality) point is on the Pareto front: no other point is at least as good in both.

    Examples
    --------
    >>> on_front([(8, 30), (8, 37), (9, 35), (10, 50)])
    [False, True, False, True]
    """
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points) and not math.isnan(quality)
        for cost, quality in points
    ]


def front(points: Sequence[Point], cost: str) -> list[str]:
    """Return the names of the points on the Pareto front of low cost and small value, the cheapest first."""
    kept = on_front([(point.costs[cost], -point.value) for point in points])
    found: dict[tuple[float, float], str] = {}
    for point, is_on in zip(points, kept, strict=True):
        if is_on:
            found.setdefault((point.costs[cost], point.value), point.name)
    return [found[place] for place in sorted(found)]


def height_of(costs: Sequence[str]) -> float:
    """Return the height that `draw_tradeoff` requires, in inches."""
    return 0.9 + 3.3 * _lines(costs)


def _lines(costs: Sequence[str]) -> int:
    return 1 if len(costs) < 4 else 2


def draw_tradeoff(
    sheet: Any, top: float, points: Sequence[Point], costs: Mapping[str, str], label: str, scale: Callable[[Any], Any]
) -> list[Any]:
    """Draw one panel per cost below `top` (0 to 1), up to three in a row; return the axes.

    Parameters
    ----------
    sheet : matplotlib Figure
        Figure to draw on.
    top : float
        Upper end of the panels, 0 to 1.
    points : sequence of Point
        Points to draw.
    costs : mapping of str to str
        Costs and the labels of their axes.
    label : str
        Label of the vertical axis.
    scale : callable
        Function that sets up the vertical axis of each panel.
    """
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    lines = _lines([*costs])
    columns = math.ceil(len(costs) / lines)
    found = panels(sheet, top, lines, columns, wspace=0.06, hspace=0.30)
    for axes in found[len(costs) :]:
        axes.remove()
    for axes, (cost, words) in zip(found, costs.items(), strict=False):
        xs = [point.costs[cost] for point in points]
        room = max(xs) - min(xs)
        # Names are to the right of their points; leave space for that of the most expensive arm.
        axes.set_xlim(min(xs) - 0.07 * room, max(xs) + (0.07 + 0.09 * columns) * room)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_xlabel(words, fontsize=9)
        scale(axes)
        for point in points:
            if math.isnan(point.value):
                cross(axes, point.costs[cost], 1.0, point.color, axes.get_xaxis_transform())
            else:
                bar(axes, "y", point.costs[cost], point.interval, point.value, point.color)
    for axes in found[: len(costs) : columns]:
        axes.set_ylabel(label)
    for axes, cost in zip(found, costs, strict=False):
        write_names(axes, [(point, point.costs[cost]) for point in points])
    return found[: len(costs)]


def draw_front(axes: Any, points: Sequence[tuple[float, float]]) -> None:
    """Draw a Pareto front of (cost, value) as a grey step line."""
    axes.step(*zip(*sorted(points), strict=True), where="post", color="#d0d0d0", linewidth=5, zorder=1)


def write_names(
    axes: Any, points: Sequence[tuple[Point, float]], *, size: float = 8.5, radius: float = 9.0,
) -> None:  # fmt: skip
    """Write the names of points at the nearest free positions, with lines to distant names.

    Parameters
    ----------
    axes : matplotlib Axes
        Axes with final limits.
    points : sequence of (Point, float)
        Points and their horizontal positions; the highest is placed first.
    size : float
        Font size, in points.
    radius : float
        Distance from every point, in pixels; the distance from bars is a third of it.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    axes.figure.canvas.draw()  # pixel positions are final from here on
    halo = [withStroke(linewidth=3.0, foreground="white")]
    # Files have another resolution than the canvas, so positions are stored as fractions of the axes.
    share = axes.transAxes.inverted().transform
    renderer, inside = axes.figure.canvas.get_renderer(), axes.get_window_extent()

    def pixels(x: float, y: float) -> tuple[float, float]:
        found = axes.get_xaxis_transform().transform((x, 1.0)) if math.isnan(y) else axes.transData.transform((x, y))
        return float(found[0]), float(found[1])

    at = [(point, *pixels(x, point.value)) for point, x in points]
    taken = [Bbox.from_extents(x - radius, y - radius, x + radius, y + radius) for _, x, y in at]
    for point, x in points:
        if all(map(math.isfinite, point.interval)):
            (left, low), (_, high) = (pixels(x, end) for end in sorted(point.interval))
            taken.append(Bbox.from_extents(left - radius / 3, min(low, high), left + radius / 3, max(low, high)))
    for point, x, y in sorted(at, key=lambda item: -item[2]):
        text = point.name + (f" ({point.without})" if math.isnan(point.value) else "")
        name = axes.text(0, 0, text, fontsize=size, color=point.color, va="center_baseline", zorder=6,
                         transform=axes.transAxes, path_effects=halo)  # fmt: skip
        box = name.get_window_extent(renderer)
        width, height = box.width + 4, box.height
        at_x, at_y = _free(x, y, width, height, taken, inside)
        name.set_position(share((at_x, at_y)))
        taken.append(Bbox.from_extents(at_x - 2, at_y - height / 2, at_x + width, at_y + height / 2))
        if abs(at_y - y) > 0.8 * height:
            end = at_x - 2 if at_x > x else at_x + width
            axes.plot(*share([(x, y), (end, at_y)]).T, color=point.color, linewidth=0.6, alpha=0.6, zorder=2,
                      transform=axes.transAxes)  # fmt: skip


def _free(x: float, y: float, width: float, height: float, taken: Sequence[Any], inside: Any) -> tuple[float, float]:
    """Return a free position for a name, tried right of the point, left of it, then further up and down."""
    from matplotlib.transforms import Bbox

    for step in sorted(range(-24, 25), key=lambda step: (abs(step), step)):
        away = 14 if abs(step) < 2 else 26
        for at_x in (x + away, x - away - width):
            at_y = y + 0.5 * step * height
            box = Bbox.from_extents(at_x - 2, at_y - height / 2, at_x + width, at_y + height / 2)
            within = (
                inside.x0 <= box.x0 and box.x1 <= inside.x1 + 8 and inside.y0 <= box.y0 and box.y1 <= inside.y1 + height
            )
            if within and not any(box.overlaps(other) for other in taken):
                return at_x, at_y
    return x + 14, min(max(y, inside.y0 + height), inside.y1 - height)
