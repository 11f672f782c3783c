"""Candidates beside a candidate: other values of a field or two, of all fields, of short groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ...tensorcore.accumulator import Accumulator, heeded_fields
from .candidate import Candidate
from .dump import Dump
from .space import COARSE, Around, Values, axes, changed, field_of

RUNS = (1, 2, 4, 8)  # partial sums of the few that are looked at first
GROUPS, SHORT = 4, 32  # groups that are promoted together, and products of one, that are asked before a search


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
    if every is None or "group" not in heeded_fields(type(candidate.accumulator)):
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
    """Return a candidate with another group, promoted after as many whole steps as reach its interval."""
    every = candidate.accumulator.promote_every
    other = None if every is None else changed(candidate, group=group, promote_every=None)
    if every is None or other is None:
        return None
    step = other.accumulator.step()
    return changed(other, promote_every=-(-every // step) * step)


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


def changed_once(candidate: Candidate, dump: Dump) -> Iterator[Candidate]:
    """Yield a candidate with another value of each field."""
    for field, values in axes(type(candidate.accumulator), dump).items():
        yield from moves(candidate, field, values)


def short_groups(candidate: Candidate, dump: Dump) -> Iterator[Candidate]:
    """Yield a candidate with short groups, promoted every few of them."""
    groups = axes(type(candidate.accumulator), dump).get("group", ())
    for group, times in itertools.product(groups, range(1, GROUPS + 1)):
        other = changed(candidate, group=group, promote_every=times * group) if group <= SHORT else None
        if other is not None:
            yield other
