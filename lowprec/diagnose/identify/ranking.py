"""The catalogue beside a dump: how many outputs each accumulator gives otherwise, and from which k on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...tensorcore.catalogue import accumulators
from ...tensorcore.library import gemm_libraries
from .candidate import Candidate, takes
from .dump import GemmDump, Part

_STEPS = 4096  # prefixes of K that are looked at for the first difference


@dataclass(frozen=True)
class Ranked:
    """What the catalogue has, beside a dump.

    Attributes
    ----------
    names : tuple of str
        Its accumulators of this arithmetic; the first was verified best.
    candidate : Candidate
        The first of them.
    differing : int
        Outputs of the dump that it does not give.
    libraries : tuple of str
        Names of the orders of operations around it that are the same for this dump; none for an instruction alone.
    apart : range or None
        The first products of K after which its sum is another than that of the arithmetic that was found, for the first
        output that differs.
    """

    names: tuple[str, ...]
    candidate: Candidate
    differing: int
    libraries: tuple[str, ...] = ()
    apart: range | None = None


def count(candidate: Candidate, parts: Sequence[Part]) -> int:
    """Return how many outputs of some parts a candidate does not give."""
    return sum(int(np.count_nonzero(candidate.differing(part))) for part in parts)


def rank(dump: GemmDump) -> list[Ranked]:
    """Return what of the catalogue takes a dump's operands, the fewest differing outputs first."""
    parts, first = dump.parts(), dump.sample(2)
    same: dict[Any, list[Candidate]] = {}
    for candidate in catalogued(dump):
        if candidate.applies(first):
            same.setdefault(_arithmetic(candidate, dump), []).append(candidate)
    found = []
    for group in same.values():
        group.sort(key=lambda c: _standing(c))
        names = tuple(dict.fromkeys(c.accumulator.name for c in group))
        around = tuple(dict.fromkeys(c.library.name for c in group if c.library is not None))
        found.append(Ranked(names, group[0], count(group[0], parts), () if group[0].library is None else around))
    return sorted(found, key=lambda r: (r.differing, _standing(r.candidate)))


def catalogued(dump: GemmDump) -> Iterator[Candidate]:
    """Yield what the catalogue has for such a dump: instructions alone, and within each library."""
    for name in accumulators:
        machine = accumulators[name]
        if not takes(machine, dump):
            continue
        if not dump.scaled or dump.scales is not None:
            yield Candidate(machine)
        if dump.quantized is None or machine.dtype == np.float64:
            continue
        for library in gemm_libraries:
            yield Candidate(machine, gemm_libraries[library])


def _arithmetic(candidate: Candidate, dump: GemmDump) -> Any:
    """Return what decides the bits of this dump: without scales it is all one where they are multiplied in."""
    kind, fields, tf32, library = candidate.key()
    if library is None or dump.scaled:
        return kind, fields, tf32, library
    every = library.promote_every
    if (every is None or every >= dump.k) and dump.c is None and candidate.accumulator.stored_format == dump.out:
        return kind, fields, tf32, None
    return kind, fields, tf32, every if every is not None and every < dump.k else None, "around"


def _standing(candidate: Candidate) -> tuple[Any, ...]:
    """Order what explains the same: no library, then recorded accumulators, then those for few formats."""
    machine = candidate.accumulator
    return candidate.library is not None, "recordings" not in machine.verified, not machine.input_formats


def first_apart(candidate: Candidate, right: Candidate, dump: GemmDump, place: tuple[int, ...]) -> range | None:
    """Return the products after which two candidates' sums of one output are first apart."""
    part = dump.single(place)
    step = max(candidate.accumulator.step(), 1)
    step = max(step, -(-dump.k // _STEPS))
    for start in range(0, dump.k, step):
        stop = min(start + step, dump.k)
        some = prefix(part, stop)
        if some is None:
            return None
        if (candidate.outputs(some) != right.outputs(some)).any():
            return range(start, stop)
    return None


def prefix(part: Part, stop: int) -> Part | None:
    """Return a part's first products alone; None where scales do not allow it."""
    if part.scales is not None or (part.quantized is not None and part.quantized[0].scale.shape[1] > 1):
        return None
    a, b = (np.ascontiguousarray(x[:, :stop]) for x in (part.a, part.b))
    pair = None
    if part.quantized is not None:
        q, r = part.quantized
        pair = replace(q, codes=a), replace(r, codes=b)
    return Part(a, b, part.fa, part.fb, part.c, None, pair, part.out, part.wanted, part.diagonal)
