"""Element-wise casts between float32/float64 values and the codes of any format, to nearest even.

One kernel serves every format: what differs comes in as integers. Each loop is free of branches and works
on 32-bit lanes only, so that LLVM vectorises it; every unsigned sub-expression is wrapped because Numba
types ``uint32 op uint32`` as uint64.
"""

import numpy as np

from lowprec._jit import bits32, bits64, float32_from_bits, kernel

U = np.uint32


@kernel
def encode_bits(u, constants):
    """Return the code of one float32, given as its bits; `constants` are those of `lowprec.cast.encode_constants`.

    Above 2^emin the float32 bits are rounded as an integer (a carry runs into the exponent by itself). Below,
    adding 2^(emin - mantissa_bits + 23) makes the FPU round at the subnormals' quantum, again to nearest even.
    At emin = -126 both have float32's own subnormals, and the integer rounding alone is right.

    `keep_sign` is zero where -0 is no zero: a code without magnitude then stays as it is.
    """
    shift, half, odd, offset, subnormal, magic, top, over, inf, nan, negative_nan, sign_mask, keep_sign = constants
    a = U(u & U(0x7FFFFFFF))
    lsb = U(U(a >> shift) & odd)
    normal = U(U(U(U(a + half) + lsb) >> shift) - offset)
    tiny = U(bits32(float32_from_bits(a) + float32_from_bits(magic)) - magic)
    code = tiny if a < subnormal else normal
    code = over if code > top else code
    code = inf if a == U(0x7F800000) else code
    sign = sign_mask if u > U(0x7FFFFFFF) else U(0)
    keep = keep_sign if code == U(0) else U(0xFFFFFFFF)
    code = U(code | U(sign & keep))
    special = negative_nan if u > U(0x7FFFFFFF) else nan
    return special if a > U(0x7F800000) else code


@kernel
def encode32(x, out, constants):
    """Encode contiguous float32 `x` with the `encode_constants` of a format."""
    for i in range(x.size):
        out[i] = encode_bits(bits32(x[i]), constants)


@kernel
def round_bits(u, constants):
    """Return the bits of one float32 rounded to a format's grid; `constants` are `lowprec.cast.round_constants`.

    Conditions and method are those of `encode_bits`.
    """
    shift, half, odd, keep_bits, subnormal, magic, top, over, inf, nan, negative_nan, keep_sign = constants
    a = U(u & U(0x7FFFFFFF))
    lsb = U(U(a >> shift) & odd)
    normal = U(U(U(a + half) + lsb) & keep_bits)
    magic_value = float32_from_bits(magic)
    tiny = bits32((float32_from_bits(a) + magic_value) - magic_value)
    r = tiny if a < subnormal else normal
    r = over if r > top else r
    r = inf if a == U(0x7F800000) else r
    keep = keep_sign if r == U(0) else U(0x80000000)
    r = U(r | U(u & keep))
    special = negative_nan if u > U(0x7FFFFFFF) else nan
    return special if a > U(0x7F800000) else r


@kernel
def round32(x, out, constants):
    """Round contiguous float32 `x` to the grid of a format."""
    for i in range(x.size):
        out[i] = float32_from_bits(round_bits(bits32(x[i]), constants))


@kernel
def round32_in_place(x, constants):
    """Do the same within `x`: with two names for one array, LLVM's check for overlap would choose its scalar loop."""
    for i in range(x.size):
        x[i] = float32_from_bits(round_bits(bits32(x[i]), constants))


@kernel
def encode64(x, out, mantissa_bits, emin, max_code, special, sign_mask, negative_zero, has_zero):
    """Encode contiguous float64 `x` into any format with one rounding, by integer arithmetic.

    A tie goes to the even *code*, which for formats without mantissa bits is the even exponent field. Negative
    values of unsigned formats become NaN; without a zero, what is too small becomes the smallest value.
    """
    over, inf, nan, negative_nan = special
    sign_bit = np.uint64(1) << np.uint64(63)
    inf_bits = np.uint64(0x7FF) << np.uint64(52)
    for i in range(x.size):
        u = bits64(x[i])
        a = u & ~sign_bit
        negative = u >= sign_bit
        if a > inf_bits:
            out[i] = negative_nan if negative else nan
            continue
        if a == inf_bits:
            code = inf
        else:
            e = max(np.int64(a >> np.uint64(52)), np.int64(1)) - 1023
            significand = np.int64(a & np.uint64(0xFFFFFFFFFFFFF))
            if a >= np.uint64(1) << np.uint64(52):
                significand += np.int64(1) << 52
            field = max(e, emin)
            # Shifting by more than 54 leaves a remainder below half, whatever the amount.
            shift = min(52 - mantissa_bits + field - e, 55)
            n = significand >> shift
            rest = significand - (n << shift)
            half = np.int64(1) << (shift - 1)
            code = ((field - emin) << mantissa_bits) + n
            if not has_zero:
                code -= 1
            if rest > half or (rest == half and code & 1):
                code += 1
            code = max(code, 0)
            if code > max_code:
                code = over
        if negative and sign_mask == 0 and a != 0:
            code = nan
        if negative and (code != 0 or negative_zero):
            code |= sign_mask
        out[i] = code


@kernel
def decode_bits(c, constants):
    """Return the float32 bits of one code; `constants` are those of `lowprec.cast.decode_constants`."""
    shift, offset, subnormal, quantum, top, inf, sign_mask, magnitude, minus_zero = constants
    a = U(c & magnitude)
    tiny = bits32(np.float32(np.int32(a)) * float32_from_bits(quantum))
    r = tiny if a < subnormal else U(U(a << shift) + offset)
    r = U(0x7FC00000) if a > top else r
    r = U(0x7F800000) if a == inf else r
    r = U(r | U(0x80000000)) if U(c & sign_mask) != U(0) else r
    return minus_zero if c == sign_mask and sign_mask != U(0) else r


@kernel
def decode32(codes, out, constants):
    """Decode contiguous `codes` to float32 with the `decode_constants` of a format."""
    for i in range(codes.size):
        out[i] = float32_from_bits(decode_bits(U(codes[i]), constants))
