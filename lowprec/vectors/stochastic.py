"""Vector sets of stochastic rounding with given random words, and of the generator of random words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..oracle import casts
from ..oracle.mutants import wrong_rounding
from ..oracle.random_bits import random_word
from ..oracle.values import FLOAT32, Fields
from .casts import FIXED, FORMAT, ROUNDING_WORDS, format_of, special_results, value_of
from .family import Choice, Family, Rule, SetSpec, Stream, number, one_of
from .points import cast_points, fraction_points
from .vectors import Answer, Field, Words, describe


class StochasticFamily(Family):
    """Stochastic rounding with the random word R as an input, and the words of the generator."""

    name = "stochastic"
    choices = (
        Choice("a|b|c", one_of("abc", "the variants are")),
        Choice("FORMAT", FORMAT.find, "e4m3fn"),
        Choice("BITS", number(1, 24), "24"),
    )
    about = "stochastic rounding (P3109's StochasticA, B, C) of a float32 with N random bits R, saturating (ocp_sat)"
    _formats = ("e4m3fn", "e5m2", "e2m1fn", "bfloat16", "float16")

    def listed(self) -> list[str]:
        """Return the sets of the variants with 24, 8 and 3 random bits, and that of random words."""
        return [
            *(f"stochastic/{v}/{f}/{n}" for v in "abc" for f in self._formats for n in (24, 8, 3)), "stochastic/words",
        ]  # fmt: skip

    @property
    def pattern(self) -> str:
        """Parts of a name after the first, with optional ones in brackets."""
        return f"{super().pattern}, or words"

    def full(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return the variant, format and number of bits, with defaults filled in."""
        return ("words",) if tuple(parts) == ("words",) else super().full(parts)

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        stream = Stream(seed, "/".join(("stochastic", *parts)))
        if parts[0] == "words":
            return _words(level, stream)
        f, mode, n = format_of(parts[1])[1], parts[0].upper(), int(parts[2])

        def points() -> Iterator[tuple[Words, str]]:
            for word, label in fraction_points(f, FLOAT32, n):
                for r, which in _deciding(word, f, mode, n, stream, False):
                    yield (word, r), f"{label}; {which}"
            for i, (word, label) in enumerate(cast_points(f, FLOAT32, level, stream)):
                if f.width > 8 and i % 8 > 3:  # otherwise level 1 would exceed a megabyte
                    continue
                for r, which in _deciding(word, f, mode, n, stream, f.width < 5 or i % 8 < 2):
                    yield (word, r), f"{label}; {which}"

        definition = {
            "source": describe(FLOAT32), "target": describe(f), "rounding": f"Stochastic{mode}", "random bits": n,
            "R": "an input; lowprec takes the leading N bits of the word of stochastic/words for (seed, index)",
            "policy": "ocp_sat", "special codes": special_results(f, "nearest_even", "ocp_sat"),
        }  # fmt: skip
        inputs = (Field.of("x", FLOAT32), Field("r", n))
        return SetSpec(definition, inputs, (Field.of("y", f),), points(), _stochastic(f, mode, n))

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the other variants, wrong rules, and roundings that do not depend on R."""
        if parts[0] == "words":
            yield Rule("halves of the index swapped", lambda x: (random_word(x[0], _swapped(x[1])),), True)
            yield Rule("halves of the seed swapped", lambda x: (random_word(_swapped(x[0]), x[1]),), True)
            yield Rule("without the last xor", lambda x: (random_word(*x) ^ x[1] % 2**32,), True)
            return
        f, mode, n = format_of(parts[1])[1], parts[0].upper(), int(parts[2])
        for words, rule in wrong_rounding(mode).items():
            yield Rule(f"Stochastic{mode}, but {words}", _stochastic(f, mode, n, rule), True)
        yield Rule("R complemented", lambda x: _stochastic(f, mode, n)((x[0], x[1] ^ ((1 << n) - 1))), True)
        for other in "ABC":
            if other != mode:
                yield Rule(f"Stochastic{other}", _stochastic(f, other, n))
        for other in FIXED:
            yield Rule(ROUNDING_WORDS[other], _stochastic(f, other, n))


def _swapped(word: int) -> int:
    return word >> 32 | word % 2**32 << 32


def _stochastic(f: Fields, mode: str, n: int, rule: casts.Away = casts.away) -> Answer:
    return lambda words: (casts.cast(value_of(words[0], FLOAT32), f, mode, "ocp_sat", words[1], n, rule),)


def _deciding(word: int, f: Fields, mode: str, n: int, stream: Stream, every: bool) -> Iterator[tuple[int, str]]:
    """Yield the smallest R that rounds away and its predecessor; with `every`, also the extremes and a random R."""
    value = value_of(word, FLOAT32)
    last = (1 << n) - 1
    if value != value or value in (math.inf, -math.inf):
        yield stream.bits(n), "any R"
        return
    low, high = 0, last + 1
    own = casts.on_grid(value, f, "toward_zero").magnitude
    while low < high:
        middle = (low + high) // 2
        if casts.on_grid(value, f, mode, middle, n).magnitude > own:
            high = middle
        else:
            low = middle + 1
    if low <= last:
        yield low, "the least R that rounds away"
    if low > 0:
        yield low - 1, "the greatest R that does not round away"
    if every:
        yield 0, "R = 0"
        yield last, "R all ones"
        yield stream.bits(n), "any R"


def _words(level: int, stream: Stream) -> SetSpec:
    ends = (0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1)
    points = [((s, i), "seed and index at the ends of words") for s in ends for i in ends]
    points += [((s, i), "consecutive indices") for s in (0, 1, 2**40 + 7) for i in range(2**32 - 100, 2**32 + 100)]
    points += [((stream.bits(64), stream.bits(64)), "random") for _ in range(1000 if level == 1 else 10000)]
    definition = {
        "keys": "Philox4x32-10, counter (index div 2^32, 0, 0, 0), key (seed mod 2^32, seed div 2^32)",
        "word": "three rounds of xor-shift and multiply (17, 0xed5ad4bb; 11, 0xac4c1b51; 15, 0x31848bab; 14) of index "
        "mod 2^32, key words mixed in by xor, +, xor, + before each and after the last; then index mod 2^32 by xor",
    }
    fields_ = (Field("seed", 64), Field("index", 64)), (Field("word", 32),)
    return SetSpec(definition, *fields_, points, lambda words: (random_word(*words),))
