"""Constants that the cast kernels take for a format, rounding and policy, as cached tuples of 32-bit words."""

from __future__ import annotations

import functools

import numpy as np

from ..format.format import Format
from ..format.policy import SpecialCodes
from ..format.rounding import Rounding

Constants = tuple[np.uint32, ...]

_ALL = 0xFFFFFFFF
_SIGN = 0x80000000
_QUIET_NAN = 0x7FC00000


@functools.lru_cache(maxsize=512)
def encode_constants(fmt: Format, special: SpecialCodes) -> Constants | None:
    """Return the arguments of `kernels.cast.nearest.encode_bits`, in order, or None if that kernel is not exact."""
    if not _has_nearest_kernel(fmt, special):
        return None
    m, emin = fmt.mantissa_bits, fmt.emin
    return _words(
        23 - m,
        (1 << (22 - m)) - 1 if m < 23 else 0,
        int(m < 23),
        (126 + emin) << m,
        (127 + emin) << 23 if emin > -126 else 0,
        (emin - m + 23 + 127) << 23 if emin > -126 else 0,
        _bits_of(fmt, special.over),
        special.nan,
        special.negative_nan,
        (1 << fmt.bits) - 1 if fmt.is_integer else 0,
        1 if fmt.is_integer else fmt.sign_mask,
        int(special.negative_zero == 0),
    )


@functools.lru_cache(maxsize=512)
def near_constants(fmt: Format, special: SpecialCodes) -> Constants | None:
    """Return the arguments of `kernels.cast.nearest.encode_near`, in order, or None if that kernel is not exact."""
    m, emin = fmt.mantissa_bits, fmt.emin
    if not (_has_nearest_kernel(fmt, special) and special.negative_zero and not fmt.is_integer):
        return None
    if m == 23:  # the addend would be one binade above the value, where the quantum is twice as large
        return None
    if special.negative_nan != special.nan | fmt.sign_mask or fmt.emax + 1 + 23 - m > 127 or emin == -126:
        return None
    return _words(
        (127 + emin) << 23,
        (23 - m) << 23,
        23 - m,
        _bits_of(fmt, special.over),
        32 - fmt.bits,
        fmt.sign_mask,
        special.nan,
    )


@functools.lru_cache(maxsize=512)
def short_constants(fmt: Format, special: SpecialCodes) -> Constants | None:
    """Return the arguments of `kernels.cast.nearest.encode32_short`, in order, or None if that kernel is not exact."""
    m = fmt.mantissa_bits
    like_float32 = fmt.specials == "ieee" and fmt.signed and (fmt.exponent_bits, fmt.bias) == (8, 127) and m < 23
    if not (like_float32 and _symmetric(fmt, special) and special.over == fmt.inf_code and special.negative_zero):
        return None
    return _words(23 - m, (1 << (22 - m)) - 1, special.nan, special.negative_nan)


@functools.lru_cache(maxsize=512)
def random_constants(fmt: Format, special: SpecialCodes, rounding: Rounding) -> Constants | None:
    """Return the arguments of `kernels.cast.rounding.encode_random`, in order, or None if that kernel is not exact."""
    if not (_has_nearest_kernel(fmt, special) and rounding.is_stochastic and special.negative_zero):
        return None
    m, emin = fmt.mantissa_bits, fmt.emin
    low = 30 - m  # binary places of a subnormal: its last quanta stay below 2^31
    reach = rounding.random_bits + (rounding.variant == "B")
    if m == 23 or rounding.variant == "C" or (emin > -126 and (reach > low or emin < -90)):
        return None
    return _words(
        23 - m,
        9 + m,
        (126 + emin) << m,
        (127 + emin) << 23 if emin > -126 else 0,
        int(np.float32(2.0 ** (low + m - emin)).view(np.uint32)) if emin > -126 else 0,
        low,
        _bits_of(fmt, special.over),
        special.nan,
        special.negative_nan,
        32 - fmt.bits,
        fmt.sign_mask,
    )


@functools.lru_cache(maxsize=512)
def round_constants(fmt: Format, special: SpecialCodes) -> Constants | None:
    """Return the arguments of `kernels.cast.nearest.round_bits`, in order, or None if that kernel is not exact."""
    if not _has_nearest_kernel(fmt, special):
        return None
    m, emin = fmt.mantissa_bits, fmt.emin
    nan, negative_nan = (_value_bits(fmt, code) for code in (special.nan, special.negative_nan))
    return _words(
        23 - m,
        (1 << (22 - m)) - 1 if m < 23 else 0,
        int(m < 23),
        _ALL << (23 - m) & _ALL,
        (127 + emin) << 23 if emin > -126 else 0,
        (emin - m + 23 + 127) << 23 if emin > -126 else 0,
        _value_bits(fmt, fmt.max_code),
        _value_bits(fmt, special.over),
        nan,
        negative_nan,
        int(special.negative_zero == 0),
    )


@functools.lru_cache(maxsize=512)
def decode_constants(fmt: Format) -> Constants:
    """Return the arguments of `kernels.cast.nearest.decode_bits`, in order; `has_word_kernel` must be true."""
    m, emin = fmt.mantissa_bits, fmt.emin
    subnormal = 1 << m if emin > -126 else 0
    minus_zero = _SIGN if fmt.has_negative_zero else _QUIET_NAN
    if fmt.is_integer:
        minus_zero = int(np.float32(fmt.value(fmt.sign_mask)).view(np.uint32))
    return _words(
        23 - m,
        (126 + emin) << 23,
        _ALL if fmt.is_integer else subnormal,
        int(np.float32(2.0 ** (emin - m) if subnormal else 1.0).view(np.uint32)),  # a subnormal factor is slow
        fmt.max_code + fmt.is_integer,
        _ALL if fmt.inf_code is None else fmt.inf_code,
        fmt.sign_mask,
        (1 << fmt.bits) - 1 if fmt.is_integer else fmt.sign_mask,
        int(fmt.is_integer),
        minus_zero,
    )


@functools.lru_cache(maxsize=512)
def word_constants(fmt: Format, special: SpecialCodes, rounding: Rounding) -> Constants:
    """Return the argument `constants` of `encode_word` and `encode_word64` in `kernels.cast.rounding`.

    `encode_word` requires a format with `has_word_kernel`; `encode_word64` takes any.
    """
    m = fmt.mantissa_bits
    return _words(
        23 - m,
        max(fmt.emin + 127, 0),
        m,
        fmt.max_code + 1,
        special.min_negative_magnitude,
        _SIGN if fmt.signed else _SIGN + 1,
        (1 << fmt.bits) - 1 if fmt.is_integer else 0,
        1 if fmt.is_integer else fmt.sign_mask,
        special.negative_zero,
        *special[:6],
        int(rounding.ties_even),
        int(rounding.sticky_to_lsb),
        rounding.random_bits if rounding.variant == "C" else 0,
    )


@functools.cache
def rounding_words(rounding: Rounding) -> Constants:
    """Return a rounding's words for `kernels.cast.rounding`.

    They are the increments of positive and of negative values, a mask of the random bits to keep, and bits to set.
    """
    n = rounding.random_bits
    extra = 1 << (31 - n) if n and rounding.variant == "B" else 0
    return _words(rounding.positive_increment, rounding.negative_increment, _ALL << (32 - n) & _ALL if n else 0, extra)


def has_word_kernel(fmt: Format) -> bool:
    """Return whether the float32 kernels `encode_word` and `decode_bits` are exact for a format.

    Other formats are encoded from float64, and decoded with a table or code by code.
    """
    return not fmt.is_table and fmt.has_subnormals and fmt.emin >= -126


def takes_float32(fmt: Format, rounding: Rounding) -> bool:
    """Return whether a cast can work on float32 values directly instead of widening them to float64.

    `encode_word` keeps 31 bits below the quantum, the last one sticky. Its result equals the one from all bits if the
    words of a rounding end in 00 or in 11.
    """
    words = (rounding.positive_increment, rounding.negative_increment)
    return fmt.is_table or (has_word_kernel(fmt) and all(word & 3 in (0, 3) for word in words))


def _has_nearest_kernel(fmt: Format, special: SpecialCodes) -> bool:
    """Return whether `encode_bits` and `round_bits` are exact; derived kernels have further conditions."""
    return (
        has_word_kernel(fmt)
        and fmt.mantissa_bits >= 1
        and fmt.emin <= 100  # the addend of subnormals is a float32 number
        and fmt.signed
        and _symmetric(fmt, special)
    )


def _symmetric(fmt: Format, special: SpecialCodes) -> bool:
    """Return whether overflow of both signs and Inf give the same magnitude code: the maximum or the next one."""
    after = special.over == fmt.max_code + 1 < fmt.sign_mask
    return (
        (special.over == fmt.max_code or after)
        and special.negative_over == fmt.negative_code(special.over)
        and special.inf == special.over
        and special.negative_inf == special.negative_over
        and special.min_negative_magnitude == fmt.max_code + 1
    )


def _value_bits(fmt: Format, code: int) -> int:
    """Return the float32 bits of a code's value; NaN is quiet, with the sign of the code."""
    value = fmt.value(code)
    if value != value:
        negative = code & fmt.sign_mask and fmt.nan_code != fmt.sign_mask
        return _QUIET_NAN | (_SIGN if negative else 0)
    return int(np.float32(value).view(np.uint32))


def _bits_of(fmt: Format, magnitude: int) -> int:
    """Return the float32 bits of a magnitude code, extending the exponents beyond the maximum."""
    m = fmt.mantissa_bits
    if magnitude == fmt.max_code:
        return _value_bits(fmt, magnitude)
    return ((magnitude >> m) + fmt.emin + 126 << 23) + ((magnitude & ((1 << m) - 1)) << (23 - m))


def _words(*values: int) -> Constants:
    return tuple(np.uint32(value) for value in values)
