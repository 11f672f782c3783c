"""In which order a search looks at candidates: the catalogue, grids over fields that hide each other, by probes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ...tensorcore.accumulator import FLOAT32, Accumulator, heeded_fields
from .candidate import Candidate
from .dump import FLOAT64, Dump
from .moves import GROUPS, RUNS, SHORT, changed_once, coarse, grid, neighbours, short_groups
from .search import BEST, FAILED, Score, Search
from .space import Around, Kind, Values, arounds, axes, changed, field_of, kinds_for, starts

_RARE = 5  # so much rarer than may be damaged: then no other kind is looked at
_SHARE = 10  # of all candidates so much may go into one kind's few groups
_OF_STAGE, _OF_ONE = 2, 4  # of what is left a stage has one of so many parts, and of its own a kind
_CUTS = ("fraction_bits", "align", "output_format")
_HIDDEN = ("group", "fraction_bits", "align", "output_format", "promote_every", "run")  # fields that hide each other

Found = list[tuple[Score, Candidate]]


def find(search: Search, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that explain a dump; else the nearest.

    The catalogue's accumulators of other formats come first, almost as they are. Then what is nearest is changed, and
    grids of ever more values are looked at; the search ends with the first kind of accumulator that leaves nothing.
    """
    dump = search.dump
    if len(search.dumps) > 1:  # by all of them, since the first may not tell kinds apart
        ranked = sorted(ranked, key=search.whole)
    order = [type(candidate.accumulator) for candidate in ranked]
    possible = sorted(kinds_for(dump), key=lambda kind: order.index(kind) if kind in order else len(order))
    if dump.out == FLOAT64 or not possible:
        return []
    found: Found = []
    quick = _of_other_formats, _plain, _whole_steps, _own_groups  # nothing is descended from: all kinds are asked
    for stage in (*quick, _near, _few_groups, _coarse, _within, _promoted, _pairs, _everything):
        good = min((own for own, _ in found if own.wrong <= search.allowed), default=FAILED)
        if good.wrong == 0:
            break
        if good != FAILED and stage not in (_promoted, _pairs):
            continue  # what leaves a few outputs may still be a neighbour of what leaves none
        rare = 0 if stage in quick else search.allowed // _RARE
        with search.share(_OF_STAGE):
            for kind in possible[: None if good == FAILED else 1]:
                near = [c for _, c in sorted((x for x in found if type(x[1].accumulator) is kind), key=_first)]
                with search.share(_OF_ONE):
                    found += stage(search, kind, near or [c for c in ranked if type(c.accumulator) is kind][:2])
                if search.spent or any(own.wrong <= rare for own, _ in found):
                    break
        nearest = {kind: min((own for own, c in found if type(c.accumulator) is kind), default=FAILED)
                   for kind in possible}  # fmt: skip
        possible = sorted(possible, key=lambda kind: nearest[kind])
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
    nearest = [candidates[i] for i in sorted(range(len(candidates)), key=lambda i: few[i])][:BEST]
    short = {other.key(): other for c in nearest for other in short_groups(c, search.dump)}
    once = (other for c in nearest for other in changed_once(c, search.dump))
    stages: tuple[Callable[[], list[Candidate]], ...] = (
        lambda: search.best(itertools.chain(short.values(), once)),
        lambda: nearest,
    )
    with search.share(_OF_STAGE):  # the rest is for a search of all kinds
        for stage in stages:
            with search.share(_OF_STAGE):
                found = [search.improve(c, axes(type(c.accumulator), search.dump)) for c in stage()]
            if good := [c for own, c in found if own.wrong == 0]:
                return list(dict.fromkeys(good))
    return []


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


def _starts(kind: Kind, dump: Dump, near: Sequence[Candidate]) -> list[Accumulator]:
    """Return what the catalogue has of a kind, what is nearest first: of two that do the same its name is given."""
    order = [tuple(field_of(c, name) for name in heeded_fields(kind)) for c in near]
    own = {machine: tuple(getattr(machine, name) for name in heeded_fields(kind)) for machine in starts(kind, dump)}
    return sorted(own, key=lambda machine: order.index(own[machine]) if own[machine] in order else len(order))


def _plain(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Take what is nearest of a kind with groups and runs that are powers of two, and any bits: no field is descended.

    It says which kinds come first.
    """
    dump = search.dump
    fields, around = coarse(axes(kind, dump)), arounds(dump)[0]
    some = {"group": fields.get("group", ()), "run": tuple(n for n in fields.get("run", ()) if n in RUNS)}
    some = {name: values for name, values in some.items() if values}
    cuts = {name: fields[name] for name in _CUTS if name in fields}
    machines = _starts(kind, dump, near)
    candidates = itertools.chain(
        (c for machine in machines for c in grid(machine, around, some, tuple(some))),
        grid(machines[0], around, some | cuts, ("group", "run", *cuts)) if cuts else (),
    )
    return [(search.whole(c), c) for c in search.best(candidates)[:1]]


def _whole_steps(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Take every group of a kind, promoted after so many of its steps or never: fields that descents miss together.

    A group that is a power of two has runs that are, too; bits are the catalogue's, and as many as there are. All that
    the catalogue has of the kind is taken with every group.
    """
    dump = search.dump
    around, fields = arounds(dump)[0], axes(kind, dump)
    bases = [Candidate(starts(kind, dump)[0])]
    if "fraction_bits" in fields:
        wide = {
            "fraction_bits": max(fields["fraction_bits"]),
            "output_format": fields.get("output_format", (FLOAT32,))[0],
        }
        bases += [other for other in (changed(bases[0], **wide),) if other is not None]
    runs = tuple(n for n in fields.get("run", ()) if n in RUNS)
    each = (
        changed(base, group=group, run=run)
        for base in bases
        for group in fields.get("group", ())
        for run in dict.fromkeys((field_of(base, "run"), *(runs if group & (group - 1) == 0 else ())))
    )
    candidates = (
        around.candidate(one.accumulator, every)
        for one in each if one is not None
        for every in (None, *(n * one.accumulator.step() for n in range(1, GROUPS + 1)))
        if every is None or every < dump.k
    )  # fmt: skip
    name = ("group",) if "group" in fields else ()
    others = (c for machine in starts(kind, dump)[1:] for c in grid(machine, around, fields, name))
    return [(search.whole(c), c) for c in search.best(itertools.chain(others, candidates))[:1]]


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
    if "product_exponent" in heeded_fields(kind) and Around() in arounds(dump):  # it hides what other fields do
        shifts = {name: axes(kind, dump)[name] for name in ("product_exponent", "output_format", "saturate")}
        own = search.best(c for machine in starts(kind, dump) for c in grid(machine, Around(), shifts, tuple(shifts)))
        shifts |= {"group": coarse(axes(kind, dump))["group"]}
        any_group = [] if search.near else search.best(grid(starts(kind, dump)[0], Around(), shifts, tuple(shifts)))
        ends = [*any_group[:1], *own, *ends]
    first = [c for c in near if c.library is None or dump.scaled][:1]
    plain = [c for c in ends if field_of(c, "promote_every") is None] or search.best(map(Candidate, starts(kind, dump)))
    last = search.best(_promoted_last(kind, dump)) if dump.c is not None and Around() in arounds(dump) else []
    return _from(search, kind, list(dict.fromkeys([*first, *ends[:2], *plain[:1], *last[:1]])))


def _promoted_last(kind: Kind, dump: Dump) -> Iterator[Candidate]:
    """Yield what the catalogue has of a kind, with C added to the sum of all products."""
    for machine in starts(kind, dump):
        step = max(machine.step(), 1)
        other = changed(Candidate(machine), promote_every=-(-dump.k // step) * step)
        if other is not None:
            yield other


def _own_groups(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Give the catalogue's accumulators any fraction bits, alignment and result, promoted every few of their groups."""
    fields = axes(kind, search.dump)
    some = {name: fields[name] for name in _CUTS if name in fields}
    candidates = (
        candidate
        for machine in starts(kind, search.dump)
        for every in (None, *(n * machine.step() for n in range(1, GROUPS + 1)))
        for candidate in grid(
            machine, arounds(search.dump)[0], some | {"promote_every": (every,)}, (*some, "promote_every")
        )
    )
    return [(search.whole(c), c) for c in search.best(candidates)[:1]]


def _few_groups(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Promote every few groups of a power of two, with any bits, alignment and result: they hide each other."""
    fields = axes(kind, search.dump)
    some = {name: fields[name] for name in _CUTS if name in fields}
    base = starts(kind, search.dump)[0]
    candidates = (
        candidate
        for group in coarse(fields).get("group", ())
        if group <= SHORT
        for every in range(group, GROUPS * group + 1, group)
        for candidate in grid(
            base, arounds(search.dump)[0], some | {"group": (group,), "promote_every": (every * _groups_a_step(base),)},
            ("group", *some, "promote_every"),
        )
    )  # fmt: skip
    stop = search.tried + search.limit // _SHARE
    return _from(search, kind, search.best(itertools.takewhile(lambda _: search.tried < stop, candidates))[:2])


def _groups_a_step(machine: Accumulator) -> int:
    """Return how many groups a step of an accumulator has."""
    return machine.step() // machine.group if "group" in heeded_fields(type(machine)) else 1


def _coarse(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Search a kind within the first order of operations by a grid of few values."""
    return _by_grid(search, kind, arounds(search.dump)[:1], coarse(axes(kind, search.dump)), _HIDDEN)


def _promoted(search: Search, kind: Kind, near: Sequence[Candidate]) -> Found:
    """Promote every so many whole groups: what is nearest, and the catalogue's with the other fields of the nearest."""
    fields, found = axes(kind, search.dump), []
    kept = [name for name in fields if name not in ("input_formats", "group", "promote_every", "output_format")]
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
    chosen = {name: v for name, v in values.items() if name in heeded_fields(kind) or name == "input_formats"}
    base = starts(kind, search.dump)[0]
    found: Found = []
    for one in around:
        found += _from(search, kind, search.best(grid(base, one, chosen, ("input_formats", *names))))
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
