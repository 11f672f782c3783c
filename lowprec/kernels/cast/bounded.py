"""Saturating cast to nearest even of values without NaN, with fewer operations than `kernels.cast.nearest`."""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel, shift_right

U = np.uint32
F = np.float32
INF = U(0x7F800000)


@kernel
def encode_bounded(u, constants):
    """Encode one float32, given as its bits, saturating. The input must not be NaN.

    Adding 2^(e + 23 - mantissa_bits) makes the FPU round at the quantum of the binade, to nearest even; below the
    smallest normal exponent the quantum is constant.
    """
    smallest, up, shift, top, flip, sign = constants
    a = min(U(u & U(0x7FFFFFFF)), top)
    e = max(U(a & INF), smallest)
    magic = U(e + up)
    t = U(bits32(F(float32_from_bits(a) + float32_from_bits(magic))) - magic)
    code = U(t + shift_right(U(e - smallest), shift))
    return U(U(code ^ flip) + sign) if u > U(0x7FFFFFFF) else code


@kernel
def round_bounded(u, constants):
    """Round one float32, given as its bits, to the format of `encode_bounded`; keep the sign of `u`."""
    smallest, up, _, top, _, _ = constants
    a = min(U(u & U(0x7FFFFFFF)), top)
    magic = float32_from_bits(U(max(U(a & INF), smallest) + up))
    r = F(F(float32_from_bits(a) + magic) - magic)
    return float32_from_bits(U(bits32(r) | U(u & U(0x80000000))))


@kernel
def quiet(x):
    """Return a float32, with the positive quiet NaN for any NaN, because CPUs differ in the NaN of a result."""
    return x if x == x else float32_from_bits(U(0x7FC00000))
