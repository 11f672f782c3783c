"""The search for causes: what is made, then what happened to codes, to scales and to the tensor's scale.

An `Expected` predicts all three; where codes, scales or the tensor's scale differ from it, the causes of that stage are
tried on top. So two mistakes are found together, one of making and one of storing, without trying all pairs.

Then every code and every scale that differs gets a cause: what explains them all, or the best mixture of causes. In a
mixture a cause counts for what it gives and against what it would have changed and that was not changed. Those with
most left after that come first; what is left then goes to the first cause that fits the element by itself and is no
pattern of all elements, and at last to what can be said of any element (`ELEMENT_RULES`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import causes_codes as causes_codes
from . import causes_scaling as causes_scaling
from . import causes_stored_scales as causes_stored_scales
from .causes import Cause, causes
from .expected import Expected, Mask, Observed, values_of

UNEXPLAINED = "not explained"
_MOST = 16  # ties that are kept
FOLLOWS_SCALE = "follows the scale"
_PASSES = 6
_AS_LIGHT = 0.35  # prior cost by which explanations of the same bits may differ and are both named
_FIRSTS = 4  # causes alone on top of which a second one of their stage is tried
_PLAIN = 2.0  # prior cost of an explanation up to which no plainer one is looked for
_UNLIKELY = 2.4  # and up to which no two causes of making are tried
_MADE = 8  # quantizations, the nearest, on top of which two causes of a stage are tried


@dataclass(frozen=True)
class Step:
    """A cause in the form it takes here."""

    cause: Cause
    form: str

    def __str__(self) -> str:
        return f"{self.cause.name}: {self.form}" if self.form else self.cause.name


@dataclass(frozen=True)
class Explanation:
    """Causes that together give what was found.

    Attributes
    ----------
    steps : tuple of Step
        The causes, in the order in which things happen.
    left : int
        Codes, scales and tensor's scales that they do not give.
    codes_follow : bool
        Whether the codes are those of the scales found, wherever these come from.
    predicted : tuple of codes and scales, optional
        What they give; kept for the first of several alone.
    """

    steps: tuple[Step, ...]
    left: int = 0
    codes_follow: bool = False
    predicted: tuple[Any, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def prior_cost(self) -> float:
        """What it asks of one's belief."""
        return sum(step.cause.prior_cost for step in self.steps) + (0.5 if self.codes_follow else 0)

    def __str__(self) -> str:
        if not self.steps:
            return "the codes are those of the scales found, which no known cause gives"
        return ", and ".join(map(str, self.steps)) + ("; the codes follow" if self.codes_follow else "")


@dataclass(frozen=True)
class _Part:
    """How codes, scales or a tensor's scale may have come about, what that gives, and how many it does not give."""

    steps: tuple[Step, ...]
    left: int
    predicted: Any


def same_scales(a: Any, b: Any) -> Mask:
    """Tell which scales are equal, NaN to NaN."""
    result: Mask = (a == b) | (np.isnan(a) & np.isnan(b))
    return result


def scales_left(found: Observed, scale: Any) -> int:
    """Count scales that differ; all of them where the shapes do."""
    if found.scale.shape != scale.shape:
        return max(int(found.scale.size), int(scale.size))
    return int(np.count_nonzero(~same_scales(found.scale, scale)))


def codes_left(found: Observed, codes: Any) -> int:
    """Count codes that differ; all of them where the shapes do."""
    return int(np.count_nonzero(found.codes != codes)) if found.codes.shape == codes.shape else int(codes.size)


def tensor_left(found: Observed, tensor: np.float32 | None) -> int:
    """Tell whether the tensor's scale differs: 0 or 1."""
    if found.tensor is None or tensor is None:
        only = tensor if found.tensor is None else found.tensor
        return int(only is not None and (tensor is not None or only != 1))
    return int(not (found.tensor == tensor or (np.isnan(found.tensor) and np.isnan(tensor))))


_LEFT = {"codes": codes_left, "scale": scales_left, "tensor scale": tensor_left}
_FIELDS = {"codes": "codes", "scale": "scale"}  # of `Expected`, that a stage changes


def of_stage(stage: str, made: Expected, found: Observed) -> Iterator[tuple[Step, Any]]:
    """Yield what every cause of a stage predicts."""
    for cause in (causes[name] for name in causes.names()):
        if cause.stage == stage:
            for form, predicted in cause.predict(made, found):
                yield Step(cause, form), predicted


def _parts(stage: str, made: Expected, found: Observed, own: Any, pairs: bool = False) -> list[_Part]:
    """Return the ways that leave least of a part unexplained: that of the dump itself, or causes on top."""
    left = _LEFT[stage]
    whole = left(found, own)
    if not whole:
        return [_Part((), 0, own)]
    tried = [_Part((step,), left(found, p), p) for step, p in of_stage(stage, made, found)]
    if pairs and min((part.left for part in tried), default=0):
        two = list(_pairs(stage, made, found, tried))
        tried += two
        if two and (nearest := min(two, key=lambda part: _distance(stage, found, part))).left:
            tried += _on_top(stage, made, found, nearest)
    least = min((part.left for part in tried), default=whole)
    if 2 * least > whole:  # what leaves most of it explains nothing
        return [_Part((), whole, own)]
    best = [part for part in tried if part.left == least]
    lightest = min(_prior(part.steps) for part in best)
    # Forms of one cause are one: the first is told. What is read off the dump gives way to what explains it.
    kept: dict[tuple[str, ...], _Part] = {}
    for part in best:
        if _prior(part.steps) <= lightest + _AS_LIGHT:
            kept.setdefault(tuple(step.cause.name for step in part.steps), part)
    return list(kept.values())


def _prior(steps: Iterable[Step]) -> float:
    return sum(step.cause.prior_cost for step in steps)


def _distance(stage: str, found: Observed, part: _Part) -> tuple[float, int]:
    """Return how far a part is: scales by the logarithm of their ratio, as a rounding changes all; codes by count."""
    if stage != "scale":
        return 0.0, part.left
    if part.predicted.shape != found.scale.shape:
        return np.inf, part.left
    ratio = np.abs(np.log2(np.abs(part.predicted / found.scale)))
    return float(np.median(np.where(np.isfinite(ratio), ratio, 1e3))), part.left


def _on_top(stage: str, made: Expected, found: Observed, first: _Part) -> Iterator[_Part]:
    """Yield a cause more of a stage after some."""
    for step, predicted in of_stage(stage, replace(made, **{_FIELDS[stage]: first.predicted}), found):
        yield _Part((*first.steps, step), _LEFT[stage](found, predicted), predicted)


def _pairs(stage: str, made: Expected, found: Observed, singles: list[_Part]) -> Iterator[_Part]:
    """Yield two causes of a stage, one of them among the nearest few alone, in both orders."""
    left, field = _LEFT[stage], _FIELDS[stage]
    nearest: dict[str, _Part] = {}
    for part in sorted(singles, key=lambda part: _distance(stage, found, part)):
        nearest.setdefault(part.steps[0].cause.name, part)
    firsts = list(nearest.values())[:_FIRSTS]
    for first in firsts:
        yield from _on_top(stage, made, found, first)
    for step, between in of_stage(stage, made, found):
        base = replace(made, **{field: between})
        for first in firsts:
            (last,) = first.steps
            if last.cause is not step.cause:
                for form, predicted in last.cause.predict(base, found):
                    yield _Part((step, Step(last.cause, form)), left(found, predicted), predicted)


def alternative_quantizations(
    made: Expected, found: Observed, before: tuple[Step, ...] = ()
) -> Iterator[tuple[tuple[Step, ...], Expected]]:
    """Yield what the quantizer makes, and what it would make with one thing changed."""
    yield before, made
    for step, other in of_stage("making", made, found):
        if other.codes.shape == made.codes.shape:
            yield (*before, step), other


def explanations(made: Expected, found: Observed) -> list[Explanation]:
    """Return the explanations that leave least unexplained, of those the lightest, the first of equals first.

    Nothing is returned where codes and scales are the quantizer's. If one cause of each stage does not explain all, two
    of a stage are tried: of making, on top of the nearest few; of codes and scales, on top of these.
    """
    best, looked = _explained(made, found, alternative_quantizations(made, found))
    if best and not best[0].steps and best[0].left == 0:
        return []
    if best[0].left or best[0].prior_cost > _PLAIN:
        distinct: dict[tuple[float, str], tuple[tuple[Step, ...], Expected]] = {}
        for near, _, (steps, base) in sorted(looked, key=lambda item: item[:2]):
            distinct.setdefault((near, steps[0].cause.name if steps else ""), (steps, base))
        nearest = [((), made), *(item for item in distinct.values() if item[0])][: _MADE + 1]
        for steps, base in nearest:
            best = _best(best + _explained(base, found, iter([(steps, base)]), pairs=True)[0])
        for steps, base in nearest if best[0].left or best[0].prior_cost > _UNLIKELY else ():
            if steps:
                twice = itertools.chain(alternative_quantizations(base, found, steps), _before(made, found, steps[0]))
                best = _best(best + _explained(base, found, twice)[0])
    return best


def _before(made: Expected, found: Observed, last: Step) -> Iterator[tuple[tuple[Step, ...], Expected]]:
    """Yield what a cause of making gives for other values that came in."""
    for step, other in of_stage("making", made, found):
        if other.x is not made.x and step.cause is not last.cause and other.x.shape == made.x.shape:
            for form, both in last.cause.predict(other, found):
                if form == last.form and both.codes.shape == made.codes.shape:
                    yield (step, last), both


def _explained(
    made: Expected, found: Observed, alternatives: Iterator[tuple[tuple[Step, ...], Expected]], pairs: bool = False
) -> tuple[list[Explanation], list[tuple[float, int, tuple[tuple[Step, ...], Expected]]]]:
    """Return the best explanations on top of some quantizations, and how near each of these is."""
    best: list[Explanation] = []
    looked: list[tuple[float, int, tuple[tuple[Step, ...], Expected]]] = []
    for steps, base in alternatives:
        whole = base is made
        tensor = _parts("tensor scale", base, found, base.tensor)
        scale = _parts("scale", base, found, base.scale, pairs)
        far = codes_left(found, base.codes)
        near = far / max(base.codes.size, 1) + scale[0].left / max(base.scale.size, 1) + 0.1 * len(scale[0].steps)
        looked.append((near, len(looked), (steps, base)))
        if not best or whole or scale[0].left == 0 or far == 0:
            deep = whole or scale[0].left == 0
            code = _parts("codes", base, found, base.codes, pairs) if deep else [_Part((), far, base.codes)]
            best += _joined(steps, code, scale, tensor)
        may_follow = whole and (not steps or 2 * scale[0].left < base.scale.size)
        if may_follow and (follow := with_found_scales(base, found)) is not None:
            # Whatever the scales are: are the codes those of the scales found?
            code = _parts("codes", follow, found, follow.codes, pairs)
            best += _joined(steps, code, scale, tensor, follow=True)
        best = _best(best)
    return best, looked


def with_found_scales(made: Expected, found: Observed) -> Expected | None:
    """Return the quantizer's cast with the scales found; None where they are the quantizer's, or do not fit."""
    if found.scale.shape != made.scale.shape or scales_left(found, made.scale) + tensor_left(found, made.tensor) == 0:
        return None
    return made.with_scale(found.scale, found.tensor if made.tensor is not None else None)


def _joined(
    steps: tuple[Step, ...], code: list[_Part], scale: list[_Part], tensor: list[_Part], follow: bool = False
) -> list[Explanation]:
    found = []
    for parts in itertools.islice(itertools.product(code, scale, tensor), _MOST):
        all_steps = (*steps, *(step for part in parts for step in part.steps))
        predicted = (parts[0].predicted, parts[1].predicted)
        found.append(Explanation(all_steps, sum(part.left for part in parts), follow, predicted))
    return found


def _best(all_: list[Explanation]) -> list[Explanation]:
    left = min(e.left for e in all_)
    fit = [e for e in all_ if e.left == left]
    lightest = min(e.prior_cost for e in fit)
    kept: dict[tuple[Any, ...], Explanation] = {}
    for e in fit:
        if e.prior_cost <= lightest + _AS_LIGHT:
            kept.setdefault((*(step.cause.name for step in e.steps), e.codes_follow), e)
    first, *others = sorted(kept.values(), key=lambda e: e.prior_cost)[:_MOST]
    return [first, *(replace(e, predicted=None) for e in others)]


ELEMENT_RULES: dict[str, Callable[[Expected, NDArray[Any]], Mask]] = {
    "NaN or Inf in the block": lambda m, found: ~m.each(np.isfinite(m.amax)),
    "code of NaN": lambda m, found: np.isnan(values_of(m.codes, m.format)) & np.isnan(values_of(found, m.format)),
    "sign of zero": lambda m, found: (values_of(m.codes, m.format) == 0) & (values_of(found, m.format) == 0),
    "overflow": lambda m, found: np.abs(m.v) > m.format.max,
    "sign": lambda m, found: values_of(found, m.format) == -values_of(m.codes, m.format),
    "the neighbour on the other side": lambda m, found: (found == m.cast(m.v, "up")) | (found == m.cast(m.v, "down")),
}
"""What can be said of an element without a rule for all of them; stochastic rounding ends at the last."""


def attribute(made: Expected, found: Observed, best: list[Explanation]) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Return the cause of every code, of every scale and of the tensor's scale, ``""`` where they are the quantizer's.

    Codes or scales of another shape than the quantizer's differ all.
    """
    if best:
        return _by_one(made, found, best[0])
    return _codes(made, found), _scales(made, found), _tensor(made, found)


def _by_one(made: Expected, found: Observed, whole: Explanation) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Name the one explanation where it holds, and by itself what it leaves."""
    said = {stage: ", and ".join(str(step) for step in whole.steps if step.cause.stage in ("making", stage))
            for stage in ("codes", "scale", "tensor scale")}  # fmt: skip
    codes, scales = whole.predicted or (found.codes, found.scale)
    differing = found.codes != made.codes
    names = np.where(differing, said["codes"] or FOLLOWS_SCALE, "").astype(object)
    if codes.shape == found.codes.shape:
        off = differing & (codes != found.codes)
        flips = (codes ^ found.codes).astype(np.int64)
        names[off] = UNEXPLAINED
        names[off & ((flips & (flips - 1)) == 0)] = "beside that, one bit"
    tensor = said["tensor scale"] if tensor_left(found, made.tensor) else ""
    comparable = found.scale.shape == made.scale.shape
    apart = ~same_scales(found.scale, made.scale) if comparable else np.ones(found.scale.shape, bool)
    of_scales = np.where(apart, said["scale"], "").astype(object)
    if scales.shape == found.scale.shape:
        of_scales[apart & ~same_scales(scales, found.scale)] = UNEXPLAINED
    return names, of_scales, tensor


def _tensor(made: Expected, found: Observed) -> str:
    if not tensor_left(found, made.tensor):
        return ""
    fits = (step for step, tensor in of_stage("tensor scale", made, found) if not tensor_left(found, tensor))
    return next(map(str, fits), UNEXPLAINED)


def _codes(made: Expected, found: Observed) -> NDArray[Any]:
    names = np.full(found.codes.shape, "", dtype=object)
    base = with_found_scales(made, found) or made
    open_ = found.codes != made.codes
    follows = open_ & (base.codes == found.codes)
    names[follows] = FOLLOWS_SCALE
    open_ &= ~follows
    if not open_.any():
        return names

    def rules() -> Iterator[tuple[Step, Any]]:
        yield from of_stage("codes", base, found)
        for steps, other in alternative_quantizations(made, found):
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


def _scales(made: Expected, found: Observed) -> NDArray[Any]:
    if found.scale.shape != made.scale.shape:
        return np.full(found.scale.shape, UNEXPLAINED, object)
    names = np.full(found.scale.shape, "", dtype=object)
    open_ = ~same_scales(found.scale, made.scale)
    if not open_.any():
        return names

    def rules() -> Iterator[tuple[Step, Any]]:
        for stage in ("making", "scale"):
            for step, predicted in of_stage(stage, made, found):
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
    """Name what rules explain, in place: the rule with most for it and least against it first."""
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
