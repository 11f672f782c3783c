"""Conversion between block formats without loss, where possible: MXFP4 to block FP8, tiles to larger blocks.

Whether a conversion is exact depends on the tensor, not on the formats alone. A block of the target represents all its
values if, divided by one scale, they are numbers of the element format. Of the scales that fit the largest value, the
smallest leaves the most range below, so only that one has to be tried: E2M1 in 1x32 becomes E4M3 in 128x128 exactly if
the scales of a block span at most 14 binades, because E2M1's values are multiples of 1/2, 6 * 2^6 is below 448, and
E4M3 goes down to 2^-9. DeepSeek-V4's ``convert.py`` does this with the exponent of the block's largest scale minus 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._arrays import matrix_shape, repeat_tiles
from .._checks import check_choice
from .._fpenv import quiet_nan, with_default_fpenv
from ..cast.casts import decode, encode
from ..format.catalogue import Format
from .granularity import Granularity
from .quantizer import Quantizer
from .rules import E8M0, FLOAT32

Values = NDArray[np.float64]


class Converted(NamedTuple):
    """Codes and scales of new blocks, a mask of changed values, and the binades of the old scales."""

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    lost: NDArray[np.bool_]
    binades: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Conversion:
    """Result of `convert`: the converted matrix and a mask of the values that changed.

    Attributes
    ----------
    quantized : Quantized
        Converted matrix; values that cannot be represented exactly are rounded to nearest.
    lost : bool array [R, C]
        Mask of the values that changed.
    binades : int array, shape of the new scales
        Number of binades that the old scales of nonzero values span within each new block.
    """

    quantized: Any  # a Quantized, which is defined above this file
    lost: NDArray[np.bool_]
    binades: NDArray[np.int64]

    @property
    def is_lossless(self) -> bool:
        """Whether all values are unchanged."""
        return not self.lost.any()

    @property
    def blocks(self) -> NDArray[np.bool_]:
        """Mask of the new blocks that hold a changed value."""
        q = self.quantized
        return reduce_granularity(np.logical_or, self.lost, *q.granularity.block(matrix_shape(q.shape)))


@with_default_fpenv
def convert_blocks(
    codes: NDArray[Any], scale: NDArray[np.float32], tensor_scale: Any, fmt: Format, blocks: Granularity,
    target: Quantizer,
) -> Converted:  # fmt: skip
    """Convert a matrix of codes [R, C] and its scales to the formats and the blocks of a quantizer.

    Raises
    ------
    ValueError
        If the target's scales are neither powers of two nor float32.
    """
    kept = check_choice("convert", "scale_format", target.scale_format, (E8M0, FLOAT32)) == FLOAT32
    rows, columns = blocks.block((codes.shape[0], codes.shape[1]))
    old: Values = repeat_tiles(
        repeat_tiles(scale.astype(np.float64), rows, codes.shape[0], 0), columns, codes.shape[1], 1
    )
    old = old if tensor_scale is None else old * np.asarray(tensor_scale, np.float64)
    elements = decode(codes, fmt).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = elements * old  # 11 bits and 24, and 24 of a tensor's scale: exact but for 6 bits
    rows, columns = target.granularity.block((codes.shape[0], codes.shape[1]))
    new = _scales(values, old, target.format, rows, columns, kept)
    own = repeat_tiles(repeat_tiles(new, rows, codes.shape[0], 0), columns, codes.shape[1], 1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found = encode(quiet_nan(values / own), target.format)
        back = decode(found, target.format).astype(np.float64) * own
    unlike = (back != values) & ~(np.isnan(back) & np.isnan(values))
    return Converted(found, new.astype(np.float32), unlike, _binades(old, elements, rows, columns))


def reduce_granularity(how: np.ufunc, x: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Reduce each block of a matrix to one number by the given ufunc."""
    across = how.reduceat(x, np.arange(0, x.shape[0], rows), axis=0) if x.shape[0] else x
    return how.reduceat(across, np.arange(0, x.shape[1], columns), axis=1) if x.shape[1] else across


def _scales(values: Values, old: Values, target: Format, rows: int, columns: int, keep: bool) -> Values:
    """Return the smallest scale that fits each block's largest value: NaN if a value is NaN, 1 for a block of zeros."""
    top = reduce_granularity(np.maximum, np.abs(values), rows, columns)
    significand = np.ones_like(top)
    if keep:
        largest = np.abs(values) == repeat_tiles(
            repeat_tiles(top, rows, values.shape[0], 0), columns, values.shape[1], 1
        )
        base = reduce_granularity(np.maximum, np.where(largest, old, 0.0), rows, columns)
        significand = np.where(base > 0, 2 * np.frexp(base)[0], 1.0)
    with np.errstate(invalid="ignore"):
        quotient, exponent = np.frexp(top / (significand * target.max))  # quotient in [1/2, 1)
        exponent = np.where(quotient == 0.5, exponent - 1, exponent)
        found: Values = np.ldexp(significand, np.clip(exponent, -127, 127))
    found[top == 0] = 1.0
    found[~np.isfinite(top)] = np.nan
    return found


def _binades(old: Values, elements: Values, rows: int, columns: int) -> NDArray[np.int64]:
    """Return the number of binades that the scales of nonzero values span in each block, or 0 for a block of zeros."""
    counts = (elements != 0) & np.isfinite(old) & (old > 0)
    exponent = np.frexp(np.where(counts, old, 1.0))[1].astype(np.int64)
    high = reduce_granularity(np.maximum, np.where(counts, exponent, -(1 << 20)), rows, columns)
    low = reduce_granularity(np.minimum, np.where(counts, exponent, 1 << 20), rows, columns)
    spans: NDArray[np.int64] = np.where(high >= low, high - low, 0)
    return spans
