"""Block formats in exact arithmetic, block by block: HiF4 and related formats, block floating point.

Each rule takes the float32 words of a block and returns the elements' codes, the shared fields, the bits of further
levels and the values. Arguments beyond those of a format select similar wrong rules.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from . import casts
from .values import BFLOAT16, FLOAT32, Fields, decode, encode, two_to

_E6M2 = Fields(8, 2, 127)  # with more exponents, so that rounded values are in range


class Block(NamedTuple):
    """Codes of a block, and its values as float32 words."""

    elements: list[int]
    shared: int
    levels: list[int]
    values: list[int]


Rule = Callable[..., Block]


def _rounded(value: Fraction, fmt: Fields) -> Fraction:
    """Return the nearest number of a format, with ties to even."""
    return Fraction(decode(casts.cast(value, fmt, "nearest_even", "ocp_sat"), fmt))


def hifx(
    words: Sequence[int],
    bits: int,
    *,
    seventh: Fraction = Fraction(0.142578125),
    ties: str = "away",
    steps: Sequence[int] = (4, 2),
    strict: bool = False,
) -> Block:
    """Return a block of 64 elements of a sign and `bits` magnitude bits; each operation is rounded to float32.

    Source: arXiv:2602.11287.
    """
    x = [Fraction(decode(word, FLOAT32)) for word in words]
    m3 = [max(abs(v) for v in x[i : i + 4]) for i in range(0, 64, 4)]
    m2 = [max(m3[i : i + 2]) for i in range(0, 16, 2)]
    scale = _rounded(_rounded(max(m2) * seventh, FLOAT32), BFLOAT16)
    scale = _rounded(min(max(scale, two_to(-48)), Fraction(49152)), _E6M2)
    inverse = _rounded(_rounded(1 / scale, FLOAT32), BFLOAT16)
    first, second = steps
    e2 = [_reaches(_rounded(m * inverse, FLOAT32), first, strict) for m in m2]
    e3 = [_reaches(_rounded(m * inverse, FLOAT32) / 2 ** e2[i // 2], second, strict) for i, m in enumerate(m3)]
    elements, values = [], []
    for i, v in enumerate(x):
        up = e2[i // 8] + e3[i // 4]
        quanta = _rounded(abs(v) * inverse / 2**up, FLOAT32) * 2 ** (bits - 1)
        whole = math.floor(_rounded(quanta + Fraction(1, 2), FLOAT32)) if ties == "away" else round(quanta)
        q = min(whole, (1 << bits) - 1)
        elements.append(q | (v < 0) << bits)
        values.append(encode(q * scale * Fraction(2**up, 2 ** (bits - 1)), FLOAT32) | (v < 0) << 31)
    e = math.frexp(float(scale))[1] - 1
    return Block(elements, (e + 48 << 2) + int(scale / two_to(e) * 4) - 4, [*e2, *e3], values)


def _reaches(value: Fraction, step: int, strict: bool) -> int:
    return int(value > step if strict else value >= step)


def block_float(
    words: Sequence[int],
    bits: int,
    first_bits: int = 0,
    ties: str = "even",
    *,
    carry: bool = False,
    cut: bool = False,
    flush: bool = False,
    signed_zero: bool = False,
) -> Block:
    """Return a block of integers scaled by the largest exponent field: tt-metal, ``blockfloat_common.cpp``.

    With `first_bits`, words are first rounded to bfloat16 and then to `first_bits` magnitude bits, of which `bits` are
    kept.
    """
    if first_bits:
        words = [word if word << 1 & 0xFFFFFFFF > 0xFF << 24 else _as_bfloat16(word) for word in words]
    signs, fields = [word >> 31 for word in words], [word >> 23 & 0xFF for word in words]
    least = 1 << 23 if flush else 1
    parts = [word & 0x7FFFFF | 1 << 23 if word & 0x7FFFFFFF >= least else 0 for word in words]
    shared = max(fields)
    width = first_bits or bits
    sizes = [Fraction(part >> shared - field, 1 << 24 - width) for part, field in zip(parts, fields, strict=True)]

    def nearest(v: Fraction) -> int:
        return math.floor(v + Fraction(1, 2)) if ties == "away" else round(v)

    whole = [math.floor(v) if cut else nearest(v) for v in sizes]
    top = (1 << width) - 1
    if carry and max(whole) > top:
        shared, whole = shared + 1, [nearest(v / 2) for v in sizes]
    kept = [min(v, top) >> width - bits for v in whole]
    negative = [int(sign and (size > 0 or signed_zero)) for sign, size in zip(signs, kept, strict=True)]
    values = [encode(size * two_to(shared - 126 - bits), FLOAT32, "nonsaturate") for size in kept]
    return Block(
        [size | sign << bits for size, sign in zip(kept, negative, strict=True)], shared & 0xFF, [],
        [value | sign << 31 for value, sign in zip(values, negative, strict=True)],
    )  # fmt: skip


def _as_bfloat16(word: int) -> int:
    value = decode(word, FLOAT32)
    return casts.cast(value, BFLOAT16, "nearest_even", "ieee") << 16


class BlockRule(NamedTuple):
    """Rule of a block format: elements per block, magnitude bits, bits of further scale levels, and function.

    `wrong` maps descriptions to arguments that turn the function into a similar but wrong rule, for tests.
    """

    block: int
    bits: int
    levels: int
    rule: Rule
    wrong: Mapping[str, Mapping[str, Any]]


_HIFX_WRONG: dict[str, dict[str, Any]] = {
    "the scale from amax / 7": {"seventh": Fraction(1, 7)},
    "ties to even": {"ties": "even"},
    "levels where a limit is passed, not reached": {"strict": True},
    "one limit for both levels": {"steps": (4, 4)},
}
_FLOAT_WRONG: dict[str, dict[str, Any]] = {
    "rounding carries into the exponent": {"carry": True},
    "elements cut": {"cut": True},
    "subnormals as zeros": {"flush": True},
    "a zero keeps its sign": {"signed_zero": True},
}


def _hifx(bits: int) -> BlockRule:
    return BlockRule(64, bits, 24, functools.partial(hifx, bits=bits), _HIFX_WRONG)


def _float(bits: int, first_bits: int = 0, ties: str = "even") -> BlockRule:
    other = {"ties to even" if ties == "away" else "ties away": {"ties": "even" if ties == "away" else "away"}}
    if first_bits > bits:  # a tie moves the first bits from even to odd, which truncation removes
        other = {}
    rule = functools.partial(block_float, bits=bits, first_bits=first_bits, ties=ties)
    return BlockRule(16, bits, 0, rule, other | _FLOAT_WRONG)


BLOCK_FORMATS: dict[str, BlockRule] = {
    "hif4": _hifx(3), "hif3": _hifx(2),
    "bfp8_b_host": _float(7), "bfp8_b_device": _float(7, 7, "away"),
    "bfp4_b_host": _float(3), "bfp4_b_device": _float(3, 7, "away"),
    "bfp2_b_host": _float(1), "bfp2_b_device": _float(1, 7, "away"),
    "msfp12": _float(3), "msfp16": _float(7),
}  # fmt: skip
"""Rules of `lowprec.block_formats` by name."""
