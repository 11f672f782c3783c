"""The search for an arithmetic: grids over fields that hide each other, then one field after the other.

A candidate is first computed on a few outputs, which most do not survive, then on all; outputs that refute it join the
few. The order is fixed, so that the same dump has the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import formats
from ...registry import cached
from ...tensorcore.accumulator import FLOAT64, Accumulator, Kind
from .candidate import Candidate
from .dump import Dump, Part
from .space import COARSE, Around, Values, arounds, axes, changed, field_of, kinds_for, starts

_FEW = 5  # rows and columns of the first outputs
_TOLD = 16  # and of those of further dumps: of probes few outputs tell candidates apart, and all of them are needed
_HARD = 12  # outputs that the best candidate leaves, on which others are compared before all outputs
_WORTH = 4  # so many times more outputs must there be in all
_LEARNT = 5  # outputs that are added to them where those leave a wrong candidate
_BEST = 4  # candidates of a grid that are gone on with
_SWEEPS = 4
_ROUNDS = 6
_KEPT = 3  # lots of outputs that candidates are compared on first: those at the start, and the last ones added
_COUNTED = 500  # microseconds that count as a candidate more
_SLOW = (20, 12.0)  # microseconds of a call of a reference, and nanoseconds of a product
_FAST = (60, 0.1)  # of a fast kernel
_SIMPLE = (180, 0.4)  # of a fast kernel of a kind whose reference is not compiled: operands are laid out in NumPy
_FEW_PRODUCTS = 1 << 14  # which no fast kernel takes
_GROUPS, _SHORT = 4, 32  # groups that are promoted together, and products of one, that are asked before a search
_RARE = 5  # so much rarer than may be damaged: then no other kind is looked at
_HIDDEN = ("group", "fraction_bits", "align", "output", "promote_every", "run")  # fields that hide each other


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
    dumps : tuple of Dump
    allowed : int
        Outputs of the first dump that may differ all the same.
    limit : int
        Candidates to try before it ends.
    tried : int
        Candidates tried so far; one that takes longer counts as several, by what its kind is known to take.
    """

    dumps: tuple[Dump, ...]
    allowed: int
    limit: int
    tried: int = 0

    def __post_init__(self) -> None:
        self._few = [dump.sample(_TOLD if i else _FEW) for i, dump in enumerate(self.dumps)]
        self._hard: list[tuple[Part, int]] = []
        self._bar = self.allowed + 1  # outputs that the best candidate so far leaves
        self._all = [dump.parts() for dump in self.dumps]

    @property
    def dump(self) -> Dump:
        """The first dump, whose formats decide what there is to search."""
        return self.dumps[0]

    @property
    def near(self) -> bool:
        """Whether a candidate was found that leaves no more outputs than may be damaged."""
        return self._bar <= self.allowed

    @property
    def spent(self) -> bool:
        """Whether as many candidates were tried as may be."""
        return self.tried >= self.limit

    def few(self, candidate: Candidate) -> Score:
        """Score a candidate on a few outputs."""
        return self._score(candidate, self._few)

    def whole(self, candidate: Candidate) -> Score:
        """Score a candidate on all outputs; one of a further dump counts for all that may be damaged in the first."""
        first = self._score(candidate, self._all[0])
        if len(self.dumps) == 1 or first == FAILED:
            return first
        rest = self._score(candidate, [part for parts in self._all[1:] for part in parts])
        return Score(first.wrong + (self.allowed + 1) * rest.wrong, first.far + rest.far)

    def _score(self, candidate: Candidate, parts: Sequence[Part]) -> Score:
        before = self.tried
        self.tried += 1 + sum(cost(candidate, part) for part in parts) // _COUNTED
        wrong, far, n = 0, 0.0, 0
        try:
            for part in parts:
                one = score(candidate.outputs(part), part.wanted)
                wrong, far, n = wrong + one.wrong, far + one.far * len(part.wanted), n + len(part.wanted)
        except (ValueError, TypeError):
            self.tried = before  # what cannot be computed takes no time
            return FAILED
        return Score(wrong, far / n)

    def passes(self, own: Score) -> bool:
        """Tell whether a score on the few outputs leaves hope: some of them may be damaged."""
        return own.wrong <= max(1, _outputs(self._few) // 12)

    def _may(self, candidate: Candidate) -> bool:
        """Tell whether a candidate may leave fewer outputs than the best so far, by some that it leaves."""
        return all(self._score(candidate, [part]).wrong < most for part, most in self._hard)

    def _best_so_far(self, candidate: Candidate, wrong: int) -> None:
        """Keep how many outputs a candidate leaves, if they are the fewest, and some of them."""
        if wrong >= self._bar:
            return
        self._bar, self._hard = wrong, []
        part = self._left(candidate, self.dump, _HARD) if wrong else None
        if part is not None and _WORTH * len(part.wanted) <= self.dump.d.size:
            self._hard = [(part, self._score(candidate, [part]).wrong)]

    def _left(self, candidate: Candidate, dump: Dump, most: int) -> Part | None:
        """Return the rows and columns of some outputs that a candidate does not give."""
        at = np.flatnonzero(np.concatenate([candidate.differing(part) for part in dump.parts()]))
        if not at.size:
            return None
        chosen = at[np.linspace(0, at.size - 1, min(most, at.size)).astype(np.intp)]
        places = np.array([dump.place(int(i)) for i in chosen])
        return dump.part(np.unique(places[:, 0]), np.unique(places[:, -1]))

    def learn(self, candidate: Candidate) -> None:
        """Add outputs that a candidate does not give to the few on which candidates are compared first."""
        self._few += [part for dump in self.dumps if (part := self._left(candidate, dump, _LEARNT)) is not None]
        first = len(self.dumps)
        self._few = self._few[:first] + self._few[first:][-_KEPT + 1 :]

    def best(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the nearest of some candidates on the few outputs; or one alone that explains all outputs."""
        found: list[tuple[Score, int, Candidate]] = []
        for i, candidate in enumerate(candidates):
            if self.spent:
                break
            own = self.few(candidate)
            if own == FAILED:
                continue
            if self.passes(own) and self._may(candidate) and self.whole(candidate).wrong <= max(self._bar - 1, 0):
                return [candidate]
            found.append((own, i, candidate))
            if len(found) > 1000:
                found = sorted(found, key=lambda x: x[:2])[:_BEST]
        return [candidate for _, _, candidate in sorted(found, key=lambda x: x[:2])[:_BEST]]

    def improve(self, candidate: Candidate, fields: dict[str, Values]) -> tuple[Score, Candidate]:
        """Change one field after the other to what is nearest; go on with outputs that were not looked at yet."""
        own = self.whole(candidate)
        for field, values in fields.items():  # one step may be all; a way down begins with the first field's
            for other in moves(candidate, field, values):
                if self.spent:
                    break
                if self.few(other).wrong == 0 and (new := self.whole(other)) < own:
                    own, candidate = new, other
            if own.wrong <= self.allowed:
                break
        for _ in range(_ROUNDS):
            if own.wrong == 0 or self.spent:
                break
            other = self._descend(candidate, fields)
            new = self.whole(other) if other != candidate else own
            better = new < own
            if better:
                own, candidate = new, other
            if own.wrong == 0 or not self.passes(self.few(candidate)) or (own.wrong <= self.allowed and not better):
                break
            self.learn(candidate)
        self._best_so_far(candidate, own.wrong)
        return own, candidate

    def _descend(self, candidate: Candidate, fields: dict[str, Values]) -> Candidate:
        own = self.few(candidate)
        for _ in range(_SWEEPS):
            before = own
            for field, values in fields.items():
                for other in moves(candidate, field, values if not self.spent else ()):
                    new = self.few(other)
                    if new < own:
                        own, candidate = new, other
            if own == before or own.wrong == 0 or self.spent:
                break
        return candidate


def cost(candidate: Candidate, part: Part) -> int:
    """Return about how many microseconds of a core outputs take: from shapes and kinds, so that it is always the same.

    A chain that is promoted is as many calls as it has intervals; few products, and those of kinds without a fast
    kernel for these formats, go through a reference.
    """
    m, (rows, k), columns = candidate.accumulator, part.a.shape, len(part.b)
    every = min(int(field_of(candidate, "promote_every") or k), k)
    calls = -(-k // every)
    products = rows * columns * calls * max(every, m.rule.step(m))
    few = m.rule.reference_is_compiled and rows * columns * k <= _FEW_PRODUCTS
    fast = not few and _has_kernel(m, part.fa, part.fb)
    call, product = (_FAST if m.rule.reference_is_compiled else _SIMPLE) if fast else _SLOW
    return int(call * calls + products * product / 1000)


@cached(1024)
def _has_kernel(machine: Accumulator, fa: str, fb: str) -> bool:
    tf32 = formats["tf32"]
    pair = (tf32 if machine.lists(tf32) and fmt == "float32" else formats[fmt] for fmt in (fa, fb))
    return machine.rule.fast(machine, *pair) is not None


def _outputs(parts: Sequence[Part]) -> int:
    return sum(len(part.wanted) for part in parts)


def score(ours: NDArray[Any], theirs: NDArray[Any]) -> Score:
    """Compare bits with bits."""
    size = 8 * ours.itemsize
    half = np.int64(1) << (size - 1) if size < 64 else None
    if half is None:  # float64: one bit is enough to tell
        return Score(int(np.count_nonzero(ours != theirs)), float(np.mean(ours != theirs)))
    x, y = (np.where(u >= half, half - u, u) for u in (ours.astype(np.int64), theirs.astype(np.int64)))
    return Score(int(np.count_nonzero(ours != theirs)), float(np.mean(np.log2(1.0 + np.abs(x - y)))))


def neighbours(candidate: Candidate, field: str, values: Values) -> Iterator[Candidate]:
    """Yield candidates with another value of one field; a group takes the interval of promotion with it."""
    for value in values:
        other = changed(candidate, **{field: value})
        if other is None and field == "group":
            other = _with_group(candidate, value)
        if other is not None and other != candidate:
            yield other


def moves(candidate: Candidate, field: str, values: Values) -> Iterator[Candidate]:
    """Yield neighbours, and two fields at once: a group with its interval, and an interval that is a group instead."""
    yield from neighbours(candidate, field, values)
    every = field_of(candidate, "promote_every")
    if every is None or not candidate.accumulator.rule.has_groups:
        return
    group = field_of(candidate, "group")
    both: list[dict[str, Any]] = []
    if field == "promote_every":
        both = [{"group": every, "promote_every": None}]
    elif field == "group":
        both = [{"group": value, "promote_every": max(every // group, 1) * value} for value in values]
    for changes in both:
        other = changed(candidate, **changes)
        if other is not None and other != candidate:
            yield other


def _with_group(candidate: Candidate, group: int) -> Candidate | None:
    every = candidate.accumulator.promote_every
    return None if every is None else changed(candidate, group=group, promote_every=-(-every // group) * group)


def grid(machine: Accumulator, around: Around, fields: dict[str, Values], names: Sequence[str]) -> Iterator[Candidate]:
    """Yield an accumulator with every combination of some fields."""
    chosen = [(name, fields[name]) for name in names if name in fields]
    base = around.candidate(machine, None)
    for combination in itertools.product(*(values for _, values in chosen)):
        found = changed(base, **dict(zip((name for name, _ in chosen), combination, strict=True)))
        if found is not None:
            yield found


def coarse(fields: dict[str, Values]) -> dict[str, Values]:
    """Return the few values of each field from which a search starts."""
    return {name: tuple(v for v in values if COARSE.get(name, lambda _: True)(v)) for name, values in fields.items()}


Found = list[tuple[Score, Candidate]]


def find(search: Search, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that explain a dump; else the nearest.

    The catalogue's accumulators of other formats come first, almost as they are. Then what is nearest is changed, and
    grids of ever more values are looked at; the search ends with the first kind of accumulator that leaves nothing.
    """
    dump = search.dump
    if len(search.dumps) > 1:  # by all of them, since the first may not tell kinds apart
        ranked = sorted(ranked, key=search.whole)
    order = [candidate.accumulator.rule for candidate in ranked]
    possible = sorted(kinds_for(dump), key=lambda kind: order.index(kind) if kind in order else len(order))
    if dump.out == FLOAT64 or not possible:
        return []
    found: Found = []
    for stage in (_of_other_formats, _near, _own_groups, _coarse, _within, _promoted, _pairs, _everything):
        good = min((own for own, _ in found if own.wrong <= search.allowed), default=FAILED)
        if good.wrong == 0:
            break
        if good != FAILED and stage not in (_promoted, _pairs):
            continue  # what leaves a few outputs may still be a neighbour of what leaves none
        for kind in possible[: None if good == FAILED else 1]:
            near = [c for _, c in sorted((x for x in found if x[1].accumulator.rule is kind), key=_first)]
            found += stage(search, kind, near or [c for c in ranked if c.accumulator.rule is kind][:2])
            rare = 0 if stage is _of_other_formats else search.allowed // _RARE  # the catalogue is asked whole
            if search.spent or any(own.wrong <= rare for own, _ in found):
                break
        nearest = {kind.name: min((own for own, c in found if c.accumulator.rule is kind), default=FAILED)
                   for kind in possible}  # fmt: skip
        possible = sorted(possible, key=lambda kind: nearest[kind.name])
    least = min(own.wrong for own, _ in found)
    good_ones = [c for own, c in found if own.wrong == least and least <= search.allowed]
    return list(dict.fromkeys(good_ones or [c for _, c in sorted(found, key=_first)[:1]]))


def refine(search: Search, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return what explains all dumps: of candidates that explain the first, else of the nearest with fields changed."""
    if not candidates:
        return []
    few = [search.few(candidate) for candidate in candidates]
    good = [c for c, own in zip(candidates, few, strict=True) if search.passes(own) and search.whole(c).wrong == 0]
    if good:
        return good
    order = [candidates[i] for i in sorted(range(len(candidates)), key=lambda i: few[i])]
    starting = [Candidate(machine) for kind in kinds_for(search.dump) for machine in starts(kind, search.dump)]
    first: dict[Kind, Candidate] = {}  # of each kind: the first dump may not tell them apart
    for candidate in (*order, *starting):
        first.setdefault(candidate.accumulator.rule, candidate)
    short = {other.key(): other for c in (*order[:_BEST], *starting) for other in _short_groups(c, search.dump)}
    once = (other for c in dict.fromkeys((*order[:_BEST], *first.values())) for other in _changed_once(c, search.dump))
    stages: tuple[Callable[[], list[Candidate]], ...] = (
        lambda: search.best(itertools.chain(short.values(), once)),
        lambda: order[:_BEST],
        lambda: [c for c in first.values() if c not in order[:_BEST]],
    )
    for stage in stages:
        some = stage()
        found = [search.improve(c, axes(c.accumulator.rule, search.dump)) for c in some]
        if good := [c for own, c in found if own.wrong == 0]:
            return list(dict.fromkeys(good))
    return []


def _changed_once(candidate: Candidate, dump: Dump) -> Iterator[Candidate]:
    """Yield a candidate with another value of each field."""
    for field, values in axes(candidate.accumulator.rule, dump).items():
        yield from moves(candidate, field, values)


def _short_groups(candidate: Candidate, dump: Dump) -> Iterator[Candidate]:
    """Yield a candidate with short groups, promoted every few of them."""
    groups = axes(candidate.accumulator.rule, dump).get("group", ())
    for group, times in itertools.product(groups, range(1, _GROUPS + 1)):
        other = changed(candidate, group=group, promote_every=times * group) if group <= _SHORT else None
        if other is not None:
            yield other


def _first(x: tuple[Score, Candidate]) -> Score:
    return x[0]


def _of_other_formats(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Take what the catalogue has of a kind for any formats: unchanged, else promoted every power of two."""
    dump = search.dump
    plain = [Candidate(machine) for machine in (starts(kind, dump) if Around() in arounds(dump) else ())]
    every = tuple(n for n in axes(kind, dump)["promote_every"] if n is None or n & (n - 1) == 0)
    promoted = (other for c in plain for other in neighbours(c, "promote_every", every))
    for some in (plain, promoted):
        found = [(search.whole(c), c) for c in some if search.passes(search.few(c))]
        if any(own.wrong <= search.allowed for own, _ in found):
            return found
    return []


def _near(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Put what the catalogue has of a kind within every order of operations, and change one field after the other."""
    dump = search.dump
    every = {"promote_every": coarse(axes(kind, dump))["promote_every"]}
    ends = search.best(
        candidate
        for around in arounds(dump)
        for machine in starts(kind, dump)
        for candidate in grid(machine, around, every, ("promote_every",))
    )
    if "product_exponent" in kind.fields and Around() in arounds(dump):  # it hides what other fields do
        shifts = {name: axes(kind, dump)[name] for name in ("product_exponent", "output")}
        ends = (
            search.best(c for machine in starts(kind, dump) for c in grid(machine, Around(), shifts, tuple(shifts)))
            + ends
        )
    first = [c for c in near if c.library is None or dump.scaled][:1]
    plain = [c for c in ends if field_of(c, "promote_every") is None] or search.best(map(Candidate, starts(kind, dump)))
    return _from(search, kind, list(dict.fromkeys([*first, *ends[:2], *plain[:1]])))


def _own_groups(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Give the catalogue's accumulators any fraction bits and alignment, and promote every few of their groups."""
    fields = axes(kind, search.dump)
    some = {name: fields[name] for name in ("fraction_bits", "align") if name in fields}
    candidates = (
        candidate
        for machine in starts(kind, search.dump)
        for every in (None, *(n * machine.rule.step(machine) for n in range(1, _GROUPS + 1)))
        for candidate in grid(
            machine, arounds(search.dump)[0], some | {"promote_every": (every,)}, (*some, "promote_every")
        )
    )
    return _from(search, kind, search.best(candidates)[:1])


def _coarse(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Search a kind within the first order of operations by a grid of few values."""
    return _by_grid(search, kind, arounds(search.dump)[:1], coarse(axes(kind, search.dump)), _HIDDEN)


def _promoted(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Promote every so many whole groups: what is nearest, and the catalogue's with the other fields of the nearest."""
    fields, found = axes(kind, search.dump), []
    kept = [name for name in fields if name not in ("inputs", "group", "promote_every", "output")]
    same = [{name: field_of(c, name) for name in kept} for c in near[:1]]
    others = [changed(Candidate(machine), **values) for values in same for machine in starts(kind, search.dump)]
    for base in dict.fromkeys([*near[:2], *(other for other in others if other is not None)]):
        found += _from(search, kind, search.best(_whole_groups(base, fields))[:2])
        if search.spent or any(own.wrong == 0 for own, _ in found):
            break
    return found


def _pairs(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Search fields that hide each other two by two, all of their values, from where a search ended."""
    fields, found = axes(kind, search.dump), []
    few = coarse(fields)
    steps: list[tuple[Sequence[Candidate], dict[str, Values]]] = []
    for names in (("group", "fraction_bits"), ("fraction_bits", "zero_exponent")):
        steps += [([c], {n: fields[n] for n in names if n in fields}) for c in near[:2]]
    some = {n: fields[n] for n in ("fraction_bits", "promote_every") if n in fields}
    wide = tuple(n for n in few.get("group", ()) if n >= 8)
    steps.append((near[:1], some | {"group": wide} | {n: fields[n] for n in ("align",) if n in fields}))
    zeros = tuple(z for z in fields.get("zero_exponent", ()) if z is None or z > -32)
    steps.append((near[:1], {n: few[n] for n in ("group", "fraction_bits") if n in few} | {"zero_exponent": zeros}))
    for bases, chosen in steps[: 1 if search.near else None]:  # what leaves so few may just be damaged
        values = {name: v for name, v in chosen.items() if name in fields}
        for base in bases:
            around = Around(base.library)
            ends = search.best(grid(base.accumulator, around, values, tuple(values)))
            found += _from(search, kind, ends[:2])
            if search.spent or any(own.wrong == 0 for own, _ in found):
                return found
    return found


def _whole_groups(base: Candidate, fields: dict[str, Values]) -> Iterator[Candidate]:
    """Yield a candidate with every group, promoted every so many of them."""
    intervals = {n for n in fields["promote_every"] if n is not None}
    for group in fields.get("group", ()):
        for interval in (n for n in range(group, max(intervals, default=0) + 1, group) if n in intervals):
            other = changed(base, group=group, promote_every=interval)
            if other is not None:
                yield other


def _within(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Search a kind within every other order of operations."""
    fields = axes(kind, search.dump)
    few = coarse(fields)
    some = few | {name: few[name][:1] for name in ("align", "run") if name in few}
    return _by_grid(search, kind, arounds(search.dump)[1:], some, _HIDDEN)


def _everything(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Search every group with every interval and every number of bits, as far as the limit allows."""
    fields = axes(kind, search.dump)
    return _by_grid(search, kind, arounds(search.dump)[:1], fields | {"run": (1,)}, _HIDDEN)


def _by_grid(
    search: Search, kind: Kind, around: Sequence[Around], values: dict[str, Values], names: Sequence[str]
) -> Found:
    chosen = {name: v for name, v in values.items() if name in kind.fields or name == "inputs"}
    base = starts(kind, search.dump)[0]
    found: Found = []
    for one in around:
        found += _from(search, kind, search.best(grid(base, one, chosen, ("inputs", *names))))
        if search.spent or any(own.wrong <= search.allowed for own, _ in found):
            break
    return found


def _from(search: Search, kind: Kind, candidates: Sequence[Candidate]) -> Found:
    """Go on from some candidates, one field after the other; the first that explains the dump is enough."""
    fields, found = axes(kind, search.dump), []
    for candidate in candidates:
        found.append(search.improve(candidate, fields))
        if found[-1][0].wrong <= search.allowed:
            break
    return found
