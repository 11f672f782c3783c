"""Numba kernels: serial loops over contiguous arrays; they know nothing of the package but `_jit` and each other."""
