"""Which accumulators, and which orders around them, may have made a dump: what can vary, and over which values.

A kind of accumulator heeds its own fields (`heeded_fields`); here are the values of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...format.catalogue import Format, formats
from ...tensorcore.accumulator import FLOAT16, FLOAT32, FLOAT64, Accumulator, heeded_fields
from ...tensorcore.catalogue import accumulators
from ...tensorcore.kinds import KINDS
from ...tensorcore.library import GemmLibrary
from .candidate import Candidate
from .dump import GemmDump

Kind = type[Accumulator]
_TILE = 128  # of which runs of a split K are made
_TF32_READING = (FLOAT32, formats["tf32"])
_FLOAT32_READINGS = ((), _TF32_READING)

_SCALE_FORMATS = (formats["e8m0fnu"], formats["e4m3fn"])

Values = tuple[Any, ...]
#: Values of each field of an accumulator that a kind may heed, for a dump; the likelier first.
FIELDS: dict[str, Callable[[Kind, GemmDump], Values]] = {
    "group": lambda kind, dump: tuple(sorted(range(1, _longest(dump) + 1), key=lambda n: (n & (n - 1) != 0, n))),
    "fraction_bits": lambda kind, dump: tuple(range(3, 41)),
    "align": lambda kind, dump: tuple(kind.alignments),
    "output_format": lambda kind, dump: tuple(o for o in kind.output_formats if _fits(o, dump)),
    "zero_exponent": lambda kind, dump: (None, *range(least_exponent(dump) + 1, _largest_exponent(dump) + 1)),
    "run": lambda kind, dump: tuple(sorted(range(1, 33), key=lambda n: (n & (n - 1) != 0, n))),
    "promote_every": lambda kind, dump: (None, *range(1, dump.k + (256 if dump.c is not None else 0))),
    "daz_formats": lambda kind, dump: ((), tuple(dict.fromkeys((dump.fa, dump.fb)))),
    "product_exponent": lambda kind, dump: tuple(sorted(range(-127, 128), key=abs)),
    "saturate": lambda kind, dump: (False, True),
    "scale_format": lambda kind, dump: (None,) if dump.scales is None else _SCALE_FORMATS,
    "scale_block": lambda kind, dump: (0,) if dump.scales is None else (dump.k // dump.scales.a.shape[1],),
    "input_formats": lambda kind, dump: _FLOAT32_READINGS if FLOAT32 in (dump.fa, dump.fb) else ((),),
}


def orders(dump: GemmDump) -> tuple[GemmLibrary | None, ...]:
    """Return every order of operations that a dump can show, the plain ones first; None: an instruction alone."""
    plain = () if dump.blocks is not None or dump.out not in (FLOAT32, FLOAT16, FLOAT64) else (None,)
    if dump.quantized is None:
        return plain
    found: list[GemmLibrary] = []
    splits = {-(-_tiles(dump) // n): n for n in range(_tiles(dump), 0, -1)}  # each length of a run once
    for scales, fused in (("promotion", True), ("promotion", False), ("end", True)):
        if dump.blocks is None and (scales, fused) != ("end", True):
            continue  # without scales nothing shows where they are applied
        if scales == "end" and dump.quantized[0].scale.shape[1] > 1:
            continue
        for k_order in ("increasing", "interleaved"):
            for n in sorted(splits.values()):
                for split_sum in ("float32", "out") if n > 1 and _rounding_shows(dump) else ("float32",):
                    found.append(
                        GemmLibrary("found", scales, None, fused, k_order, n, split_sum)  # type: ignore[arg-type]
                    )
    first = GemmLibrary("found", "end", None)
    if plain and dump.c is None:
        found = [library for library in found if library != first]  # the same as an instruction alone
    found.sort(key=lambda x: (_changes(x), x.split_k))
    return (*plain, *found)


def within(candidate: Candidate, order: GemmLibrary | None) -> Candidate | None:
    """Return a candidate within another order of operations, promoted as before; None if that is not possible."""
    every = field_of(candidate, "promote_every")
    machine = candidate.accumulator
    if candidate.library is None and every is not None:
        machine = dataclasses.replace(machine, promote_every=None)
    if order is None:
        return changed(Candidate(machine), promote_every=every)
    return Candidate(machine, dataclasses.replace(order, promote_every=every))


def _changes(x: GemmLibrary) -> int:
    """Return in how many ways an order is not the plainest."""
    return (x.split_sum != "float32") + (x.split_k > 1) + (x.k_order != "increasing") + (not x.fused)


def _longest(dump: GemmDump) -> int:
    """Return the longest group that differs from shorter ones: all of K, in a power of two, is in one sum."""
    return min(256, 1 << (dump.k - 1).bit_length())


def _tiles(dump: GemmDump) -> int:
    return -(-dump.k // _TILE)


def _rounding_shows(dump: GemmDump) -> bool:
    return dump.out != FLOAT32 or dump.scaled or dump.c is not None


def _fits(output: Format, dump: GemmDump) -> bool:
    """Tell whether results of a type can have become a dump's outputs."""
    if (output == FLOAT64) != (dump.out == FLOAT64):
        return False
    return output == FLOAT16 or dump.out != FLOAT16 or dump.quantized is not None


def axes(kind: Kind, dump: GemmDump) -> dict[str, Values]:
    """Return the fields that a kind heeds and their values for a dump."""
    return {field: FIELDS[field](kind, dump) for field in ("input_formats", *heeded_fields(kind))}


def kinds_for(dump: GemmDump) -> Iterator[Kind]:
    """Yield the kinds that may have made a dump."""
    for kind in KINDS:
        if any(_fits(output, dump) for output in kind.output_formats):
            yield kind


def starts(kind: Kind, dump: GemmDump) -> list[Accumulator]:
    """Return the catalogue's accumulators of a kind, for any formats; those alike once."""
    found: dict[Any, Accumulator] = {}
    for name in accumulators:
        machine = accumulators[name]
        if type(machine) is kind and _fits(machine.output_format, dump):
            tf32 = machine.lists(formats["tf32"]) and FLOAT32 in (dump.fa, dump.fb)
            free = dataclasses.replace(machine, name="found", input_formats=_TF32_READING if tf32 else ())
            found.setdefault(Candidate(free).key(), free)
    return list(found.values())


def changed(candidate: Candidate, **changes: Any) -> Candidate | None:
    """Return a candidate with other fields, of those that its kind has; None if they do not go together."""
    machine, library = candidate.accumulator, candidate.library
    known = ("input_formats", *heeded_fields(type(machine)))
    changes = {field: value for field, value in changes.items() if field in known}
    if library is not None and "promote_every" in changes:
        library = dataclasses.replace(library, promote_every=changes.pop("promote_every"))
    try:
        return Candidate(dataclasses.replace(machine, **changes), library)
    except ValueError:
        return None


def field_of(candidate: Candidate, field: str) -> Any:
    """Return what a candidate has in a field; the interval of promotion is its library's where it has one."""
    if field == "promote_every" and candidate.library is not None:
        return candidate.library.promote_every
    return getattr(candidate.accumulator, field)


def neighbours(candidate: Candidate, field: str, values: Values) -> Iterator[Candidate]:
    """Yield candidates with another value of one field; a group takes the interval of promotion with it."""
    for value in values:
        other = changed(candidate, **{field: value})
        if other is None and field == "group":
            other = _with_group(candidate, value)
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


# Exponents of zeros


def least_exponent(dump: GemmDump) -> int:
    """Return an exponent that no nonzero term falls below: zeros at or below it never show.

    A nonzero product has the sum of its operands' exponents, subnormals that of the smallest normal number, and what a
    sum starts from that of the result's.
    """
    return min(dump.fa.emin + dump.fb.emin - _scale_range(dump), _stored(dump).emin)


def _largest_exponent(dump: GemmDump) -> int:
    """Return an exponent above all terms that do not overflow, and above which zeros leave nothing."""
    top = dump.fa.emax + dump.fb.emax + _scale_range(dump) + 2
    return min(max(top, 0), 128) + 40


def _unit(dump: GemmDump) -> int:
    """Return the exponent of two of which every product and every sum of them, with C, is a multiple."""
    fa, fb = dump.fa, dump.fb
    unit = fa.emin - fa.mantissa_bits + fb.emin - fb.mantissa_bits - _scale_range(dump)
    stored = _stored(dump)
    return unit if dump.c is None else min(unit, stored.emin - stored.mantissa_bits)


def _scale_range(dump: GemmDump) -> int:
    return 0 if dump.scales is None else 256


def _stored(dump: GemmDump) -> Format:
    return FLOAT16 if dump.out == FLOAT16 and dump.blocks is None else FLOAT32


def plain_fields_of(candidate: Candidate, dump: GemmDump) -> Mapping[str, Any]:
    """Return what decides bits for these operand formats and this K, equal for what is provably one arithmetic.

    Zeros that take part at an exponent that no nonzero term falls below take no part. Nor do those by which only bits
    would be cut that no term has: all terms are multiples of what the least products and the least C are multiples of.
    A promotion after all of K is none, but for C, which it adds in float32.
    """
    found = {field: field_of(candidate, field) for field in heeded_fields(type(candidate.accumulator))}
    zero, every = found.get("zero_exponent"), found.get("promote_every")
    bits = found.get("fraction_bits", 0)
    if zero is not None and (zero <= least_exponent(dump) or zero - bits <= _unit(dump)):
        found["zero_exponent"] = None
    if every is not None and every >= dump.k:
        found["promote_every"] = None if dump.c is None else dump.k
    return found
