"""Aligned scratch memory for kernels: full-width vector loads should not straddle cache lines."""

import numpy as np

from lowprec._jit import kernel


@kernel
def aligned_f32(n):
    """Return `n` uninitialised float32 that start on a 64-byte boundary."""
    raw = np.empty(n + 16, np.float32)
    skip = (-(raw.ctypes.data >> 2)) & 15
    return raw[skip : skip + n]


@kernel
def aligned_i8(n):
    """Return `n` uninitialised int8 that start on a 64-byte boundary."""
    raw = np.empty(n + 64, np.int8)
    skip = (-raw.ctypes.data) & 63
    return raw[skip : skip + n]


@kernel
def aligned_f64(n):
    """Return `n` uninitialised float64 that start on a 64-byte boundary."""
    raw = np.empty(n + 8)
    skip = (-(raw.ctypes.data >> 3)) & 7
    return raw[skip : skip + n]
