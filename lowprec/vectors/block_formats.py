"""Vector sets of block formats: HiF4 and block floating point."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from ..oracle.block_formats import BLOCK_FORMATS, BlockRule
from ..oracle.values import FLOAT32, encode, two_to
from .blocks import FLT_MAX, INF, SIGN, Point, thinned
from .family import Choice, Family, Rule, SetSpec, Stream, one_of
from .vectors import Field, Words


def _ties(amax: int, r: BlockRule, s: Stream) -> list[int]:
    """Return a block with the given largest magnitude: ties between elements, their neighbours, zeros, random words."""
    exponent = (amax >> 23) - 127
    words = []
    for _ in range(r.block):
        kind = s.below(6)
        if kind == 0:
            word = 0 if s.below(4) else s.below(1 << 23)
        elif kind == 1:
            word = max(amax - s.below(6 << 23), 0)
        else:  # odd multiples of half an element, at the coarsest and at finer levels
            half = two_to(exponent - r.bits - s.below(3))
            word = encode(half * s.below(2 << r.bits), FLOAT32) + (s.between(-1, 1) if kind > 3 else 0)
        words.append(min(max(word, 0), amax) | s.bits(1) << 31)
    words[s.below(r.block)] = amax | s.bits(1) << 31
    return words


def _amaxes(r: BlockRule, s: Stream, level: int) -> Iterator[tuple[int, str]]:
    """Yield words of largest magnitudes at which the scale or the exponent changes, and random ones."""
    every = (
        range(-149, 128) if level > 1 else (-149, -127, -126, -60, -49, -48, -46, -3, -1, 0, 1, 2, 5, 14, 17, 18, 127)
    )
    factors = [Fraction(1), Fraction(5, 4), Fraction(7, 4), Fraction(7, 4) * Fraction(9, 8), Fraction(127, 64)]
    if r.levels:  # amax where rounding to bfloat16 and then E6M2 differs between amax times bfloat16's 1/7 and amax / 7
        edges = (Fraction(k, 8) + two_to(-8) * (1 if k in (9, 13) else -1) for k in (9, 11, 13, 15))
        factors += [edge * 7 * (1 + Fraction(1, 1024)) / 4 for edge in edges]
    for e in every:
        for factor in factors:
            for step in (-1, 0, 1):
                word = encode(factor * two_to(e), FLOAT32) + step
                if 0 < word <= FLT_MAX:
                    yield word, "amax on the edge of a scale" if r.levels else "amax on the edge of an exponent"
    for _ in range(40 if level == 1 else 400):
        yield s.below(FLT_MAX), "any amax"


def block_points(r: BlockRule, level: int, s: Stream) -> Iterator[Point]:
    """Yield blocks with chosen largest magnitudes, blocks of zeros, and Inf and NaN where the source defines them."""
    n = r.block
    specials: list[tuple[list[int], str]] = [
        ([0] * n, "zeros"), ([SIGN] * n, "negative zeros"), ([1] * n, "least subnormals"),
        ([0] * (n - 1) + [SIGN | 1], "one least subnormal"), ([0x7FFFFF, 0x400000] * (n // 2), "subnormals"),
        ([0x7FFFFF, 0x800000] * (n // 2), "subnormals and the least normal"),
        ([FLT_MAX, SIGN | FLT_MAX] + [0] * (n - 2), "largest of both signs"), ([0x3F800000] * n, "ones"),
        ([SIGN | 0x3F800000] + [SIGN | 0x2F800000] * (n - 1), "negative numbers far below one"),
    ]  # fmt: skip
    if not r.levels:
        specials.append(([INF, 0x7F000000] + [0x3F800000] * (n - 2), "Inf"))
    for words, label in specials:
        yield tuple(words), label
    found = list(_amaxes(r, s, level))
    most = 900_000 // (n * 42) if level == 1 else 10**9
    for word, label in thinned(found, most):
        yield tuple(_ties(word, r, s)), label


def _answer(r: BlockRule, words: Words, **wrong: object) -> Words:
    found = r.rule(words, **wrong)
    return (*found.elements, found.shared, *found.levels, *found.values)


class BlockFormatFamily(Family):
    """Blocks of formats with elements that are defined only within their block."""

    name = "block"
    choices = (Choice("FORMAT", one_of(BLOCK_FORMATS, "the oracle has the formats")),)
    about = "a block's elements, what they share, its level bits and its values"
    sets = BLOCK_FORMATS

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        r = BLOCK_FORMATS[parts[0]]
        results = [Field("elements", r.bits + 1, None, r.block), Field("shared", 8)]
        results += [Field("levels", 1, None, r.levels)] if r.levels else []
        results.append(Field.of("y", FLOAT32, r.block))
        rule = r.rule.func if isinstance(r.rule, functools.partial) else r.rule
        details = r.rule.keywords if isinstance(r.rule, functools.partial) else {}
        definition = {
            "block": r.block, "element": f"a sign above {r.bits} magnitude bits",
            "rule": (rule.__doc__ or "").strip(), "details": {key: str(value) for key, value in details.items()},
            "left out": "NaN and Inf, which the source does not define" if r.levels else "NaN",
        }  # fmt: skip
        points = block_points(r, level, Stream(seed, f"block/{parts[0]}"))
        return SetSpec(
            definition, (Field.of("x", FLOAT32, r.block),), tuple(results), points, functools.partial(_answer, r)
        )

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield formats with the same block size and bits, then wrong rules."""
        r = BLOCK_FORMATS[parts[0]]
        for name, other in BLOCK_FORMATS.items():
            if name != parts[0] and other[:3] == r[:3]:
                yield Rule(f"as {name}", functools.partial(_answer, other))
        for words, wrong in r.wrong.items():
            yield Rule(words, functools.partial(_answer, r, **wrong), True)
