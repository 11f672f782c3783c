"""Stacks whose arithmetic is public."""

from __future__ import annotations

from typing import Any

from ..attn.catalogue import attentions
from ..kernels.portable import FUNCTIONS
from ..norm.catalogue import norms
from ..norm.norm import Norm
from ..order.catalogue import orders
from ..order.order import FormatName
from ..order.rules import Blocks, Chain, Lanes, Tiles
from ..registry import Registry
from ..special.cpu import CpuGelu, SleefExp
from ..special.portable import RoundedFunction
from .operations import Arithmetic, Bounded, Function, Gelu, Moves, Power, ReciprocalRoot, Rule, Sigmoid  # fmt: skip
from .pairs import PairBlocks, PairLanes
from .stack import Stack
from .sums import ComposedAttention, Flash, Product, Rows, SafeSoftmax, Sum  # fmt: skip

stacks: Registry[Stack] = Registry("stack", Stack)
"""Catalogue of stacks."""

_MOVES = (
    "embedding", "zeros", "new_empty", "zeros_like", "scalar_tensor", "where", "cat", "clone", "scatter", "masked_fill",
    "gather", "index", "topk", "histc", "_unsafe_view",
)  # fmt: skip
_SLEEF = SleefExp(1)


_FLOAT32: Any = (("float32", "float32"),)
_WIDENED: Any = {"from_zero": True, "sum_formats": (("bfloat16", "float32"),)}
#: Orders of MKL's gemm_bf16bf16f32. Products of bfloat16 values are exact in float32, so that fusing changes no bits.
_BFLOAT16 = (
    Blocks("mkl_gemm_bf16", block=192, halves=True, **_WIDENED),
    PairLanes("vdpbf16ps_lanes", fma=True, flush=True, **_WIDENED),
    PairBlocks("vdpbf16ps_blocks", fma=True, flush=True, **_WIDENED),
    Tiles("tdpbf16ps_full", equal=False, fma=True, flush=True, **_WIDENED),
    Lanes("four_lanes", lanes=4, join="halving", **_WIDENED),
    Lanes("eight_lanes", lanes=8, join="halving", **_WIDENED),
    Blocks("fours", block=4, join="halving", **_WIDENED),
)


def _torch_cpu() -> Stack:
    ieee, aten = "IEEE 754", "PyTorch 2.13, ATen/native"
    mkl = "MKL 2024.2 and oneDNN 3.12 of PyTorch's wheel: found by probes for each layout of the operands"
    lanes = Lanes("sgemm_lanes", lanes=4, join="halving", from_zero=True, sum_formats=_FLOAT32)
    longer = orders["mkl_sgemm"].with_(name="mkl_sgemm_intel", block=384)
    pairs = Chain("vdpbf16ps", swaps_pairs=True, fma=True, flush=True, **_WIDENED)
    tiles = Tiles("tdpbf16ps", fma=True, flush=True, **_WIDENED)
    product = Product((orders["mkl_sgemm"], longer, lanes, pairs, tiles), probed=True, mark="exact", source=mkl)
    rules: dict[str, Rule] = {name: Moves(mark="exact", source="no rounding") for name in _MOVES}
    rules |= {
        name: Arithmetic(function, mark="exact", source=ieee)
        for name, function in (
            ("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("div", "divide"), ("neg", "negative"),
            ("_to_copy", "copy"), ("copy", "copy"), ("reciprocal", "reciprocal"), ("rsub", "subtract_from"),
        )
    }  # fmt: skip
    gelu: Any = {"grain": 16385, "probed": True, "mark": "exact"}
    gelu["source"] = f"{aten}/cpu/Gelu.h; oneDNN 3.12, jit_uni_eltwise_injector.cpp; SLEEF 3.6; glibc 2.28 to 2.40"
    rules |= {
        "pow": Power(mark="exact", source=f"{aten}/cpu/PowKernel.cpp"),
        "rsqrt": ReciprocalRoot(mark="exact", source=f"{aten}/cpu/UnaryOpsKernel.cpp"),
        "sigmoid": Sigmoid(exp=_SLEEF, mark="exact", source=f"{aten}/cpu/UnaryOpsKernel.cpp"),
        "silu": Sigmoid(exp=_SLEEF, times_x=True, mark="exact", source=f"{aten}/cpu/Activation.cpp"),
        "gelu": Gelu(
            vector=CpuGelu("aten"), scalar=CpuGelu("glibc"), dense=(CpuGelu("onednn"), CpuGelu("onednn_ftz")), **gelu
        ),
        "gelu_tanh": Gelu(vector=CpuGelu("sleef_tanh"), scalar=CpuGelu("glibc_tanh"), **gelu),
        "sum": Sum((orders["torch_cpu_sum"],), probed=True, mark="exact", source=f"{aten}/cpu/SumKernel.cpp"),
        "mean": Sum(
            (orders["torch_cpu_sum"],), mean="division", probed=True, mark="exact", source=f"{aten}/ReduceOps.cpp: mean"
        ),
        "native_layer_norm": Rows(
            (("float32", norms["torch_cpu_layer_norm"]), ("bfloat16", norms["torch_cpu_layer_norm_bfloat16"])),
            mark="exact",
            source=norms["torch_cpu_layer_norm"].source,
        ),
        "_scaled_dot_product_flash_attention_for_cpu": Flash(
            product.orders + _BFLOAT16,
            (("float32", attentions["torch_cpu_flash_f32"]), ("bfloat16", attentions["torch_cpu_flash_bf16"])),
            probed=True,
            mark="exact",
            source=attentions["torch_cpu_flash_f32"].source,
        ),
    }
    rules |= dict.fromkeys(("mm", "addmm", "bmm", "_grouped_mm"), product)
    rules["_log_softmax"] = Rows(
        (("float32", norms["torch_cpu_log_softmax"]), ("bfloat16", norms["torch_cpu_log_softmax_16"])), mark="exact",
        source=norms["torch_cpu_log_softmax"].source,
    )  # fmt: skip
    softmax = Rows(
        (("float32", norms["torch_cpu_softmax"]), ("bfloat16", norms["torch_cpu_softmax_16"])), mark="exact",
        source=norms["torch_cpu_softmax"].source,
    )  # fmt: skip
    safe = SafeSoftmax(softmax.norms, mark="exact", source=f"{aten}/transformers/attention.cpp: _safe_softmax")
    rules |= {"_softmax": softmax, "_safe_softmax": safe}
    rules |= {
        name: Bounded(name, mark="decided", source="MKL VML, high accuracy: its bits are not public")
        for name in ("sin", "cos", "tanh")
    }
    return Stack("torch_cpu", tuple(rules.items()), "AVX512", source="PyTorch 2.13.0 on x86 with AVX-512, eager")


def _sequential() -> Stack:
    """Return a stack with the same bits on every computer: sums from left to right, functions rounded once."""
    in_turn = Chain("sequential_fma", from_zero=True, fma=True, sum_formats=(("bfloat16", "float32"), *_FLOAT32))
    own: Any = {"mark": "exact", "source": "lowprec"}
    total, product = Sum((in_turn,), **own), Product((in_turn,), **own)
    exp, log = (("exp", RoundedFunction("exp")), ("log", RoundedFunction("log")))
    formulas = {
        "_softmax": "e = exp(x - max(x))\ny = e / sum(e)",
        "_log_softmax": "m = max(x)\ny = x - m - log(sum(exp(x - m)))",
        "native_layer_norm": "d = x - sum(x) / n\ny = d / sqrt(sum(d * d) / n + eps) * weight + bias",
    }
    made = {
        operation: Norm(f"sequential{operation}", text, order=in_turn, functions=(exp, log), source="lowprec")
        for operation, text in formulas.items()
    }
    dtypes: tuple[FormatName, ...] = ("float32", "bfloat16")
    rows = {operation: tuple((dtype, norm) for dtype in dtypes) for operation, norm in made.items()}
    rules: dict[str, Rule] = {name: rule for name, rule in _torch_cpu().rules if isinstance(rule, Moves | Arithmetic)}
    rules |= {name: Function(function=RoundedFunction(name), **own) for name in FUNCTIONS}
    rules |= {name: Rows(pairs, **own) for name, pairs in rows.items()}
    rules |= dict.fromkeys(("mm", "addmm", "bmm", "_grouped_mm"), product)
    rules |= {
        "pow": Power(**own), "sum": total, "mean": total.with_(mean="division"),
        "_safe_softmax": SafeSoftmax(rows["_softmax"], **own),
        "_scaled_dot_product_flash_attention_for_cpu": ComposedAttention(**own),
    }  # fmt: skip
    return Stack("lowprec_sequential", tuple(rules.items()), source="the same bits on every computer")


stacks.register("torch_cpu", _torch_cpu())
stacks.register("lowprec_sequential", _sequential())
stacks.seal()
