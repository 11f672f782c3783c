"""Casts in any rounding mode: a word is added below the last kept bit, and the sum is truncated.

`lowprec.format.rounding` defines the word of each mode; for stochastic modes it is random. The last bit of fractions
that extend more than 31 bits below the quantum is sticky; with it every mode, with up to 24 random bits, gives the
result of the exact definition.
"""

import numpy as np

from lowprec._jit import bits32, bits64, float32_from_bits, kernel

from .nearest import decode_bits
from .random_bits import key_run, key_runs, keyed_word, random_keys

U = np.uint32
U64 = np.uint64


@kernel
def encode_word(u, constants, word):
    """Return the code of one float32, given as its bits; `constants` are `lowprec.cast.constants.word_constants`.

    `word`, which is added to the fraction, comes from the rounding mode (`fixed_word`) or from the element's random
    word (`random_part`).
    """
    (
        shift0, emin_field, m, limit, negative_limit, negative_from, flip, sign, minus_zero,
        over, negative_over, inf, negative_inf, nan, negative_nan, even, odd, c_bits,
    ) = constants  # fmt: skip
    a = U(u & U(0x7FFFFFFF))
    negative = u >= negative_from
    e = max(U(a >> U(23)), U(1))
    s = U(U(a & U(0x7FFFFF)) | (U(0x800000) if a >= U(0x800000) else U(0)))
    field = max(e, emin_field)
    shift = U(shift0 + U(field - e))
    sunk = U(min(U(max(shift, U(31)) - U(31)), U(31)) & U(31))
    shift = U(min(shift, U(31)) & U(31))
    kept = U(s >> sunk)
    s = U(kept | (U(1) if U(kept << sunk) != s else U(0)))
    if c_bits != U(0):  # variant C of P3109 first rounds the fraction to its bits
        k = U(U(max(shift, c_bits) - c_bits) & U(31))
        unit = U(U(1) << k)
        half = U(unit >> U(1))
        s = U(U(U(s + half) - (U(1) if U(s & unit) == U(0) and half != U(0) else U(0))) & U(U(0) - unit))
    base = U(U(field - emin_field) << U(m & U(31)))
    floor = U(base + U(s >> shift))
    # Ties to even: an odd code adds one to a word just below 1/2, which makes it exactly 1/2 at every shift.
    added = U(U(U(word >> U(1)) + U(U(floor & even) & word)) >> U(U(U(31) - shift) & U(31)))
    code = U(base + U(U(s + added) >> shift))
    inexact = U(U(s >> shift) << shift) != s
    code = U(code + (U(U(code & U(1)) ^ U(1)) if inexact and odd != U(0) else U(0)))
    beyond = code >= (negative_limit if negative else limit)
    signed = U(U(code ^ flip) + sign) if code != U(0) else minus_zero
    r = signed if negative else code
    r = (negative_over if negative else over) if beyond else r
    r = (negative_inf if negative else inf) if a == U(0x7F800000) else r
    return (negative_nan if u > U(0x7FFFFFFF) else nan) if a > U(0x7F800000) else r


@kernel
def fixed_word(u, words):
    """Return the word that a deterministic mode adds to a value given by its bits."""
    return words[1] if u > U(0x7FFFFFFF) else words[0]


@kernel
def random_part(word, words):
    """Return the word that a stochastic mode adds, from the element's random word."""
    return U(U(word & words[2]) | words[3])


@kernel
def encode_random(u, constants, word):
    """Return the result of `encode_word` for P3109's variants A and B and formats with -0, with half the operations.

    Normal numbers: the word is added to the float32 bits, and a carry propagates into the exponent. Below 2^emin the
    value is converted to an integer in units of 2^-low quanta; the bits lost there are below all random bits.
    `constants` are `lowprec.cast.constants.random_constants`.
    """
    shift, down, offset, subnormal, scale, low, clamp, nan, negative_nan, sign_shift, sign_mask = constants
    a = U(u & U(0x7FFFFFFF))
    c = min(a, clamp)
    normal = U(U(U(c + U(word >> U(down & U(31)))) >> U(shift & U(31))) - offset)
    fixed = U(np.int32(float32_from_bits(c) * float32_from_bits(scale)))
    tiny = U(U(fixed + U(word >> U(U(U(32) - low) & U(31)))) >> U(low & U(31)))
    code = tiny if c < subnormal else normal
    code = U(code | U(U(u >> U(sign_shift & U(31))) & sign_mask))
    special = negative_nan if u > U(0x7FFFFFFF) else nan
    return special if a > U(0x7F800000) else code


@kernel
def encode32_random(x, out, constants, words, seed_lo, seed_hi, start):
    """Encode contiguous float32 `x` with `encode_random`; `start` is the index of its first element."""
    for p in range(key_runs(start, x.size)):
        a, b, hi, lo = key_run(start, x.size, p)
        keys = random_keys(seed_lo, seed_hi, hi)
        part, into = x[a:b], out[a:b]
        for i in range(part.size):
            into[i] = encode_random(bits32(part[i]), constants, random_part(keyed_word(keys, U(lo + U(i))), words))


@kernel
def round32_random(x, out, constants, decode_constants, words, seed_lo, seed_hi, start):
    """Round contiguous float32 `x` with `encode_random`; `out` may be `x`."""
    for p in range(key_runs(start, x.size)):
        a, b, hi, lo = key_run(start, x.size, p)
        keys = random_keys(seed_lo, seed_hi, hi)
        part, into = x[a:b], out[a:b]
        for i in range(part.size):
            word = random_part(keyed_word(keys, U(lo + U(i))), words)
            code = encode_random(bits32(part[i]), constants, word)
            into[i] = float32_from_bits(decode_bits(code, decode_constants))


@kernel
def encode32_words(x, out, constants, words, seed_lo, seed_hi, start):
    """Encode contiguous float32 `x`; `start` is the index of its first element."""
    if words[2] == U(0):
        for i in range(x.size):
            u = bits32(x[i])
            out[i] = encode_word(u, constants, fixed_word(u, words))
        return
    for p in range(key_runs(start, x.size)):
        a, b, hi, lo = key_run(start, x.size, p)
        keys = random_keys(seed_lo, seed_hi, hi)
        part, into = x[a:b], out[a:b]
        for i in range(part.size):
            word = random_part(keyed_word(keys, U(lo + U(i))), words)
            into[i] = encode_word(bits32(part[i]), constants, word)


@kernel
def round32_words(x, out, constants, decode_constants, words, seed_lo, seed_hi, start):
    """Round contiguous float32 `x` to the values of a format; `out` may be `x`."""
    if words[2] == U(0):
        for i in range(x.size):
            u = bits32(x[i])
            out[i] = float32_from_bits(decode_bits(encode_word(u, constants, fixed_word(u, words)), decode_constants))
        return
    for p in range(key_runs(start, x.size)):
        a, b, hi, lo = key_run(start, x.size, p)
        keys = random_keys(seed_lo, seed_hi, hi)
        part, into = x[a:b], out[a:b]
        for i in range(part.size):
            word = random_part(keyed_word(keys, U(lo + U(i))), words)
            code = encode_word(bits32(part[i]), constants, word)
            into[i] = float32_from_bits(decode_bits(code, decode_constants))


@kernel
def encode_word64(u, constants, word, m, emin, first):
    """Encode a float64 in any format as `encode_word` does; `word` has 64 bits, `first` is 1 for formats without 0."""
    limit, negative_limit, negative_from = constants[3], constants[4], constants[5]
    flip, sign, minus_zero = constants[6], constants[7], constants[8]
    even, odd, c_bits = constants[15], constants[16], np.int64(constants[17])
    a = u & U64(0x7FFFFFFFFFFFFFFF)
    below = u > U64(0x7FFFFFFFFFFFFFFF)
    inf_bits = U64(0x7FF) << U64(52)
    if a > inf_bits:
        return constants[14] if below else constants[13]
    negative = below and (a != U64(0) or negative_from == U(0x80000000))
    if a == inf_bits:
        return constants[12] if negative else constants[11]
    e = max(np.int64(a >> U64(52)), np.int64(1)) - 1023
    s = a & U64(0xFFFFFFFFFFFFF)
    if a >= U64(1) << U64(52):
        s |= U64(1) << U64(52)
    field = max(e, np.int64(emin))
    shift = np.int64(52) - m + field - e
    if shift > 62:
        sunk = U64(min(shift - 62, 63))
        shift = np.int64(62)
        kept = s >> sunk
        s = kept | (U64(1) if kept << sunk != s else U64(0))
    if c_bits != 0 and shift > c_bits:
        k = U64(shift - c_bits)
        half = U64(1) << (k - U64(1))
        s = (s + half - (U64(1) if s >> k & U64(1) == U64(0) else U64(0))) & ~((U64(1) << k) - U64(1))
    n = s >> U64(shift)
    base = ((field - np.int64(emin)) << np.int64(m)) - np.int64(first)
    parity = (base + np.int64(n)) & np.int64(1)
    added = ((word >> U64(1)) + (U64(parity & np.int64(even)) & word)) >> U64(63 - shift)
    inexact = n << U64(shift) != s
    code = base + np.int64((s + added) >> U64(shift))
    if inexact and odd != U(0) and parity == 0:
        code += 1
    code = max(code, np.int64(0))
    if code >= np.int64(negative_limit if negative else limit):
        return constants[10] if negative else constants[9]
    magnitude = U(code)
    if not negative:
        return magnitude
    return minus_zero if magnitude == U(0) else U(U(magnitude ^ flip) + sign)


@kernel
def encode64_words(x, out, constants, words, m, emin, first, seed_lo, seed_hi, start):
    """Encode contiguous float64 `x` with one rounding into any format."""
    if words[2] == U(0):
        for i in range(x.size):
            u = bits64(x[i])
            short = words[1] if u > U64(0x7FFFFFFFFFFFFFFF) else words[0]
            # The mode's word is extended with its last bit: all ones stay all ones.
            word = U64(short) << U64(32) | (U64(0xFFFFFFFF) if short & U(1) != U(0) else U64(0))
            out[i] = encode_word64(u, constants, word, m, emin, first)
        return
    for p in range(key_runs(start, x.size)):
        a, b, hi, lo = key_run(start, x.size, p)
        keys = random_keys(seed_lo, seed_hi, hi)
        part, into = x[a:b], out[a:b]
        for i in range(part.size):
            word = U64(random_part(keyed_word(keys, U(lo + U(i))), words)) << U64(32)
            into[i] = encode_word64(bits64(part[i]), constants, word, m, emin, first)
