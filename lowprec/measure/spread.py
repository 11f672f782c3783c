"""How the values of one array are spread: their range in a tile, and how heavy the tails are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .metrics import Wide, as_wide


def tile_range(x: npt.ArrayLike, tile: int = 128) -> Wide:
    """Return log2 of the largest over the smallest non-zero magnitude of each tile of a row: R, in octaves.

    R predicts what a logarithmic format of K steps loses: its steps are R / K octaves.

    Parameters
    ----------
    x : array_like [..., columns]
        Real numbers; the last tile of a row may be shorter.
    tile : int
        Values in a tile.

    Returns
    -------
    float64 array [..., tiles]
        NaN for tiles of zeros and tiles with NaN or infinity.

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
    wide = np.abs(as_wide("tile_range", x))
    if wide.ndim < 1 or isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise ValueError(
            f"tile_range: tiles of {tile!r} in an array {wide.shape}: rows and a whole number >= 1 are needed"
        )
    if wide.size == 0:
        return np.empty((*wide.shape[:-1], -(-wide.shape[-1] // tile)))
    starts = np.arange(0, wide.shape[-1], tile)
    high = np.maximum.reduceat(wide, starts, axis=-1)
    low = np.minimum.reduceat(np.where(wide == 0, np.inf, wide), starts, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(high) - np.log2(low)
    octaves[~np.isfinite(high) | (high == 0)] = np.nan
    return np.asarray(octaves)


def kurtosis(x: npt.ArrayLike) -> float:
    """Return the mean of the fourth power of (x - mean) / deviation: 3 for a normal distribution, more for outliers.

    Parameters
    ----------
    x : array_like
        Real numbers, all of them together.

    Returns
    -------
    float
        1 or more; 0 where all values are equal.

    Raises
    ------
    TypeError
        If they are not real numbers.

    Examples
    --------
    >>> kurtosis([-1.0, 1.0, -1.0, 1.0])
    1.0
    """
    wide = as_wide("kurtosis", x)
    centred = wide - wide.mean() if wide.size else wide
    square = float((centred**2).sum()) ** 2
    return float((centred**4).sum() * wide.size) / square if square else 0.0
