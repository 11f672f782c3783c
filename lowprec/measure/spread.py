"""Statistics of the values of one array: their range in a tile, and the weight of the tails."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowprec import _threads
from lowprec._arrays import as_matrix
from lowprec._checks import check_int

from .pairs import Wide, as_wide

_GRAIN = 1 << 16  # values per task of the thread pool


def tile_range(x: npt.ArrayLike, tile: int = 128) -> Wide:
    """Return R = log2(largest / smallest nonzero magnitude) of each tile of a row, in octaves.

    R predicts the error of a logarithmic format with K steps: its steps are R / K octaves.

    Parameters
    ----------
    x : array_like [..., columns]
        Real numbers; the last tile of a row may be shorter.
    tile : int
        Number of values per tile.

    Returns
    -------
    float64 array [..., tiles]
        Ranges; NaN for tiles of zeros and tiles with NaN or infinity.

    Raises
    ------
    ValueError
        If `x` is a single number or `tile` not positive.
    TypeError
        If `x` does not hold real numbers.

    Examples
    --------
    >>> tile_range([1.0, -8.0, 0.0, 3.0, 3.0], tile=3)
    array([3., 0.])
    """
    wide, tile = as_wide("tile_range", x), check_int("tile_range", "tile", tile, 1)
    if wide.ndim < 1:
        raise ValueError("tile_range: x must have one axis or more, got a single number")
    tile = min(tile, max(1, wide.shape[-1]))
    octaves = np.empty((*wide.shape[:-1], -(-wide.shape[-1] // tile)))
    if octaves.size:
        from lowprec.kernels.model import divergence  # imports the compiler, which a listing of studies does not need

        rows, into = as_matrix(np.ascontiguousarray(wide)), as_matrix(octaves)
        grain = max(1, _GRAIN // rows.shape[1])
        _threads.run_chunks(lambda a, b: divergence.tile_range(rows, tile, into, a, b), len(rows), grain)
    return octaves


def kurtosis(x: npt.ArrayLike) -> float:
    """Return the mean of ((x - mean) / standard deviation)^4: 3 for a normal distribution, more with outliers.

    Parameters
    ----------
    x : array_like
        Real numbers; all axes are pooled.

    Returns
    -------
    float
        Kurtosis, at least 1; NaN (0 / 0) if all values are equal.

    Raises
    ------
    TypeError
        If `x` does not hold real numbers.

    Examples
    --------
    >>> kurtosis([-1.0, 1.0, -1.0, 1.0])
    1.0
    """
    wide = as_wide("kurtosis", x)
    if wide.size < 2:
        return float("nan")
    square = np.square(wide - np.sum(wide) / wide.size)
    variance = float(np.sum(square)) / wide.size
    return float(np.sum(np.square(square))) / wide.size / variance**2 if variance > 0 else float("nan")
