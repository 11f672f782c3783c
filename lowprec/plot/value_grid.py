"""Plots of the values that formats can represent."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..format.catalogue import Format, formats
from .style import CONTROL, axes_or_new, color, drawn

_MOST_BITS = 10  # with more, ticks merge into a black bar


@drawn
def format_values(*fmts: str | Format, axes: Any = None) -> Any:
    """Plot the positive values of formats: one row per format, one tick per value, subnormals in vermilion.

    Parameters
    ----------
    *fmts : str or Format
        Formats of at most 10 bits, or their names.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with the logarithm to base 2 of the values.

    Raises
    ------
    ValueError
        If no format is given, or one has more bits.
    ModuleNotFoundError
        If matplotlib is not installed.

    Examples
    --------
    >>> import lowprec as lp
    >>> axes = lp.plot.format_values("e4m3fn", "e5m2")
    >>> [tick.get_text() for tick in axes.get_yticklabels()]
    ['e4m3fn', 'e5m2']
    """
    found = [formats.get(fmt) for fmt in fmts]
    if not found:
        raise ValueError("format_values: fmts must be one format at least, got none")
    for fmt in found:
        if fmt.bits > _MOST_BITS:
            raise ValueError(f"format_values: fmts must have at most {_MOST_BITS} bits, got {fmt} with {fmt.bits}")
    axes = axes_or_new(axes, 1.0 + 0.62 * len(found))
    for place, fmt in enumerate(found):
        values = fmt.values().astype(np.float64)
        values = np.unique(values[np.isfinite(values) & (values > 0)])
        tiny = values < (0 if fmt.is_integer or not fmt.has_subnormals else fmt.smallest_normal)
        for some, hue in ((values[tiny], CONTROL), (values[~tiny], color(0))):
            axes.vlines(some, place - 0.36, place + 0.36, color=hue, linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.set_yticks(range(len(found)), [fmt.name for fmt in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlabel("value (subnormals in vermilion)")
    return axes
