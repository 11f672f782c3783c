"""Scale rules of one's own, as a user writes them: functions at the top of a file, which tests and workers import."""

from typing import Any

import numpy as np

import lowprec as lp

_LARGEST = 448


def rms(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Put three root mean squares on the largest element."""
    scale = 3 * np.sqrt(np.mean(np.square(blocks, dtype=np.float64), axis=-1)) / element.max
    return np.maximum(scale, 2.0**-20)  # below the smallest number of UE5M3


def of_rows(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Give each row a second level of its own, folded into float32 scales of its blocks."""
    amax = np.abs(blocks).max(axis=-1)
    row = np.maximum(amax.max(axis=-1, keepdims=True) / (element.max * _LARGEST), 2.0**-126).astype(np.float32)
    return np.maximum(lp.round_to(amax / element.max / row, "e4m3fn"), np.float32(2.0**-9)) * row


def sweep(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Take of 16 scales at and below amax / max the one with the least squared error."""
    base = np.maximum(np.abs(blocks).max(axis=-1) / element.max, 2.0**-120).astype(np.float32)
    best, least = base.copy(), np.full(base.shape, np.inf)
    for step in range(16):
        scale = lp.round_to(base * np.float32(1 - step / 32), scale_format)
        scale = np.where(scale > 0, scale, base)
        error = np.sum((lp.round_to(blocks / scale[..., None], element) * scale[..., None] - blocks) ** 2, axis=-1)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best


def two_level(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return block scales, and the scale of the tensor that puts the largest of them on the largest number."""
    amax = np.abs(blocks).max(axis=-1)
    tensor = np.float32(max(float(amax.max()) / (element.max * scale_format.max), 2.0**-120))
    return np.maximum(amax / element.max / tensor, scale_format.smallest_subnormal), tensor


def one_short(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return a scale too few."""
    return np.ones((blocks.shape[0], blocks.shape[1] - 1))


def negative(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return scales below zero."""
    return -np.ones(blocks.shape[:2])


def words(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return no numbers."""
    return "scales"


def row_scaled(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return block scales, and a scale of each row that puts its largest block scale on the largest number."""
    amax = np.abs(blocks).max(axis=-1)
    rows = np.maximum(amax.max(axis=1, keepdims=True) / (element.max * scale_format.max), 2.0**-120)
    return np.maximum(amax / element.max / rows, scale_format.smallest_subnormal), rows


def neighbours(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return scales from the largest magnitude of a block and of those before and after it."""
    amax = np.pad(np.abs(blocks).max(axis=-1), ((0, 0), (1, 1)))
    widest = np.maximum(np.maximum(amax[:, :-2], amax[:, 1:-1]), amax[:, 2:])
    return np.maximum(widest / element.max, scale_format.smallest_subnormal)


def misspelt(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Use a name that does not exist."""
    return undefined_name(blocks)  # type: ignore[name-defined]  # noqa: F821


def complex_scales(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return scales that are not real."""
    return np.ones(blocks.shape[:2]) + 1j


class Callable:
    """An object that can be called, which no worker can find by a name."""

    def __call__(self, blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
        """Return ones."""
        return np.ones(blocks.shape[:2])


def row_and_column(blocks: Any, element: lp.Format, scale_format: lp.Format) -> Any:
    """Return a second level of neither rows nor columns."""
    return np.ones(blocks.shape[:2]), np.ones(blocks.shape[:2])
