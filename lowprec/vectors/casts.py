"""Vector sets of casts: codes, values on the grid, and decoding."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ..format.catalogue import Format, formats
from ..format.policy import policies
from ..format.rounding import roundings
from ..oracle import casts
from ..oracle.mutants import wrong_rounding
from ..oracle.values import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Exact, Fields, decode, encode, fields, max_code
from .family import Choice, Family, Rule, SetSpec, Stream, one_of
from .points import Point, cast_points, code_points
from .vectors import Field, Words, describe

FIXED = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd")
SOURCES = {"float32": FLOAT32, "float64": FLOAT64}
ROUNDING_WORDS = {
    "nearest_even": "round to nearest, ties to even", "nearest_away": "round to nearest, ties away from zero",
    "toward_zero": "round toward zero", "up": "round up", "down": "round down", "to_odd": "round to odd",
}  # fmt: skip
MACHINES = {
    "riscv": ("e4m3fn", "e5m2"), "riscv_bf16": ("e4m3fn", "e5m2", "bfloat16"), "arm_osc1": ("e4m3fn", "e5m2"),
    "amd": ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"), "amd_ovfl": ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"),
    "cann_sat": (),
}  # fmt: skip
"""Hardware policies, each with the formats of its listed sets."""
_Codes = Callable[[int], int]


def with_fields() -> list[str]:
    """Return the names of all formats with exponent and mantissa fields; formats given by tables are another family."""
    return [name for name in formats.names() if not formats[name].is_table]


class _Rule(NamedTuple):
    """A `Rule` that maps one word to one word."""

    words: str
    code: _Codes
    mutant: bool = False
    changes: int = 1


_Change = tuple[str, Callable[[_Codes], _Codes]]


def format_of(name: str) -> tuple[str, Fields]:
    """Return a format's full name and its fields."""
    found: Format = formats[name]
    if found.is_table:
        raise ValueError(
            f"format must not be a table of values, got {name}; see cast_table/{name}/... and decode_table/{name}"
        )
    return found.name, fields(found)


def default_policy(f: Fields) -> str:
    """Return the name of the policy that casts use by default."""
    return "ocp_sat" if f.width + f.signed <= 8 else policies.get("ieee").name


def special_results(f: Fields, mode: str, preset: str) -> dict[str, str]:
    """Return the codes of Inf, NaN, overflow and underflow, which the policy determines."""
    top = Fraction(decode(max_code(f), f))
    return special_codes(lambda value: casts.cast(value, f, mode, preset), top, f.width + f.signed)


def special_codes(cast: Callable[[Exact], int], top: Fraction, bits: int) -> dict[str, str]:
    """Return the codes of values beyond the largest, of values just above and just below 0, and of -0, Inf and NaN."""
    beyond, tiny = 4 * top, Fraction(1, 1 << 1100)
    points: dict[str, Exact] = {
        "beyond the largest": beyond, "beyond the lowest": -beyond, "Inf": math.inf, "-Inf": -math.inf,
        "NaN": math.nan, "-NaN": math.copysign(math.nan, -1), "-0": -0.0, "just above 0": tiny, "just below 0": -tiny,
    }  # fmt: skip
    return {what: f"0x{cast(value):0{-(-bits // 4)}x}" for what, value in points.items()}


def _default_source(f: Fields) -> str:
    return "float32" if f.mantissa_bits < 20 else "float64"


def fixed_rounding(part: str, before: tuple[str, ...]) -> str:
    """Return the name of a deterministic rounding; ValueError if it is unknown."""
    mode = roundings.get(part).name
    if mode not in FIXED:
        raise ValueError(f"rounding must be deterministic, got {mode}; see the sets stochastic/...")
    return mode


def policy(part: str, before: tuple[str, ...]) -> str:
    """Return the name of a policy; ValueError if it is unknown."""
    return policies.get(part).name


FORMAT = Choice("FORMAT", lambda part, before: format_of(part)[0])
SOURCE = one_of(SOURCES, "a source is one of")


class _Casts(Family):
    """Base class of cast families; their sets are named format/rounding/policy."""

    choices = (
        FORMAT,
        Choice("ROUNDING", fixed_rounding, "nearest_even"),
        Choice("POLICY", policy, lambda found: default_policy(format_of(found[0])[1])),
        Choice("SOURCE", SOURCE, lambda found: _default_source(format_of(found[0])[1]), hidden=True),
    )

    def _parts(self, parts: Sequence[str]) -> tuple[Fields, str, str, Fields]:
        f = format_of(parts[0])[1]
        return f, parts[1], parts[2], SOURCES[parts[3] if len(parts) > 3 else _default_source(f)]

    def _made(self, parts: Sequence[str], level: int, seed: int, result: Field, answer: Any, nan: str) -> SetSpec:
        f, mode, preset, source = self._parts(parts)
        points: Iterable[Point] = _boundaries(f, source)
        if level > 1:
            points = cast_points(f, source, level, Stream(seed, "/".join((self.name, *parts))))
        definition = {
            "source": describe(source), "target": describe(f), "rounding": ROUNDING_WORDS[mode], "policy": preset,
            "special codes": special_results(f, mode, preset),
        }  # fmt: skip
        inputs = (Field.of("x", source),)
        return SetSpec(definition, inputs, (result,), (((word,), label) for word, label in points), answer, nan)

    def _codes(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[_Rule]:
        """Yield rules from a source word to a code."""
        f, mode, preset, source = self._parts(parts)

        def cast(mode: str, preset: str, rule: casts.Away = casts.away) -> _Codes:
            if rule is casts.away:
                return lambda word: _cast(word, source, f, mode, preset)
            return lambda word: casts.cast(value_of(word, source), f, mode, preset, rule=rule)

        own = cast(mode, preset)
        policies_ = [p for p in policies.names() if p != preset]
        changes = [*_before(f, source), *_after(f, theirs, source)]
        roundings_ = [_Rule(ROUNDING_WORDS[other], cast(other, preset)) for other in FIXED if other != mode]
        wrong = [
            _Rule(f"{ROUNDING_WORDS[mode]}, but {words}", cast(mode, preset, rule), True)
            for words, rule in wrong_rounding(mode).items()
            if f.signed or _concerns_positive(rule, mode)
        ]
        yield from (*roundings_, *(_Rule(f"policy {other}", cast(mode, other)) for other in policies_), *wrong)
        yield from (_Rule(words, wrap(own)) for words, wrap in changes)
        for name in with_fields():
            other = fields(formats[name])
            if other.width + other.signed == f.width + f.signed and other != f:
                yield _Rule(f"codes of {name}", functools.partial(_other_format, other, mode, source))
        for rounding in FIXED:
            for preset2 in policies_ if rounding != mode else ():
                yield _Rule(f"{ROUNDING_WORDS[rounding]}, policy {preset2}", cast(rounding, preset2), False, 2)
        for (words, wrap), (more, wrap2) in itertools.combinations(changes, 2):
            yield _Rule(f"{words}; {more}", wrap2(wrap(own)), False, 2)
        for base in (*roundings_, *wrong):
            for words, wrap in changes:
                yield _Rule(f"{base.words}; {words}", wrap(base.code), False, 2)


def _concerns_positive(rule: casts.Away, mode: str) -> bool:
    """Return whether a wrong rule gives other results for positive numbers; some formats have only positive numbers."""
    fractions = [(Fraction(k, 16), odd) for k in range(16) for odd in (False, True)]
    return any(rule(nu, odd, False, mode, 0, 0) != casts.away(nu, odd, False, mode) for nu, odd in fractions)


def _other_format(f: Fields, mode: str, source: Fields, word: int) -> int:
    return casts.cast(value_of(word, source), f, mode, default_policy(f))


@functools.lru_cache(maxsize=4)
def _boundaries(f: Fields, source: Fields) -> tuple[Point, ...]:
    """Return the points of level 1. They involve no random choice and are shared by all roundings and policies."""
    return tuple(cast_points(f, source, 1, Stream(0, "")))


@functools.lru_cache(maxsize=1 << 15)
def _on_grid(word: int, source: Fields, f: Fields, mode: str) -> casts.Rounded:
    return casts.on_grid(value_of(word, source), f, mode)


def _cast(word: int, source: Fields, f: Fields, mode: str, preset: str) -> int:
    return casts.cast(value_of(word, source), f, mode, preset, rounded=_on_grid(word, source, f, mode))


def value_of(word: int, source: Fields) -> Any:
    """Return the value of a word, a NaN with its sign."""
    value = decode(word, source)
    return math.copysign(math.nan, -1) if value != value and word >> source.width else value


def _before(f: Fields, source: Fields) -> Iterator[_Change]:
    """Yield changes that an implementation may apply to a value before rounding it."""
    sign = 1 << source.width
    top = encode(decode(max_code(f), f), source)

    def on_words(change: _Codes) -> Callable[[_Codes], _Codes]:
        return lambda code: lambda word: code(change(word))

    def flushed(word: int) -> int:
        return word // sign * sign if word % sign < 1 << source.mantissa_bits else word

    def beyond(word: int) -> int:
        return word // sign * sign + max_code(source) if top < word % sign <= max_code(source) else word

    def first(word: int, middle: Fields) -> int:
        value = value_of(word, source)
        return word if value != value else encode(decode(encode(value, middle, "nonsaturate"), middle), source)

    yield "subnormal inputs flushed to zero", on_words(flushed)
    for name, middle in (("float32", FLOAT32), ("bfloat16", BFLOAT16), ("float16", FLOAT16)):
        if middle.mantissa_bits < source.mantissa_bits:
            yield f"first rounded to {name}", on_words(functools.partial(first, middle=middle))
    yield "overflow judged before rounding", on_words(beyond)


def _after(f: Fields, theirs: Mapping[Words, Words], source: Fields) -> Iterator[_Change]:
    """Yield changes to codes, among them the constant results in `theirs` for NaN, Inf and overflow."""
    sign, source_sign = 1 << f.width, 1 << source.width
    top = encode(decode(max_code(f), f), source)

    def on_codes(change: _Codes) -> Callable[[_Codes], _Codes]:
        return lambda code: lambda word: change(code(word))

    def flushed(code: int) -> int:
        return code // sign * sign if code % sign < 1 << f.mantissa_bits else code

    def unsigned(code: int) -> int:
        return 0 if code == sign and decode(code, f) == 0 else code

    if f.exponent_bits and f.has_zero and f.subnormals:
        yield "subnormal results flushed to zero", on_codes(flushed)
    if f.signed:
        yield "-0 becomes +0", on_codes(unsigned)
    last = max_code(source)
    members: dict[str, Callable[[int], bool]] = {
        "NaN": lambda word: word % source_sign > last + 1,
        "Inf": lambda word: word % source_sign == last + 1,
        "overflow": lambda word: top < word % source_sign <= last,
    }
    for what, member in members.items():
        found = {(word // source_sign, answer) for (word,), (answer, *_) in theirs.items() if member(word)}
        codes = dict(sorted(found))
        if len(found) == len(codes) > 0:
            words = sorted({f"0x{code:0{-(-(f.width + f.signed) // 4)}X}" for code in codes.values()})
            yield f"{what} becomes {' or '.join(words)}", functools.partial(_always, member, codes, source_sign)


def _always(member: Callable[[int], bool], codes: Mapping[int, int], sign: int, code: _Codes) -> _Codes:
    return lambda word: codes.get(word // sign, 0) if member(word) else code(word)


class CastFamily(_Casts):
    """Codes of rounded values."""

    name = "cast"
    about = "encode: a number of the source format is rounded once to a code of the target"

    def listed(self) -> list[str]:
        """Return every format with every rounding and policy; hardware policies with fewer formats and roundings."""
        return [
            f"cast/{f}/{mode}/{p}"
            for f in with_fields()
            for mode in FIXED
            for p in policies.names()
            if f in MACHINES.get(p, (f,)) and (p not in MACHINES or mode in ("nearest_even", "toward_zero"))
        ]

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        f, mode, preset, source = self._parts(parts)

        def answer(words: Words) -> Words:
            return (_cast(words[0], source, f, mode, preset),)

        return self._made(parts, level, seed, Field.of("y", f), answer, "payload")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield other roundings and policies, wrong rules, and changes before and after the cast."""
        for rule in self._codes(parts, theirs):
            yield Rule(rule.words, functools.partial(_single, rule.code), rule.mutant, rule.changes)


def _single(code: _Codes, words: Words) -> Words:
    return (code(words[0]),)


class RoundFamily(_Casts):
    """Rounded values, as float32."""

    name = "round"
    about = "round_to: a number of the source format is rounded once to a value of the target, given as float32"

    def listed(self) -> list[str]:
        """Return every format with every rounding under its default policy, from float32 and from float64."""
        names = []
        for name in with_fields():
            f = fields(formats[name])
            for mode in FIXED:
                wider = [source for source, of in SOURCES.items() if of != f]  # a cast to itself is exact
                some = {"/".join(self.full((name, mode, default_policy(f), source))) for source in wider}
                names += sorted(f"round/{rest}" for rest in some)
        return names

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        f, mode, preset, source = self._parts(parts)

        def answer(words: Words) -> Words:
            return (_as_float32(_cast(words[0], source, f, mode, preset), f),)

        return self._made(parts, level, seed, Field.of("y", FLOAT32), answer, "any")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield other roundings and policies, wrong rules, and changes before the cast."""
        f = self._parts(parts)[0]
        for rule in self._codes(parts, {}):
            answer = functools.partial(_rounded, rule.code, f)
            yield Rule(rule.words, answer, rule.mutant, rule.changes)


def _rounded(code: _Codes, f: Fields, words: Words) -> Words:
    return (_as_float32(code(words[0]), f),)


def _as_float32(code: int, f: Fields) -> int:
    return encode(decode(code, f), FLOAT32, "nonsaturate")


class DecodeFamily(Family):
    """Values of codes, as float32."""

    name = "decode"
    choices = (FORMAT,)
    about = "decode: the value of a code, as float32"

    def listed(self) -> list[str]:
        """Return every format."""
        return [f"decode/{name}" for name in with_fields()]

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        f = format_of(parts[0])[1]
        points = (((code,), label) for code, label in code_points(f, level, Stream(seed, f"decode/{parts[0]}")))
        definition = {"source": describe(f), "target": describe(FLOAT32)}
        fields_ = (Field.of("x", f),), (Field.of("y", FLOAT32),)
        return SetSpec(definition, *fields_, points, lambda words: (_as_float32(words[0], f),), "any")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield other formats of the same width, changes to subnormals and zeros, and a bias that is one too large."""
        f = format_of(parts[0])[1]
        width, sign = f.width + f.signed, 1 << f.width

        def flushed(words: Words) -> Words:
            code = words[0]
            return (_as_float32(code // sign * sign if code % sign < 1 << f.mantissa_bits else code, f),)

        def halved(words: Words) -> Words:
            return (encode(decode(words[0], f) / 2, FLOAT32, "nonsaturate"),)

        if f.mantissa_bits and f.has_zero and f.subnormals and f.exponent_bits:
            yield Rule("subnormals flushed to zero", flushed, True)
            yield Rule("subnormals as if normal", lambda words: (_as_float32(_hidden(words[0], f), FLOAT32),), True)
        yield Rule("exponent bias one too large", halved, True)
        for name in with_fields():
            other = fields(formats[name])
            if other.width + other.signed == width and other != f:
                yield Rule(f"read as {name}", functools.partial(_single, functools.partial(_as_float32, f=other)))


def _hidden(code: int, f: Fields) -> int:
    """Return the float32 word of a subnormal decoded as if it had a hidden bit."""
    sign, m = 1 << f.width, f.mantissa_bits
    if not 0 < code % sign < 1 << m:
        return _as_float32(code, f)
    size = ((1 << m) + code % sign) * Fraction(2) ** (-f.bias - m)
    return encode(-size if code >= sign else size, FLOAT32)
