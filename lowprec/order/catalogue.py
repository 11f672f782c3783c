"""Named orders of public libraries.

The order that a library uses depends on its version, the CPU, sizes, strides and threads; `reveal` finds the one that
is used on this computer. A product of oneDNN in bfloat16 is the accumulator ``avx512_bf16``.
"""

from __future__ import annotations

from ..registry import Registry
from .order import FormatName
from .rules import MOST, Blocks, Chain, Lanes, NumpyPairwise, OrderRule, TorchCascade, Tree
from .threads import Threads, torch_cuda_launches

orders: Registry[OrderRule] = Registry("order", OrderRule)  # type: ignore[type-abstract]
"""Catalogue of orders: ``orders[name](n)`` is the order of n elements."""
_WIDE: tuple[tuple[FormatName, FormatName], ...] = (("float32", "float32"), ("float64", "float64"))
_UNVERIFIED = "from source, not verified on a GPU"

for _order in (
    Chain("sequential", source="left to right: numpy.cumsum, a loop over K"),
    Tree("pairwise", source="Higham, Accuracy and Stability of Numerical Algorithms, section 4.1"),
    Tree("halving", join="halving", source="vectors of CPUs: the upper half of the lanes is added to the lower one"),
    NumpyPairwise("numpy_sum", from_zero=True, sum_formats=(("float16", "float32"), *_WIDE),
                  source="NumPy 2.4, loops_utils.h.src: pairwise_sum"),
    TorchCascade("torch_cpu_sum", from_zero=True,
                 sum_formats=(("float16", "float32"), ("bfloat16", "float32"), *_WIDE),
                 source="PyTorch 2.13, ATen/native/cpu/SumKernel.cpp: cascade_sum"),
    Lanes("openblas_sgemm", lanes=16, rest_in_lanes=True, least=32, from_zero=True, fma=True, sum_formats=_WIDE[:1],
          source="OpenBLAS of NumPy 2.4's wheel, a product of 8 x 8: revealed on AMD Zen 4"),
    Blocks("mkl_sgemm", block=192, halves=True, from_zero=True, fma=True, sum_formats=_WIDE[:1],
           source="MKL 2024.2 of PyTorch 2.13's wheel, M >= 4 and N >= 32: revealed on AMD Zen 4"),
    Threads("warp_butterfly",
            source="CUDA's __shfl_xor_sync with 16, 8, 4, 2 and 1 in a warp; with fma=True, cuBLAS's product of a "
            "float32 vector and a matrix: 0 of 256 results of an H200 differ (CUDA 13.0)"),
    Threads("cub_block", ((1, MOST, 1, 1024, 1),), join="pairwise", from_zero=True,
            source=f"CUB, block_reduce_warp_reductions.cuh, warp_reduce_shfl.cuh, a block of 1,024; {_UNVERIFIED}"),
    Threads("triton_tree", ((16, 128, 16, 128, 1), (144, 256, 16, 128, 2), (272, MOST, 16, 128, 4)),
            inside="pairwise", warps="butterfly", sum_formats=_WIDE[:1],
            source=f"Triton, ReduceOpToLLVM.cpp of 2026: tl.sum of a loaded float32 row, 4 warps; {_UNVERIFIED}"),
    Threads("torch_cuda_reduce", torch_cuda_launches(16), lanes=512, inside="by_place", from_zero=True,
            sum_formats=_WIDE[:1],
            source="PyTorch 2.13, ATen/native/cuda/Reduce.cuh: 16 or more contiguous rows; "
            "0 of 2,522 sums of an H200 differ (PyTorch 2.11)"),
):  # fmt: skip
    orders.register(_order.name, _order)
orders.seal()
