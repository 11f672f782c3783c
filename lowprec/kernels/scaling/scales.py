"""Block scales from the bits of the largest magnitudes: one loop per scale calculation.

Every loop converts `amax` (float32 bits, as uint32) to `scale`, which multiplies decoded codes, and `factor`, by which
values are multiplied (or divided, for such quantizers) before the cast. Powers of two come from the bits, without a
logarithm. The scales of blocks of zeros, with Inf or with NaN are arguments.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

from ..cast.bounded import round_bounded

U = np.uint32
F = np.float32
INF = U(0x7F800000)
MANTISSA = U(0x7FFFFF)
LARGEST = F(3.4028234663852886e38)

# Scale calculations; `lowprec.scaling.constants` maps the `arithmetic` of quantizers to them.
QUOTIENT, PRODUCT, MULTIPLIER = 0, 1, 2
EXPONENT, POWER_QUOTIENT, POWER_PRODUCT, POWER_MULTIPLIER = 3, 4, 5, 6
E4M3_FOLDED, E4M3_QUOTIENTS, E4M3_JOINT, E4M3_ALONE, E4M3_PLAIN = 7, 8, 9, 10, 11
FIXED = 12  # every block has the same multiplier
DIVIDE, RECIPROCAL = 0, 1


@kernel
def reciprocal(s):
    """Return float32(1 / s), at most the largest finite number, so that 0 remains 0; NaN remains NaN."""
    return min(F(F(1) / s), LARGEST) if s == s else s


@kernel
def power_of_two(code):
    """Return 2^(code - 127) for 0 <= code <= 254."""
    return float32_from_bits(U(0x00400000) if code == U(0) else U(code << U(23)))


@kernel
def _e4m3_scales(amax, how, numbers, e4m3, scale, factor):
    """Write scales that are E4M3 numbers, and their factors; `how` is one of the five such calculations.

    The first argument of `min` and `max` replaces NaN: 0 / 0 and 0 * Inf, for tensors with an amax of 0 or Inf.
    """
    largest, _, floor, _, tensor, tensor_inverse, folded, smallest = numbers
    n = amax.size
    for b in range(n):
        a = max(float32_from_bits(amax[b]), floor)
        if how == E4M3_FOLDED:
            t = F(a * folded)
        elif how == E4M3_QUOTIENTS:
            t = F(F(a / largest) / tensor)
        elif how == E4M3_JOINT:
            t = F(a / folded)
            t = t if t > F(0) else F(1)
        elif how == E4M3_PLAIN:
            t = F(F(a / largest) * tensor_inverse)
        else:
            t = F(a / largest)
        scale[b] = round_bounded(bits32(max(smallest, t)), e4m3)
    if how in (E4M3_FOLDED, E4M3_PLAIN):
        for b in range(n):
            factor[b] = min(LARGEST, F(F(1) / F(scale[b] * tensor)))
    elif how == E4M3_QUOTIENTS:
        for b in range(n):
            factor[b] = min(LARGEST, F(tensor_inverse / scale[b]))
    elif how == E4M3_JOINT:
        for b in range(n):
            factor[b] = max(F(scale[b] * tensor), F(2.0**-149))
    else:
        for b in range(n):
            factor[b] = min(LARGEST, F(F(1) / scale[b]))


@kernel
def block_scales(amax, rule, scale, factor):
    """Write the scales and factors of blocks.

    Parameters
    ----------
    amax : uint32 [n]
    rule : tuple
        Scale calculation and scale application, constants of this module, followed by:

        * float32 numbers: largest element, its reciprocal, floor of amax, cap of a multiplier; the tensor
          scale, its inverse and the folded constant, if there is such a scale; the smallest allowed block scale;
        * words, for power-of-two scales: addend of the bits before their exponent is extracted, offset subtracted from
          it, smallest code; then the constants of E4M3 for encoding, decoding and rounding;
        * float32 scale and factor of blocks of zeros, with Inf, with NaN; and whether the first two are used.
    scale, factor : float32 [n]
    """
    how, division, numbers, words, special, use_special_zero = rule
    largest, inverse, floor, cap = numbers[0], numbers[1], numbers[2], numbers[3]
    add, subtract, least = words[0], words[1], words[2]
    n = amax.size
    if how == FIXED:
        for b in range(n):
            scale[b] = min(F(F(1) / cap), LARGEST)
            factor[b] = cap
    elif how in (QUOTIENT, PRODUCT):
        for b in range(n):
            a = max(float32_from_bits(amax[b]), floor)
            q = bits32(F(a / largest) if how == QUOTIENT else F(a * inverse))
            s = float32_from_bits(min(max(q, U(1)), U(INF - U(1))))
            scale[b] = s
            factor[b] = s if division == DIVIDE else F(F(1) / s)
        if division == RECIPROCAL:
            for b in range(n):
                factor[b] = min(factor[b], LARGEST)
    elif how in (MULTIPLIER, POWER_MULTIPLIER):
        keep = U(0xFF800000) if how == POWER_MULTIPLIER else U(0xFFFFFFFF)
        smallest = U(0x00400000) if how == POWER_MULTIPLIER else U(1)  # 2^-127, the inverse of the largest scale
        for b in range(n):
            m = min(F(largest / float32_from_bits(amax[b])), cap)
            m = float32_from_bits(max(U(bits32(m) & keep), smallest))
            scale[b] = min(F(F(1) / m), LARGEST)
            factor[b] = m
    elif how == EXPONENT:
        for b in range(n):
            a = max(float32_from_bits(amax[b]), floor)
            small = a < F(2.0**-60)
            t = bits32(F(a * F(2.0**64)) if small else a)
            field = np.int32(U(U(t + add) >> U(23))) - subtract - (np.int32(64) if small else np.int32(0))
            code = U(min(max(field, np.int32(least)), np.int32(254)))
            scale[b] = power_of_two(code)
            factor[b] = power_of_two(U(U(254) - code))
    elif how in (POWER_QUOTIENT, POWER_PRODUCT):
        for b in range(n):
            a = max(float32_from_bits(amax[b]), floor)
            q = bits32(F(a / largest) if how == POWER_QUOTIENT else F(a * inverse))
            normal = U(U(q + MANTISSA) >> U(23))
            code = normal if q > MANTISSA else (U(1) if q > U(0x400000) else U(0))
            code = min(max(code, least), U(254))
            scale[b] = power_of_two(code)
            factor[b] = power_of_two(U(U(254) - code))
    else:
        _e4m3_scales(amax, how, numbers, words[5], scale, factor)
    zero_scale, zero_factor, inf_scale, inf_factor, nan_scale, nan_factor = special
    for b in range(n):
        a = amax[b]
        s, f = scale[b], factor[b]
        s = zero_scale if a == U(0) and use_special_zero else s
        f = zero_factor if a == U(0) and use_special_zero else f
        s = inf_scale if a == INF else s
        f = inf_factor if a == INF else f
        scale[b] = nan_scale if a > INF else s
        factor[b] = nan_factor if a > INF else f
