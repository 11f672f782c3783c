"""Named orders of public libraries.

The order that a library uses depends on its version, the CPU, sizes, strides and threads; `reveal` finds the one that
is used on this computer. A product of oneDNN in bfloat16 is the accumulator ``avx512_bf16``.
"""

from __future__ import annotations

from ..registry import Registry
from .order import FormatName
from .rules import Blocks, Chain, Lanes, NumpyPairwise, OrderRule, TorchCascade, Tree

orders: Registry[OrderRule] = Registry("order", OrderRule)  # type: ignore[type-abstract]
"""Catalogue of orders: ``orders[name](n)`` is the order of n elements."""
_HALF: tuple[FormatName, FormatName] = ("float16", "float32")
_WIDE: tuple[tuple[FormatName, FormatName], ...] = (("float32", "float32"), ("float64", "float64"))

for _order in (
    Chain("sequential", source="left to right: numpy.cumsum, a loop over K"),
    Tree("pairwise", source="Higham, Accuracy and Stability of Numerical Algorithms, section 4.1"),
    Tree("halving", join="halving", source="shuffles of 16, 8, 4, 2 and 1 lanes, as CUDA's __shfl_xor_sync"),
    NumpyPairwise("numpy_sum", from_zero=True, sum_formats=(_HALF, *_WIDE),
                  source="NumPy 2.4, loops_utils.h.src: pairwise_sum"),
    TorchCascade("torch_cpu_sum", from_zero=True,
                 sum_formats=(_HALF, ("bfloat16", "float32"), *_WIDE),
                 source="PyTorch 2.13, ATen/native/cpu/SumKernel.cpp: cascade_sum"),
    Lanes("openblas_sgemm", lanes=16, rest_in_lanes=True, least=32, from_zero=True, fma=True, sum_formats=_WIDE[:1],
          source="OpenBLAS of NumPy 2.4's wheel, a product of 8 x 8: revealed on AMD Zen 4"),
    Blocks("mkl_sgemm", block=192, halves=True, from_zero=True, fma=True, sum_formats=_WIDE[:1],
           source="MKL 2024.2 of PyTorch 2.13's wheel, M >= 4 and N >= 32: revealed on AMD Zen 4"),
):  # fmt: skip
    orders.register(_order.name, _order)
orders.seal()
