"""P3109's kappa: the largest error of an implementation of an operation, in code points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format.catalogue import Format, formats

Codes = NDArray[Any]
MOST = 1 << 24


def kappa(
    implementation: Callable[..., Codes],
    definition: Callable[..., Codes],
    operands: str | Format | Sequence[str | Format],
    result: str | Format,
) -> float:
    """Return the largest distance between two functions of codes, in code points, over all their operands.

    Distances are steps in the order of the result's values. In formats that have -0, it is one step before 0. If one
    function returns NaN or Inf where the other does not, kappa is NaN.

    Parameters
    ----------
    implementation, definition : callable
        Functions of arrays of codes, one for each operand, that return an array of codes.
    operands : Format or sequence of formats
        Formats of the operands: all tuples of codes are tried, 2^24 at most.
    result : str or Format
        Format of the results.

    Returns
    -------
    float
        An integer, or NaN.

    Raises
    ------
    ValueError
        If there are too many tuples of codes, or a result has another shape.

    References
    ----------
    IEEE P3109 interim report v4.0, 4.6, as the Julia package of the draft computes it; whether the standard normalizes
    it further is not known.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> def flushed(codes):
    ...     return np.where((codes & 0x7F < 8) & (codes != 0x80), 0, codes)
    >>> kappa(flushed, lambda codes: codes, "binary8p4se", "binary8p4se")
    7.0
    """
    inputs = [formats.get(f) for f in ([operands] if isinstance(operands, str | Format) else operands)]
    f = formats.get(result)
    if math.prod(1 << g.bits for g in inputs) > MOST:
        raise ValueError(f"kappa: operands must have at most 2^24 tuples of codes, got {' x '.join(map(str, inputs))}")
    grids = np.meshgrid(*(np.arange(1 << g.bits, dtype=g.code_dtype) for g in inputs), indexing="ij")
    codes = [grid.reshape(-1) for grid in grids]
    theirs, ours = (np.asarray(rule(*codes)) for rule in (implementation, definition))
    if theirs.shape != ours.shape or ours.shape != codes[0].shape:
        raise ValueError(
            f"kappa: results must have shape {codes[0].shape}, as the codes, got {theirs.shape} and {ours.shape}"
        )
    values = f.values().astype(np.float64)
    finite = np.isfinite(values)
    special = ~(finite[theirs] & finite[ours])
    equal = (values[theirs] == values[ours]) | (np.isnan(values[theirs]) & np.isnan(values[ours]))
    if not equal[special].all():
        return math.nan
    place = np.searchsorted(np.unique(values[finite]), values)
    if f.has_negative_zero:
        place += ~np.signbit(values)  # numbers from 0 on come one place later, as -0 precedes 0
    steps = np.abs(place[theirs] - place[ours])[~special]
    return float(steps.max(initial=0))
