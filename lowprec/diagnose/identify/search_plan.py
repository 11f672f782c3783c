"""Best-first search for the arithmetic of a dump: changes of one field, and of fields that hide each other.

A node is a candidate with its distance on a sample of outputs: the mean logarithm of the error in ulps. A node is
expanded by the changes of `CHANGES` in turn. Open expansions are in one heap per kind of accumulator. The next
expansion has the least sum of four terms: the logarithms of its distance and of its number of candidates, the number of
changes made so far, and the candidates that its kind has already used. The search ends with the first candidate that
gives every output.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .candidate import Candidate
from .search import FAILED, Kind, Score, Search, Values

#: Changes of a node, in the order in which they are tried: names of fields, or of lists of `_SOME` and `_STEPS`.
CHANGES: tuple[tuple[str, ...], ...] = (
    ("output_format",), ("align",), ("exact_group",), ("lanes",), ("daz_formats",), ("saturate",), ("input_formats",),
    ("fraction_bits",), ("leading_bits",), ("group_order",), ("partial_rounding",), ("sum_rounding",), ("phases",),
    ("phase_length",), ("misplaces_minus_one",), ("chunk_format",), ("rounded_sum",), ("group_size",),
    ("steps",), ("promote_every",), ("zero_exponent",), ("product_scale_log2",), ("scale_format",),
    ("group_size", "steps"),
    ("fraction_bits", "align", "output_format"),
    ("binary group", "fraction_bits"),
    ("short exact_group", "binary group", "steps"),
    ("few lanes", "binary group", "steps"),
    ("short exact_group", "binary group", "fraction_bits"),
    ("few lanes", "binary group", "fraction_bits"),
    ("product_scale_log2", "output_format", "saturate"),  # an exponent out of range hides the other two
    ("fraction_bits", "large zero_exponent"),
    ("group_size", "align"),
    ("binary group", "large zero_exponent"),
    ("binary group", "product_scale_log2", "output_format", "saturate"),
    ("binary group", "fraction_bits", "align", "output_format"),
    ("group_size", "fraction_bits"),
    ("group_size", "many steps"),
)  # fmt: skip
#: Changes of three fields, which starts try early: no change of one of them, or of two, brings a start nearer.
THREE: tuple[tuple[str, ...], ...] = (
    ("binary group", "fraction_bits", "few steps"),
    ("fraction_bits", "align", "steps"),
    ("binary group", "fraction_bits", "align"),
    ("binary group", "fraction_bits", "align", "few steps"),
)
#: Changes of the order of operations, which a node tries in addition to those of its accumulator.
ORDERS: tuple[tuple[str, ...], ...] = (("order",), ("order", "steps"))
#: Lists with some values of a field.
_SOME: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "binary group": ("group_size", lambda n: n & (n - 1) == 0),
    "short exact_group": ("exact_group", lambda n: n in (1, 2, 4, 8, 16)),
    "few lanes": ("lanes", lambda n: n in (1, 2, 4, 8, 16)),
    "large zero_exponent": ("zero_exponent", lambda e: e is None or e > -32),
}
#: Promotion intervals in steps of the candidate: None for no promotion, 0 for one after all of K.
_STEPS: dict[str, Values] = {
    "steps": (None, 1, 2, 3, 4, 8, 16, 0), "few steps": (None, 1, 2, 3, 4), "many steps": (None, *range(1, 33)),
}  # fmt: skip

# The weights were set on nine drawn accumulators; half or twice as much of each names as many.
_DISTANCE = 1.5  # weight of half the distance, in doublings of the number of candidates of a change
_PATIENCE = 2000  # candidates of a kind that count as one doubling, so that the search alternates between kinds
_LATER = 1.5  # cost of a start, in changes, for each nearer start of its kind
_LATER_ORDER = 0.5  # this cost for changes of the order: distances in another order are not informative
_EARLY = 7  # by how many changes `THREE` costs less than other changes of its size
_WITHIN = 4  # cost of a candidate within a library, relative to one without
_KEPT = 3  # number of children of an expansion that become nodes
_NEARER = 0.96  # limit of a child's distance, relative to the parent's; larger changes of the parent reach the others
_RANKED = 6  # number of entries of the ranking that are starts
_EARLIER = 4  # number of explanations of earlier dumps that are starts
_DAMAGED = 4000  # candidates that are tried after one that explains all but a few outputs, which may be damaged


def find(
    search: Search, ranked: Sequence[Candidate], earlier: Sequence[Candidate] = ()
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the candidates that explain the dumps, else the nearest one; and the steps that were not reached in time.

    Parameters
    ----------
    search : Search
        The dumps, and the time at which the search ends.
    ranked : sequence of Candidate
        Entries of the catalogue, the nearest first.
    earlier : sequence of Candidate
        Explanations of the first dumps. Those that explain all dumps are returned; the search starts from the others.
    """
    few = [(search.score_sample(c), c) for c in search.deadline.limit(earlier)]
    if good := [c for own, c in few if search.passes(own) and search.score_all(c).wrong == 0]:
        return good, ()
    nearest = [c for _, c in sorted(few, key=lambda x: x[0])][:_EARLIER]
    plan = BestFirst(search)
    found = plan.run([*nearest, *ranked][:_RANKED])
    return found, plan.untried() if search.late else ()


class BestFirst:
    """Best-first search for the arithmetic of dumps.

    Parameters
    ----------
    search : Search
        The dumps, and the time at which the search ends.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        fields = search.space.fields if search.space.orders else {}
        self._values = {kind: self._lists(values) for kind, values in fields.items()}
        self._open: dict[Kind, list[Any]] = {kind: [] for kind in self._values}
        self._spent: dict[Kind, int] = dict.fromkeys(self._values, 0)
        self._seen: set[Any] = set()
        self._best: list[tuple[Score, Candidate]] = []  # candidates that few outputs do not refute, on all outputs
        self._turn = itertools.count()
        self._least = math.inf  # distance of the nearest node

    def run(self, first: Sequence[Candidate]) -> list[Candidate]:
        """Search from the catalogue and some other candidates; return the explanations, else the nearest candidate."""
        search, stop = self._search, None
        self._start(first)
        while any(self._open.values()) and not (self._solved or search.late or (stop and search.tried >= stop)):
            kind = min((k for k in self._open if self._open[k]),
                       key=lambda k: self._open[k][0][0] + self._spent[k] / _PATIENCE)  # fmt: skip
            _, _, own, changes, c, depth = heapq.heappop(self._open[kind])
            before = search.tried
            for new, other in self._children(c, changes[0]):
                if new.far < own.far * _NEARER:
                    self._push(other, new, CHANGES, depth + 1)
                    self._push(other, new, ORDERS, depth + 1)
                if new.far < self._least * _NEARER:
                    self._least = new.far
                    self._share(other)
            self._spent[kind] += search.tried - before
            self._push(c, own, changes[1:], depth)
            if stop is None and any(search.explains(c, own) for own, c in self._best):
                stop = search.tried + max(_DAMAGED, search.tried // 2)
        if not self._best:
            nodes = [(own.far, turn, c) for heap in self._open.values() for _, turn, own, _, c, _ in heap]
            return [min(nodes)[2]] if nodes else []
        least = min(own.wrong for own, _ in self._best)
        if not any(search.explains(c, own) for own, c in self._best if own.wrong == least):
            return [min(self._best, key=lambda x: x[0])[1]]
        return list(dict.fromkeys(c for own, c in self._best if own.wrong == least))

    def untried(self) -> tuple[str, ...]:
        """Return the open changes of the nearest candidate of each kind, one line per kind."""
        lines = []
        for kind, heap in self._open.items():
            if heap:
                _, _, _, changes, c, _ = min(heap, key=lambda node: (node[2].far, node[1]))
                lines.append(f"{kind.__name__}, from {c}: {'; '.join(' with '.join(change) for change in changes)}")
        return tuple(lines) or ("all beyond the catalogue",)

    @property
    def _solved(self) -> bool:
        return any(own.wrong == 0 for own, _ in self._best)

    def _lists(self, fields: dict[str, Values]) -> dict[str, Values]:
        """Return the values of every list that a change names, for the fields of a kind."""
        some = {name: tuple(v for v in fields.get(field, ()) if fits(v)) for name, (field, fits) in _SOME.items()}
        absent = dict.fromkeys(itertools.chain(*CHANGES, *THREE, *ORDERS), ())
        return {**absent, **fields, **some, **_STEPS, "order": self._search.space.orders}

    def _start(self, first: Sequence[Candidate]) -> None:
        """Add nodes for given candidates, the catalogue's entries, and these entries with the most fraction bits."""
        space, nodes = self._search.space, list(first)
        for kind, values in self._values.items():
            plain = [c for start in space.starts[kind] if (c := start.within(space.orders[0])) is not None]
            nodes += plain
            if values["fraction_bits"]:
                bits = max(values["fraction_bits"])
                nodes += [
                    other
                    for c in plain
                    for output in values["output_format"] or (None,)
                    if (other := c.changed(fraction_bits=bits, output_format=output)) is not None
                ]
        looked = [(own, n, c) for n, c in enumerate(nodes)
                  if type(c.accumulator) in self._open and (own := self._look(c)) is not None]  # fmt: skip
        self._least = min((own.far for own, _, _ in looked), default=math.inf)
        entered: Counter[Any] = Counter()
        for own, _, c in sorted(looked, key=lambda x: (x[0].far, x[1])):
            m = c.accumulator
            exact = bool(self._values[type(m)]["fraction_bits"]) and c.value_of("fraction_bits") == 40
            like = type(m), m.output_format, exact, c.library is None
            self._push(c, own, CHANGES, _LATER * entered[like])
            self._push(c, own, ORDERS, _LATER_ORDER * entered[like])
            if c.library is None and not entered[type(m), m.output_format]:
                self._push(c, own, THREE, -_EARLY)  # of which the other starts differ in fields that are set
                entered[type(m), m.output_format] += 1
            entered[like] += 1

    def _share(self, c: Candidate) -> None:
        """Add nodes of all other kinds that have the group size and promotion interval of a candidate near the dump.

        These two values can be seen in the outputs whatever the kind.
        """
        taken = {name: getattr(c, name, getattr(c.accumulator, name, None)) for name in ("group_size", "promote_every")}
        for kind in self._open:
            for start in self._search.space.starts[kind] if kind is not type(c.accumulator) else ():
                within = start.within(c.library)
                other = None if within is None else within.changed(**taken)
                if other is not None and (own := self._look(other)) is not None:
                    self._push(other, own, CHANGES, 1)

    def _push(self, c: Candidate, own: Score, changes: tuple[tuple[str, ...], ...], depth: float) -> None:
        """Add a node to its heap, with the first change that has several values for its kind."""
        kind = type(c.accumulator)
        for at, change in enumerate(changes):
            size = math.prod(len(self._values[kind][name]) for name in change)
            if size > 1:
                often = c.changed(promote_every=_step(c)) if any(name in _STEPS for name in change) else None
                size *= self._search.cost_of_sample(often or c) * (1 if c.library is None else _WITHIN)
                key = _DISTANCE * math.log2(own.far + 0.02) + math.log2(size) + depth
                heapq.heappush(self._open[kind], (key, next(self._turn), own, changes[at:], c, depth))
                return

    def _look(self, c: Candidate) -> Score | None:
        """Score a candidate on the sample, and on all outputs if it passes; None if it was seen before or fails."""
        if (key := c.key()) in self._seen:
            return None
        self._seen.add(key)
        search = self._search
        own = search.score_sample(c)
        if own == FAILED:
            return None
        if search.passes(own):
            whole = search.score_all(c)
            self._best.append((whole, c))
            if whole.wrong > search.allowed and own.wrong == 0:
                search.add_counterexamples(c)
        return own

    def _children(self, c: Candidate, change: tuple[str, ...]) -> list[tuple[Score, Candidate]]:
        """Return the nearest of the candidates that a change of a node gives."""
        found: list[tuple[Score, int, Candidate]] = []
        for n, other in enumerate(expand(c, change, self._values[type(c.accumulator)], self._search.dump.k)):
            if (own := self._look(other)) is not None:
                found = sorted([*found, (own, n, other)], key=lambda x: (x[0].far, x[1]))[:_KEPT]
            if self._solved or self._search.late:
                break
        return [(own, other) for own, _, other in found]


def expand(c: Candidate, change: tuple[str, ...], values: dict[str, Values], k: int) -> Iterator[Candidate]:
    """Yield a candidate with every combination of a change's values.

    If the group size changes, both of these are tried: the same promotion interval, and the same number of steps.
    """
    every = c.promote_every
    for combination in itertools.product(*(values[name] for name in change)):
        chosen = dict(zip(change, combination, strict=True))
        base = c.within(chosen.pop("order")) if "order" in chosen else c
        of_steps = [chosen.pop(name) for name in _STEPS if name in chosen]
        fields = {_SOME[name][0] if name in _SOME else name: value for name, value in chosen.items()}
        if base is None:
            continue
        if "group_size" in fields and not of_steps and every is not None:
            other = base.changed(**fields)
            if other is not None and every % _step(other) == 0:
                yield other
            of_steps = [max(every // _step(c), 1)]
        other = base.changed(**fields, **({"promote_every": None} if of_steps else {}))
        if other is not None and of_steps and of_steps[0] is not None:
            step = _step(other)
            other = other.changed(promote_every=of_steps[0] * step or -(-k // step) * step)
        if other is not None:
            yield other


def _step(c: Candidate) -> int:
    return max(c.accumulator.step(), 1)
