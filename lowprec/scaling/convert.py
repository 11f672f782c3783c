"""From one block format to another without a loss, and where there is one: MXFP4 to block FP8, tiles to larger blocks.

A conversion is exact for a tensor or it is not; the formats alone do not decide. A block of the target holds everything
if its values, over one scale, are numbers of the element format. Of the scales that hold the largest value the smallest
leaves most room below, so that one need be tried: E2M1 in 1x32 becomes E4M3 in 128x128 exactly while the scales of a
block span at most 14 binades, as E2M1's values are multiples of 1/2, 6 * 2^6 fits below 448, and E4M3 goes down to
2^-9. DeepSeek-V4's ``convert.py`` does that with the exponent of the block's largest scale minus 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._arrays import as_matrix, one_of, spread
from .._ieee import quiet_nan, standard
from ..cast.casts import decode, encode
from ..format.catalogue import Format, formats
from .granularity import Granularity
from .quantized import Quantized
from .rules import E8M0, FLOAT32

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Conversion:
    """A converted matrix, and what of it is not what it was.

    Attributes
    ----------
    quantized : Quantized
        What came out: exact where it can be, to the nearest where not.
    lost : bool array [R, C]
        Values that changed.
    binades : int array, shape of the new scales
        How many binades the old scales of what is not zero span within each new block.
    """

    quantized: Quantized
    lost: NDArray[np.bool_]
    binades: NDArray[np.int64]

    @property
    def lossless(self) -> bool:
        """Whether every value is what it was."""
        return not self.lost.any()

    @property
    def blocks(self) -> NDArray[np.bool_]:
        """Tell of every new block whether it lost something."""
        rows, columns = _block(self.quantized)
        return _reduced(np.logical_or, self.lost, rows, columns)


@standard
def convert(
    q: Quantized,
    fmt: str | Format | None = None,
    granularity: str | Granularity | None = None,
    *,
    scale_format: str | Format = "e8m0fnu",
) -> Conversion:
    """Convert codes and scales to another block format, exactly if that is possible.

    Parameters
    ----------
    q : Quantized
        What is converted. Its values are ``scale * decode(code)``, exactly, times `tensor_scale`.
    fmt : str or Format, optional
        Element format, by default the same.
    granularity : str or Granularity, optional
        Blocks of the result, by default the same.
    scale_format : Format or str
        ``e8m0fnu``: powers of two; or ``float32``: those times the significand of the old scale of a block's largest
        value.

    Returns
    -------
    Conversion

    Raises
    ------
    TypeError
        If `q` is not `Quantized`.
    ValueError
        For an unknown format, granularity or scale format.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((128, 256), np.float32)
    >>> fp4 = lp.quantize(x, quantizer="dsv4_fp4")
    >>> lp.convert(fp4, "e4m3fn", "128x128").lossless
    True
    >>> x[:64] *= 2.0**-20                              # scales of a block span 20 binades and more
    >>> wide = lp.convert(lp.quantize(x, quantizer="dsv4_fp4"), "e4m3fn", "128x128")
    >>> wide.lossless, wide.blocks.tolist(), int(wide.binades.min()) > 14
    (False, [[True, True]], True)
    """
    if not isinstance(q, Quantized):
        raise TypeError(f"convert: {type(q).__name__} is not Quantized; see lowprec.quantize")
    kept = one_of("convert", "scale_format", formats.get(scale_format), (E8M0, FLOAT32))
    target = formats.get(q.format if fmt is None else fmt)
    blocks = Granularity.parse(q.granularity if granularity is None else granularity)
    codes = as_matrix(q.codes)
    old = _by_value(q, codes.shape)
    elements = decode(codes, q.format).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = elements * old  # 11 bits and 24, and 24 of a tensor's scale: exact but for 6 bits
    rows, columns = (min(size or length, length) for size, length in zip(_sizes(blocks), codes.shape, strict=True))
    new = _scales(values, old, target, rows, columns, kept == FLOAT32)
    own = spread(spread(new, rows, codes.shape[0], 0), columns, codes.shape[1], 1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found = encode(quiet_nan(values / own), target)
        back = decode(found, target).astype(np.float64) * own
    unlike = (back != values) & ~(np.isnan(back) & np.isnan(values))
    result = Quantized(found.reshape(q.codes.shape), new.astype(np.float32), target, blocks, kept)
    return Conversion(result, unlike, _binades(old, elements, rows, columns))


def _sizes(granularity: Granularity) -> tuple[int | None, int | None]:
    return granularity.rows, granularity.columns


def _block(q: Quantized) -> tuple[int, int]:
    rows, columns = as_matrix(q.codes).shape
    return min(q.granularity.rows or rows, rows), min(q.granularity.columns or columns, columns)


def _by_value(q: Quantized, shape: tuple[int, ...]) -> Values:
    """Return the scale of every value."""
    rows, columns = _block(q)
    scale: Values = spread(spread(q.scale.astype(np.float64), rows, shape[0], 0), columns, shape[1], 1)
    return scale if q.tensor_scale is None else scale * np.asarray(q.tensor_scale, np.float64)


def _reduced(how: np.ufunc, x: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Reduce a matrix by blocks."""
    across = how.reduceat(x, np.arange(0, x.shape[0], rows), axis=0) if x.shape[0] else x
    return how.reduceat(across, np.arange(0, x.shape[1], columns), axis=1) if x.shape[1] else across


def _scales(values: Values, old: Values, target: Format, rows: int, columns: int, keep: bool) -> Values:
    """Return the least scale with which each block's largest value fits; NaN where a value is none, 1 for zeros."""
    top = _reduced(np.maximum, np.abs(values), rows, columns)
    significand = np.ones_like(top)
    if keep:
        largest = np.abs(values) == spread(spread(top, rows, values.shape[0], 0), columns, values.shape[1], 1)
        base = _reduced(np.maximum, np.where(largest, old, 0.0), rows, columns)
        significand = np.where(base > 0, 2 * np.frexp(base)[0], 1.0)
    with np.errstate(invalid="ignore"):
        quotient, exponent = np.frexp(top / (significand * target.max))  # quotient in [1/2, 1)
        exponent = np.where(quotient == 0.5, exponent - 1, exponent)
        found: Values = np.ldexp(significand, np.clip(exponent, -127, 127))
    found[top == 0] = 1.0
    found[~np.isfinite(top)] = np.nan
    return found


def _binades(old: Values, elements: Values, rows: int, columns: int) -> NDArray[np.int64]:
    """Return how many binades the scales of what is not zero span in each block; 0 where all are zeros."""
    counts = (elements != 0) & np.isfinite(old) & (old > 0)
    exponent = np.frexp(np.where(counts, old, 1.0))[1].astype(np.int64)
    high = _reduced(np.maximum, np.where(counts, exponent, -(1 << 20)), rows, columns)
    low = _reduced(np.minimum, np.where(counts, exponent, 1 << 20), rows, columns)
    spans: NDArray[np.int64] = np.where(high >= low, high - low, 0)
    return spans
