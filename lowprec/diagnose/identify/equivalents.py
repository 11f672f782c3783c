"""What else explains a dump: other values of one field, or two; other kinds and orders; and what is plainest."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...tensorcore.accumulator import heeded_fields
from .candidate import Candidate, nearest
from .normal_form import NormalForms
from .search import Score, Search
from .space import axes, changed, field_of, kinds_for, neighbours, orders, plain_fields_of, starts, within

Alike = dict[str, tuple[Any, ...]]
_PAIRS = (
    ("group", "promote_every"), ("group", "fraction_bits"), ("fraction_bits", "align"),
    ("fraction_bits", "zero_exponent"), ("run", "group"),
)  # fmt: skip
_OF_EACH = 12  # pairs of two fields that are listed
_LOOKED_AT = 400  # of each two fields: some kinds have no fast kernel
_WIDTHS = 8  # of another kind that explains a dump as well, the fewest that do
_UNORDERED = ("fraction_bits", "input_formats")  # none of whose values is plainer than another


def alike(search: Search, candidate: Candidate, forms: NormalForms) -> tuple[Alike, Alike]:
    """Return for each field the other values that leave no more outputs than a candidate does.

    First those that only this dump does not tell apart, then those that give the same for all operands of these
    formats and this K, as their forms prove.
    """
    own, dump = search.score_all(candidate), search.dump
    proven: dict[str, list[Any]] = {}
    open_: dict[str, list[Any]] = {}
    for field, values in axes(type(candidate.accumulator), dump).items():
        if len(values) == 1:
            continue
        for other in neighbours(candidate, field, values):
            value = field_of(other, field)
            if _same(candidate, other, search):
                proven.setdefault(field, []).append(value)
            elif search.may_accept(other, own.wrong):
                if forms.same(candidate, other):  # a proof takes less time than all outputs
                    proven.setdefault(field, []).append(value)
                elif search.accepts(other, own.wrong):
                    open_.setdefault(field, []).append(value)
    return {k: tuple(v) for k, v in open_.items()}, {k: tuple(v) for k, v in proven.items()}


def other_orders(search: Search, candidate: Candidate) -> list[Candidate]:
    """Return the same accumulator within every other order of operations that leaves no more outputs."""
    own = search.score_all(candidate)
    others = (within(candidate, order) for order in orders(search.dump))
    return [c for c in others if c is not None and c.key() != candidate.key() and _as_good(search, c, own)]


def other_kinds(search: Search, candidate: Candidate) -> list[Candidate]:
    """Return what the catalogue has of other kinds that leaves no more outputs, within the same order.

    Each with its own groups, result and interval of promotion, and with the candidate's; with groups as long as the
    candidate's interval, or K, and no promotion; where that is not enough, in runs of one product, or with as many
    fraction bits as there are. Of those with fewer fraction bits that do as well, the fewest are given, too.
    """
    own = search.score_all(candidate)
    found: list[Candidate] = []
    for kind in kinds_for(search.dump):
        if kind is type(candidate.accumulator):
            continue
        every, bits = axes(kind, search.dump), [b for b in axes(kind, search.dump).get("fraction_bits", ()) if b]
        more: list[dict[str, Any]] = [{}]
        more += [{"run": 1}] if 1 in every.get("run", ()) else []
        more += [{"fraction_bits": max(bits)}] if bits else []
        good: dict[Any, Candidate] = {}
        for machine in starts(kind, search.dump):
            start = Candidate(machine, candidate.library)
            for changes in more:
                others = (changed(start, **taken, **changes) for taken in _taken(start, candidate, search.dump.k))
                new = [c for c in others if c is not None and c.key() not in good and _as_good(search, c, own)]
                good |= {c.key(): c for c in new}
                if new:
                    break
        found += good.values()
        for c in list(good.values())[:1]:
            fewer = (changed(c, fraction_bits=b) for b in sorted(bits) if b < field_of(c, "fraction_bits"))
            found += itertools.islice((f for f in fewer if f is not None and _as_good(search, f, own)), _WIDTHS)
    return found


def _taken(start: Candidate, candidate: Candidate, k: int) -> list[dict[str, Any]]:
    """Return groups, intervals and results that another kind's accumulator may have beside a candidate."""
    named = heeded_fields(type(start.accumulator))
    groups = [field_of(c, "group") for c in (start, candidate)]
    every = [field_of(c, "promote_every") for c in (start, candidate)]
    both = [*itertools.product(groups, every), (every[1] or k, None), (k, None)]
    outputs = [field_of(c, "output_format") for c in (start, candidate)] if "output_format" in named else [None]
    chosen = [
        {name: value for name, value in zip(("group", "promote_every", "output_format"), (*pair, output), strict=True)
         if name == "promote_every" or name in named}
        for pair in both for output in outputs
    ]  # fmt: skip
    return [taken for i, taken in enumerate(chosen) if taken not in chosen[:i]]


def pairs(search: Search, candidate: Candidate, forms: NormalForms) -> tuple[Candidate, ...]:
    """Return candidates with other values of two fields that leave no more outputs, some of each two fields.

    What provably gives the same is none of them.
    """
    own, found = search.score_all(candidate), []
    fields = axes(type(candidate.accumulator), search.dump)
    for names in _PAIRS:
        if any(len(fields.get(name, ())) < 2 for name in names):
            continue
        every = list(itertools.product(*(fields[name] for name in names)))
        some: list[Candidate] = []
        for i in np.random.Generator(np.random.Philox(0)).permutation(len(every))[:_LOOKED_AT]:
            other = changed(candidate, **dict(zip(names, every[i], strict=True)))
            both = other is not None and all(field_of(other, name) != field_of(candidate, name) for name in names)
            if other is None or not both or _same(candidate, other, search):
                continue
            if not search.may_accept(other, own.wrong) or forms.same(candidate, other):
                continue
            if search.accepts(other, own.wrong):
                some.append(other)
            if len(some) == _OF_EACH:
                break
        found += some
    return tuple(found)


def plainest(search: Search, candidate: Candidate) -> Candidate:
    """Return a candidate that leaves no more outputs and is nearer to the catalogue, if there is one.

    Fields are set to their likelier values one by one: no promotion, with any group; no zeros in the alignment; terms
    cut toward zero; a group that is a power of two.
    """
    own = search.score_all(candidate)
    fields = axes(type(candidate.accumulator), search.dump)
    if candidate.library is None and field_of(candidate, "promote_every") is not None:
        for group in fields.get("group", ()):
            other = changed(candidate, group=group, promote_every=None)
            if other is not None and _far(other, search) <= _far(candidate, search) and _as_good(search, other, own):
                candidate = other
                break
    for field, values in fields.items():
        for value in values:  # the likelier ones come first
            if value == field_of(candidate, field) or field in _UNORDERED:
                break
            other = changed(candidate, **{field: value})
            if other is not None and _far(other, search) < _far(candidate, search) and _as_good(search, other, own):
                candidate = other
                break
    return candidate


def _far(candidate: Candidate, search: Search) -> int:
    """Return in how many fields an accumulator is not the nearest of the catalogue."""
    return len(nearest(candidate.accumulator, search.dump)[1])


def _as_good(search: Search, other: Candidate, own: Score) -> bool:
    return search.may_accept(other, own.wrong) and search.accepts(other, own.wrong)


def _same(one: Candidate, other: Candidate, search: Search) -> bool:
    m, n = one.accumulator, other.accumulator
    return (type(m), m.input_formats) == (type(n), n.input_formats) and (
        plain_fields_of(one, search.dump) == plain_fields_of(other, search.dump)
    )


def spelled(values: tuple[Any, ...]) -> str:
    """Return values in words: runs of whole numbers as ranges."""
    numbers = sorted(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    words = [repr(v) for v in values if not isinstance(v, int) or isinstance(v, bool)]
    while numbers:
        n = 1
        while n < len(numbers) and numbers[n] == numbers[0] + n:
            n += 1
        words.append(str(numbers[0]) if n == 1 else f"{numbers[0]} to {numbers[n - 1]}")
        numbers = numbers[n:]
    return ", ".join(words)
