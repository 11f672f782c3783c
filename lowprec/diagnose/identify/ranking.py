"""Comparison of the catalogue with a dump: outputs that an entry does not give, and the simplest of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...format.catalogue import Format
from ...tensorcore.accumulator import FLOAT64
from ...tensorcore.catalogue import accumulators
from ...tensorcore.library import gemm_libraries
from ..deadline import Deadline
from .candidate import Candidate, GemmCandidate, MmaCandidate, takes
from .dump import GemmDump, Part, values, word_of
from .search import Search

_STEPS = 4096  # largest number of prefixes of K that are searched for the first difference


@dataclass(frozen=True)
class Ranked:
    """Comparison of an entry of the catalogue with a dump.

    Attributes
    ----------
    names : tuple of str
        Names of accumulators with this arithmetic, the best validated one first.
    candidate : Candidate
        Candidate of the first name.
    differing : int
        Number of outputs of the dump that it does not give.
    libraries : tuple of str
        Names of the orders of operations around it, all equal for this dump; empty for a single instruction.
    first_difference : range or None
        For the first output that differs: the range of K in which its sum first differs from that of the arithmetic
        found.
    """

    names: tuple[str, ...]
    candidate: Candidate
    differing: int
    libraries: tuple[str, ...] = ()
    first_difference: range | None = None


def rank(search: Search) -> list[Ranked]:
    """Return the entries that take a dump's operands, those with the fewest differing outputs first.

    Entries that are nearest on a few outputs are computed first; entries after the deadline are omitted.
    """
    first = search.dump.sample(2)
    same: dict[Any, list[Candidate]] = {}
    for candidate in search.deadline.limit(catalogued(search.dump)):
        if candidate.applies(first):
            same.setdefault(_arithmetic(candidate, search.dump), []).append(candidate)
    groups = [sorted(group, key=_standing) for group in same.values()]
    found = []
    for group in sorted(groups, key=lambda group: search.score_sample(group[0])):
        if scores := search.score_dumps(group[0]):
            names = tuple(dict.fromkeys(c.accumulator.name for c in group))
            around = tuple(dict.fromkeys(c.library.name for c in group if c.library is not None))
            found.append(Ranked(names, group[0], scores[0].wrong, () if group[0].library is None else around))
    return sorted(found, key=lambda r: (r.differing, _standing(r.candidate)))


def explained_by_catalogue(dump: GemmDump, deadline: Deadline) -> bool:
    """Return whether an entry of the catalogue gives every output."""
    search = Search((dump,), 0, deadline)
    distinct = {_arithmetic(c, dump): c for c in catalogued(dump)}
    return any(search.is_as_good(c, 0) for c in distinct.values())


def catalogued(dump: GemmDump) -> Iterator[Candidate]:
    """Yield the catalogue's candidates for a dump: single instructions, and accumulators within each library."""
    for name in accumulators:
        machine = accumulators[name]
        if not takes(machine, dump):
            continue
        if not dump.scaled or dump.scales is not None:
            yield MmaCandidate(machine)
        if dump.quantized is None or machine.dtype == np.float64:
            continue
        for library in gemm_libraries:
            if gemm_libraries[library].has_usual_parts:
                yield GemmCandidate(machine, gemm_libraries[library])


def _arithmetic(candidate: Candidate, dump: GemmDump) -> Any:
    """Return the fields that affect this dump's bits; if it has no scales, not the place where scales are applied."""
    kind, fields, tf32, library = candidate.key()
    if library is None or dump.scaled:
        return kind, fields, tf32, library
    every = library.promote_every
    if (every is None or every >= dump.k) and dump.c is None and candidate.accumulator.stored_format == dump.out:
        return kind, fields, tf32, None
    return kind, fields, tf32, every if every is not None and every < dump.k else None, "around"


def _standing(candidate: Candidate) -> tuple[Any, ...]:
    """Return the sort key of equal candidates: no library first, then recorded accumulators, then few formats."""
    machine = candidate.accumulator
    return candidate.library is not None, "recordings" not in machine.validated_against, not machine.input_formats


def with_first_apart(r: Ranked, right: Candidate, search: Search) -> Ranked:
    """Return an entry with `first_difference`: the products after which its sum first differs from the right one."""
    dump, at = search.dump, 0
    for part in search.deadline.limit(dump.parts()):
        wrong = r.candidate.outputs(part) != right.outputs(part)
        if wrong.any():
            at += int(np.argmax(wrong))
            break
        at += wrong.size
    else:
        return r
    part = dump.single(dump.place(at))
    step = max(r.candidate.accumulator.step(), 1, -(-dump.k // _STEPS))
    for start in search.deadline.limit(range(0, dump.k, step)):
        some = _prefix(part, start + step)
        if some is None:
            break
        if (r.candidate.outputs(some) != right.outputs(some)).any():
            return replace(r, first_difference=range(start, min(start + step, dump.k)))
    return r


def _prefix(part: Part, stop: int) -> Part | None:
    """Return a part with only the first products; None if scales do not allow it."""
    if part.scales is not None or (part.quantized is not None and part.quantized[0].scale.shape[1] > 1):
        return None
    a, b = (np.ascontiguousarray(x[:, :stop]) for x in (part.a, part.b))
    pair = None
    if part.quantized is not None:
        q, r = part.quantized
        pair = replace(q, codes=a), replace(r, codes=b)
    return Part(a, b, part.fa, part.fb, part.c, None, pair, part.out, part.wanted, part.diagonal)


@dataclass(frozen=True)
class Term:
    """Nonzero product: its index in K, both codes and both values."""

    k: int
    a_code: int
    a: float
    b_code: int
    b: float

    @property
    def product(self) -> float:
        """Value of the product; exact for operands of up to 24 bits."""
        return self.a * self.b

    @property
    def exponent(self) -> int:
        """Exponent of the normalised product."""
        return int(np.frexp(self.product)[1]) - 1


@dataclass(frozen=True)
class Counterexample:
    """Output that the nearest rule does not give.

    Attributes
    ----------
    place : tuple of int
        Index of the output in d.
    terms : tuple of Term
        Nonzero products of the output.
    c : float or None
        Addend of the output.
    theirs : tuple of int and float
        Bits and value of the output in the dump.
    rules : tuple of (name, bits, value)
        Results of other rules, the nearest rule first.
    """

    place: tuple[int, ...]
    terms: tuple[Term, ...]
    c: float | None
    theirs: tuple[int, float]
    rules: tuple[tuple[str, int, float], ...]


def counterexample(dump: GemmDump, nearest: Candidate, others: Sequence[Candidate]) -> Counterexample | None:
    """Return the differing output with the fewest nonzero products; None if nothing differs."""
    wrong = np.concatenate([nearest.differing(part) for part in dump.parts()])
    if not wrong.any():
        return None
    a, b = values(dump.a, dump.fa) != 0, values(dump.b, dump.fb) != 0
    if dump.by_row:
        products = np.count_nonzero(a & b, axis=1)
    else:  # integers below 2^24: the same on every CPU
        products = (a.astype(np.float32) @ b.astype(np.float32).T).reshape(-1).astype(np.int64)
    at = int(np.flatnonzero(wrong)[np.argmin(products[wrong])])
    place = dump.place(at)
    part = dump.single(place)
    rules = []
    for candidate in (nearest, *others):
        try:
            bits = int(candidate.outputs(part)[0])
        except (ValueError, TypeError):
            continue
        rules.append((str(candidate), bits, _value(bits, dump.out)))
    theirs = int(part.wanted[0])
    return Counterexample(
        place, _terms(dump, place), None if part.c is None else float(part.c[0, 0]), (theirs, _value(theirs, dump.out)),
        tuple(dict.fromkeys(rules)),
    )  # fmt: skip


def _terms(dump: GemmDump, place: tuple[int, ...]) -> tuple[Term, ...]:
    """Return the nonzero products of an output."""
    part = dump.single(place)
    x, y = values(part.a, part.fa)[0], values(part.b, part.fb)[0]
    codes = [codes.view(np.uint64)[0] if codes.dtype == np.float64 else codes[0] for codes in (part.a, part.b)]
    with np.errstate(invalid="ignore"):
        kept = np.flatnonzero((x * y != 0) | np.isnan(x * y))
    return tuple(Term(int(k), int(codes[0][k]), float(x[k]), int(codes[1][k]), float(y[k])) for k in kept)


def _value(bits: int, fmt: Format) -> float:
    """Return the value of an output's bits."""
    word = np.array([bits], word_of(fmt))
    return float(values(word.view(np.float64) if fmt == FLOAT64 else word, fmt)[0])
