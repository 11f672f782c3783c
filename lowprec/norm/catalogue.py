"""Named norms: those of PyTorch on CPUs, which are compared with it, and those of GPU kernels from their sources."""

from __future__ import annotations

import functools

from ..order.catalogue import orders
from ..order.order import FormatName
from ..order.rules import MOST, Lanes, OrderRule
from ..order.threads import Threads, torch_cuda_launches
from ..registry import Registry
from ..special.cpu import SleefExp
from .functions import Approximate, SleefLog
from .norm import Norm
from .sums import ColumnSum, DividingWelford, ThreadsWelford, TorchColumnSum, Welford

norms: Registry[Norm] = Registry("norm", Norm)
"""Catalogue of norms and softmax functions: ``norms[name](x, weight, bias)``."""

#: Neither the bits of special functions nor the compiler's choice of fused multiply-adds are published.
_FROM_SOURCE = "from source, not verified on a GPU"
_H200 = "outputs of an H200 differ (PyTorch 2.11, CUDA 13.0, Triton 3.6)"
_HALF: tuple[FormatName, ...] = ("bfloat16", "float16")
_torch = functools.partial(Norm, validated_against="PyTorch 2.13, CPU with AVX-512, one thread")
_lanes = functools.partial(Lanes, join="halving", rest_in_lanes=True, fma=True, rounds_whole=True)
_few = functools.partial(Lanes, "few", join="in_turn", rest_in_lanes=True, fma=True)
_SOFTMAX = "aten/src/ATen/native/cpu/SoftMaxKernel.cpp"
_FUSES_REST: dict[FormatName, bool] = {"bfloat16": False, "float16": True}
_LAYER_NORM = "aten/src/ATen/native/cpu/layer_norm_kernel.cpp, moments_utils.h"
_VECTORS = _lanes("reduce_all", lanes=16, least=16)
# Vectors of 32 16-bit elements; a row with fewer elements is added in vectors of 16 float32 elements.
_PAIRS = _lanes("reduce_all_16", lanes=32, least=32, few=_few(lanes=16))
_HALF_PAIRS = _PAIRS.with_(name="reduce_all_16", lanes=16, least=16, rounds_whole=False, few=_few(lanes=8))
_EXP = ("exp", SleefExp(1))
_LOG = ("log", SleefLog())
_SOFTMAX_FORMULA = """
    e = exp(x - max(x))
    y = e * (1 / sum(e))
"""
_SOFTMAX_GRADIENT = "dx = (dy - dot(dy, y)) * y"
_LOG_SOFTMAX_GRADIENT = "dx = fma(-exp(y), sum(dy), dy)"
_MOMENTS = "mean, v = moments(x)"
_STATISTICS = f"{_MOMENTS}\nr = 1 / sqrt(v + eps)"
_CUDA_STATISTICS = f"{_MOMENTS}\nr = rsqrt(v + eps)"
_LAYER_NORM_GRADIENT = """
    mean = round(mean)
    r = round(r)
    ds = {ds}
    db = {db}
    b = fma(db, mean, -ds) * r * r * r * (1 / n)
    c = fma(-b, mean, -(db * r * (1 / n)))
    dx = fma(b, x, {scaled}) + c
    dweight = dot_rows(dy, fma(r, x, -r * mean))
    dbias = sum_rows(dy)
"""
_WEIGHTED = _LAYER_NORM_GRADIENT.format(ds="dot(dy * x, weight)", db="dot(dy, weight)", scaled="r * dy * weight")
_UNWEIGHTED = _LAYER_NORM_GRADIENT.format(ds="dot(dy, x)", db="sum(dy)", scaled="r * dy")
_layer_norm = functools.partial(
    _torch, "torch_cpu_layer_norm", order=_lanes("reduce_all", lanes=8, least=8), moments=Welford(8),
    dtypes=("float32",), source=_LAYER_NORM,
)  # fmt: skip
_RMS_NORM = "r = 1 / sqrt(sum(x * x) / n + eps)"
_RMS_NORM_GRADIENT = """
    dx = g * r + -0.5 * sum(g * x) * (r * r * r) / n * (2 * x)
"""
_CUDA_EXP, _CUDA_LOG = ("exp", Approximate("exp", 2)), ("log", Approximate("log", 1))  # expf and logf of CUDA
_RSQRT = ("rsqrt", Approximate("rsqrt", 2))  # rsqrtf of CUDA, rsqrt.approx.f32
_SQRT = ("sqrt", Approximate("sqrt", 2))  # sqrt.approx.f32
_NEAR = ("near", Approximate("identity", 2))  # quotients of Triton: div.full.f32
_reduce = orders["torch_cuda_reduce"]
_REDUCE = tuple(
    (rows, _reduce.with_(name=_reduce.name, launches=torch_cuda_launches(rows))) for rows in (1, 2, 4, 8, 16)
)
# A warp adds up to 2,048 elements of a row, or up to 1,024 in the gradient. There, lanes without an element add +0,
# which the order omits: it matters only if all terms are -0.
_WARP, _BLOCK = (1, 2048, 1, 32, 1), (2049, 9216, 1, 1024, 1)
_cuda_softmax = functools.partial(
    Norm, order=Threads("torch_cuda_softmax", (_WARP, _BLOCK), warps="butterfly"),
    backward_order=Threads("torch_cuda_softmax", ((1, 1024, 1, 32, 1),)),
    source="PyTorch 2.13, aten/src/ATen/native/cuda/PersistentSoftmax.cuh and SoftMax.cu: softmax_warp_forward, "
    f"softmax_warp_backward, cunn_SoftMaxForwardReg; 0 of 205,196 decided {_H200}",
)  # fmt: skip
_FOURS = Threads("torch_cuda_vectors", ((4, MOST, 4, 128, 4),), from_zero=True, fma=True, warps="butterfly")
_FOURS_AND_REST = _FOURS.with_(launches=((1, MOST, 1, 128, 4),))
_CUDA_NORM = (
    "PyTorch 2.13, aten/src/ATen/native/cuda/layer_norm_kernel.cu: compute_stats, "
    "layer_norm_grad_input_kernel_vectorized; lengths not divisible by 4: RowwiseMomentsCUDAKernel, "
    f"LayerNormForwardCUDAKernel, layer_norm_grad_input_kernel; 0 of 735,636 {_H200}, with its rsqrt"
)
_cuda_rms_norm = functools.partial(
    Norm, "torch_cuda_rms_norm", backward="""
        s = dot(dy * weight * x, r)
        dx = fma(n * weight, dy, -(x * r * s)) * (1 / n * r)
    """, functions=(_RSQRT,), order=_FOURS, source=_CUDA_NORM,
)  # fmt: skip
_cuda_layer_norm = functools.partial(
    Norm, "torch_cuda_layer_norm", backward="""
        c = x - mean
        s = sum(dy * weight)
        dx = (fma(n * weight, dy, -(c * r * dot(dy * weight * c, r))) - s) * (1 / n * r)
    """, functions=(_RSQRT,), moments=ThreadsWelford(), default_bias=-0.0, order=_FOURS,
    source=_CUDA_NORM,
)  # fmt: skip
_triton = functools.partial(Threads, "triton", inside="pairwise", warps="butterfly")


def _gpu(suffix: str, width: int, dtypes: tuple[FormatName, ...]) -> list[Norm]:
    """Return norms of GPU kernels for dtypes of which `width` numbers are a vector of 16 bytes."""

    def norm(
        name: str, source: str, formulas: str, order: OrderRule, *functions: tuple[str, Approximate],
        backward: str = "", backward_order: OrderRule | None = None,
        row_orders: tuple[tuple[int, OrderRule], ...] = (), evidence: str = _FROM_SOURCE,
    ) -> Norm:  # fmt: skip
        return Norm(f"{name}{suffix}", formulas, backward, order=order, row_orders=row_orders, functions=functions,
                    backward_order=backward_order, dtypes=dtypes, source=f"{source}; {evidence}")  # fmt: skip

    vectors = [vector for vector in (8, 4, 2, 1) if vector <= width]  # the widest that divides a row
    blocks = [(1 << k, 128 << (k >= 11) + (k >= 13) + (k >= 15)) for k in range(7, 17)]  # the next power of two
    launches = tuple((16, block, 16, threads, min(width, block // threads)) for block, threads in blocks)
    few, many = (
        Threads(
            "cub_block", tuple((v, MOST, v, threads, v) for v in vectors), join="pairwise", from_zero=True, fma=True
        )
        for threads in (1024, 256)
    )
    te = Threads("te", ((2049, 4095, 1, 128, width),), from_zero=True, fma=True)
    return [
        norm("vllm_rms_norm", "vLLM of 2026, csrc/libtorch_stable/layernorm_kernels.cu",
             "y = x * rsqrt(dot(x, x) / n + eps) * weight", few, _RSQRT, row_orders=((256, many),)),
        norm("liger_rms_norm", "Liger-Kernel of 2026, ops/rms_norm.py, casting mode llama, a program per row",
             "r = rsqrt(near(dot(x, x) / n) + eps)\ny = round(x * r) * (0 + weight)",
             _triton(launches, fma=True), _NEAR, _RSQRT,
             evidence=f"0 of 193,187 decided {_H200}, and 7 of 193,280 gradients: their sum has another order",
             backward="" if width == 4 else """
                 m = dy * (0 + weight)
                 dx = fma(r, m, r * (-near(1 / n) * r * r * dot(m, x) * x))
             """),  # the order of the gradient's sum is not known: in float32, 13 % of an H200's gradients would differ
        norm("batch_invariant_rms_norm", "vLLM of 2026, batch_invariant.py, which extends batch_invariant_ops",
             "r = near(1 / sqrt(near(sum(x * x) / n) + eps))\ny = x * r * weight",
             _triton(((16, MOST, 16, 128, width),), block=1024), _NEAR, _SQRT,
             evidence=f"0 of 193,142 decided {_H200}"),
        norm("te_rms_norm", "TransformerEngine of 2026, rmsnorm_fwd_kernels.cuh, the general kernel of four warps",
             "r = rsqrt(fma(dot(x, x), 1 / n, eps))\ny = weight * (r * x)",
             te.with_(name="te", launches=(*te.launches, (4097, 8191, 1, 128, width))), _RSQRT,
             backward="""
                 g = (0 + weight) * dy
                 z = r * x
                 dx = r * fma(-dot(g, z) * (1 / n), z, g)
             """, backward_order=te),
    ]  # fmt: skip


for _norm in (
    _torch("torch_cpu_rms_norm", f"{_RMS_NORM}\ny = x * r * weight",
           f"g = dy * weight\n{_RMS_NORM_GRADIENT}\ndweight = sum_rows(dy * (x * r))",
           order=orders["torch_cpu_sum"], columns=TorchColumnSum(),
           source="aten/src/ATen/native/layer_norm.cpp: rms_norm_composite"),
    _torch("llama_rms_norm_cpu", f"{_RMS_NORM}\ny = weight * round(x * r)",
           f"g = round(dy * weight)\n{_RMS_NORM_GRADIENT}\ndweight = sum_rows(round(dy * round(x * r)))",
           order=orders["torch_cpu_sum"], columns=TorchColumnSum(),
           source="transformers, modeling_llama.py: LlamaRMSNorm"),
    _torch("torch_cpu_softmax", _SOFTMAX_FORMULA, _SOFTMAX_GRADIENT, order=_VECTORS, functions=(_EXP,),
           dtypes=("float32",), source=_SOFTMAX),
    _torch("torch_cpu_softmax_16", _SOFTMAX_FORMULA, _SOFTMAX_GRADIENT, backward_order=_PAIRS,
           order=Lanes("vectors", lanes=16, join="halving"), functions=(("exp", SleefExp(16, "expf")),),
           dtypes=_HALF, source=_SOFTMAX),
    _torch("torch_cpu_log_softmax", "m = max(x)\ny = x - m - log(sum(exp(x - m)))", _LOG_SOFTMAX_GRADIENT,
           order=_VECTORS, functions=(_EXP, _LOG), dtypes=("float32",),
           source="ATen/native/cpu/LogSoftmaxKernelImpl.h, of the wheel"),
    _torch("torch_cpu_log_softmax_16", "m = max(x)\ny = x - m - round(log(round(sum(exp(x - m)))))",
           _LOG_SOFTMAX_GRADIENT, order=_PAIRS, functions=(_EXP, _LOG), dtypes=_HALF,
           source="ATen/native/cpu/LogSoftmaxKernelImpl.h, of the wheel"),
    _layer_norm(forward=f"{_STATISTICS}\ny = fma((x - mean) * r, weight, bias)", backward=_WEIGHTED,
                unweighted=_layer_norm(forward=f"{_STATISTICS}\ny = fma(x - mean, r, bias)", backward=_UNWEIGHTED)),
    *(
        _torch(f"torch_cpu_layer_norm_{dtype}", f"{_STATISTICS}\ny = fma(fma(x, r, -r * mean), weight, bias)",
               _WEIGHTED, moments=Welford(8, 2, fuses_rest=fuses_rest), columns=ColumnSum(rounds=True),
               order=_HALF_PAIRS,
               dtypes=(dtype,), source=_LAYER_NORM)
        for dtype, fuses_rest in _FUSES_REST.items()
    ),
    Norm("llama_rms_norm_cuda", "r = rsqrt(sum(x * x) * (1 / n) + eps)\ny = weight * round(x * r)",
         """
         g = round(dy * weight)
         dx = g * r + -0.5 * sum(g * x) * (r * r * r) * (1 / n) * (2 * x)
         """, functions=(_RSQRT,), order=_REDUCE[0][1], row_orders=_REDUCE[1:],
         source=f"transformers, modeling_llama.py: LlamaRMSNorm; 0 of 284,028 {_H200}, with its rsqrt"),
    _cuda_rms_norm("r = rsqrt(dot(x, x) / n + eps)\ny = weight * (r * x)",
                   unaligned=_cuda_rms_norm(f"{_MOMENTS}\nr = rsqrt(fma(mean, mean, v) + eps)\ny = weight * (r * x)",
                                            moments=DividingWelford(), order=_FOURS_AND_REST)),
    _cuda_layer_norm(forward=f"{_CUDA_STATISTICS}\ny = fma(weight, r * (x - mean), bias)",
                     unweighted=_cuda_layer_norm(forward=f"{_CUDA_STATISTICS}\ny = fma(r, x - mean, bias)"),
                     unaligned=_cuda_layer_norm(
                         forward=f"{_CUDA_STATISTICS}\ny = fma((x - mean) * r, weight, bias)", default_bias=0.0,
                         moments=DividingWelford(), order=_FOURS_AND_REST,
                     )),
    _cuda_softmax("torch_cuda_softmax", "e = exp(x - max(x))\ny = e / sum(e)",
                  "p = round(dy * y)\ndx = fma(-y, sum(p), p)", functions=(_CUDA_EXP,)),
    _cuda_softmax("torch_cuda_log_softmax", "m = max(x)\ny = x - m - log(sum(exp(x - m)))", _LOG_SOFTMAX_GRADIENT,
                  functions=(_CUDA_EXP, _CUDA_LOG)),
    *_gpu("", 4, ("float32",)), *_gpu("_16", 8, _HALF),
):  # fmt: skip
    norms.register(_norm.name, _norm)
norms.seal()
