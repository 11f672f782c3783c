"""Element-wise casts between float32 values and the codes of any format, to nearest even.

One kernel serves every format: integer arguments describe it. Each loop is free of branches and works on 32-bit lanes
only, so that LLVM vectorizes it; every unsigned subexpression is wrapped because Numba types ``uint32 op uint32`` as
uint64, and shift counts are masked to 5 bits because LLVM could not narrow the 64-bit shift otherwise.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

U = np.uint32


@kernel
def encode_bits(u, constants):
    """Return the code of one float32, given as its bits; `constants` are from `cast_constants.encode_constants`.

    Above 2^emin the float32 bits are rounded as an integer, and a carry propagates into the exponent. Below, adding
    2^(emin - mantissa_bits + 23) makes the FPU round at the quantum of the subnormals, also to nearest even. At
    emin = -126 both have the subnormals of float32, and integer rounding is sufficient.

    Overflowing values are first reduced to `clamp`, which rounds to the code for overflow. Negative codes are
    ``(code ^ flip) + sign``; without a -0, a code below `least` = 1 is unchanged.
    """
    shift, half, odd, offset, subnormal, magic, clamp, nan, negative_nan, flip, sign, least = constants
    a = U(u & U(0x7FFFFFFF))
    c = min(a, clamp)
    by = U(shift & U(31))
    lsb = U(U(c >> by) & odd)
    normal = U(U(U(U(c + half) + lsb) >> by) - offset)
    tiny = U(bits32(float32_from_bits(c) + float32_from_bits(magic)) - magic)
    code = tiny if c < subnormal else normal
    negative = u > U(0x7FFFFFFF)
    code = U(U(code ^ flip) + sign) if negative and code >= least else code
    special = negative_nan if negative else nan
    return special if a > U(0x7F800000) else code


@kernel
def encode_near(u, constants):
    """Encode as `encode_bits` does, with half the operations, for formats with -0 and addends in range of float32.

    Adding 2^(e + 23 - mantissa_bits) makes the FPU round at the quantum of the binade; below the smallest normal
    exponent the quantum is constant. NaN keeps its sign; `constants` are `lowprec.cast.constants.near_constants`.
    """
    smallest, up, shift, clamp, sign_shift, sign_mask, nan = constants
    a = U(u & U(0x7FFFFFFF))
    c = min(a, clamp)
    e = max(U(c & U(0x7F800000)), smallest)
    magic = U(e + up)
    t = U(bits32(np.float32(float32_from_bits(c) + float32_from_bits(magic))) - magic)
    code = U(t + U(U(e - smallest) >> U(shift & U(31))))
    code = nan if a > U(0x7F800000) else code
    return U(code | U(U(u >> U(sign_shift & U(31))) & sign_mask))


@kernel
def encode32_near(x, out, constants):
    """Encode contiguous float32 `x` with the `near_constants` of a format."""
    for i in range(x.size):
        out[i] = encode_near(bits32(x[i]), constants)


@kernel
def encode32_short(x, out, constants):
    """Encode contiguous float32 `x` in a format with float32's exponents, including Inf and NaN, such as bfloat16.

    The sign is kept while the other bits are rounded as an integer. `constants` are those of `short_constants`.
    """
    shift, half, nan, negative_nan = constants
    for i in range(x.size):
        u = bits32(x[i])
        by = U(shift & U(31))
        code = U(U(U(u + half) + U(U(u >> by) & U(1))) >> by)
        special = negative_nan if u > U(0x7FFFFFFF) else nan
        out[i] = special if U(u & U(0x7FFFFFFF)) > U(0x7F800000) else code


@kernel
def encode32(x, out, constants):
    """Encode contiguous float32 `x` with the `encode_constants` of a format."""
    for i in range(x.size):
        out[i] = encode_bits(bits32(x[i]), constants)


@kernel
def round_bits(u, constants):
    """Return the bits of one float32 rounded to a format; `constants` are from `cast_constants.round_constants`.

    Conditions and method are those of `encode_bits`; `least` is 1 if the format has no -0.
    """
    shift, half, odd, keep_bits, subnormal, magic, top, over, nan, negative_nan, least = constants
    a = U(u & U(0x7FFFFFFF))
    lsb = U(U(a >> U(shift & U(31))) & odd)
    normal = U(U(U(a + half) + lsb) & keep_bits)
    magic_value = float32_from_bits(magic)
    tiny = bits32((float32_from_bits(a) + magic_value) - magic_value)
    r = tiny if a < subnormal else normal
    r = over if r > top else r
    negative = u > U(0x7FFFFFFF)
    r = U(r | U(0x80000000)) if negative and r >= least else r
    special = negative_nan if negative else nan
    return special if a > U(0x7F800000) else r


@kernel
def round32(x, out, constants):
    """Round contiguous float32 `x` to a format."""
    for i in range(x.size):
        out[i] = float32_from_bits(round_bits(bits32(x[i]), constants))


@kernel
def round32_in_place(x, constants):
    """Round contiguous float32 `x` in place; for ``out=x``, `round32` would run LLVM's scalar loop."""
    for i in range(x.size):
        x[i] = float32_from_bits(round_bits(bits32(x[i]), constants))


@kernel
def decode_bits(c, constants):
    """Return the float32 bits of one code; `constants` are from `cast_constants.decode_constants`."""
    shift, offset, subnormal, quantum, top, inf, sign_mask, flip, carry, minus_zero = constants
    negative = U(c & sign_mask) != U(0)
    a = U(U(c ^ flip) + carry) if negative else c
    tiny = bits32(np.float32(np.int32(a)) * float32_from_bits(quantum))
    r = tiny if a < subnormal else U(U(a << U(shift & U(31))) + offset)
    r = U(0x7FC00000) if a > top else r
    r = U(0x7F800000) if a == inf else r
    r = U(r | U(0x80000000)) if negative else r
    return minus_zero if c == sign_mask and negative else r


@kernel
def decode32(codes, out, constants):
    """Decode contiguous `codes` to float32 with the `decode_constants` of a format."""
    for i in range(codes.size):
        out[i] = float32_from_bits(decode_bits(U(codes[i]), constants))


@kernel
def decode32_seen(codes, out, constants):
    """Decode as `decode32`, and return the bitwise or of all codes, to check whether one has too many bits."""
    seen = U(0)
    for i in range(codes.size):
        c = U(codes[i])
        seen = U(seen | c)
        out[i] = float32_from_bits(decode_bits(c, constants))
    return seen
