"""Attention kernels of public libraries.

The fields follow the `source` of an entry, at commits 0251105 of Dao-AILab/flash-attention, 617264c of
vllm-project/flash-attention, and those that it names. Entries for Hopper compute ``ex2.approx``, ``tanh.approx``, the
reciprocal and the logarithm as the GPU does (`lowprec.special.mufu`). Entries for other GPUs round them correctly,
because no recording has these functions there.
"""

from __future__ import annotations

from typing import Any

from ..format.catalogue import Format, formats
from ..format.policy import policies
from ..registry import Registry
from ..special.cpu import CpuExp, SleefExp, TorchExp, TorchFastExp
from ..special.exp2 import PolynomialExp2
from ..special.mufu import MufuExp2, MufuQuotient, MufuReciprocal, MufuTanh
from ..special.reciprocal import RoundedReciprocal
from ..special.tanh import RoundedTanh
from ..tensorcore.catalogue import accumulators
from .cpu import LaneSum, TorchCpu, TorchMath
from .kernel import AttentionKernel, GradientTile
from .paired import FlashMla, FlashMlaSparse
from .scales import BlockScales, ThreadScales
from .schedules import (
    FlashAttention2,
    FlashAttention3,
    FlashAttention4,
    FlashInfer,
    Period,
    SageAttention,
    SageAttention3,
    TritonFused,
)
from .sinks import DivisorSink, OffsetSink, ShiftedSink
from .splits import Combine
from .sums import (
    Base2LogSumExp,
    NatsLogSumExp,
    OctavesLogSumExp,
    PackedPairSum,
    QuadOctetSum,
    QuadPairSum,
    QuadQuartetSum,
    QuadTileSum,
    QuadTotalSum,
    TermwiseLogSumExp,
)
from .tiles import ALL_KEYS, ANY_SIZE, KeyTile

attentions: Registry[AttentionKernel] = Registry("attention kernel", AttentionKernel)
"""Catalogue of attention kernels."""

_CONTRACTED = (
    "a sum's rescaling, shifts and log-sum-exps: contracted as in compiled wheels; a sink's "
    "operations: as its source writes them"
)
_STAND_IN = f"exp2 and logarithm of MUFU, reciprocal, tanh: correctly rounded; {_CONTRACTED}"
_MLA_DECIDED = (
    "the log-sum-exp: log2(sum) ln 2 + (maximum ln 2), the latter in place of a division by log2(e), contracted; "
    "splits: all have the same number of tiles"
)
_FA2 = (
    "csrc/flash_attn/src/softmax.h, flash_fwd_launch_template.h, flash_bwd_kernel.h, flash_bwd_launch_template.h; "
    "setup.py: --use_fast_math"
)
_SPLIT = f"{_FA2}; flash_fwd_kernel.h: combine_attn_seqk_parallel"
_FA3_FILES = "hopper/softmax.h, tile_size.h, mainloop_fwd_sm90_tma_gmma_ws.hpp, block.h, flash_fwd_combine_kernel.h"
_FA3 = f"{_FA3_FILES}; setup.py: --use_fast_math"
_FA3_BF16 = (
    f"{_FA3}; mainloop_bwd_sm90_tma_gmma_ws.hpp, lines 606-665, 816-1068; flash_bwd_preprocess_kernel.h, lines 42-45, "
    "190-228; flash_bwd_postprocess_kernel.h, line 213; flash_bwd_launch_template.h; epilogue_bwd.hpp, lines 458-500"
)
_FA4 = "flash_attn/cute/softmax.py, utils.py, block_info.py, flash_fwd_sm100.py, flash_fwd_combine.py"
_MLA = (
    "deepseek-ai/FlashMLA at 9241ae3, csrc/sm90/decode/dense/splitkv_mla.cuh, lines 17-18, 218-252, 331-474, "
    "529-577, 742-925, 947-958, 1030-1063, 1185-1262; csrc/api/dense_decode.h; "
    "csrc/smxx/decode/combine/combine.cu, lines 79-119; setup.py: --use_fast_math"
)
_MLA_SPARSE = (
    "deepseek-ai/FlashMLA at 9241ae3, csrc/sm90/decode/sparse_fp8/splitkv_mla.cuh, lines 25-78, 204-330, 345-420; "
    "csrc/smxx/decode/combine/combine.cu, lines 79-119; setup.py: --use_fast_math"
)
_VLLM = (
    f"vllm-project/flash-attention, {_FA3_FILES}, utils.h: FP8 two-level accumulation; CMakeLists.txt: "
    "--use_fast_math; CMakeLists.txt, heuristics.h: a build for sequences of different lengths, which packs all groups"
)
_TORCH = (
    "pytorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp at 430c4e3; ATen/cpu/vec/vec512/vec512_float.h of "
    "2.13.0; glibc, sysdeps/ieee754/flt-32/e_expf.c, e_logf.c"
)
_TORCH_MATH = (
    "pytorch, aten/src/ATen/native/transformers/attention.cpp: _scaled_dot_product_attention_math, _safe_softmax; "
    "native/cpu/SoftMaxKernel.cpp: vec_softmax_lastdim_kernel; SLEEF 3.6, Sleef_expf16_u10"
)
_MKL = (
    "products in blocks of 192, two accumulators of a BF16 row's sum: measured with PyTorch 2.13.0 and MKL 2024.2, one "
    "thread of an AMD CPU with AVX-512; small products have other orders, which are open"
)
_FLASHINFER = (
    "flashinfer-ai/flashinfer at fb28d72, include/flashinfer/attention/hopper: attention_updater.cuh, variants.cuh "
    "(StandardFP8Attention), quantization/mainloop_mma.cuh, quantization/prefill_sm90.cuh, utils.cuh; "
    "flashinfer/jit/core.py: -use_fast_math"
)
_FLASHINFER_DECIDED = (
    "arguments of exp2, a sum's rescaling and log-sum-exps: contracted; with pages and a window, V of a last tile "
    "without visible keys: the tile's own, where the source loads tile 0"
)
_SAGE = (
    "thu-ml/SageAttention at d1a57a5, csrc/qattn/qk_int_sv_f8_cuda_sm89.cuh, attn_utils.cuh; csrc/mma.cuh, math.cuh; "
    "sageattention/core.py: sageattn_qk_int8_pv_fp8_cuda; sageattention/triton/quant_per_thread.py; "
    "csrc/fused/fused.cu: QuantInt8Kernel, MeanScaleKernel; setup.py: --use_fast_math"
)
_SAGE_STAND_IN = (
    "exp2 and logarithm of MUFU, reciprocal: correctly rounded; the sum's and the output's rescaling: contracted, as "
    "nvcc 13.0 compiles them; divisions of the quantizers: correctly rounded; the mean of K: one rounding of its sum; "
    "rows beyond the last in a group of rows: zeros, where Triton's loads leave them undefined; "
    "NaN as an integer: 0; q, "
    "k and v: rounded to BF16; scores of the mean of K, for the log-sum-exp: summed in order in float32"
)
_SAGE3 = (
    "thu-ml/SageAttention at d1a57a5, sageattention3_blackwell/sageattn3: blackwell/mainloop_tma_ws.h, "
    "softmax_fused.h, kernel_traits.h, cute_extension.h; quantization/fp4_quantization_4d.cu; api.py; setup.py: "
    "--use_fast_math"
)
_SAGE3_STAND_IN = (
    "exp2 of MUFU, reciprocals: correctly rounded; contractions, amax / 6 and P / scale as products with a reciprocal, "
    "accumulators and the first tile's maxima that start from 0: as nvcc 13.0 compiles them for sm_120a with CUTLASS "
    "7107b05; means of K and Q: one rounding of the sum; products of Q's means: summed in order in float32; "
    "log-sum-exp, which the library does not return: that of SageAttention 2"
)
_TRITON = "triton-lang/triton at dc6ee3e, python/tutorials/06-fused-attention.py: _attn_fwd, _attn_fwd_inner"
_TRITON_DECIDED = (
    "tiles: BLOCK_M = 128, BLOCK_N = 64, one of the configurations among which the tutorial chooses by time; "
    "contractions, order of row sums, log2 and division: as Triton 3.6.0 compiles them for sm_90"
)
_E2M1, _E4M3, _FLOAT16, _BF16, _FLOAT32 = (
    formats[name] for name in ("e2m1fn", "e4m3fn", "float16", "bfloat16", "float32")
)


def _of(chip: str, suffix: str) -> dict[str, Any]:
    """Return the fields that depend on a tensor core: the accumulators of both products, and the formats."""
    core, element = accumulators[f"{chip}_{suffix}"], _E4M3 if suffix == "fp8" else _BF16
    return {"scores": core, "values": core, "operands": element, "p_format": element}


_HOPPER_FP8 = (
    KeyTile(64, 160, 160, 160, 192), KeyTile(96, 128, 128, 128, 192), KeyTile(128, 224, 224, 224, 128, 192),
    KeyTile(192, 160, 160, 160, 128, 128), KeyTile(256, 128, 128, 64),
)  # fmt: skip
_HOPPER_BF16 = (
    KeyTile(64, 192, 128, 128, 192), KeyTile(64, 96, 96, 96, value_dim=256), KeyTile(64, 64, 64, 64, 64, value_dim=512),
    KeyTile(96, 144, 144, 128, 192), KeyTile(128, 176, 128, 128),
    KeyTile(192, 128, 128, 96, value_dim=128), KeyTile(192, 112, 112, 96), KeyTile(256, 80, 80, 64),
)  # fmt: skip
_VLLM_FP8 = (
    KeyTile(64, 128, 128, 128, 192), KeyTile(96, 128, 128, 128), KeyTile(128, 192, 192, 192), KeyTile(192, 96, 96, 96),
    KeyTile(256, 128, 128, 64),
)  # fmt: skip
# Where pages are not copied by TMA (paged_kv_non_TMA).
_HOPPER_FP8_PAGED = FlashAttention3(paged_tiles=(
    KeyTile(64, 160, 160, 160, 192), KeyTile(96, 128, 128, 128, 192), KeyTile(128, 160, 160, 160),
    KeyTile(192, 160, 160, 128), KeyTile(256, 128, 128, 64),
))  # fmt: skip
_HOPPER_BF16_PAGED = FlashAttention3(paged_tiles=(
    KeyTile(64, 128, 128, 128, 192), KeyTile(64, 96, 96, 96, value_dim=256), KeyTile(64, 64, 64, 64, 64, value_dim=512),
    KeyTile(96, 128, 128, 128, 192), KeyTile(128, 128, 128, 128), KeyTile(192, 96, 96, 96), KeyTile(256, 80, 80, 64),
))  # fmt: skip
_VLLM_SCHEDULE = FlashAttention3(
    True, (KeyTile(64, 128, 128, 128, 64), KeyTile(128, 96, 96, 96, 64)), packs_groups=True
)
_FLASHINFER_FP8 = (
    KeyTile(64, 128, 128, 128, 192), KeyTile(128, 192, 192, 192), KeyTile(256, 128, 128, 128),
)  # fmt: skip
_FLASHINFER_PAGED = (
    KeyTile(64, 128, 128, 128, 192), KeyTile(128, 128, 128, 128), KeyTile(256, 64, 64, 64),
)  # fmt: skip
_AMPERE_BF16 = (KeyTile(64, 128, 128, 128), KeyTile(256, 64, 64, 64))
_AMPERE_SPLIT = (KeyTile(64, 256, 256, 256, 64), KeyTile(128, 128, 128, 128, 64), KeyTile(256, 64, 64, 64, 64))
_AMPERE_SPLIT_SCHEDULE = FlashAttention2(
    one_split=(KeyTile(64, 128, 128, 128, 64), KeyTile(256, 64, 64, 64, 64)), page_multiple=256
)
_BLACKWELL = (KeyTile(128, 128, 128, 128, 256),)
_AMPERE_GRADIENT = (
    GradientTile(32, 128, 128, 32), GradientTile(64, 128, 128, 64), GradientTile(96, 64, 128, 32),
    GradientTile(128, 64, 128, 64), GradientTile(256, 64, 64, 64),
)  # fmt: skip
_HOPPER_GRADIENT = (
    GradientTile(64, 128, 128, 64), GradientTile(96, 64, 128, 32), GradientTile(128, 64, 128, 128, 80),
    GradientTile(192, 64, 96, 64),
)  # fmt: skip
_HOPPER_COMBINE = Combine(((64, 16), (256, 32)))
_AMPERE_COMBINE = Combine(
    ((32, 8), (64, 16), (96, 8), (128, 32), (160, 8), (192, 16), (256, 32)), by_total=True, skips_zeros=False,
    empty_lse=float("inf"), divides_all=True,
)  # fmt: skip
_MLA_COMBINE = Combine(by_total=True, skips_zeros=False, empty_lse=float("inf"), divides_all=True, in_octaves=True)
_AMPERE: dict[str, Any] = {
    "empty_scale": 1.0, "lse": NatsLogSumExp(empty=float("inf"), from_scale=True), "softcap": RoundedTanh(),
    "decided": _STAND_IN,
}  # fmt: skip
_MUFU: dict[str, Any] = {"exp2": MufuExp2(), "reciprocal": MufuReciprocal()}
_CAPPED: dict[str, Any] = {**_MUFU, "softcap": MufuTanh()}
_AMPERE_ON_HOPPER: dict[str, Any] = {**_AMPERE, **_CAPPED, "decided": _CONTRACTED}
_HOPPER: dict[str, Any] = {**_CAPPED, "combine": _HOPPER_COMBINE, "decided": _CONTRACTED}
_BLACKWELL_SOFTMAX: dict[str, Any] = {
    "row_sum": PackedPairSum(), "flush_subnormals": False, "rounded_log2_e": True,
    "empty_scale": 1.0, "lse": OctavesLogSumExp(), "source": _FA4, "sink": OffsetSink(),
    "combine": Combine(((64, 16), (256, 32)), scaled=True), "decided": _STAND_IN,
}  # fmt: skip
# Degree 3, flash_attn/cute/utils.py: POLY_EX2.
_CUBIC = (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625)


def _blackwell(causal: int) -> FlashAttention4:
    """Return FlashAttention-4's schedule on sm_100; `causal` is the period for head size 128 with a causal mask."""
    return FlashAttention4(
        (Period(64, 16, 16, 16, 16, 16), Period(112, 16, 16, 16, 16, 10), Period(128, 16, causal, 16, 10, 10))
    )


def _mixed() -> PolynomialExp2:
    return PolynomialExp2(_CUBIC, 16, 4, first_fragment=1, source=f"{_FA4}: ex2_emulation, tuning table")


def _torch_cpu(name: str, fmt: Format, exp: CpuExp, **fields: Any) -> AttentionKernel:
    """Return the kernel of PyTorch's attention on a CPU with AVX-512, for operands in float32 or BF16."""
    chain = accumulators["float32"]
    flash: dict[str, Any] = {"key_tiles": (KeyTile(ANY_SIZE, 512, 512, 512),), "schedule": TorchCpu(), "source": _TORCH}
    return AttentionKernel(
        name, scores=chain, values=chain, operands=fmt, p_format=fmt, p_policy=policies["ieee"], exp2=exp,
        reciprocal=RoundedReciprocal(0, flush=False), last_tile_first=False, fused_scores=False, fused_shift=False,
        product_block=192, propagates_nan=True, flush_subnormals=False, lse=NatsLogSumExp(fused=False),
        output_format=fmt, decided=_MKL, **(flash | fields),
    )  # fmt: skip


def _sage(name: str, core: str, v_max: float) -> AttentionKernel:
    """Return SageAttention's kernel for GPUs of compute capability 8.9, with INT8 scores, which float32 holds."""
    return AttentionKernel(
        name, scores=accumulators["float32"], values=accumulators[core], operands=formats["int8"], v_format=_E4M3,
        p_format=_E4M3, p_offset=8.807, key_tiles=(KeyTile(128, 64, 64, 64),), schedule=SageAttention(),
        row_sum=QuadQuartetSum(), reciprocal=RoundedReciprocal(1), promote_every=1, fused_promotion=True,
        last_tile_first=False, rounded_log2_e=True, lse=OctavesLogSumExp(),
        scales=ThreadScales(v_max),
        source=_SAGE, decided=_SAGE_STAND_IN,
    )  # fmt: skip


for _kernel in (
    AttentionKernel(
        "flash2", **_of("ampere", "bf16"), key_tiles=_AMPERE_BF16, schedule=FlashAttention2(),
        gradient_tiles=_AMPERE_GRADIENT, source=_FA2, **_AMPERE,
    ),
    AttentionKernel(
        "flash2_splitkv", **_of("ampere", "bf16"), key_tiles=_AMPERE_SPLIT, schedule=_AMPERE_SPLIT_SCHEDULE,
        combine=_AMPERE_COMBINE, source=_SPLIT, **_AMPERE,
    ),
    AttentionKernel(
        "flash2_hopper", **_of("hopper", "bf16"), key_tiles=_AMPERE_BF16, schedule=FlashAttention2(),
        gradient_tiles=_AMPERE_GRADIENT, source=_FA2, **_AMPERE_ON_HOPPER,
    ),
    AttentionKernel(
        "flash2_splitkv_hopper", **_of("hopper", "bf16"), key_tiles=_AMPERE_SPLIT, schedule=_AMPERE_SPLIT_SCHEDULE,
        combine=_AMPERE_COMBINE, source=_SPLIT, **_AMPERE_ON_HOPPER,
    ),
    AttentionKernel(
        "fa3_bf16", **_of("hopper", "bf16"), key_tiles=_HOPPER_BF16,
        schedule=_HOPPER_BF16_PAGED, **_HOPPER,
        gradient_tiles=_HOPPER_GRADIENT, source=_FA3_BF16,
    ),
    AttentionKernel(
        "fa3_fp8", **_of("hopper", "fp8"), key_tiles=_HOPPER_FP8, schedule=_HOPPER_FP8_PAGED, p_offset=8, **_HOPPER,
        source=_FA3,
    ),
    AttentionKernel(
        "vllm_fa3_fp8", **_of("hopper", "fp8"), key_tiles=_VLLM_FP8, schedule=_VLLM_SCHEDULE, p_offset=8,
        promote_every=1, sink=ShiftedSink(), **_HOPPER, source=_VLLM,
    ),
    AttentionKernel(
        "fa4_bf16", **_of("blackwell", "bf16"), key_tiles=_BLACKWELL, exp2=_mixed(), schedule=_blackwell(16),
        rescale_threshold=8.0, **_BLACKWELL_SOFTMAX,
    ),
    AttentionKernel(
        "fa4_fp8", **_of("blackwell", "fp8"), key_tiles=_BLACKWELL, exp2=_mixed(), schedule=_blackwell(8), p_offset=8,
        **_BLACKWELL_SOFTMAX,
    ),
    AttentionKernel(
        "flashmla_dense", **_of("hopper", "bf16"), **_MUFU, decided=_MLA_DECIDED,
        key_tiles=(KeyTile(576, 64, 64, 64, 64, value_dim=512),),
        schedule=FlashMla(), row_sum=QuadPairSum(), p_policy=policies["ieee"], last_tile_first=False,
        empty_scale=1.0, lse=TermwiseLogSumExp(empty=float("inf")), source=_MLA,
        combine=_MLA_COMBINE,
    ),
    AttentionKernel(
        "flashmla_fp8", **_of("hopper", "bf16"), **_MUFU, decided=_MLA_DECIDED,
        key_tiles=(KeyTile(512, 64, 64, 64, 64), KeyTile(576, 64, 64, 64, 64, value_dim=512)),
        schedule=FlashMlaSparse(), row_sum=QuadTileSum(), p_policy=policies["ieee"], last_tile_first=False,
        rounded_log2_e=True, lse=TermwiseLogSumExp(empty=float("inf")), sink=DivisorSink(), combine=_MLA_COMBINE,
        source=_MLA_SPARSE,
    ),
    AttentionKernel(
        "flashinfer_fp8", **_of("hopper", "fp8"), key_tiles=_FLASHINFER_FP8, schedule=FlashInfer(_FLASHINFER_PAGED),
        p_scale=448.0, exp2=MufuExp2(), reciprocal=MufuQuotient(), descale_first=True, lse=Base2LogSumExp(),
        source=_FLASHINFER, decided=_FLASHINFER_DECIDED,
    ),
    _sage("sage2", "ada_fp8", 448.0),
    _sage("sage2pp", "ada_fp8_f16", 2.25),
    AttentionKernel(
        "sage3_fp4", scores=accumulators["rtx_blackwell_nvfp4"], values=accumulators["rtx_blackwell_nvfp4"],
        operands=_E2M1, p_format=_E2M1, p_offset=11.392317422778762,
        key_tiles=(KeyTile(64, 128, 128, 128), KeyTile(128, 128, 128, 128)), schedule=SageAttention3(),
        row_sum=QuadOctetSum(), reciprocal=RoundedReciprocal(1), promote_every=1, fused_promotion=True,
        lse=OctavesLogSumExp(), scales=BlockScales(), source=_SAGE3, decided=_SAGE3_STAND_IN,
    ),
    AttentionKernel(
        "triton_fused", scores=accumulators["hopper_f16"], values=accumulators["hopper_f16"], operands=_FLOAT16,
        p_format=_FLOAT16, p_policy=policies["ieee"],
        key_tiles=(KeyTile(64, 64, 64, 64), KeyTile(128, 64, 64, 64), KeyTile(256, 64, 64, 64)),
        schedule=TritonFused(), row_sum=QuadTotalSum(), exp2=MufuExp2(library_log2=True),
        reciprocal=MufuQuotient(flush=False), last_tile_first=False, rounded_log2_e=True, flush_subnormals=False,
        lse=Base2LogSumExp(), output_format=_FLOAT16, source=_TRITON, decided=_TRITON_DECIDED,
    ),
    _torch_cpu("torch_cpu_flash_f32", _FLOAT32, TorchExp(), row_sum=LaneSum(), scales_first=True),
    _torch_cpu("torch_cpu_flash_bf16", _BF16, TorchFastExp(), row_sum=LaneSum(2), scales_first=True),
    _torch_cpu(
        "sdpa_math", _FLOAT32, SleefExp(1), row_sum=LaneSum(in_lanes=True), scales_operands=True, adds_mask=True,
        normalizes_p=True, key_tiles=(KeyTile(ANY_SIZE, ALL_KEYS, ALL_KEYS, ALL_KEYS),), schedule=TorchMath(),
        source=_TORCH_MATH,
    ),
):  # fmt: skip
    attentions.register(_kernel.name, _kernel)
attentions.seal()
