"""Common layout of the figures of reports: title, size, panels, line styles of arms, shared axes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..._files import safe_name, to_csv, write_bytes, write_text
from ...plot.style import CONTROL, DASHES, FLOOR, NEUTRAL, PALETTE, STYLE
from ..run.store import StudyError

Which = Literal["x", "y"]
#: Line style of the equivalence margin.
MARGIN_LINE: dict[str, Any] = {"color": "#808080", "linewidth": 0.9, "linestyle": (0, (4, 3))}
GRID: dict[str, Any] = {"color": "#ececec", "linewidth": 0.7}


def require_matplotlib() -> None:
    """Check that matplotlib is available, before any work starts.

    Raises
    ------
    StudyError
        If matplotlib is not installed; the message has installation instructions.
    """
    if find_spec("matplotlib") is None:
        raise StudyError("figures need matplotlib; pip install 'lowprec[plot]', or pass --no-plot")


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure of a report.

    Attributes
    ----------
    title : str
        The finding, in bold above the panels.
    stem : str
        Stem of its file names.
    rows : sequence of mapping
        Plotted numbers, written as CSV with all digits. Without rows there is no figure.
    draw : callable, optional
        ``draw(sheet, top)`` draws the panels on a matplotlib figure, below `top` (0 to 1). None writes numbers only.
    small : str
        Size of the study and meaning of the marks, below the title.
    height, width : float
        Size in inches.
    csv : str
        Stem of the CSV, if it differs from `stem`.
    caption : str
        Caption in the report, below the figure.
    """

    title: str
    stem: str
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    draw: Callable[[Any, float], Any] | None = None
    small: str = ""
    height: float = 4.9
    width: float = 9.2
    csv: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        safe_name("figure", self.stem)

    def write(self, folder: Path, plot: bool = True) -> list[Path]:
        """Write the numbers and, if `plot`, the drawing as PNG and SVG; return the paths.

        A figure without rows or drawing removes the files of earlier reports.
        """
        table, stem = folder / f"{self.csv or self.stem}.csv", folder / self.stem
        drawn = plot and self.draw is not None
        if drawn:
            require_matplotlib()
        if self.rows:
            write_text(table, csv_of(self.rows))
        stale = [] if self.rows else [table]
        stale += [stem.with_suffix(".png"), stem.with_suffix(".svg")] if self.draw is None else []
        for path in stale:
            path.unlink(missing_ok=True)
        return [*([table] if self.rows else ()), *(self._draw(stem) if drawn else ())]

    def _draw(self, stem: Path) -> list[Path]:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Sheet

        assert self.draw is not None
        with matplotlib.rc_context(STYLE):
            sheet = Sheet(figsize=(self.width, self.height), dpi=160)
            FigureCanvasAgg(sheet)
            finding = wrapped(self.title, round(10.6 * self.width))
            small = wrapped(self.small, round(15.8 * self.width))
            below = 1 - (0.09 + 0.21 * (finding.count("\n") + 1)) / self.height
            sheet.text(0.017, 1 - 0.09 / self.height, finding, fontsize=11, fontweight="bold", va="top",
                       linespacing=1.25)  # fmt: skip
            sheet.text(0.017, below, small, fontsize=8, color="#606060", va="top", linespacing=1.3)
            self.draw(sheet, below - (0.06 + 0.16 * (small.count("\n") + 1)) / self.height)
            files = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
            for path in files:
                content = io.BytesIO()
                about = {"Date": None, "Title": self.title} if path.suffix == ".svg" else {"Title": self.title}
                sheet.savefig(content, format=path.suffix[1:], metadata=about)
                write_bytes(path, content.getvalue())
        return files


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as CSV, with all digits of floats."""
    return to_csv(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows])


def wrapped(text: str, width: int) -> str:
    r"""Return text wrapped at `width` characters; a number and its percent sign stay on one line.

    Examples
    --------
    >>> wrapped("equivalent within ±0.25 % of it", 24).split(chr(10))
    ['equivalent within', '±0.25\xa0% of it']
    """
    return textwrap.fill(text.replace(" %", "\N{NO-BREAK SPACE}%"), width)


def panels(
    sheet: Any, top: float, rows: int = 1, columns: int = 1, *, foot: float = 0.5, head: float = 0.08,
    left: float = 0.085, right: float = 0.985, share_y: bool = True, **grid: Any,
) -> list[Any]:  # fmt: skip
    """Return the axes of a grid, row by row.

    With `share_y`, the axes of a row share the vertical axis, and only the first has tick labels. `head` is the
    distance from the text to the grid below it, `foot` that from the grid to the lower edge, in inches.
    """
    height = float(sheet.get_figheight())
    cells = sheet.add_gridspec(rows, columns, left=left, right=right, top=top - head / height, bottom=foot / height,
                               **grid)  # fmt: skip
    found: list[Any] = []
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        axes = sheet.add_subplot(cells[row, column], sharey=found[row * columns] if column and share_y else None)
        if column and share_y:
            axes.tick_params(axis="y", which="both", labelleft=False)
        axes.grid(**GRID)
        axes.set_axisbelow(True)
        found.append(axes)
    return found


# --- arms ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineStyle:
    """Color, dashes and width of an arm's line."""

    color: str
    dashes: Any = "-"
    width: float = 1.6


def line_styles(arms: Iterable[Any]) -> dict[str, LineStyle]:
    """Return the line style of each arm by name; reference, control and floor have fixed styles."""
    fixed = {
        "reference": LineStyle(NEUTRAL, width=2.6), "control": LineStyle(CONTROL),
        "floor": LineStyle(NEUTRAL, width=1.0),
    }  # fmt: skip
    found: dict[str, LineStyle] = {}
    place = 0
    for arm in arms:
        if arm.role in fixed:
            found[arm.name] = fixed[arm.role]
        elif arm.role != "repeat":
            found[arm.name] = LineStyle(PALETTE[place % len(PALETTE)], DASHES[place % len(DASHES)])
            place += 1
    return found


def rows_of_arms(axes: Any, names: Sequence[str]) -> None:
    """Set up a vertical axis with one row per arm, the first at the top."""
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_yticks(range(len(names)), [*reversed(names)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def bar(
    axes: Any, which: Which, at: float, ends: tuple[float, float], mean: float, color: str, marker: str = "o",
    fill: str = "", width: float = 2.0,
) -> None:  # fmt: skip
    """Draw a mean and, if finite, its interval along one axis."""

    def along(places: list[float], values: list[float]) -> list[list[float]]:
        return [places, values] if which == "y" else [values, places]

    if all(map(math.isfinite, ends)):
        axes.plot(*along([at, at], [*ends]), color=color, linewidth=width, solid_capstyle="butt", zorder=3)
    edge = color if fill and fill != color else "white"
    axes.plot(*along([at], [mean]), marker, color=color, markerfacecolor=fill or color, markeredgecolor=edge,
              markeredgewidth=0.9, markersize=6, zorder=4)  # fmt: skip


def cross(axes: Any, x: float, y: float, color: str, transform: Any = None) -> None:
    """Draw a cross for a diverged arm."""
    axes.plot([x], [y], "x", color=color, markersize=9, markeredgewidth=2.2, clip_on=False, zorder=5,
              transform=transform or axes.transData)  # fmt: skip


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], step: float = 0.048) -> None:
    """Write names to the right of the ends of curves, at least `step` of the axis from each other.

    Parameters
    ----------
    axes : matplotlib Axes
        Axes with final vertical limits.
    ends : sequence of (float, str, str)
        Value, name and color of each curve.
    step : float
        Smallest distance, as a fraction of the axis.
    """
    up = axes.transData + axes.transAxes.inverted()
    places = sorted((float(up.transform((axes.get_xlim()[0], value))[1]), name, color) for value, name, color in ends)
    heights = [height for height, _, _ in places]
    for _ in range(200):  # each pass separates overlapping neighbours, moving each by half the overlap
        for i in range(1, len(heights)):
            overlap = max(0.0, step - (heights[i] - heights[i - 1]))
            heights[i - 1], heights[i] = heights[i - 1] - overlap / 2, heights[i] + overlap / 2
    for height, (_, name, color) in zip(heights, places, strict=True):
        axes.text(1.02, height, name, transform=axes.transAxes, color=color, fontsize=8.5, fontweight="bold",
                  va="center")  # fmt: skip


# --- axes ------------------------------------------------------------------------------------------------------------


def draw_margin(axes: Any, which: Which, margin: float, floor: float = math.nan) -> None:
    """Draw the reference at 0, the equivalence margin dashed, and the noise floor as a band; all in percent."""
    span, line = (axes.axvspan, axes.axvline) if which == "x" else (axes.axhspan, axes.axhline)
    if math.isfinite(floor):
        span(-floor, floor, color=FLOOR, alpha=0.5, linewidth=0, zorder=1)
    line(0, color=NEUTRAL, linewidth=1.2, zorder=2)
    for edge in (-margin, margin):
        line(edge, zorder=2, **MARGIN_LINE)


def scale_differences(axes: Any, which: Which, values: Sequence[ArrayLike], margin: float) -> None:
    """Set limits that show the margin and all values (percent); symmetric logarithmic if some values are far away."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    everything = np.concatenate([*map(np.ravel, values), [-1.4 * margin, 1.4 * margin]])
    everything = everything[np.isfinite(everything)]
    low, high = float(everything.min()), float(everything.max())
    axis = axes.xaxis if which == "x" else axes.yaxis
    room = 0.06 * (high - low)
    limits = (low - room, high + room)
    if max(-low, high) > 8 * margin:
        (axes.set_xscale if which == "x" else axes.set_yscale)("symlog", linthresh=2 * margin)
        numbers = [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]
        ticks = [0.0, margin, *(number for number in numbers if number > 1.9 * margin)]
        axis.set_major_locator(FixedLocator([*(-tick for tick in ticks), *ticks]))
        axis.set_minor_locator(NullLocator())
        limits = (1.25 * low, 1.25 * high)
    axes.set(**{f"{which}lim": limits})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))


def scale_sizes(axes: Any, which: Which, values: Iterable[float], *, room: float = 0.12) -> bool:
    """Set limits for values; use and report (True) a logarithmic axis if they are positive and span a factor of 8."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    seen = [value for value in values if math.isfinite(value)]
    positive = [value for value in seen if value > 0]
    axis = axes.xaxis if which == "x" else axes.yaxis
    logarithmic = bool(positive) and max(positive) > 8 * min(positive)
    if logarithmic:
        axes.set(**{f"{which}scale": "log"})
        axes.set(**{f"{which}lim": (0.8 * min(positive), 1.25 * max(positive))})
        wide = max(positive) > 100 * min(positive)
        axis.set_major_locator(LogLocator(subs=(1.0,), numticks=6) if wide else LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    elif seen:
        space = room * (max(seen) - min(seen)) or 1.0
        axes.set(**{f"{which}lim": (min(seen) - space, max(seen) + space)})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return logarithmic
