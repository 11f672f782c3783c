"""Alternatives to a candidate: other values of one or two fields, other kinds and orders, and the simplest form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...tensorcore.accumulator import heeded_fields
from .candidate import Candidate, candidate_of
from .dump import GemmDump
from .normal_form import NormalForms
from .search import Search, Values, plain_fields_of

Alike = dict[str, tuple[Any, ...]]
_PAIRS = (
    ("group_size", "promote_every"), ("group_size", "fraction_bits"), ("fraction_bits", "align"),
    ("fraction_bits", "zero_exponent"), ("exact_group", "group_size"), ("lanes", "group_size"),
)  # fmt: skip
_OF_EACH = 12  # largest number of listed values for a pair of fields
_LOOKED_AT = 400  # largest number of tried values for a pair of fields: some kinds lack a fast kernel
_WIDTHS = 8  # how many numbers of fraction bits, the smallest, are returned for another kind
_UNORDERED = ("fraction_bits", "input_formats")  # fields with values that are all equally plain


class Equivalents(NamedTuple):
    """Other explanations of the dumps.

    Attributes
    ----------
    open : dict of str to tuple
        Other values of one field that these dumps do not distinguish, though others might.
    proven : dict of str to tuple
        Other values that give the same outputs for all operands of these formats and this K, proven by normal forms.
    others : list of Candidate
        The same accumulator in other orders of operations, and accumulators of other kinds.
    """

    open: Alike
    proven: Alike
    others: list[Candidate]


def equivalents(search: Search, candidate: Candidate, wrong: int) -> Equivalents:
    """Return other candidates that, like the given one, leave at most `wrong` outputs unexplained."""
    dump, forms = search.dump, NormalForms(search.dump, search.deadline)
    proven: dict[str, list[Any]] = {}
    open_: dict[str, list[Any]] = {}
    for field, values in search.space.fields[type(candidate.accumulator)].items():
        if len(values) == 1:
            continue
        for other in search.deadline.limit(neighbours(candidate, field, values)):
            value = other.value_of(field)
            if _same(candidate, other, dump):
                proven.setdefault(field, []).append(value)
            elif search.may_accept(other, wrong):
                if forms.same(candidate, other):  # a proof takes less time than all outputs
                    proven.setdefault(field, []).append(value)
                elif search.accepts(other, wrong):
                    open_.setdefault(field, []).append(value)
    ordered = (candidate.within(order) for order in search.deadline.limit(search.space.orders))
    others = [c for c in ordered if c is not None and c.key() != candidate.key() and search.is_as_good(c, wrong)]
    return Equivalents(
        {k: tuple(v) for k, v in open_.items()}, {k: tuple(v) for k, v in proven.items()},
        others + _other_kinds(search, candidate, wrong),
    )  # fmt: skip


def neighbours(candidate: Candidate, field: str, values: Values) -> Iterator[Candidate]:
    """Yield candidates with another value of one field; another group size may also change the promotion interval.

    If the promotion interval does not fit the group size, it is raised to a multiple of a step.
    """
    every = candidate.accumulator.promote_every
    for value in values:
        other = candidate.changed(**{field: value})
        if other is None and field == "group_size" and every is not None:
            plain = candidate.changed(group_size=value, promote_every=None)
            if plain is not None:
                step = plain.accumulator.step()
                other = plain.changed(promote_every=-(-every // step) * step)
        if other is not None and other != candidate:
            yield other


def _other_kinds(search: Search, candidate: Candidate, wrong: int) -> list[Candidate]:
    """Return accumulators of other kinds that leave at most `wrong` outputs unexplained, in the same order.

    Each is tried with its group size, result format and promotion interval, and with the candidate's; then with groups
    as long as the candidate's interval, or K, without promotion. If none of these fits, it is tried with exact groups
    of one product, or with the most fraction bits. Candidates with the fewest sufficient fraction bits are also
    returned.
    """
    found: list[Candidate] = []
    for kind, fields in search.space.fields.items():
        if kind is type(candidate.accumulator):
            continue
        bits = fields.get("fraction_bits", ())
        more: list[dict[str, Any]] = [{}]
        more += [{part: 1} for part in ("exact_group", "lanes") if 1 in fields.get(part, ())]
        more += [{"fraction_bits": max(bits)}] if bits else []
        good: dict[Any, Candidate] = {}
        for alone in search.space.starts[kind]:
            start = candidate_of(alone.accumulator, candidate.library)
            for changes in search.deadline.limit(more):
                others = (start.changed(**taken, **changes) for taken in _taken(start, candidate, search.dump.k))
                new = [c for c in others if c is not None and c.key() not in good and search.is_as_good(c, wrong)]
                good |= {c.key(): c for c in new}
                if new:
                    break
        found += good.values()
        for c in list(good.values())[:1]:
            fewer = (c.changed(fraction_bits=b) for b in bits if b < c.value_of("fraction_bits"))
            found += itertools.islice((f for f in fewer if f is not None and search.is_as_good(f, wrong)), _WIDTHS)
    return found


def _taken(start: Candidate, candidate: Candidate, k: int) -> list[dict[str, Any]]:
    """Return group sizes, intervals and result formats to try for an accumulator of another kind."""
    named = heeded_fields(type(start.accumulator))
    groups = [c.value_of("group_size") for c in (start, candidate)]
    every = [c.promote_every for c in (start, candidate)]
    both = [*itertools.product(groups, every), (every[1] or k, None), (k, None)]
    outputs = [c.accumulator.output_format for c in (start, candidate)] if "output_format" in named else [None]
    chosen = [
        {name: value
         for name, value in zip(("group_size", "promote_every", "output_format"), (*pair, output), strict=True)
         if name == "promote_every" or name in named}
        for pair in both for output in outputs
    ]  # fmt: skip
    return [taken for i, taken in enumerate(chosen) if taken not in chosen[:i]]


def pairs(search: Search, candidate: Candidate, forms: NormalForms) -> tuple[Candidate, ...]:
    """Return a few candidates per pair of fields, with other values of both, that explain as many outputs.

    Candidates that are proven equal are omitted.
    """
    wrong, found = search.score_all(candidate).wrong, []
    fields = search.space.fields[type(candidate.accumulator)]
    for names in _PAIRS:
        if any(len(fields.get(name, ())) < 2 for name in names):
            continue
        every = list(itertools.product(*(fields[name] for name in names)))
        some: list[Candidate] = []
        chosen = np.random.Generator(np.random.Philox(0)).permutation(len(every))[:_LOOKED_AT]
        for i in search.deadline.limit(chosen):
            other = candidate.changed(**dict(zip(names, every[i], strict=True)))
            if other is None or any(other.value_of(name) == candidate.value_of(name) for name in names):
                continue
            if _same(candidate, other, search.dump) or not search.may_accept(other, wrong):
                continue
            if not forms.same(candidate, other) and search.accepts(other, wrong):
                some.append(other)
            if len(some) == _OF_EACH:
                break
        found += some
    return tuple(found)


def plainest(search: Search, candidate: Candidate, wrong: int) -> Candidate:
    """Return the candidate, or one nearer to the catalogue that explains as many outputs.

    Fields are set to the values of the nearest entry, then to more likely ones: no promotion, with any group size; no
    zeros in the alignment; terms truncated toward zero; a group size that is a power of two.
    """
    fields, dump = search.space.fields[type(candidate.accumulator)], search.dump
    if candidate.library is None and candidate.promote_every is not None:
        for group in search.deadline.limit(fields.get("group_size", ())):
            other = candidate.changed(group_size=group, promote_every=None)
            if other is not None and _far(other, dump) <= _far(candidate, dump) and search.is_as_good(other, wrong):
                candidate = other
                break
    base, changes = candidate.nearest(dump)
    for field in (name for name in changes if name in fields and name not in ("promote_every", "input_formats")):
        other = candidate.changed(**{field: getattr(base, field)})
        if other is not None and search.is_as_good(other, wrong):
            candidate = other
    for field, values in fields.items():
        for value in search.deadline.limit(values):  # more likely values come first
            if value == candidate.value_of(field) or field in _UNORDERED:
                break
            other = candidate.changed(**{field: value})
            if other is not None and _far(other, dump) < _far(candidate, dump) and search.is_as_good(other, wrong):
                candidate = other
                break
    return candidate


def _far(candidate: Candidate, dump: GemmDump) -> int:
    """Return the number of fields in which an accumulator differs from the nearest entry of the catalogue."""
    return len(candidate.nearest(dump)[1])


def _same(one: Candidate, other: Candidate, dump: GemmDump) -> bool:
    m, n = one.accumulator, other.accumulator
    same = (type(m), m.input_formats) == (type(n), n.input_formats)
    return same and plain_fields_of(one, dump) == plain_fields_of(other, dump)


def spelled(values: tuple[Any, ...]) -> str:
    """Return values as text: runs of integers as ranges."""
    numbers = sorted(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    words = [repr(v) for v in values if not isinstance(v, int) or isinstance(v, bool)]
    while numbers:
        n = 1
        while n < len(numbers) and numbers[n] == numbers[0] + n:
            n += 1
        words.append(str(numbers[0]) if n == 1 else f"{numbers[0]} to {numbers[n - 1]}")
        numbers = numbers[n:]
    return ", ".join(words)
