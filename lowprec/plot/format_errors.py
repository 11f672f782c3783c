"""Plot of the errors of formats on an array, by magnitude of its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..codec.wire import Codec
from ..format.format import Format
from ..measure.atlas import measure_errors, round_trip
from ..scaling.quantizer import Quantizer
from .style import axes_or_new, color, drawn

_FEWEST = 8  # smallest number of values of a plotted binade


@drawn
def relative_errors(
    x: ArrayLike, formats: Sequence[str | Codec | Quantizer | Format] = ("bf16", "fp8_1x128", "mxfp4"), axes: Any = None
) -> Any:
    """Plot the relative error of formats on the values of an array, binade by binade.

    Parameters
    ----------
    x : array_like [..., columns]
        Finite real numbers, taken as float32; blocks that share a scale run along the last axis.
    formats : sequence of str, Codec, Quantizer or Format
        Codecs, quantizers and element formats, or their names.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with the root mean square of the relative error against the magnitude; 1 is a value that became 0.

    Raises
    ------
    ValueError
        If the array is empty or not finite.
    UnknownNameError
        If no catalogue has a name.
    ModuleNotFoundError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((64, 1024), dtype=np.float32)
    >>> axes = lp.plot.relative_errors(x, ["e4m3fn", "fp8_1x128", "nvfp4"])
    >>> axes.get_legend().get_texts()[1].get_text()
    'fp8_1x128: 31.8 dB, 8.25 bits'
    """
    rows = [(fmt, measure_errors(x, fmt)) for fmt in formats]  # raises for arrays that cannot be measured
    values = np.asarray(x, np.float32)
    magnitude = np.abs(values.astype(np.float64))
    binade = np.frexp(magnitude)[1] - 1
    axes = axes_or_new(axes)
    for place, (fmt, row) in enumerate(rows):
        passed = round_trip(values, fmt).values.astype(np.float64)
        across, up = [], []
        for exponent in np.unique(binade[magnitude > 0]):
            chosen = (binade == exponent) & (magnitude > 0)
            if chosen.sum() < _FEWEST:
                continue
            relative = (passed[chosen] - values[chosen]) / values[chosen]
            across.append(2.0 ** (int(exponent) + 0.5))
            up.append(float(np.sqrt(np.mean(relative**2))) or np.nan)  # a logarithmic axis has no zero
        label = f"{row.format}: {row.sqnr:.1f} dB, {row.bits_per_value:.4g} bits"
        axes.plot(across, up, "o-", color=color(place), markersize=3.2, linewidth=1.4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("magnitude of a value")
    axes.set_ylabel("relative error, root mean square")
    axes.legend(frameon=False, fontsize=8.5)
    return axes
