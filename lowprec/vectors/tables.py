"""Vector sets of formats defined by a table of values: casts, HiF8's hybrid rounding, decoding."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from ..format.catalogue import Format, formats
from ..format.policy import policies
from ..oracle import tables
from ..oracle.casts import Away
from ..oracle.mutants import wrong_rounding
from ..oracle.tables import Table
from ..oracle.values import BFLOAT16, FLOAT16, FLOAT32, Exact, Fields, decode, encode, max_code, two_to
from .casts import (
    FIXED,
    MACHINES,
    ROUNDING_WORDS,
    SOURCE,
    SOURCES,
    fixed_rounding,
    policy,
    special_codes,
    value_of,
    with_fields,
)
from .family import Choice, Family, Rule, SetSpec, Stream, one_of
from .points import Point, source_points
from .vectors import Answer, Field, Words, describe


def with_tables() -> list[str]:
    """Return the names of all formats defined by a table of values."""
    return [name for name in formats.names() if formats[name].is_table]


@functools.cache
def _table(f: Format) -> Table:
    return tables.table([f.value(code) for code in range(1 << f.bits)], getattr(f, "next_above_max", None))


def _format(name: str, before: tuple[str, ...]) -> str:
    f = formats[name]
    if not f.is_table:
        raise ValueError(f"format must be a table of values, got {name}; see cast/{name} and decode/{name}")
    if not f.has_zero:
        raise ValueError(f"format must have a zero, got {name}")
    return f.name


_TABLE, _POLICY = Choice("FORMAT", _format), Choice("POLICY", policy, "ocp_sat")


def _definition(f: Format) -> dict[str, Any]:
    """Return everything that determines the meaning of a format's codes."""
    t = _table(f)
    return {"values": [str(float(v)) for v in t.values], "overflow": f"numbers that round to {float(t.beyond)!r}"}


def _words_at(value: Fraction, source: Fields) -> Iterator[tuple[int, str]]:
    """Yield the source's words for a value and its neighbours; for a value between words, those on either side."""
    sign = 1 << source.width if value < 0 else 0
    top, size = max_code(source), abs(value)
    code = encode(size, source)
    if decode(code, source) == size:
        around = [(code, ""), (code - 1, ", one source ulp nearer to zero"), (code + 1, ", one source ulp beyond")]
    else:
        low = code - (Fraction(decode(code, source)) > size)
        around = [(low, ", the source's number before it"), (low + 1, ", the source's number after it")]
    for word, words in around:
        if 0 <= word <= top:
            yield word | sign, words


def table_points(t: Table, source: Fields, level: int, stream: Stream) -> Iterator[Point]:
    """Yield inputs that a cast to a table can get wrong: values, thresholds between them, extremes and specials."""
    ends = t.grids
    numbers = [-ends[1][-1], *t.numbers, ends[0][-1]]
    for low, high in itertools.pairwise(numbers):
        gap = high - low
        where = f"between {float(low):.7g} and {float(high):.7g}"
        for share, what in (
            (Fraction(0), "a value"), (Fraction(1, 4), "a quarter"), (Fraction(1, 2), "the midpoint"),
            (Fraction(3, 4), "three quarters"),
        ):  # fmt: skip
            for word, place in _words_at(low + gap * share, source):
                yield word, f"{where}: {what}{place}"
    for end in (numbers[0], numbers[-1]):
        for factor in (1, 2, 16):
            for word, place in _words_at(end * factor, source):
                yield word, f"beyond the ends{place}"
    least = min(abs(v) for v in t.numbers if v)
    for word, label in source_points(least, source):
        yield word, label
        yield word | 1 << source.width, f"-{label}"
    for _ in range(4096 if level > 1 else 0):
        at = stream.below(len(numbers) - 1)
        low, high = numbers[at], numbers[at + 1]
        value = low + (high - low) * stream.bits(32) * two_to(-32)
        yield encode(abs(value), source) | (value < 0) << source.width, "random"


class TableCastFamily(Family):
    """Codes of values rounded to a table."""

    name = "cast_table"
    choices = (
        _TABLE, Choice("ROUNDING", fixed_rounding, lambda found: formats[found[0]].default_rounding), _POLICY,
        Choice("SOURCE", SOURCE, "float32", hidden=True),
    )  # fmt: skip
    about = "encode: a number of the source format is rounded once to a code of the table"

    def listed(self) -> list[str]:
        """Return every table with its default rounding and all policies, and with other roundings in two policies."""
        named = [p for p in policies.names() if p not in MACHINES]
        return [
            f"{self.name}/{f}/{mode}/{p}"
            for f in with_tables()
            for mode in FIXED
            for p in ([*named, "cann_sat"] if mode == formats[f].default_rounding else ["ocp_sat", "ocp_nonsat"])
        ]

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        f, mode, preset, source = _parts(parts)
        t, stream = _table(f), Stream(seed, "/".join((self.name, *parts)))
        definition = {
            "source": describe(source), "target": _definition(f), "rounding": ROUNDING_WORDS[mode], "policy": preset,
            "special codes": special_codes(lambda v: tables.cast(v, t, mode, preset), t.beyond, f.bits),
        }  # fmt: skip
        points = (((word,), label) for word, label in table_points(t, source, level, stream))
        fields_ = (Field.of("x", source),), (Field("y", f.bits),)
        return SetSpec(definition, *fields_, points, _cast(t, source, mode, preset))

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield other roundings and policies, wrong rules, and changes before the cast."""
        f, mode, preset, source = _parts(parts)
        t = _table(f)
        for words, wrong in wrong_rounding(mode).items():
            yield Rule(f"{ROUNDING_WORDS[mode]}, but {words}", _cast(t, source, mode, preset, wrong), True)
        if mode == "nearest_away":
            yield Rule("the tie between zero and the least value becomes zero", _no_least(t, source, preset), True)
        if mode.startswith("nearest") and source == FLOAT32:
            yield Rule("midpoints rounded to float32, ties to the lower value", _midpoints(t, preset))
        for other in FIXED:
            if other != mode:
                yield Rule(ROUNDING_WORDS[other], _cast(t, source, other, preset))
        for name in policies.names():
            if name != preset:
                yield Rule(f"policy {name}", _cast(t, source, mode, name))
        for name, middle in (("float32", FLOAT32), ("bfloat16", BFLOAT16), ("float16", FLOAT16)):
            if middle.mantissa_bits < source.mantissa_bits:
                first = functools.partial(_first, _cast(t, middle, mode, preset), source, middle)
                yield Rule(f"first rounded to {name}", first)


def _parts(parts: Sequence[str]) -> tuple[Format, str, str, Fields]:
    return formats[parts[0]], parts[1], parts[2], SOURCES[parts[3] if len(parts) > 3 else "float32"]


def _cast(t: Table, source: Fields, mode: str, preset: str, rule: Away | None = None) -> Answer:
    wrong: dict[str, Any] = {} if rule is None else {"rule": rule}
    return lambda words: (tables.cast(value_of(words[0], source), t, mode, preset, **wrong),)


def _no_least(t: Table, source: Fields, preset: str) -> Answer:
    half = min(abs(v) for v in t.numbers if v) / 2

    def answer(words: Words) -> Words:
        value = value_of(words[0], source)
        return (tables.cast(Fraction(0) if abs(value) == half else value, t, "nearest_away", preset),)

    return answer


def _midpoints(t: Table, preset: str) -> Answer:
    """Return the rule of bitsandbytes: successive comparisons ``x > float32 midpoint``."""
    middles = [
        struct.unpack("<f", struct.pack("<f", float((low + high) / 2)))[0]
        for low, high in itertools.pairwise(t.numbers)
    ]

    def answer(words: Words) -> Words:
        value = value_of(words[0], FLOAT32)
        if not math.isfinite(value):
            return (tables.cast(value, t, "nearest_even", preset),)
        return (t.codes[t.numbers[bisect.bisect_left(middles, value)]],)

    return answer


def _first(answer: Answer, source: Fields, middle: Fields, words: Words) -> Words:
    value = value_of(words[0], source)
    return answer((encode(value, middle, "nonsaturate") | (words[0] >> source.width) << middle.width,))


class HybridFamily(Family):
    """Casts to HiF8 with CANN's hybrid rounding."""

    name = "cast_hybrid"
    choices = (Choice("SOURCE", one_of(("float32", "float16"), "a source is one of")), _POLICY)
    about = "HiF8's hybrid rounding (CAST_HYBRID), as CANN's reference data have it: a number's low bits decide"
    _sources: ClassVar = {"float32": (32, FLOAT32), "float16": (16, FLOAT16)}

    def listed(self) -> list[str]:
        """Return the sets for both sources, saturating or not."""
        return [f"{self.name}/{s}/{p}" for s in self._sources for p in ("ocp_sat", "ocp_nonsat", "cann_sat")]

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        source, stream = self._sources[parts[0]][1], Stream(seed, "/".join((self.name, *parts)))
        definition = {
            "source": describe(source), "target": _definition(formats["hif8"]), "policy": parts[1],
            "rounding": (tables.hybrid.__doc__ or "").strip().split("\n\n")[1],
        }  # fmt: skip
        t = _table(formats["hif8"])
        points = itertools.chain(table_points(t, source, level, stream), _own_bits(t, source, stream))
        fields_ = (Field.of("x", source),), (Field("y", 8),)
        return SetSpec(definition, *fields_, (((w,), label) for w, label in points), self._answer(parts))

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the strict comparison, the mode without exceptions, and rounding to nearest."""
        source = self._sources[parts[0]][1]
        if parts[0] == "float32":  # for a float16 input the two sides are never equal
            yield Rule("up only if more, not if equal", self._answer(parts, strict=True), True)
        yield Rule("small exponents, too", self._answer(parts, everywhere=True), True)
        yield Rule("to nearest, ties away", _cast(_table(formats["hif8"]), source, "nearest_away", parts[1]), True)

    def _answer(self, parts: Sequence[str], **wrong: bool) -> Answer:
        width, preset = self._sources[parts[0]][0], parts[1]
        return lambda words: (tables.hybrid(words[0], width, preset=preset, **wrong),)


def _own_bits(t: Table, source: Fields, stream: Stream) -> Iterator[Point]:
    """Yield numbers with low bits adjacent to the bits that the hybrid rounding compares them with."""
    for code in range(max_code(source) >> source.mantissa_bits):
        for _ in range(8):
            word = code << source.mantissa_bits | stream.bits(source.mantissa_bits)
            value = Fraction(decode(word, source))
            if two_to(-24) <= value <= t.beyond:
                top = stream.bits(1) << source.width
                yield word | top, "any low bits"
                if source == FLOAT32:
                    cut = (
                        24 if value < two_to(-22) else 20 + sum(not two_to(-s) < value < two_to(s) for s in (4, 8, 16))
                    )
                    first = ((1 << 23 if cut == 24 else 0) | word & ((1 << min(cut, 23)) - 1)) >> cut - 14
                    for low in (first - 1, first, first + 1):
                        yield word & ~0x3FFF | low & 0x3FFF | top, "low bits next to those that are cut"


class TableDecodeFamily(Family):
    """Values of a table's codes."""

    name = "decode_table"
    choices = (_TABLE,)
    about = "decode: the value of a code of a table, as float32"

    def listed(self) -> list[str]:
        """Return one set for every table."""
        return [f"{self.name}/{name}" for name in with_tables()]

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        f = formats[parts[0]]
        values = _table(f).values
        points = (((code,), _kind(values[code])) for code in range(1 << f.bits))
        definition = {"source": _definition(f), "target": describe(FLOAT32)}
        fields_ = (Field("x", f.bits),), (Field.of("y", FLOAT32),)
        return SetSpec(definition, *fields_, points, lambda words: (_as_float32(values[words[0]]),), "any")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the table in the order of codes, and formats with fields of the same width."""
        f = formats[parts[0]]
        t = _table(f)
        ordered = sorted(t.numbers)
        if [t.codes[v] for v in ordered] != list(range(len(ordered))):
            yield Rule("values in their order", lambda words: (_as_float32(ordered[words[0] % len(ordered)]),), True)
        yield Rule("values half as large", lambda words: (_as_float32(t.values[words[0]] / 2),), True)
        for name in with_fields():
            other = formats[name]
            if other.bits == f.bits:
                yield Rule(f"read as {name}", functools.partial(_read_as, other))


def _read_as(f: Format, words: Words) -> Words:
    return (_as_float32(decode(words[0], f)),)


def _as_float32(value: Exact) -> int:
    return encode(value, FLOAT32, "nonsaturate")


def _kind(value: Exact) -> str:
    if value != value:
        return "NaN"
    return "zero" if value == 0 else ("Inf" if value > 0 else "-Inf") if abs(value) == math.inf else "a value"
