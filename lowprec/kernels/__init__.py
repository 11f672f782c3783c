"""Numba kernels: serial loops over contiguous arrays; they import from the package only `_jit` and each other."""
