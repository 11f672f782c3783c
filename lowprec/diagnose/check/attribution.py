"""Attribution of every differing code and scale to a cause: one explanation for all, or the best mixture of causes.

In a mixture, the score of a cause is the number of elements that it predicts, minus the number of elements that it
would have changed but that did not change. The cause with the highest score is attributed first. Remaining elements are
attributed to the first cause that fits them and does not concern all elements, or to a rule for single elements
(`ELEMENT_RULES`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expected import Expected, Mask, Observed, values_of
from .search import CauseSearch, Explanation, Step, same_scales, tensor_left, with_found_scales

FOLLOWS_SCALE = "follows the scale"
UNEXPLAINED = "not explained"
_PASSES = 6  # largest number of causes in a mixture

ELEMENT_RULES: dict[str, Callable[[Expected, NDArray[Any]], Mask]] = {
    "NaN or Inf in the block": lambda m, found: ~m.each(np.isfinite(m.amax)),
    "code of NaN": lambda m, found: np.isnan(values_of(m.codes, m.format)) & np.isnan(values_of(found, m.format)),
    "sign of zero": lambda m, found: (values_of(m.codes, m.format) == 0) & (values_of(found, m.format) == 0),
    "overflow": lambda m, found: np.abs(m.v) > m.format.max,
    "sign": lambda m, found: values_of(found, m.format) == -values_of(m.codes, m.format),
    "the neighbour on the other side": lambda m, found: (found == m.cast(m.v, "up")) | (found == m.cast(m.v, "down")),
}
"""Descriptions of single elements, where no cause holds for all; stochastic rounding ends at the last."""


def attribute(search: CauseSearch, made: Expected, best: list[Explanation]) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Return the cause of every code, of every scale and of the tensor's scale; ``""`` for equal elements.

    All codes or all scales count as different if they have another shape than the quantizer's.
    """
    if best:
        return _by_one(made, search.found, best[0])
    return _codes(search, made), _scales(search, made), _tensor(search, made)


def _by_one(made: Expected, found: Observed, whole: Explanation) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Return the explanation's name for elements that it predicts, and a description of each other difference."""
    of_stage = {stage: ", and ".join(str(step) for step in whole.steps if step.cause.stage in ("making", stage))
            for stage in ("codes", "scale", "tensor scale")}  # fmt: skip
    codes, scales = whole.predicted or (found.codes, found.scale)
    differing = found.codes != made.codes
    names = np.where(differing, of_stage["codes"] or FOLLOWS_SCALE, "").astype(object)
    if codes.shape == found.codes.shape:
        off = differing & (codes != found.codes)
        flips = (codes ^ found.codes).astype(np.int64)
        names[off] = UNEXPLAINED
        names[off & ((flips & (flips - 1)) == 0)] = "in addition, one bit"
    tensor = of_stage["tensor scale"] if tensor_left(found, made.tensor) else ""
    comparable = found.scale.shape == made.scale.shape
    wrong = ~same_scales(found.scale, made.scale) if comparable else np.ones(found.scale.shape, bool)
    of_scales = np.where(wrong, of_stage["scale"], "").astype(object)
    if scales.shape == found.scale.shape:
        of_scales[wrong & ~same_scales(scales, found.scale)] = UNEXPLAINED
    return names, of_scales, tensor


def _tensor(search: CauseSearch, made: Expected) -> str:
    if not tensor_left(search.found, made.tensor):
        return ""
    fits = (step for step, tensor in search.of_stage("tensor scale", made) if not tensor_left(search.found, tensor))
    return next(map(str, fits), UNEXPLAINED)


def _codes(search: CauseSearch, made: Expected) -> NDArray[Any]:
    found = search.found
    names = np.full(found.codes.shape, "", dtype=object)
    base = with_found_scales(made, found) or made
    open_ = found.codes != made.codes
    follows = open_ & (base.codes == found.codes)
    names[follows] = FOLLOWS_SCALE
    open_ &= ~follows
    if not open_.any():
        return names

    def rules() -> Iterator[tuple[Step, Any]]:
        yield from search.of_stage("codes", base)
        for steps, other in search.alternative_quantizations(made):
            if steps:
                yield steps[0], other.codes

    considered = base.each(np.isfinite(base.amax))
    _by_rules(names, open_, found.codes, base.codes, rules, considered)
    for name, fits in ELEMENT_RULES.items():
        hit = open_ & fits(base, found.codes)
        names[hit] = name
        open_ &= ~hit
    names[open_] = UNEXPLAINED
    return names


def _scales(search: CauseSearch, made: Expected) -> NDArray[Any]:
    found = search.found
    if found.scale.shape != made.scale.shape:
        return np.full(found.scale.shape, UNEXPLAINED, object)
    names = np.full(found.scale.shape, "", dtype=object)
    open_ = ~same_scales(found.scale, made.scale)
    if not open_.any():
        return names

    def rules() -> Iterator[tuple[Step, Any]]:
        for stage in ("making", "scale"):
            for step, predicted in search.of_stage(stage, made):
                scale = predicted.scale if isinstance(predicted, Expected) else predicted
                if scale.shape == made.scale.shape:
                    yield step, scale

    _by_rules(names, open_, found.scale, made.scale, rules, np.isfinite(made.scale))
    no_number = open_ & (np.isnan(found.scale) | np.isnan(made.scale))
    names[no_number] = "NaN"
    open_ &= ~no_number
    names[open_ & (found.scale > made.scale)] = "higher"
    names[open_ & (found.scale < made.scale)] = "lower"
    return names


def _by_rules(
    names: NDArray[Any], open_: Mask, found: NDArray[Any], base: NDArray[Any],
    rules: Callable[[], Iterable[tuple[Step, Any]]], considered: Mask,
) -> None:  # fmt: skip
    """Name the elements that rules explain, in place, starting with the rule that best fits the differences."""
    for _ in range(_PASSES):
        best: tuple[int, Step, Mask] | None = None
        for step, result in rules():
            hit = open_ & (result == found)
            against = int(((result != base) & (base == found) & considered).sum())
            score = int(hit.sum()) - against * step.cause.penalty
            if score > 0 and (best is None or score > best[0]):
                best = score, step, hit
        if best is None:
            break
        names[best[2]] = str(best[1])
        open_ &= ~best[2]
        if not open_.any():
            return
    for step, result in rules():
        if not step.cause.needs_majority:
            hit = open_ & (result == found)
            names[hit] = str(step)
            open_ &= ~hit
