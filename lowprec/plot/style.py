"""Style of all figures: colors, lines and fonts. matplotlib is imported by the first plot."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: The reference is neutral and a positive control vermilion; other arms use the rest of Okabe and Ito's palette.
NEUTRAL = "#4d4d4d"
FLOOR = "#bdbdbd"
CONTROL = "#D55E00"
PALETTE = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (5, 1.5)), "-", (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 1.5)))
#: Settings of matplotlib for all figures.
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


def drawn(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a plot function: apply this style, and raise an error with instructions if matplotlib is missing."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if find_spec("matplotlib") is None:
            raise ModuleNotFoundError(
                f"lowprec.plot.{function.__name__} needs matplotlib: pip install 'lowprec[plot]'", name="matplotlib"
            )
        from matplotlib import rcParams

        # `rc_context` would undo the settings that a notebook's backend makes with the first figure.
        before = {key: rcParams[key] for key in STYLE}
        rcParams.update(STYLE)
        try:
            return function(*args, **kwargs)
        finally:
            rcParams.update(before)

    return wrapper


def axes_or_new(axes: Any, height: float = 3.6) -> Any:
    """Return the given axes, or those of a new figure."""
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7.2, height), layout="constrained")[1]


def color(place: int) -> str:
    """Return the color of the nth curve."""
    return (*PALETTE, CONTROL, NEUTRAL)[place % (len(PALETTE) + 2)]
