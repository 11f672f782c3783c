"""lowprec: low-precision training numerics on a CPU, bit for bit.

Names are loaded when they are first used: ``import lowprec`` alone imports neither Numba nor pandas.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that defines it.
_HOMES = {
    "Accumulator": "accumulate",
    "DelayedScaling": "delayed",
    "Format": "formats",
    "Granularity": "granularity",
    "Policy": "policies",
    "Quantized": "quantized",
    "Quantizer": "quantizers",
    "Recipe": "recipe",
    "Rounding": "rounding",
    "accumulators": "accumulate",
    "codecs": "codecs",
    "compare": "metrics",
    "configs": "moe.config",
    "decode": "cast",
    "encode": "cast",
    "formats": "formats",
    "gemm": "gemm",
    "grouped_gemm": "grouped",
    "hadamard": "hadamard",
    "grouped_wgrad": "grouped",
    "libraries": "libraries",
    "load_config": "moe.config_file",
    "get_fused_kernel": "fused_kernels",
    "get_num_threads": "_jit",
    "matmul_f32": "gemm",
    "pack_operand": "packed",
    "mma": "gemm",
    "pack": "packing",
    "policies": "policies",
    "quantize": "scaling",
    "quantize_both": "scaling",
    "quantize_dequantize": "scaling",
    "requantize": "scaling",
    "quantizers": "quantizers",
    "recipes": "recipe",
    "round_to": "cast",
    "roundings": "rounding",
    "set_fused_kernel": "fused_kernels",
    "set_num_threads": "_jit",
    "sqnr": "metrics",
    "train": "moe.train",
    "ulp": "ulp",
    "unpack": "packing",
}
_MODULES = {"costs", "logfmt", "metrics", "oracle"}

__all__ = ["__version__", *sorted({*_HOMES, *_MODULES})]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``lowprec.formats`` the catalogue: importing the submodule of that name does not replace it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if TYPE_CHECKING:
    from . import costs as costs
    from . import logfmt as logfmt
    from . import metrics as metrics
    from . import oracle as oracle
    from ._jit import get_num_threads as get_num_threads
    from ._jit import set_num_threads as set_num_threads
    from .accumulate import Accumulator as Accumulator
    from .accumulate import accumulators as accumulators
    from .cast import decode as decode
    from .cast import encode as encode
    from .cast import round_to as round_to
    from .codecs import codecs as codecs
    from .delayed import DelayedScaling as DelayedScaling
    from .formats import Format as Format
    from .formats import formats as formats
    from .fused_kernels import get_fused_kernel as get_fused_kernel
    from .fused_kernels import set_fused_kernel as set_fused_kernel
    from .gemm import gemm as gemm
    from .gemm import matmul_f32 as matmul_f32
    from .gemm import mma as mma
    from .granularity import Granularity as Granularity
    from .grouped import grouped_gemm as grouped_gemm
    from .grouped import grouped_wgrad as grouped_wgrad
    from .hadamard import hadamard as hadamard
    from .libraries import libraries as libraries
    from .metrics import compare as compare
    from .metrics import sqnr as sqnr
    from .moe.config import configs as configs
    from .moe.train import train as train
    from .packed import pack_operand as pack_operand
    from .packing import pack as pack
    from .packing import unpack as unpack
    from .policies import Policy as Policy
    from .policies import policies as policies
    from .quantized import Quantized as Quantized
    from .quantizers import Quantizer as Quantizer
    from .quantizers import quantizers as quantizers
    from .recipe import Recipe as Recipe
    from .recipe import recipes as recipes
    from .rounding import Rounding as Rounding
    from .rounding import roundings as roundings
    from .scaling import quantize as quantize
    from .scaling import quantize_both as quantize_both
    from .scaling import quantize_dequantize as quantize_dequantize
    from .scaling import requantize as requantize
    from .ulp import ulp as ulp
