"""Causes of differences as objects, each of which predicts the bits that one mistake gives, and their shared functions.

A cause takes the quantizer's codes and scales and yields those that the mistake gives instead, once for each of its
forms (every bound on amax, every format, every shift), with a description of the form. The search compares these
predictions with the codes and scales found. Causes do not depend on each other, and no code depends on their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...registry import Registry
from ...tensorcore.matmul import matmul_f32
from .expected import Expected, Observed

Stage = Literal["making", "codes", "scale", "tensor scale"]
Prediction = Callable[[Expected, Observed], Iterator[tuple[str, Any]]]
_MOST = 4096  # largest number of rows that are compared with each other
_COLUMNS = 512  # largest number of values of a row that are compared

MEMORY = "check memory, transfers and races: no rule causes this"


@dataclass(frozen=True)
class Cause:
    """One mistake that a quantizer may have made.

    Parameters
    ----------
    name : str
        Short description of the mistake.
    stage : {"making", "codes", "scale", "tensor scale"}
        Part that the mistake changes. In stage "making", predictions are of type `Expected`, a whole dump. In the other
        stages, they are codes, scales or the tensor's scale that replace those of any `Expected`, so that causes of
        several stages are found together. Predicted scales must not depend on the values and codes of the `Expected`.
    predict : callable
        Function of the expected and the found dump that yields (form, prediction).
    fix : str
        Correction of the mistake.
    prior_cost : float
        Prior cost: if several causes explain the same elements, those of the lowest cost are named. It is 1 for a
        mistake without parameters, and higher if a number, such as a factor, is inferred from the dump.
    needs_majority : bool
        Whether the mistake concerns all elements; if it fits only a few of them, that is not evidence.
    penalty : int
        Weight of the elements that contradict the cause. It is larger for double rounding, because stochastic rounding
        gives the same results near half of the midpoints.
    """

    name: str
    stage: Stage
    predict: Prediction
    fix: str
    prior_cost: float = 1.0
    needs_majority: bool = True
    penalty: int = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name of the cause, because its function may be a closure."""
        return _cause_of_name, (self.name,)


def _cause_of_name(name: str) -> Cause:
    return causes[name]


causes: Registry[Cause] = Registry("cause", Cause)
"""All causes, in the order in which equals are named."""


def add(
    name: str, stage: Stage, fix: str, prior_cost: float = 1.0, needs_majority: bool = True, penalty: int = 1,
    same_shape: bool = False,
) -> Callable[[Callable[[Expected, Observed], Mapping[str, Any] | Iterable[tuple[str, Any]]]], Any]:  # fmt: skip
    """Register the decorated function as a cause; it yields (form, prediction), or returns a dict of them.

    With `same_shape`, it is called only if the part found has the quantizer's shape.
    """

    def wrap(forms: Callable[[Expected, Observed], Mapping[str, Any] | Iterable[tuple[str, Any]]]) -> Any:
        def predict(made: Expected, found: Observed) -> Iterator[tuple[str, Any]]:
            part = "scale" if stage == "scale" else "codes"
            if not same_shape or getattr(made, part).shape == getattr(found, part).shape:
                predicted = forms(made, found)
                yield from predicted.items() if isinstance(predicted, Mapping) else predicted

        causes.register(name, Cause(name, stage, predict, fix, prior_cost, needs_majority, penalty))
        return forms

    return wrap


def describe_flips(words: NDArray[Any], most: int, several: bool) -> str | None:
    """Describe the positions of flipped bits; None unless every nonzero word has exactly one bit set.

    There must be one nonzero word or, with `several`, two to `most` nonzero words.
    """
    at = np.argwhere(words)
    flips = words[tuple(at.T)].astype(np.int64)
    if not 1 <= len(at) <= most or (len(at) > 1) != several or (flips & (flips - 1) != 0).any():
        return None
    where = f"bit {int(flips[0]).bit_length() - 1} at [{at[0][0]}, {at[0][1]}]"
    return f"{len(at)} of them, the first {where}" if several else where


def unwritten(
    expected: NDArray[Any], found: NDArray[Any], tiles: Iterable[tuple[int, int]], least: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the expected array with its last rows, columns or tile set to one value, as if they were never written.

    At least `least` elements must differ.
    """
    same = (found == found[-1, -1]) | (np.isnan(found) & np.isnan(found[-1, -1]))
    regions: dict[str, tuple[slice, slice]] = {}
    for axis, lines in ((1, "rows"), (0, "columns")):
        full = same.all(axis=axis)
        n = len(full) if full.all() else int(np.argmin(full[::-1]))
        at = slice(len(full) - n, None)
        if 0 < n < len(full):
            regions[f"the last {n} {lines}"] = (at, slice(None)) if axis else (slice(None), at)
    for rows, columns in tiles if not regions else ():
        if rows * columns > 1 and same[-rows:, -columns:].all():
            regions[f"the last tile of {rows} x {columns}"] = slice(-rows, None), slice(-columns, None)
    for region, place in regions.items():
        filled = expected.copy()
        filled[place] = found[-1, -1]
        if np.count_nonzero(filled != expected) >= least:
            yield (
                f"{region} are {found[-1, -1]:g}" if "tile" not in region else f"{region} is {found[-1, -1]:g}",
                filled,
            )


def typical_ratio(found: NDArray[Any], scale: NDArray[Any]) -> np.float32:
    """Return the median of the finite nonzero ratios; NaN without such ratios."""
    ratio = (found / scale).ravel()
    finite = np.sort(ratio[np.isfinite(ratio) & (ratio != 0)])
    return np.float32(finite[finite.size // 2] if finite.size else np.nan)


def of_neighbours(scale: NDArray[Any], found: NDArray[Any], factor: Any = 1) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield scales that are a neighbour's in each block where the scale found is the neighbour's times a factor.

    At most a quarter of the scales may be replaced.
    """
    for axis, places in ((0, {1: "above", -1: "below"}), (1, {1: "before", -1: "after"})):
        for by, side in places.items():
            other = np.roll(scale, by, axis)
            stale = (found == other * factor) & (other != scale)
            if 0 < stale.sum() <= max(stale.size // 4, 1):
                yield f"the one {side}, in {int(stale.sum())} blocks", np.where(stale, other, scale)


def order_of_rows(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return, for each found row, the index of the expected row; None if rows are in order or too similar.

    Rows are matched by their correlation, because scales may have changed with the order.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((4, 64))
    >>> order_of_rows(x, 3 * x[[1, 2, 3, 0]])
    array([1, 2, 3, 0])
    >>> order_of_rows(x, x)
    """
    if expected.shape != found.shape or not 2 <= len(expected) <= _MOST or expected.shape[1] < 4:
        return None
    a, b = _unit(expected), _unit(found)
    likeness = matmul_f32(b, a)  # the same on every CPU, unlike a BLAS
    order = likeness.argmax(axis=1)
    own = likeness.diagonal()
    best = likeness[np.arange(len(order)), order]
    order = np.where((own >= best - 1e-5) | (best < 0.5), np.arange(len(order)), order)
    shift = (np.arange(len(order)) - order) % len(order)
    most = int(np.bincount(shift).argmax())
    if most and 2 * (shift == most).sum() > len(order):  # very similar rows are assumed to move as most do
        order = (np.arange(len(order)) - most) % len(order)
    moved = order != np.arange(len(order))
    return order if moved.any() and moved.mean() > min(0.02, 1.5 / len(order)) else None


def exact_order(
    expected: NDArray[Any], found: NDArray[Any], strangers: int = 0, least: int = 1
) -> NDArray[np.int64] | None:
    """Return, for each found row, the index of the equal expected row; None if fewer than `least` rows moved.

    At most `strangers` found rows may differ from all expected rows; they count as unmoved.

    Examples
    --------
    >>> exact_order(np.array([[1, 2], [3, 4], [5, 6]]), np.array([[3, 4], [1, 2], [5, 6]]))
    array([1, 0, 2])
    """
    if expected.shape != found.shape:
        return None
    own = np.arange(len(found))
    same = ((found == expected) | (np.isnan(found) & np.isnan(expected))).all(axis=1)
    if same.all():
        return None
    known = {row.tobytes(): i for i, row in reversed(list(enumerate(np.ascontiguousarray(expected))))}
    rows = np.ascontiguousarray(found)
    order = np.array([i if same[i] else known.get(row.tobytes(), -1) for i, row in enumerate(rows)])
    strange = order < 0
    order = np.where(strange, own, order)
    return order if strange.sum() <= strangers and (order != own).sum() >= least else None


def _unit(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows minus their mean, normalized to length 1, with outliers clipped to limit their influence."""
    step = max(1, x.shape[1] // _COLUMNS)
    part = np.nan_to_num(x[:, ::step].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    part = np.sign(part) * np.sqrt(np.abs(part))
    part = part - part.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
    unit: NDArray[np.float32] = (part / np.where(length > 0, length, 1.0)).astype(np.float32)
    return unit


def describe_order(order: NDArray[np.int64]) -> str:
    """Describe an order in a few words.

    Examples
    --------
    >>> [describe_order(np.array(order)) for order in ([3, 0, 1, 2], [2, 0, 1, 4, 3], [0, 2, 1, 3], [2, 1, 0])]
    ['shifted by 1', 'permuted', '2 of 4 moved', 'in reverse']
    """
    n = len(order)
    if n > 2 and (order == np.arange(n)[::-1]).all():
        return "in reverse"
    shift = (np.arange(n) - order) % n
    steps, counts = np.unique(shift, return_counts=True)
    most = int(steps[counts.argmax()])
    if most and counts.max() >= n - max(abs(_signed(most, n)), 1):
        return f"shifted by {_signed(most, n)}"
    moved = int((shift != 0).sum())
    return f"{moved} of {n} moved" if 2 * moved <= n else "permuted"


def _signed(shift: int, n: int) -> int:
    return shift if shift <= n // 2 else shift - n
