"""What else explains a dump as well: other values of one field after the other."""

from __future__ import annotations

import dataclasses
from typing import Any

from .candidate import Candidate
from .search import Search, neighbours
from .space import arounds, axes, field_of, plain_fields_of

Alike = dict[str, tuple[Any, ...]]


def alike(search: Search, candidate: Candidate) -> tuple[Alike, Alike]:
    """Return for each field the other values that leave no more outputs than a candidate does.

    First those that only this dump does not tell apart, then those that give the same for all operands of these
    formats and this K, as `plain_fields_of` proves.
    """
    own, dump = search.whole(candidate), search.dump
    proven: dict[str, list[Any]] = {}
    open_: dict[str, list[Any]] = {}
    for field, values in axes(candidate.accumulator.rule, dump).items():
        if len(values) == 1:
            continue
        for other in neighbours(candidate, field, values):
            value = field_of(other, field)
            if other.accumulator.kind == candidate.accumulator.kind and _same(candidate, other, search):
                proven.setdefault(field, []).append(value)
            elif search.passes(search.few(other)) and search.whole(other).wrong <= own.wrong:
                open_.setdefault(field, []).append(value)
    return {k: tuple(v) for k, v in open_.items()}, {k: tuple(v) for k, v in proven.items()}


def other_orders(search: Search, candidate: Candidate) -> list[Candidate]:
    """Return the same accumulator within every other order of operations that leaves no more outputs."""
    own, every = search.whole(candidate), field_of(candidate, "promote_every")
    machine = candidate.accumulator
    if candidate.library is None and every is not None:
        machine = dataclasses.replace(machine, promote_every=None)
    found = []
    for around in arounds(search.dump):
        other = around.candidate(machine, every)
        if other.key() != candidate.key() and search.passes(search.few(other)):
            found += [other] if search.whole(other).wrong <= own.wrong else []
    return found


def _same(one: Candidate, other: Candidate, search: Search) -> bool:
    return one.accumulator.inputs == other.accumulator.inputs and (
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
