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

    The sign is applied with xor, and not at all to codes without magnitude where -0 is no zero: so the NaN of
    the fnuz formats (the code of -0) stays, and ml_dtypes' NaN rule for FP4 and FP6 (-0, or +0 for -NaN) comes out.
    """
    shift, half, odd, offset, subnormal, magic, top, over, inf, nan, sign_mask, magnitude, keep_sign = constants
    a = U(u & U(0x7FFFFFFF))
    lsb = U(U(a >> shift) & odd)
    normal = U(U(U(U(a + half) + lsb) >> shift) - offset)
    tiny = U(bits32(float32_from_bits(a) + float32_from_bits(magic)) - magic)
    code = tiny if a < subnormal else normal
    code = over if code > top else code
    code = inf if a == U(0x7F800000) else code
    code = nan if a > U(0x7F800000) else code
    sign = sign_mask if u > U(0x7FFFFFFF) else U(0)
    keep = keep_sign if U(code & magnitude) == U(0) else U(0xFFFFFFFF)
    return U(code ^ U(sign & keep))


@kernel
def encode32(x, out, constants):
    """Encode contiguous float32 `x` with the `encode_constants` of a format."""
    for i in range(x.size):
        out[i] = encode_bits(bits32(x[i]), constants)


@kernel
def round32(x, out, mantissa_bits, emin, max_bits, over_bits, inf_bits, nan_bits, negative_zero):
    """Round contiguous float32 `x` to the grid of a format, conditions and method as in `encode_bits`.

    `max_bits`, `over_bits`, `inf_bits` and `nan_bits` are float32 bit patterns without sign.
    """
    shift = U(23 - mantissa_bits)
    half = U(((1 << (23 - mantissa_bits)) >> 1) - 1) if mantissa_bits < 23 else U(0)
    odd = U(1) if mantissa_bits < 23 else U(0)
    keep_bits = U(U(0xFFFFFFFF) << shift)
    subnormal = U((127 + emin) << 23) if emin > -126 else U(0)
    magic_value = float32_from_bits(U((emin - mantissa_bits + 23 + 127) << 23) if emin > -126 else U(0))
    max_bits, over_bits, inf_bits, nan_bits = U(max_bits), U(over_bits), U(inf_bits), U(nan_bits)
    keep_sign = U(0x80000000) if negative_zero else U(0)
    for i in range(x.size):
        u = bits32(x[i])
        a = U(u & U(0x7FFFFFFF))
        lsb = U(U(a >> shift) & odd)
        normal = U(U(U(a + half) + lsb) & keep_bits)
        tiny = bits32((float32_from_bits(a) + magic_value) - magic_value)
        r = tiny if a < subnormal else normal
        r = over_bits if r > max_bits else r
        r = inf_bits if a == U(0x7F800000) else r
        r = nan_bits if a > U(0x7F800000) else r
        keep = keep_sign if U(r & U(0x7FFFFFFF)) == U(0) else U(0x80000000)
        out[i] = float32_from_bits(U(r ^ U(u & keep)))


@kernel
def encode64(x, out, mantissa_bits, emin, max_code, over, inf, nan, sign_mask, negative_zero, has_zero):
    """Encode contiguous float64 `x` into any format with one rounding, by integer arithmetic.

    A tie goes to the even *code*, which for formats without mantissa bits is the even exponent field. Negative
    values of unsigned formats become `nan`; without a zero, what is too small becomes the smallest value.
    """
    sign_bit = np.uint64(1) << np.uint64(63)
    inf_bits = np.uint64(0x7FF) << np.uint64(52)
    for i in range(x.size):
        u = bits64(x[i])
        a = u & ~sign_bit
        negative = u >= sign_bit
        if a > inf_bits:
            code = nan
        elif a == inf_bits:
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
        if negative and (code & ~sign_mask or negative_zero):
            code ^= sign_mask
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
