"""Rules of packages that differ from a lowprec entry: each predicts the answer of the package.

A rule is a function that takes a `Prediction`, initially lowprec's own answer, and returns it with one step of the
arithmetic replaced by the package's. Rules are applied one after another, so that several of them can explain one
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..cast.casts import decode, encode, round_to
from ..scaling.hadamard import hadamard
from ..scaling.quantize import quantize
from ..tensorcore.mma import mma
from .prediction import F32, Prediction, exact_log2, exponents, f32, power, predict, with_scales

E4M3_MAX, E2M1_MAX = f32(448), f32(6)


# --- powers of two as scales ------------------------------------------------------------------------------------------


def _by_log2(p: Prediction, log2: Callable[[F32], Any]) -> Prediction:
    e = exponents(p, log2)
    known = np.isfinite(p.amax) & (p.amax > 0) & np.isfinite(e)
    e = np.where(known, e, p.exponent).astype(f32)
    return with_scales(p, e != p.exponent, power(np.clip(e, -127, 127)), exponent=e)


def log2_float32(p: Prediction) -> Prediction:
    """Round the logarithm to float32 before it is rounded to an integer."""
    return _by_log2(p, lambda v: exact_log2(v).astype(f32))


def log2_by_ln(p: Prediction) -> Prediction:
    """Compute the logarithm as ln(x) * (1 / ln 2), each rounded to float32."""
    return _by_log2(p, lambda v: np.log(v.astype(np.float64)).astype(f32) * f32(1 / np.log(2.0)))


def wrapped(p: Prediction, stored: bool = False) -> Prediction:
    """Let the byte of an exponent below -127 wrap around; divide elements by the true scale, or by the stored one."""
    byte = (np.nan_to_num(p.exponent, posinf=0, neginf=0).astype(np.int64) + 127) & 255
    scale = decode(byte.astype(np.uint8), "e8m0fnu").astype(f32)
    low = (p.exponent < -127) & (p.amax > 0)
    return with_scales(p, low, scale, p.x / (scale if stored else power(p.exponent))[:, None])


def unlimited(p: Prediction) -> Prediction:
    """Use exponents below -127."""
    return with_scales(p, (p.exponent < -127) & (p.amax > 0), power(p.exponent))


def beyond(p: Prediction) -> Prediction:
    """Use NaN as the scale of a block whose scale would exceed 2^127."""
    return with_scales(p, p.exponent > 127, np.nan)


def divided_by(p: Prediction, divisor: float) -> Prediction:
    """Divide the elements of a block with the scale 2^-127 by another number."""
    return with_scales(p, p.scale == f32(2.0**-127), p.scale, p.x / f32(divisor))


# --- all scales -------------------------------------------------------------------------------------------------------


def replaced(p: Prediction, by: float, below: float = 0.0, of: str = "quotient") -> Prediction:
    """Replace a scale of 0, or one for which amax / max is below a bound."""
    value = getattr(p, of)
    return with_scales(p, value < f32(below) if below else value == 0, by)


def divided_by_least(p: Prediction, least: float) -> Prediction:
    """Divide by amax or a lower bound, whichever is larger, but store amax as the scale."""
    return with_scales(p, p.amax < f32(least), p.amax, p.x / f32(least))


def nan_ignored(p: Prediction, scale: float = 1.0) -> Prediction:
    """Ignore NaN in the largest magnitude of a block; a block of only NaN and zeros gets the given scale."""
    amax = np.where(np.isnan(p.x), 0, np.abs(p.x)).max(1)
    known = predict(amax[:, None], p.codes, p.quantizer, p.scale, p.tensor_amax) if p.quantizer else p
    quotient = known.quotient
    scales = quotient
    if p.quantizer is not None and p.quantizer.scale_format.bits == 8:
        e8m0 = p.quantizer.scale_format.mantissa_bits == 0
        scales = power(known.exponent) if e8m0 else _e4m3(quotient)
    return with_scales(p, np.isnan(p.amax), np.where(amax == 0, scale, scales), exponent=known.exponent)


def special(
    p: Prediction,
    inf: float | None = None,
    nan: float | None = None,
    *,
    tensor: bool = False,
    divisor: float | None = None,
    codes: int | None = None,
) -> Prediction:
    """Use another scale and divisor for blocks with Inf or an overflowing scale, and for blocks or tensors with NaN."""
    amax = p.tensor_amax if tensor else p.amax
    for rows, scale in ((np.isinf(amax) | np.isposinf(p.exponent), inf), (np.isnan(amax), nan)):
        if scale is not None:
            p = with_scales(p, rows, scale, None if divisor is None else p.x / f32(divisor), codes)
    return p


def constant(p: Prediction, scale: float, code: int = 0) -> Prediction:
    """Give a block with Inf or NaN a constant scale and constant codes."""
    rows = ~np.isfinite(p.amax)
    return replace(p, scale=np.where(rows, f32(scale), p.scale), codes=np.where(rows[:, None], code, p.codes))


def largest_of_bfloat16(p: Prediction) -> Prediction:
    """If the factor 448 / amax overflows, use the largest finite bfloat16 number as the factor."""
    m = f32(p.format.max) / p.amax
    m = np.where(np.isinf(m) & (p.amax > 0), f32(3.3895314e38), m)
    return with_scales(p, p.amax > 0, f32(1) / m, p.x * m[:, None])


def reciprocal(p: Prediction) -> Prediction:
    """Use m = 448 * (1 / amax) and s = 1 / m: the quotient 448 / amax is rounded twice."""
    m = E4M3_MAX * (f32(1) / p.amax)
    p = replace(p, quotient=f32(1) / m)
    if p.quantizer is not None and p.quantizer.scale_format.bits == 8:
        return _by_log2(p, lambda v: exact_log2(np.maximum(v, f32(2.0**-126))))
    return with_scales(p, p.amax > 0, p.quotient, p.x * m[:, None])


def _e4m3(x: F32) -> F32:
    """Return values rounded to E4M3, saturated."""
    return np.asarray(decode(encode(x, "e4m3fn"), "e4m3fn"), f32)


def zero_signs(p: Prediction, kind: str) -> Prediction:
    """Change the signs of zeros.

    Zeros become +0 if x = 0 (`of_input`), if the quotient is 0 (`of_zero`) or always (`positive`), or become -0 unless
    x > 0 (`negative`).
    """
    sign = p.format.sign_mask
    zero = (p.codes & ~np.asarray(sign, p.codes.dtype)) == 0
    if kind == "of_zero":
        zero &= (p.x == 0) | (p.x / p.scale[:, None] == 0)
    if kind == "of_input":
        zero &= p.x == 0
    code = np.where((p.x > 0) & np.isfinite(p.x), 0, sign) if kind == "negative" else 0
    return replace(p, codes=np.where(zero, code, p.codes).astype(p.codes.dtype))


def _transformed(x: F32, accumulator: str, signs: str = "te", factor: int = 1) -> F32:
    """Return rows of 16 values times the Hadamard matrix, with the sums of an accumulator, rounded to bfloat16."""
    rows = factor * np.ascontiguousarray(hadamard(np.eye(16, dtype=f32), signs=signs).T)
    a, b = encode(x, "bfloat16"), encode(rows, "bfloat16")
    y = mma(a, b, accumulator=accumulator, a_format="bfloat16", b_format="bfloat16")
    return round_to(y / f32(factor), "bfloat16")


def transformed(p: Prediction, accumulator: str, signs: str = "te", factor: int = 1) -> Prediction:
    """Multiply blocks by `factor` times the Hadamard matrix with the sums of an accumulator, then divide by it."""
    return replace(p, codes=_transformed(p.x, accumulator, signs, factor))


def columns_by_vdpbf16ps(p: Prediction) -> Prediction:
    """Multiply columns of tensors by the Hadamard matrix with AVX-512's bfloat16 products, then quantize."""
    assert p.quantizer is not None
    plain, codes, scales, x = p.quantizer.with_(hadamard_size=None), p.codes.copy(), p.scale.copy(), p.x.copy()
    for source in np.unique(p.source):
        at, columns = p.source == source, np.ascontiguousarray(p.tensors[source].T)
        y = np.ascontiguousarray(_transformed(columns.reshape(-1, 16), "avx512_bf16").reshape(columns.shape).T)
        q = quantize(y, plain)
        scale = np.repeat(q.scale, len(y) // len(q.scale), 0)
        x[at], codes[at] = y.flat[p.places[at]], q.codes.flat[p.places[at]]
        scales[at] = scale.flat[p.places[at, 0]]
    return replace(p, x=x, codes=codes, scale=scales)


def nearest_product(p: Prediction) -> Prediction:
    """Choose the code whose product value * scale, computed in float32 and possibly Inf, is nearest to x."""
    products = np.asarray(decode(np.arange(16), p.format), f32) * p.scale[:, None, None]
    return replace(p, codes=np.argmin(np.abs(products - p.x[..., None]), -1).astype(p.codes.dtype))


def reciprocal_applied(p: Prediction, nan: int) -> Prediction:
    """Multiply elements by 1 / s in float32."""
    return with_scales(p, p.amax == p.amax, p.scale, p.x * (f32(1) / p.scale)[:, None], nan)


def half_added(p: Prediction) -> Prediction:
    """Round y, in units of the smallest element, by floor(y + 0.5), so that the number just below 0.5 becomes 1."""
    below = np.abs(p.x / p.scale[:, None]) / f32(p.format.smallest_subnormal) == np.nextafter(f32(0.5), f32(0))
    codes = np.where(np.signbit(p.x), p.format.sign_mask, 0) | 1
    return replace(p, codes=np.where(below, codes, p.codes).astype(p.codes.dtype))


def nan_code(p: Prediction, code: int, signed: int = 0) -> Prediction:
    """Give NaN another code, plus `signed` if its sign is 1."""
    return between(p, 0x7F800001, 0x7FFFFFFF, code, signed)


def minus_two(p: Prediction) -> Prediction:
    """Give values that round to -2 the code of -2 in MXINT8."""
    least = np.rint(p.x / p.scale[:, None] * f32(64)) <= -128
    return replace(p, codes=np.where(least, 0x80, p.codes).astype(p.codes.dtype))


# --- NVFP4: scales in E4M3, and one of the tensor ---------------------------------------------------------------------


def inverse_stored(p: Prediction) -> Prediction:
    """Store e = 2688 * (1 / amax of the tensor); use s = E4M3(e * (amax / 6)), or 0.125 for 0, and x / (s / e)."""
    e = E4M3_MAX * E2M1_MAX * (f32(1) / np.maximum(p.tensor_amax, f32(2.0**-126)))
    e = np.where(np.isfinite(e), e, f32(1))
    s = _e4m3(e * p.quotient)
    s = np.where(s == 0, f32(0.125), s)
    return with_scales(p, p.amax >= 0, s, p.x / (s / e)[:, None])


def multiplied_after_division(p: Prediction, tensor: bool = True) -> Prediction:
    """Use e = 2688 / amax of the tensor, s = E4M3(amax / 6 * e), and the code nearest to (x / s) * e.

    Without `tensor`, e is 1.
    """
    e = E4M3_MAX * E2M1_MAX / p.tensor_amax if tensor else np.ones_like(p.amax)
    wide = p.amax / E2M1_MAX * e
    s = np.where(np.isnan(wide), np.copysign(E4M3_MAX, wide), _e4m3(wide)).astype(f32)
    y = p.x / s[:, None] * e[:, None]
    distances = np.abs(y[..., None] - np.asarray(decode(np.arange(16), p.format), f32))
    return replace(p, scale=s, codes=np.argmin(np.nan_to_num(distances, nan=-1), -1).astype(p.codes.dtype))


def two_quotients(p: Prediction) -> Prediction:
    """Use g = amax of the tensor / 2688, s = E4M3(amax / 6 / g), with 0 / 0 = NaN, and x * (1 / g / s), unsaturated."""
    g = p.tensor_amax / (E4M3_MAX * E2M1_MAX)
    q = p.quotient / g
    s = _e4m3(np.clip(q, f32(2.0**-6), E4M3_MAX))
    return with_scales(p, np.full(len(q), True), s, p.x * (f32(1) / g / s)[:, None], 0xB)


def zero_tensor(p: Prediction) -> Prediction:
    """If g = amax of the tensor / 2688 is 0 or NaN, use s = 448 or NaN, and the codes of x / 0."""
    g = p.tensor_amax / (E4M3_MAX * E2M1_MAX)
    s = np.where(p.amax > 0, E4M3_MAX, f32(np.nan))
    return with_scales(p, (g == 0) | np.isnan(g), np.where(np.isnan(g), g, s), p.x / f32(0), 7)


def static_scales(p: Prediction) -> Prediction:
    """Use s = E4M3(q * b / (amax of the tensor / 6)), clipped to [2^-9, 448], and x / (s * g).

    q is amax / 6, or 1 if that is 0; b is the quantizer's largest block scale; g is amax of the tensor / (6 b).
    """
    assert p.quantizer is not None
    bound = f32(p.quantizer.rule.max_block_scale or 448)  # type: ignore[union-attr]
    wide = np.where(p.quotient == 0, f32(1), p.quotient) * bound / (p.tensor_amax / E2M1_MAX)
    s = _e4m3(np.clip(wide, f32(2.0**-9), E4M3_MAX))
    return with_scales(p, np.full(len(s), True), s, p.x / (s * (p.tensor_amax / (E2M1_MAX * bound)))[:, None], 7)


def unsaturated(p: Prediction) -> Prediction:
    """Use e = 6 b / amax of the tensor, s = E4M3(amax / 6 * e), and x * (1 / (s / e)) without saturation.

    A quotient of 8 has the code of -0; b is the quantizer's largest block scale.
    """
    assert p.quantizer is not None
    choice, bound = p.quantizer.rule.four_over_six, p.quantizer.rule.max_block_scale or 448  # type: ignore[union-attr]
    e = E2M1_MAX * f32(bound) / p.tensor_amax
    found = []
    for factor in (f32(1), f32(1.5))[: 2 if choice else 1]:
        wide = np.where(p.tensor_amax == 0, 0, p.amax / E2M1_MAX * e) * factor
        s = _e4m3(wide)
        y = np.where(s[:, None] != 0, p.x * (f32(1) / (f32(1) / e * s))[:, None], 0).astype(f32)
        y = np.where(np.isinf(y), f32(np.nan), y)
        step = np.where(np.abs(y) < 2, f32(0.5), np.where(np.abs(y) < 4, f32(1), f32(2)))
        found.append((s, (np.rint(y / step) * step).astype(f32)))
    (s, v), other = found[0], found[-1]
    if choice:
        errors = [value * t[:, None] * p.tensor_amax[:, None] / f32(1536) - p.x for t, value in found]
        sums = [(np.abs(d) if choice == "mae" else d * d).sum(1, dtype=f32) for d in errors]
        four = sums[1] < sums[0]
        s, v = np.where(four, other[0], s), np.where(four[:, None], other[1], v)
    bits = v.view(np.uint32)
    code = (bits >> 31 << 3) | (((bits >> 23 & 255) - 126 << 1) & 0xFF) | np.where(np.abs(v) == 0.5, 1, bits >> 22 & 1)
    code = np.where(np.isnan(v), 0xB, np.where(v == 0, bits >> 31 << 3, code) & 15)
    return replace(p, scale=s, codes=code.astype(p.codes.dtype))


def exponent_bits(p: Prediction) -> Prediction:
    """Use the exponent field of amax / 6, plus 1 unless the mantissa is 0, as a scale's byte; byte 0 divides by 0."""
    bits = p.quotient.view(np.uint32)
    byte = (bits >> 23) + ((bits & 0x7FFFFF) != 0).astype(np.uint32) & 255
    y = p.x / (byte << 23).view(f32)[:, None]
    y = np.where(np.isinf(y), f32(np.nan), y)
    return with_scales(p, byte != p.exponent + 127, decode(byte.astype(np.uint8), "e8m0fnu"), y, 0xB)


def addend_lost(p: Prediction, exponent: int) -> Prediction:
    """Drop a NaN addend of CDNA3 if a product in the group of 16 has an exponent of at least `exponent`."""
    a, b = np.split(p.x, 2, axis=1)
    reached = np.any((np.frexp(a)[1] + np.frexp(b)[1] - 2 >= exponent).reshape(-1, 2, 16), 2, keepdims=True)[..., 0]
    first = reached[:, :1] & ~np.isnan(a * b)[:, :16].any(1, keepdims=True)  # else the second group adds NaN
    used = first | (np.arange(32) >= 16)
    codes, how = p.codes.copy(), {"accumulator": "cdna3_fp8", "a_format": "e5m2fnuz", "b_format": "e5m2fnuz"}
    for i in np.flatnonzero(reached[:, 1] | first[:, 0]):
        codes[i] = mma(*(encode(np.where(used[i], v[i], f32(0))[None], "e5m2fnuz") for v in (a, b)), **how)
    return replace(p, codes=codes)


# --- casts ------------------------------------------------------------------------------------------------------------


def between(p: Prediction, low: int, high: int, code: int, signed: int = 0) -> Prediction:
    """Encode magnitudes whose bits are in the range `low` to `high` as one code, plus `signed` for negative values."""
    bits = p.x.view(np.uint32)
    size = bits & 0x7FFFFFFF
    codes = code | (bits >> 31) * np.uint32(signed)
    return replace(p, codes=np.where((size >= low) & (size <= high), codes, p.codes).astype(p.codes.dtype))


def rounded_to_float32(p: Prediction, policy: str) -> Prediction:
    """Round values just above `p.x` to float32, which gives `p.x`, before they are cast to nearest even."""
    return replace(p, codes=encode(p.x, p.format, policy=policy))


def midpoints_in_float32(p: Prediction) -> Prediction:
    """Compare with the midpoints of neighbouring values, rounded to float32; a tie gives the lower value."""
    values = p.format.values().astype(np.float64)
    return replace(p, codes=np.searchsorted(((values[1:] + values[:-1]) / 2).astype(f32), p.x).astype(p.codes.dtype))


def payload(p: Prediction, shift: int, quiet: int) -> Prediction:
    """Keep the upper bits of a NaN; `quiet` is the bit that is set in it."""
    bits = p.x.view(np.uint32)
    codes = bits >> shift if shift == 16 else (bits >> 31 << 15) | 0x7C00 | (bits & 0x7FFFFF) >> shift
    return replace(p, codes=np.where(np.isnan(p.x), codes | quiet, p.codes).astype(p.codes.dtype))


def nan_unsigned(p: Prediction) -> Prediction:
    """Drop the sign bit of a NaN whose code is that of -0, unless it results from the overflow of a negative value."""
    signed = (p.codes == p.format.sign_mask) & ~(p.x < 0)
    return replace(p, codes=np.where(signed, 0, p.codes).astype(p.codes.dtype))


def below_smallest(p: Prediction) -> Prediction:
    """Encode numbers below 2^-127 as the exponent of the nearest power of two, plus 127, in two's complement."""
    significand, e = np.frexp(p.x)
    code = e + 126
    code += (significand > 0.75) | ((significand == 0.75) & (code % 2 != 0))
    return replace(p, codes=np.where((p.x > 0) & (code < 0), code & 0xFFFF, p.codes))


def subnormals_by_addition(p: Prediction) -> Prediction:
    """Encode subnormals as floor(x * 512 + 0.5) in float32, at most 7."""
    code = np.floor(p.x * f32(512) + f32(0.5)).astype(np.int64).clip(0, 7)
    return replace(p, codes=np.where(p.x < 2.0**-6, code, p.codes).astype(p.codes.dtype))


# --- bytes of two codes -----------------------------------------------------------------------------------------------


def high_first(p: Prediction) -> Prediction:
    """Store the first code of a byte in its high nibble."""
    return replace(p, codes=(p.codes >> 4 | p.codes << 4).astype(p.codes.dtype))


def by_halves(p: Prediction) -> Prediction:
    """Store element i of a block in the low nibble of byte i, and element i + 16 in its high nibble."""
    codes = np.stack([p.codes & 15, p.codes >> 4], -1).reshape(len(p.codes), -1)
    low, high = np.split(codes, 2, axis=1)
    return replace(p, codes=(low | high << 4).astype(p.codes.dtype))
