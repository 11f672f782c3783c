"""Block scaling in exact arithmetic: tiles with their scales, and dot products promoted to float32 at intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .ieee import exact_dot, fma32, sequential_f32
from .machines.fused import Rule, fused_dot
from .values import FLOAT32, AnyFormat, Exact, decode, encode, exact, floor_log2, max_code, two_to


def promoted_dot(
    a: Sequence[int],
    b: Sequence[int],
    scales: Sequence[tuple[int, int]],
    interval: int,
    rule: Rule | Literal["exact", "float32"],
    a_format: AnyFormat,
    b_format: AnyFormat,
) -> int:
    """Return a scaled dot product with promotion: the tensor core's sum is added in float32 every `interval` products.

    Each interval's ``partial`` starts from +0; ``s = fl32(scale_a * scale_b)``; ``final = fma(s, partial, final)`` from
    ``final = +0``. `scales` contains the float32 bits of both scales per interval; the last interval may be short.
    """
    final = 0
    for index, start in enumerate(range(0, len(a), interval)):
        piece = a[start : start + interval], b[start : start + interval]
        if isinstance(rule, Rule):
            partial = fused_dot(*piece, 0, rule, a_format, b_format)
        else:
            partial = {"exact": exact_dot, "float32": sequential_f32}[rule](*piece, 0, a_format, b_format)
        negative_zero = 1 << FLOAT32.width  # as c, it leaves a product unchanged
        scale = fma32(*scales[index], negative_zero)
        final = fma32(scale, partial, final)
    return final


def quantize_tile(
    x: ArrayLike, fmt: AnyFormat, scale: Literal["fp32", "ue8m0"] = "fp32", amax_floor: float = 0.0
) -> tuple[NDArray[Any], np.float32]:
    """Return codes and scale of one tile, ``x ~ scale * decode(codes)``.

    The scale s of a tile x, of any shape and converted to float32, is ``fl32(amax / max)``, at least 2^-149 ("fp32"),
    or the smallest power of two not below that float32 quotient, at least 2^-126 ("ue8m0"); amax is at least
    `amax_floor`. An all-zero tile has scale 1, one with NaN or Inf has NaN. The codes (uint32, of the shape of x) are
    ``encode(fl32(x / s))``, saturating.
    """
    tile = np.asarray(x, dtype=np.float32)
    values = [exact(float(v)) for v in tile.ravel()]
    s = tile_scale(values, fmt, scale, amax_floor)
    codes = [encode(_quotient(v, s), fmt, "saturate") for v in values]
    bits = np.array([encode(s, FLOAT32, "nonsaturate")], dtype=np.uint32)
    return np.array(codes, dtype=np.uint32).reshape(tile.shape), bits.view(np.float32)[0]


def tile_scale(
    values: Sequence[Exact], fmt: AnyFormat, scale: Literal["fp32", "ue8m0"] = "fp32", amax_floor: float = 0.0
) -> Exact:
    """Return the scale of `quantize_tile`."""
    if not all(math.isfinite(v) for v in values):
        return math.nan
    amax = max([Fraction(max(v, -v)) for v in values] + [Fraction(float(np.float32(amax_floor)))])
    return _scale(amax / Fraction(decode(max_code(fmt), fmt)), scale) if amax else Fraction(1)


def _round_f32(value: Exact) -> Exact:
    return decode(encode(value, FLOAT32, "nonsaturate"), FLOAT32)


def _scale(quotient: Fraction, kind: str) -> Fraction:
    s = max(Fraction(_round_f32(quotient)), two_to(-149))
    if kind == "fp32":
        return s
    power = two_to(floor_log2(s))
    return max(power if power == s else 2 * power, two_to(-126))


def _quotient(x: Exact, s: Exact) -> Exact:
    """Return ``fl32(x / s)`` for a scale that is positive or NaN."""
    if isinstance(s, float):
        return math.nan
    return x if isinstance(x, float) else _round_f32(x / s)
