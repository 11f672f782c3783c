"""Search for causes: of the quantization, then of codes, of scales and of the tensor's scale.

An `Expected` predicts all three. If codes, scales or the tensor's scale differ from it, the causes of that stage are
applied to it. In this way, a mistake in quantization and one in storage are found together, without trying all pairs.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..deadline import Deadline
from . import causes_codes as causes_codes
from . import causes_scaling as causes_scaling
from . import causes_stored_scales as causes_stored_scales
from .causes import Cause, causes
from .expected import Expected, Mask, Observed

_MOST = 16  # largest number of equally good explanations
_AS_LIGHT = 0.35  # largest difference in prior cost of explanations of the same bits that are all named
_FIRSTS = 4  # number of single causes to which a second cause of the same stage is added
_PLAIN = 2.0  # prior cost of an explanation up to which the search for a simpler one is skipped
_UNLIKELY = 2.4  # prior cost of an explanation up to which pairs of causes of making are skipped
_MADE = 8  # number of nearest quantizations for which pairs of causes of a stage are tried
_THIRD = 4  # number of nearest quantizations for which three causes of making are tried


@dataclass(frozen=True)
class Step:
    """Cause, and the form of it that explains a dump."""

    cause: Cause
    form: str

    def __str__(self) -> str:
        return f"{self.cause.name}: {self.form}" if self.form else self.cause.name


@dataclass(frozen=True)
class Explanation:
    """Causes that together give the codes and scales found.

    Attributes
    ----------
    steps : tuple of Step
        The causes, in the order of the steps of quantization and storage.
    left : int
        Number of codes, block scales and tensor scales that the causes do not explain.
    codes_follow : bool
        Whether the codes are correct for the scales found, even if these are not explained.
    predicted : tuple of codes and scales, optional
        Codes and scales that the causes give; only stored in the first of several explanations.
    """

    steps: tuple[Step, ...]
    left: int = 0
    codes_follow: bool = False
    predicted: tuple[Any, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def prior_cost(self) -> float:
        """Sum of the causes' prior costs."""
        return sum(step.cause.prior_cost for step in self.steps) + (0.5 if self.codes_follow else 0)

    def __str__(self) -> str:
        if not self.steps:
            return "the codes are those of the scales found, which no known cause gives"
        return ", and ".join(map(str, self.steps)) + ("; the codes follow" if self.codes_follow else "")


@dataclass(frozen=True)
class _Part:
    """Causes for codes, scales or a tensor's scale, their prediction, and the number of elements that it misses."""

    steps: tuple[Step, ...]
    left: int
    predicted: Any


def same_scales(a: Any, b: Any) -> Mask:
    """Return which scales are equal; NaN equals NaN."""
    result: Mask = (a == b) | (np.isnan(a) & np.isnan(b))
    return result


def scales_left(found: Observed, scale: Any) -> int:
    """Count the scales that differ: all of them if the shapes differ."""
    if found.scale.shape != scale.shape:
        return max(int(found.scale.size), int(scale.size))
    return int(np.count_nonzero(~same_scales(found.scale, scale)))


def codes_left(found: Observed, codes: Any) -> int:
    """Count the codes that differ: all of them if the shapes differ."""
    return int(np.count_nonzero(found.codes != codes)) if found.codes.shape == codes.shape else int(codes.size)


def tensor_left(found: Observed, tensor: np.float32 | None) -> int:
    """Return 1 if the tensor's scale differs, else 0."""
    if found.tensor is None or tensor is None:
        only = tensor if found.tensor is None else found.tensor
        return int(only is not None and (tensor is not None or only != 1))
    return int(not (found.tensor == tensor or (np.isnan(found.tensor) and np.isnan(tensor))))


Looked = tuple[float, tuple[tuple[Step, ...], Expected]]
"""A quantization, and its distance from the dump."""

_LEFT = {"codes": codes_left, "scale": scales_left, "tensor scale": tensor_left}


@dataclass(frozen=True, eq=False)
class CauseSearch:
    """Search for causes of a dump.

    Attributes
    ----------
    found : Observed
    deadline : Deadline
        Time after which no further cause is tried.
    """

    found: Observed
    deadline: Deadline
    _known: dict[Any, list[_Part]] = field(default_factory=dict, init=False, repr=False)

    def of_stage(self, stage: str, made: Expected) -> Iterator[tuple[Step, Any]]:
        """Yield the predictions of every cause of a stage."""
        for cause in (causes[name] for name in causes.names()):
            if cause.stage == stage:
                for form, predicted in self.deadline.limit(cause.predict(made, self.found)):
                    yield Step(cause, form), predicted

    def alternative_quantizations(
        self, made: Expected, before: tuple[Step, ...] = ()
    ) -> Iterator[tuple[tuple[Step, ...], Expected]]:
        """Yield the quantizer's result, and its results with one more step changed."""
        yield before, made
        for step, other in self.of_stage("making", made):
            if other.codes.shape == made.codes.shape and all(step.cause is not s.cause for s in before):
                yield (*before, step), other

    def explanations(self, made: Expected) -> list[Explanation]:
        """Return the explanations with the fewest unexplained differences and, among these, the lowest prior cost.

        The result is empty if nothing differs. If one cause per stage does not explain all differences, two causes per
        stage are tried: for codes and scales, on the nearest quantizations. Then up to three in stage "making" are
        tried.
        """
        found = self.found
        if not codes_left(found, made.codes) + scales_left(found, made.scale) + tensor_left(found, made.tensor):
            return []
        best, looked = self._explained(made, self.alternative_quantizations(made))
        nearest = [((), made), *_nearest(looked, _MADE)]
        if best[0].left or best[0].prior_cost > _PLAIN:
            for steps, base in self.deadline.limit(nearest):
                best = _best(best + self._explained(base, iter([(steps, base)]), pairs=True)[0])
        for most in (_MADE, _THIRD):
            if not best[0].left and best[0].prior_cost <= _UNLIKELY:
                break
            looked = []
            for steps, base in self.deadline.limit(item for item in nearest[: most + 1] if item[0]):
                more, on_top = self._explained(base, self.alternative_quantizations(base, steps))
                best, looked = _best(best + more), looked + on_top[1:]
            nearest = _nearest(looked, _THIRD)
        return best

    def _explained(
        self, made: Expected, alternatives: Iterator[tuple[tuple[Step, ...], Expected]], pairs: bool = False
    ) -> tuple[list[Explanation], list[Looked]]:
        """Return the best explanations based on some quantizations, and the distance of each of these."""
        best: list[Explanation] = []
        looked: list[Looked] = []
        for steps, base in alternatives:
            whole = base is made
            tensor = self._parts("tensor scale", base, base.tensor)
            scale = self._parts("scale", base, base.scale, pairs)
            far = codes_left(self.found, base.codes)
            if not best or whole or scale[0].left == 0 or far == 0:
                deep = whole or scale[0].left == 0
                code = [_Part((), far, base.codes)]
                if deep:
                    code = self._parts("codes", base, base.codes, pairs and scale[0].left == 0)
                best += _joined(steps, code, scale, tensor)
                far = min(far, code[0].left)
            near = far / max(base.codes.size, 1) + scale[0].left / max(base.scale.size, 1) + 0.1 * len(scale[0].steps)
            looked.append((near, (steps, base)))
            may_follow = whole and (not steps or 2 * scale[0].left < base.scale.size)
            if may_follow and (follow := with_found_scales(base, self.found)) is not None:
                # Are the codes correct for the scales found, even if these are not explained?
                code = self._parts("codes", follow, follow.codes, pairs)
                best += _joined(steps, code, scale, tensor, follow=True)
            best = _best(best)
        return best, looked

    def _parts(self, stage: str, made: Expected, own: Any, pairs: bool = False) -> list[_Part]:
        """Return the predictions of a part with the fewest differences: unchanged, or with causes of its stage."""
        whole = _LEFT[stage](self.found, own)
        if not whole:
            return [_Part((), 0, own)]
        key = stage, pairs, _content(stage, made)
        if key not in self._known:  # many quantizations have the same scales, and some the same codes
            self._known[key] = self._nearest_parts(stage, made, own, whole, pairs)
        return self._known[key]

    def _nearest_parts(self, stage: str, made: Expected, own: Any, whole: int, pairs: bool) -> list[_Part]:
        left = _LEFT[stage]
        tried = [_Part((step,), left(self.found, p), p) for step, p in self.of_stage(stage, made)]
        if pairs and min((part.left for part in tried), default=0):
            two = list(self._pairs(stage, made, tried))
            tried += two
            if two and (nearest := min(two, key=lambda part: _distance(stage, self.found, part))).left:
                tried += self._on_top(stage, made, nearest)
        least = min((part.left for part in tried), default=whole)
        if 2 * least > whole:  # a prediction that misses most elements explains nothing
            return [_Part((), whole, own)]
        best = [part for part in tried if part.left == least]
        lightest = min(_prior(part.steps) for part in best)
        # Forms of one cause count once. Causes with inferred numbers rank below those without.
        kept: dict[tuple[str, ...], _Part] = {}
        for part in best:
            if _prior(part.steps) <= lightest + _AS_LIGHT:
                kept.setdefault(tuple(step.cause.name for step in part.steps), part)
        return list(kept.values())

    def _on_top(self, stage: str, made: Expected, first: _Part) -> Iterator[_Part]:
        """Yield parts with one more cause of a stage, after the causes of `first`."""
        for step, predicted in self.of_stage(stage, replace(made, **{stage: first.predicted})):
            yield _Part((*first.steps, step), _LEFT[stage](self.found, predicted), predicted)

    def _pairs(self, stage: str, made: Expected, singles: list[_Part]) -> Iterator[_Part]:
        """Yield pairs of causes of a stage in both orders; one of them is among the nearest single causes."""
        left = _LEFT[stage]
        nearest: dict[str, _Part] = {}
        for part in sorted(singles, key=lambda part: _distance(stage, self.found, part)):
            nearest.setdefault(part.steps[0].cause.name, part)
        firsts = list(nearest.values())[:_FIRSTS]
        for first in firsts:
            yield from self._on_top(stage, made, first)
        for step, between in self.of_stage(stage, made):
            base = replace(made, **{stage: between})
            for first in firsts:
                (last,) = first.steps
                if last.cause is not step.cause:
                    for form, predicted in self.deadline.limit(last.cause.predict(base, self.found)):
                        yield _Part((step, Step(last.cause, form)), left(self.found, predicted), predicted)


def _content(stage: str, made: Expected) -> Any:
    """Return a digest of all inputs of the predictions of a stage; those of scales exclude values and codes."""
    digest = hashlib.blake2b()
    for array in (made.scale, *((made.codes, made.v, made.x) if stage == "codes" else ())):
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest(), made.scale.shape, made.x.shape, made.tensor, made.q


def _prior(steps: Iterable[Step]) -> float:
    return sum(step.cause.prior_cost for step in steps)


def _distance(stage: str, found: Observed, part: _Part) -> tuple[float, int]:
    """Return the distance of a part: for scales the logarithm of their ratio, otherwise the number that differs."""
    if stage != "scale":
        return 0.0, part.left
    if part.predicted.shape != found.scale.shape:
        return np.inf, part.left
    ratio = np.abs(np.log2(np.abs(part.predicted / found.scale)))
    return float(np.median(np.where(np.isfinite(ratio), ratio, 1e3))), part.left


def _nearest(looked: list[Looked], most: int) -> list[tuple[tuple[Step, ...], Expected]]:
    """Return the nearest quantizations, at most one per cause and distance."""
    distinct: dict[tuple[float, str], tuple[tuple[Step, ...], Expected]] = {}
    for near, (steps, base) in sorted(looked, key=lambda item: item[0]):
        if steps:
            distinct.setdefault((near, steps[-1].cause.name), (steps, base))
    return list(distinct.values())[:most]


def with_found_scales(made: Expected, found: Observed) -> Expected | None:
    """Return the quantizer's result with the scales found; None if these are equal or have another shape."""
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
            kept.setdefault((*sorted(step.cause.name for step in e.steps), e.codes_follow), e)
    first, *others = sorted(kept.values(), key=lambda e: e.prior_cost)[:_MOST]
    return [first, *(replace(e, predicted=None) for e in others)]
