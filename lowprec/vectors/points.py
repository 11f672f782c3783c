"""Inputs that test casts, as labelled words of a source format: values of the target, ties, and their neighbours.

Levels follow Berkeley TestFloat. Level 1 has every boundary exponent with every significand pattern (every code, if
there are at most 256), with neighbours and midpoints; level 2 adds pairs of patterns and random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from ..oracle.values import FLOAT64, Fields, decode, encode, max_code, nan_code, two_to
from .family import Stream

Point = tuple[int, str]  # a word of the source and its label


def magnitude(code: int, f: Fields) -> Fraction:
    """Return the value of a magnitude code, extrapolated beyond the largest."""
    if f.specials in ("integer", "symmetric"):
        return code * two_to(1 - f.bias - f.mantissa_bits)
    if not f.has_zero:
        return two_to(code - f.bias)
    field, mantissa = divmod(code, 1 << f.mantissa_bits)
    hidden = 1 << f.mantissa_bits if field or (code and not f.subnormals) else 0
    return (hidden + mantissa) * two_to(max(field - f.bias, f.lowest) - f.mantissa_bits)


def patterns(bits: int, pairs: bool = False) -> list[int]:
    """Return significands: zero, one bit set, runs of ones at either end and, with `pairs`, any two bits set."""
    ones = (1 << bits) - 1
    found = {0, ones, ones ^ 1 if bits else 0}
    found |= (
        {1 << i for i in range(bits)} | {ones >> i for i in range(bits)} | {ones ^ (ones >> i) for i in range(bits)}
    )
    if pairs:
        found |= {1 << i | 1 << j for i in range(bits) for j in range(i)} | {ones ^ (1 << i) for i in range(bits)}
    return sorted(found)


def boundary_codes(f: Fields, level: int = 1) -> list[int]:
    """Return magnitude codes at the boundaries of a format, or all codes if there are few."""
    top = max_code(f)
    if top < 256:
        return list(range(top + 1))
    m = f.mantissa_bits
    last = top >> m
    one = f.bias if 0 < f.bias < last else last // 2
    fields = {0, 1, 2, one - 1, one, one + 1, last - 1, last} if level == 1 else set(range(last + 1))
    if f.exponent_bits > 8:
        fields = {0, 1, one - 1, one, one + 1, last}
    if not f.exponent_bits:
        return sorted(set(patterns(m, level > 1)) | {top, top - 1, 1, 2, 3})
    every = {field << m | s for field in fields for s in patterns(m, pairs=level > 1 and field in (0, one))}
    return sorted({code for code in every | {top - 1, top} if 0 <= code <= top})


def place_of(code: int, f: Fields) -> str:
    """Return a label for the position of a magnitude code in its format."""
    top, m = max_code(f), f.mantissa_bits
    if code > top:
        return "beyond the largest finite"
    if code == top:
        return "largest finite"
    if f.specials in ("integer", "symmetric"):
        return "zero" if code == 0 else "integer"
    if f.has_zero and (code == 0 or (code < 1 << m and f.subnormals)):
        return (
            "zero" if code == 0 else "least subnormal" if code == 1 else
            "last subnormal" if code == (1 << m) - 1 else "subnormal"
        )  # fmt: skip
    if code == (1 << m if f.has_zero and f.subnormals else int(f.has_zero)):
        return "least normal"
    fraction = code & ((1 << m) - 1)
    return "start of a binade" if fraction == 0 else "end of a binade" if fraction == (1 << m) - 1 else "normal"


def _around(code: int, target: Fields, source: Fields) -> Iterator[tuple[Fraction, int, str]]:
    """Yield values between a code and the next, with offsets in source ulps and labels."""
    low, high = magnitude(code, target), magnitude(code + 1, target)
    gap = high - low
    odd = "odd" if code % 2 else "even"
    yield low, 0, "exact"
    yield low, -1, "one source ulp below"
    yield low, 1, "one source ulp above"
    yield low + gap / 4, 0, "and a quarter ulp"
    yield low + gap / 2, 0, f"and half an ulp: a tie, {odd} below"
    yield low + gap / 2, -1, "one source ulp below the tie"
    yield low + gap / 2, 1, "one source ulp above the tie"
    yield low + gap * 3 / 4, 0, "and three quarters of an ulp"
    if source == FLOAT64:
        yield low + gap / 2 - gap * two_to(-33), 0, "just below the tie, which float32 takes for it"
        yield low + gap / 2 + gap * two_to(-33), 0, "just above the tie, which float32 takes for it"


def _word(value: Fraction, step: int, source: Fields) -> int | None:
    """Return the source's code for a value plus `step` codes; None if the source cannot represent the value."""
    top = max_code(source)
    if value > magnitude(top, source):
        return None
    code = encode(value, source)
    return code + step if decode(code, source) == value and 0 <= code + step <= top else None


def cast_points(target: Fields, source: Fields, level: int, stream: Stream) -> Iterator[Point]:
    """Yield inputs that a cast from `source` to `target` can get wrong, with both signs."""
    sign = 1 << source.width
    for code in [*boundary_codes(target, level), max_code(target) + 1, max_code(target) + 2]:
        for value, step, what in _around(code, target, source):
            word = _word(value, step, source)
            if word is not None:
                yield word, f"{place_of(code, target)}, {what}"
                yield word | sign, f"-{place_of(code, target)}, {what}"
    least = magnitude(1, target) if target.has_zero else magnitude(0, target)
    for word, label in source_points(least, source):
        yield word, label
        yield word | sign, f"-{label}"
    if level > 1:
        yield from _random_points(target, source, stream)


def fraction_points(target: Fields, source: Fields, bits: int) -> Iterator[Point]:
    """Yield inputs that random words of `bits` bits cannot resolve: odd multiples of half the step of these words."""
    codes = [code for code in boundary_codes(target)[:24] if code < max_code(target)]
    odd = sorted({k | 1 for i in range(bits + 1) for k in (1 << i, (1 << i) - 2, 3 << i) if 0 < k < 2 << bits})
    for code in codes:
        low, high = magnitude(code, target), magnitude(code + 1, target)
        for k in odd:
            word = _word(low + (high - low) * k * two_to(-bits - 1), 0, source)
            if word is not None:
                yield word | (k >> 1 & 1) << source.width, f"{place_of(code, target)}, half a step of R beyond"


def source_points(least: Fraction, source: Fields) -> Iterator[Point]:
    """Yield values far below the target's smallest, and the source's extremes, zero, Inf and NaNs."""
    top, m = max_code(source), source.mantissa_bits
    for power in (2, 3, 10, 24, 25, 60, 100):
        word = _word(least * two_to(-power), 0, source)
        if word is not None:
            yield word, f"least value times 2^-{power}"
    for word, label in (
        (0, "zero"), (1, "the source's least subnormal"), ((1 << m) - 1, "the source's last subnormal"),
        (1 << m, "the source's least normal"), (top, "the source's largest finite"), (top + 1, "Inf"),
    ):  # fmt: skip
        yield word, label
    quiet = nan_code(source)
    assert quiet is not None
    for word, label in (
        (quiet, "quiet NaN"), ((1 << source.width) - 1, "NaN, all ones"), (top + 2, "signalling NaN, payload 1"),
        (quiet - 1, "signalling NaN, all ones"), (quiet + 1, "quiet NaN, payload 1"),
        (quiet | quiet >> 2, "quiet NaN, payload in its upper bits"),
    ):  # fmt: skip
        if word > top + 1:
            yield word & ((1 << source.width) - 1), label


def _random_points(target: Fields, source: Fields, stream: Stream, count: int = 4096) -> Iterator[Point]:
    """Yield numbers with random significands and the target's exponents; a quarter have a short significand."""
    top = max_code(target)
    for i in range(count):
        code = stream.below(top + 2)
        low, high = magnitude(code, target), magnitude(code + 1, target)
        word = encode(low + (high - low) * stream.bits(32) * two_to(-32), source)
        if i % 4 == 0:  # a short significand
            word = word >> (keep := stream.below(source.mantissa_bits)) << keep
        yield min(word, max_code(source)) | stream.bits(1) << source.width, "random"


def code_points(f: Fields, level: int, stream: Stream) -> Iterator[Point]:
    """Yield codes to decode: all for at most 12 bits (level 2: 16), else boundaries, Inf, NaN (and random ones)."""
    width = f.width + f.signed
    if width <= (12 if level == 1 else 16):
        yield from ((code, meaning(code, f)) for code in range(1 << width))
        return
    ends = [max_code(f) + 1, max_code(f) + 2, nan_code(f) or 0, (1 << f.width) - 1]
    some = [stream.bits(f.width) for _ in range(4096)] if level > 1 else []
    for code in [*boundary_codes(f, 1), *ends, *some]:
        for word in (code & ((1 << f.width) - 1), code & ((1 << f.width) - 1) | f.signed << f.width):
            yield word, meaning(word, f)


def meaning(code: int, f: Fields) -> str:
    """Return a label for a code: NaN, infinity, or its position in the format."""
    value = decode(code, f)
    if not math.isfinite(value):
        return "NaN" if value != value else "Inf" if value > 0 else "-Inf"
    negative = bool(f.signed and code >> f.width)
    if f.specials in ("integer", "symmetric"):
        return ("-" if negative else "") + ("lowest" if code == 1 << f.width else "integer")
    return ("-" if negative else "") + place_of(code & ((1 << f.width) - 1), f)
