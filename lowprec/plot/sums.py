"""Plot of the error of accumulators' sums as K grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._arrays import as_float32
from ..cast.casts import encode
from ..format.catalogue import Format, formats
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.catalogue import accumulators as catalogue
from ..tensorcore.mma import mma
from .style import axes_or_new, color, drawn


@drawn
def accumulation_error(
    a: ArrayLike,
    b: ArrayLike,
    accumulators: Sequence[str | Accumulator] = ("hopper_fp8", "float32"),
    fmt: str | Format = "e4m3fn",
    axes: Any = None,
) -> Any:
    """Plot the error of sums against their length: A Bᵀ over the first K columns, for K up to all of them.

    Parameters
    ----------
    a, b : array_like [M, K], [N, K]
        Real numbers; they are rounded to `fmt`, so that only the sums have errors.
    accumulators : sequence of str or Accumulator
        Accumulators; ``lp.accumulators["hopper_fp8"].with_(promote_every=128)`` promotes.
    fmt : str or Format
        Format of the operands.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with the largest error over all outputs, relative to the sum of the magnitudes of their products.

    Raises
    ------
    ValueError
        If the arrays are not matrices of equal K, or an accumulator does not take the format.
    ModuleNotFoundError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).random((16, 4096), dtype=np.float32)
    >>> hopper = lp.accumulators["hopper_fp8"]
    >>> axes = lp.plot.accumulation_error(x, x, [hopper, hopper.with_(promote_every=128)])
    >>> [line.get_label() for line in axes.get_lines()]
    ['hopper_fp8', 'hopper_fp8(promote_every=128)']
    """
    x, y, found = as_float32("accumulation_error", a), as_float32("accumulation_error", b), formats.get(fmt)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or not x.size or not y.size:
        raise ValueError(
            f"accumulation_error: a and b must be matrices [M, K] and [N, K], not empty, "
            f"got shapes {x.shape} and {y.shape}"
        )
    left, right = encode(x, found), encode(y, found)
    magnitudes = encode(np.abs(x), found), encode(np.abs(y), found)
    ks = [k for k in 2 ** np.arange(5, 21) if k < x.shape[1]] + [x.shape[1]]
    axes = axes_or_new(axes)
    exact = [mma(left[:, :k], right[:, :k], accumulator="exact", a_format=found, b_format=found) for k in ks]
    sizes = [mma(*(m[:, :k] for m in magnitudes), accumulator="exact", a_format=found, b_format=found) for k in ks]
    for place, name in enumerate(accumulators):
        machine = catalogue.get(name)
        up = []
        for k, true, size in zip(ks, exact, sizes, strict=True):
            d = mma(left[:, :k], right[:, :k], accumulator=machine, a_format=found, b_format=found)
            wrong = np.abs(d.astype(np.float64) - true) / np.maximum(size, np.finfo(np.float32).tiny)
            up.append(float(wrong.max()) or np.nan)  # a logarithmic axis has no zero
        axes.plot(ks, up, "o-", color=color(place), markersize=3.2, linewidth=1.4, label=machine.name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("K: products in a sum")
    axes.set_ylabel("largest error, of the sum of magnitudes")
    axes.legend(frameon=False, fontsize=8.5)
    return axes
