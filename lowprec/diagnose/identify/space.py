"""Which accumulators, and which orders around them, may have made a dump: what can vary, and over which values.

A kind of accumulator heeds its own fields (`heeded_fields`); here are the values of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...format.catalogue import Format, formats
from ...tensorcore.accumulator import FLOAT16, FLOAT32, FLOAT64, TF32, Accumulator, heeded_fields
from ...tensorcore.catalogue import accumulators
from ...tensorcore.kinds import KINDS
from ...tensorcore.library import GemmLibrary
from .candidate import Candidate, MmaCandidate
from .dump import GemmDump

Kind = type[Accumulator]
_TILE = 128  # of which runs of a split K are made
_TF32_READING = (FLOAT32, TF32)
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


@dataclass(frozen=True)
class Space:
    """What may have made a dump.

    Attributes
    ----------
    orders : tuple of GemmLibrary or None
        Every order of operations that the dump can show, the plain ones first; None: an instruction alone.
    fields : dict of kind to dict
        Kinds of accumulators, with the fields that each heeds and their values.
    starts : dict of kind to tuple of Candidate
        The catalogue's accumulators of each kind, for any formats; those alike once.
    """

    orders: tuple[GemmLibrary | None, ...]
    fields: dict[Kind, dict[str, Values]]
    starts: dict[Kind, tuple[MmaCandidate, ...]]

    @classmethod
    def of(cls, dump: GemmDump) -> Space:
        """Return the space of a dump."""
        kinds: list[Kind] = [kind for kind in KINDS if any(_fits(output, dump) for output in kind.output_formats)]
        fields = {
            kind: {name: FIELDS[name](kind, dump) for name in ("input_formats", *heeded_fields(kind))} for kind in kinds
        }
        return cls(_orders(dump), fields, {kind: _starts(kind, dump) for kind in kinds})


def _orders(dump: GemmDump) -> tuple[GemmLibrary | None, ...]:
    plain = () if dump.blocks is not None or dump.out not in (FLOAT32, FLOAT16, FLOAT64) else (None,)
    if dump.quantized is None:
        return plain
    found: list[GemmLibrary] = []
    tiles, rounds = -(-dump.k // _TILE), dump.out != FLOAT32 or dump.scaled or dump.c is not None
    splits = {-(-tiles // n): n for n in range(tiles, 0, -1)}  # each length of a run once
    for scales, fused in (("promotion", True), ("promotion", False), ("end", True)):
        if dump.blocks is None and (scales, fused) != ("end", True):
            continue  # without scales nothing shows where they are applied
        if scales == "end" and dump.quantized[0].scale.shape[1] > 1:
            continue
        for k_order in ("increasing", "interleaved"):
            for n in sorted(splits.values()):
                for split_sum in ("float32", "out") if n > 1 and rounds else ("float32",):
                    found.append(
                        GemmLibrary("found", scales, None, fused, k_order, n, split_sum)  # type: ignore[arg-type]
                    )
    first = GemmLibrary("found", "end", None)
    if plain and dump.c is None:
        found = [library for library in found if library != first]  # the same as an instruction alone
    found.sort(key=lambda x: (_changes(x), x.split_k))
    return (*plain, *found)


def _changes(x: GemmLibrary) -> int:
    """Return in how many ways an order is not the plainest."""
    return (x.split_sum != "float32") + (x.split_k > 1) + (x.k_order != "increasing") + (not x.fused)


def _longest(dump: GemmDump) -> int:
    """Return the longest group that differs from shorter ones: all of K, in a power of two, is in one sum."""
    return min(256, 1 << (dump.k - 1).bit_length())


def _fits(output: Format, dump: GemmDump) -> bool:
    """Tell whether results of a type can have become a dump's outputs."""
    if (output == FLOAT64) != (dump.out == FLOAT64):
        return False
    return output == FLOAT16 or dump.out != FLOAT16 or dump.quantized is not None


def _starts(kind: Kind, dump: GemmDump) -> tuple[MmaCandidate, ...]:
    found: dict[Any, MmaCandidate] = {}
    for name in accumulators:
        machine = accumulators[name]
        if type(machine) is kind and _fits(machine.output_format, dump):
            tf32 = machine.lists(TF32) and FLOAT32 in (dump.fa, dump.fb)
            free = MmaCandidate(replace(machine, name="found", input_formats=_TF32_READING if tf32 else ()))
            found.setdefault(free.key(), free)
    return tuple(found.values())


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
    found = {field: candidate.value_of(field) for field in heeded_fields(type(candidate.accumulator))}
    zero, every = found.get("zero_exponent"), found.get("promote_every")
    bits = found.get("fraction_bits", 0)
    if zero is not None and (zero <= least_exponent(dump) or zero - bits <= _unit(dump)):
        found["zero_exponent"] = None
    if every is not None and every >= dump.k:
        found["promote_every"] = None if dump.c is None else dump.k
    return found
