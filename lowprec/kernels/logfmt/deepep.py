"""LogFMT-10 of DeepEP's low-latency combine: float32 throughout, with the GPU's approximate log2 and 2**y.

Values are bfloat16 bit patterns. `log2_table` has log2 of the 32768 magnitudes. The two other tables (`ApproxTables`)
give log2 and 2**y of other arguments: correctly rounded if empty, otherwise recorded from a GPU for all significands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, kernel
from lowprec.kernels.logfmt.rounded_log2 import exp2_in_range, exp2_rounded, log2_rounded

F, U, Index = np.float32, np.uint32, np.uint64
W = np.uint64
TILE = 128
TOP = 510  # intervals between the ends

_MAGNITUDE = U(0x7FFF)
_NAN = U(0x7F80)  # magnitudes above this are NaN


@kernel
def fill_log2(table: Any) -> None:
    """Write the correctly rounded log2 of every bfloat16 magnitude: -inf for 0, inf, NaN for NaN."""
    for u in range(table.size):
        table[u] = log2_rounded(float32_from_bits(U(U(u) << U(16))))


@kernel
def _log2(x: Any, significands: Any) -> Any:
    """Return log2 of a float32 number in [1, 2), from a table over its significand if available."""
    if significands.size == 0:
        return log2_rounded(x)
    return significands[bits32(x) & U(0x7FFFFF)]


@kernel
def exp2(y: Any, fractions: Any) -> Any:
    """Return 2**y, -150 < y < 1: correctly rounded, or from a table of 2**f for f = i / 2^23 in [0, 1).

    With a table, y is split into an integer and such a fraction, rounded down.
    """
    if fractions.size == 0:
        return exp2_rounded(y)
    whole = np.floor(y)
    i = np.int64((np.float64(y) - np.float64(whole)) * 8388608.0)
    return F(np.float64(fractions[min(i, fractions.size - 1)]) * np.float64(exp2_rounded(whole)))


@kernel
def step_of(log_high: Any, log_low: Any) -> Any:
    """Return the step between two codes, in octaves."""
    return F(F(log_high - log_low) / F(TOP))


@kernel
def log_ends(amax: Any, amin: Any, log2_table: Any) -> Any:
    """Return log2 of a tile's largest and smallest magnitude; the latter is at least the former minus 32."""
    log_high = log2_table[amax]
    return log_high, max(log2_table[amin], F(log_high - F(32.0)))


@kernel
def is_fit(log_high: Any, log_low: Any) -> bool:
    """Return whether a tile qualifies for LogFMT: all magnitudes below 1 and not all equal."""
    return bool(log_high < F(0.0) and log_low < log_high)


@kernel
def find_tiles(x: Any, log2_table: Any, amax: Any, amin: Any, fit: Any, start: int, stop: int) -> None:
    """Compute the ends of tiles start .. stop, and whether each qualifies for LogFMT.

    The smallest magnitude includes zeros, both ends ignore NaN; a tile of only NaN gets 0 and infinity.
    """
    for t in range(start, stop):
        most, least = U(0), U(0x7F80)
        for i in range(TILE * t, TILE * t + TILE):
            magnitude = U(U(x[i]) & _MAGNITUDE)
            if magnitude <= _NAN:
                most = max(most, magnitude)
                least = min(least, magnitude)
        amax[t], amin[t] = most, least
        log_high, log_low = log_ends(most, least, log2_table)
        fit[t] = is_fit(log_high, log_low)


@kernel
def encode_tile(
    x: Any, t: int, amax: Any, amin: Any, log2_table: Any, significands: Any, fractions: Any, codes: Any
) -> int:
    """Encode tile t as codes of up to ten bits, without signs; return the number of codes that exceed nine bits."""
    log_high, log_low = log_ends(amax[t], amin[t], log2_table)
    step = step_of(log_high, log_low)
    inverse = F(F(1.0) / step)
    half = F((F(1.0) + exp2(step, fractions)) * F(0.5))
    rounding = fma32(F(-_log2(half, significands)), inverse, F(2.0))
    offset = fma32(F(-log_low), inverse, rounding)
    overflows = 0
    for i in range(TILE * t, TILE * t + TILE):
        place = fma32(log2_table[U(U(x[i]) & _MAGNITUDE)], inverse, offset)
        code = np.int32(place) if place > F(0.0) else np.int32(0)  # NaN becomes 0 too
        codes[i] = code
        overflows += int(code > 511)
    return overflows


@kernel
def merge_overflows(codes: Any, first: int) -> None:
    """Convert sixteen codes and signs to those received: a tenth bit is or-ed into the next code's lowest bit.

    `codes` has the magnitudes in bits 0 .. 9 and the signs in bit 15. The tenth bit of the last magnitude is or-ed into
    the first sign.
    """
    carry = U(0)
    for i in range(first, first + 16):
        word = U(codes[i])
        codes[i] = U(U(U(word & U(0x1FF)) | carry) | U(U(word >> U(15)) << U(9)))
        carry = U(U(word >> U(9)) & U(1))
    codes[first] = U(U(codes[first]) | U(carry << U(9)))


@kernel
def encode_tiles(
    x: Any,
    fit: Any,
    amax: Any,
    amin: Any,
    log2_table: Any,
    significands: Any,
    fractions: Any,
    codes: Any,
    start: int,
    stop: int,
) -> int:
    """Encode the tiles of start .. stop with `fit` set; the codes of other tiles are their bfloat16 numbers.

    Codes are those that the receiver decodes: sign in bit 9, magnitude below. Returns the number of overflows.
    """
    overflows = 0
    for t in range(start, stop):
        if not fit[t]:
            for i in range(TILE * t, TILE * t + TILE):
                codes[i] = x[i]
            continue
        overflows += encode_tile(x, t, amax, amin, log2_table, significands, fractions, codes)
        for i in range(TILE * t, TILE * t + TILE):
            codes[i] = U(U(codes[i]) | U(U(x[i]) & U(0x8000)))
        for first in range(TILE * t, TILE * t + TILE, 16):
            merge_overflows(codes, first)
    return overflows


@kernel
def signed(magnitude: Any, code: Any) -> Any:
    """Return the value of a code, given the value of its magnitude; code 0 is zero."""
    value = bits32(magnitude) if U(code & U(0x1FF)) > U(0) else U(0)
    return float32_from_bits(U(value | U(U(code >> U(9)) << U(31))))


@kernel
def decode_tiles(
    codes: Any, fit: Any, amax: Any, amin: Any, log2_table: Any, fractions: Any, out: Any, start: int, stop: int
) -> None:
    """Decode tiles start .. stop to float32."""
    for t in range(start, stop):
        if not fit[t]:
            for i in range(TILE * t, TILE * t + TILE):
                out[i] = float32_from_bits(U(U(codes[i]) << U(16)))
            continue
        log_high, log_low = log_ends(amax[t], amin[t], log2_table)
        step = step_of(log_high, log_low)
        if fractions.size == 0:
            for i in range(Index(TILE)):  # a separate loop, so that it vectorizes
                place = Index(Index(TILE * t) + i)
                code = U(codes[place])
                k = np.int32(U(code & U(0x1FF)))
                value = exp2_in_range(fma32(F(np.int32(k - 1)), step, log_low))
                out[place] = signed(value, code)
        else:
            for i in range(TILE * t, TILE * t + TILE):
                code = U(codes[i])
                k = np.int32(U(code & U(0x1FF)))
                out[i] = signed(exp2(fma32(F(np.int32(k - 1)), step, log_low), fractions), code)


@kernel
def pack_sixteens(codes: Any, words: Any) -> None:
    """Pack sixteen codes into five 32-bit words: nine bits of magnitude each, from the lowest bit, then the signs."""
    for group in range(codes.size // 16):
        first = 16 * group
        low, middle, signs = W(0), W(0), W(0)
        for i in range(7):
            low = W(low | W(W(codes[first + i] & 0x1FF) << W(9 * i)))
            middle = W(middle | W(W(codes[first + 8 + i] & 0x1FF) << W(9 * i + 8)))
        for i in range(16):
            signs = W(signs | W(W(W(codes[first + i]) >> W(9)) << W(i)))
        seventh, before_last, last = (
            W(codes[first + 7] & 0x1FF),
            W(codes[first + 14] & 0x1FF),
            W(codes[first + 15] & 0x1FF),
        )
        low = W(low | W(seventh << W(63)))
        middle = W(middle | W(seventh >> W(1)))
        high = W(W(W(before_last >> W(2)) | W(last << W(7))) | W(signs << W(16)))
        for i, part in enumerate((low, W(low >> W(32)), middle, W(middle >> W(32)), high)):
            words[5 * group + i] = U(part & W(0xFFFFFFFF))


@kernel
def unpack_sixteens(words: Any, codes: Any) -> None:
    """Unpack the words of `pack_sixteens`."""
    for group in range(words.size // 5):
        first, at = 16 * group, 5 * group
        low = W(W(words[at]) | W(W(words[at + 1]) << W(32)))
        middle = W(W(words[at + 2]) | W(W(words[at + 3]) << W(32)))
        high = W(words[at + 4])
        for i in range(7):
            codes[first + i] = W(W(low >> W(9 * i)) & W(0x1FF))
            codes[first + 8 + i] = W(W(middle >> W(9 * i + 8)) & W(0x1FF))
        codes[first + 7] = W(W(low >> W(63)) | W(W(middle & W(0xFF)) << W(1)))
        codes[first + 14] = W(W(middle >> W(62)) | W(W(high & W(0x7F)) << W(2)))
        codes[first + 15] = W(W(high >> W(7)) & W(0x1FF))
        for i in range(16):
            codes[first + i] = W(W(codes[first + i]) | W(W(W(high >> W(16 + i)) & W(1)) << W(9)))


@kernel
def add_weighted(values: Any, weight: Any, sums: Any) -> None:
    """Add values times a weight to sums, with one rounding to float32 per multiply-add."""
    for i in range(sums.size):
        sums[i] = fma32(values[i], weight, sums[i])
