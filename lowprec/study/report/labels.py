"""Names beside points of a figure, each at the nearest place that is still free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Label:
    """A name and its point.

    Attributes
    ----------
    text, color : str
        What is written, and how.
    at : (float, float)
        The point, in pixels of the canvas; these are known once it was drawn.
    """

    text: str
    color: str
    at: tuple[float, float]


def write_labels(
    axes: Any, labels: Sequence[Label], *, size: float = 8.5, radius: float = 9.0, taken: Sequence[Any] = ()
) -> None:
    """Write names beside their points, with a thin line where one is far.

    Parameters
    ----------
    axes : matplotlib Axes
        Drawn once, so that places in pixels are known.
    labels : sequence of Label
        The highest point is served first.
    size : float
        Of the letters, points.
    radius : float
        Around every point nothing is written, pixels.
    taken : sequence of Bbox
        What else is in the way, in pixels: bars, rules.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    halo = [withStroke(linewidth=3.0, foreground="white")]
    # Files have other pixels than the canvas, so that places are kept as shares of the axes.
    share = axes.transAxes.inverted().transform
    renderer, inside = axes.figure.canvas.get_renderer(), axes.get_window_extent()
    places = [label.at for label in labels]
    boxes = [Bbox.from_extents(x - radius, y - radius, x + radius, y + radius) for x, y in places]
    boxes += taken
    for label, (x, y) in sorted(zip(labels, places, strict=True), key=lambda item: -item[1][1]):
        name = axes.text(0, 0, label.text, fontsize=size, color=label.color, va="center_baseline", zorder=6,
                         transform=axes.transAxes, path_effects=halo)  # fmt: skip
        box = name.get_window_extent(renderer)
        width, height = box.width + 4, box.height
        at_x, at_y = _free(x, y, width, height, boxes, inside)
        name.set_position(share((at_x, at_y)))
        boxes.append(Bbox.from_extents(at_x - 2, at_y - height / 2, at_x + width, at_y + height / 2))
        if abs(at_y - y) > 0.8 * height:
            end = at_x - 2 if at_x > x else at_x + width
            (x0, y0), (x1, y1) = share([(x, y), (end, at_y)])
            axes.plot([x0, x1], [y0, y1], color=label.color, linewidth=0.6, alpha=0.6, zorder=2,
                      transform=axes.transAxes)  # fmt: skip


def _free(x: float, y: float, width: float, height: float, taken: Sequence[Any], inside: Any) -> tuple[float, float]:
    """Return where a name can begin: right of the point, left of it, then ever further up and down."""
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
