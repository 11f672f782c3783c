"""Scores of candidates on the outputs of dumps, and the budget of a search.

A candidate is computed on a few outputs first, which refute most, then on all; outputs that refute it join the few.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format
from ...registry import cached
from ...tensorcore.accumulator import Accumulator
from ...tensorcore.engines.selection import engine_for
from .candidate import Candidate
from .dump import GemmDump, Part
from .space import Space

_FEW = 5  # rows and columns of the first outputs
_TOLD = 16  # and of those of further dumps: of probes few outputs tell candidates apart, and all of them are needed
_LEARNT = 5  # outputs that are added to them where those leave a wrong candidate
_KEPT = 3  # lots of outputs that candidates are compared on first: those at the start, and the last ones added
_COUNTED = 500  # microseconds that count as a candidate more
_SLOW = (20, 12.0)  # microseconds of a call of a reference, and nanoseconds of a product
_FAST = (60, 0.1)  # of a fast kernel
_SIMPLE = (180, 0.4)  # of a fast kernel of a kind whose reference is not compiled: operands are laid out in NumPy
_WITHIN = (250, 40)  # more within an order of operations, and for each of its calls
_FEW_PRODUCTS = 1 << 14  # which no fast kernel takes


class Score(NamedTuple):
    """How far outputs are from a dump's: how many differ, and by how much on average (log2 of 1 + the difference)."""

    wrong: int
    far: float


FAILED = Score(1 << 30, np.inf)


@dataclass
class Search:
    """A search in one or more dumps that one arithmetic made.

    Attributes
    ----------
    dumps : tuple of GemmDump
    allowed : int
        Outputs of the first dump that may differ all the same.
    limit : int
        Candidates to try before it ends.
    tried : int
        Candidates tried so far; one that takes longer counts as several, by what its kind is known to take.
    """

    dumps: tuple[GemmDump, ...]
    allowed: int
    limit: int
    tried: int = 0

    def __post_init__(self) -> None:
        self._few = [dump.sample(_TOLD if i else _FEW) for i, dump in enumerate(self.dumps)]
        self._all = [dump.parts() for dump in self.dumps]

    @property
    def dump(self) -> GemmDump:
        """The first dump, whose formats decide what there is to search."""
        return self.dumps[0]

    @functools.cached_property
    def space(self) -> Space:
        """What may have made the first dump."""
        return Space.of(self.dump)

    def score_sample(self, candidate: Candidate, most: int | None = None) -> Score:
        """Score a candidate on a few outputs; one that gives more than `most` of them otherwise is left there."""
        return self._score(candidate, self._few, most)

    def score_all(self, candidate: Candidate) -> Score:
        """Score a candidate on all outputs; one of a further dump counts for all that may be damaged in the first."""
        first = self._score(candidate, self._all[0])
        if len(self.dumps) == 1 or first == FAILED:
            return first
        rest = self._score(candidate, [part for parts in self._all[1:] for part in parts])
        return Score(first.wrong + (self.allowed + 1) * rest.wrong, first.far + rest.far)

    def _score(self, candidate: Candidate, parts: Sequence[Part], most: int | None = None) -> Score:
        """Score a candidate on some outputs; where more than `most` are wrong no further part is computed."""
        wrong, far, n, spent = 0, 0.0, 0, 0
        try:
            for part in parts:
                spent += cost(candidate, part)
                one = score(candidate.outputs(part), part.wanted)
                wrong, far, n = wrong + one.wrong, far + one.far * len(part.wanted), n + len(part.wanted)
                if most is not None and wrong > most:
                    break
        except (ValueError, TypeError):  # what cannot be computed takes no time
            return FAILED
        self.tried += 1 + spent // _COUNTED
        return Score(wrong, far / n)

    def passes(self, own: Score) -> bool:
        """Tell whether a score on the few outputs leaves hope: some of them may be damaged."""
        return own.wrong <= max(1, sum(len(part.wanted) for part in self._few) // 12)

    def accepts(self, candidate: Candidate, most: int) -> bool:
        """Tell whether a candidate leaves no more than so many outputs; if not, those join the few."""
        if self.score_all(candidate).wrong <= most:
            return True
        self.add_counterexamples(candidate)
        return False

    def may_accept(self, candidate: Candidate, most: int) -> bool:
        """Tell whether a candidate may leave no more than so many outputs, by the few."""
        most *= len(self._few)  # of which some may be in several parts
        own = self.score_sample(candidate, most)
        return own.wrong <= most and self.passes(own)

    def is_as_good(self, candidate: Candidate, most: int) -> bool:
        """Tell whether a candidate leaves no more than so many outputs, after a look at the few."""
        return self.may_accept(candidate, most) and self.accepts(candidate, most)

    def add_counterexamples(self, candidate: Candidate) -> None:
        """Add outputs that a candidate does not give to the few on which candidates are compared first."""
        for dump in self.dumps:
            at = np.flatnonzero(np.concatenate([candidate.differing(part) for part in dump.parts()]))
            if at.size:
                chosen = at[np.linspace(0, at.size - 1, min(_LEARNT, at.size)).astype(np.intp)]
                places = np.array([dump.place(int(i)) for i in chosen])
                self._few.append(dump.part(np.unique(places[:, 0]), np.unique(places[:, -1])))
        first = len(self.dumps)
        self._few = self._few[:first] + self._few[first:][-_KEPT + 1 :]


def cost(candidate: Candidate, part: Part) -> int:
    """Return about how many microseconds of a core outputs take: from shapes and kinds, so that it is always the same.

    A chain that is promoted is as many calls as it has intervals; few products, and those of kinds without a fast
    kernel for these formats, go through a reference.
    """
    m, (rows, k), columns = candidate.accumulator, part.a.shape, len(part.b)
    every = min(int(candidate.promote_every or k), k)
    calls = -(-k // every)
    products = rows * columns * calls * max(every, m.step())
    few = m.reference_is_compiled and rows * columns * k <= _FEW_PRODUCTS
    fast = not few and _has_kernel(m, part.fa, part.fb)
    call, product = (_FAST if m.reference_is_compiled else _SIMPLE) if fast else _SLOW
    more = _WITHIN[0] + _WITHIN[1] * calls if candidate.library is not None else 0
    return int(more + call * calls + products * product / 1000)


@cached(1024)
def _has_kernel(machine: Accumulator, fa: Format, fb: Format) -> bool:
    return engine_for(machine, machine.multiplied(fa), machine.multiplied(fb)) is not None


def score(ours: NDArray[Any], theirs: NDArray[Any]) -> Score:
    """Compare bits with bits."""
    size = 8 * ours.itemsize
    half = np.int64(1) << (size - 1) if size < 64 else None
    if half is None:  # float64: one bit is enough to tell
        return Score(int(np.count_nonzero(ours != theirs)), float(np.mean(ours != theirs)))
    x, y = (np.where(u >= half, half - u, u) for u in (ours.astype(np.int64), theirs.astype(np.int64)))
    return Score(int(np.count_nonzero(ours != theirs)), float(np.mean(np.log2(1.0 + np.abs(x - y)))))
