"""Block quantizers as data: a `Quantizer` says how a block's scale is computed, stored and divided by.

**A scale multiplies codes back to values**: ``x ~ scale * decode(codes)`` (DeepGEMM's ``sf``; TransformerEngine calls
the inverse of this "scale"). Whatever is written below happens in float32, each operation rounded to nearest even;
powers of two come from bits, never from a logarithm. `amax` is the largest magnitude of the block, `max` the largest
element of the format, `emax` its exponent.

How a scale comes from amax, by the way it is stored (`ARITHMETICS`):

====== ================ =============================================================================================
scale  arithmetic       s (and what values are multiplied with, where that is not 1 / s)
====== ================ =============================================================================================
fp32   amax/max         s = amax / max, at least 2^-149
fp32   amax*(1/max)     s = amax * fl(1 / max), at least 2^-149
fp32   max/amax         m = min(max / amax, FLT_MAX); x * m; s = 1 / m
fp32   amax/max         with division "max/amax": s as above, but x * (max / amax)
ue8m0  floor            s = 2^(floor(log2 amax) - emax): OCP MX v1.0, section 6.3; the largest elements may saturate
ue8m0  ceil             the same with ceil
ue8m0  even             the same after amax was rounded to the element's mantissa bits, half up
ue8m0  even_1bit        the same with one mantissa bit, whatever the element
ue8m0  amax/max         s = the smallest power of two not below amax / max ("round up", RCEIL)
ue8m0  amax*(1/max)     the same of amax * fl(1 / max)
ue8m0  max/amax         m = min(max / amax, FLT_MAX) with its mantissa cleared; x * m; s = 1 / m
e4m3   folded           e = bound * max / amax_tensor, g = 1 / e; s = E4M3(amax * (e * fl(1 / max))); x * 1 / (s * g)
e4m3   plain            e, g as above; s = E4M3(amax / max * e); x * 1 / (s * g)
e4m3   quotients        g = amax_tensor / (bound * max); s = E4M3(amax / max / g); x * (1 / g / s)
e4m3   joint            g as above; s = E4M3(amax / (max * g)), of 1 where that is 0; x / (s * g)
e4m3   alone            s = E4M3(amax / max); x * 1 / s, or x / s; no scale of the tensor
====== ================ =============================================================================================

Where the scale is a power of two, ``x / s`` and ``x * (1 / s)`` are the same number. E4M3(...) saturates. Inverses that
overflow become FLT_MAX, and scales or divisors that underflow 2^-149, so that no zero becomes NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from .._arrays import LARGEST_SEED, one_of, positive, positive32, whole, whole_or_none
from .._values import plain_fields
from ..format.catalogue import Format, formats
from ..format.policy import NegativeZero
from ..format.rounding import Rounding, roundings
from ..registry import Registry
from .granularity import Granularity

ScaleKind = Literal["fp32", "ue8m0", "e4m3"]
SCALES: tuple[ScaleKind, ...] = get_args(ScaleKind)
SCALE_BITS: dict[ScaleKind, int] = {"fp32": 32, "ue8m0": 8, "e4m3": 8}
Division = Literal["divide", "reciprocal", "max/amax"]
DIVISIONS: tuple[Division, ...] = get_args(Division)
Choice = Literal["mae", "mse"]
ARITHMETICS: dict[ScaleKind, tuple[str, ...]] = {
    "fp32": ("amax/max", "amax*(1/max)", "max/amax"),
    "ue8m0": ("floor", "ceil", "even", "even_1bit", "amax/max", "amax*(1/max)", "max/amax"),
    "e4m3": ("folded", "plain", "quotients", "joint", "alone"),
}
SPECIALS: dict[str, tuple[float, float]] = {  # scale, and what values are multiplied with (or divided by)
    "one": (1.0, 1.0),
    "nan": (np.nan, np.nan),
    "largest": (2.0**127, 2.0**-127),
    "smallest": (2.0**-127, 2.0**127),
    "smallest_normal": (2.0**-6, 1.0),
    "saturate": (448.0, 1 / 448.0),
}
"""What a block of zeros, with Inf or with NaN may get in place of what the arithmetic says."""


@dataclass(frozen=True)
class Quantizer:
    """How values become codes and scales: one entry of the catalogue.

    Parameters
    ----------
    name : str
        What results say they were made by; nothing if it is empty. It decides nothing.
    format : str or Format
        Element format.
    granularity : str
        Block that shares a scale, see `lowprec.Granularity`.
    scale : {"fp32", "ue8m0", "e4m3"}
        How a scale is stored.
    arithmetic : str
        How it comes from amax: one of ``ARITHMETICS[scale]``, see the module's table.
    division : {"divide", "reciprocal", "max/amax"}
        For FP32 scales from a quotient or product: ``x / s``, or ``x * min(fl(1 / s), FLT_MAX)``; from a quotient also
        ``x * fl(max / amax)``, which is neither.
    rounding : str or Rounding
        How elements are rounded where a call does not say it.
    negative_zero : {"keep", "positive"}
        What -0 and what underflows from below become.
    amax_floor : float
        The amax is taken to be at least this. Released kernels use 1e-4, which is harmless for activations and
        wrong for gradients of 1e-5 to 1e-8; the default is 0.
    smallest_exponent : int
        Of a power-of-two scale: -127, or -126 where it must be a normal float32.
    smallest_scale : float
        An E4M3 scale is at least this.
    bound : float
        The block scale that the tensor's own scale aims the largest block at: 448, or 256 to leave room for 1.5 times.
    choice : {"mae", "mse"}, optional
        Four over six: quantize each block with s and with 1.5 s (which puts its largest value on 4 instead of 6), and
        keep what errs less, by sums of magnitudes or of squares in order.
    zero, inf, nan : str
        What a block of zeros (where `amax_floor` is 0), with Inf, with NaN gets: one of `SPECIALS`, or ``"rule"`` for
        what the arithmetic says.
    hadamard : int, optional
        Size of the Hadamard transform that comes first, along the blocks: over the columns, over the rows where a
        block is a piece of one column (`lowprec.hadamard`). What comes back are transformed values.
    signs : {"te", "none"} or int
        The transform's signs.
    transform_format : str, optional
        Format of ``lowprec.formats`` that transformed values are rounded to before anything else is done to them:
        TransformerEngine's kernels round to bfloat16, as if the transform had written a tensor to memory.
    history : int, optional
        Number of steps whose amax delayed scaling remembers: such a quantizer has a state, see `DelayedScaling`.
    source : str
        Where the arithmetic is published.
    note : str
        Where vendors differ from it or from each other.

    Raises
    ------
    ValueError
        If the fields contradict each other; the message quotes them and says what is allowed.
    """

    name: str = ""
    format: str | Format = "e4m3fn"
    granularity: str = "1x128"
    scale: ScaleKind = "fp32"
    arithmetic: str = "amax/max"
    division: Division = "divide"
    rounding: str | Rounding = "nearest_even"
    negative_zero: NegativeZero = "keep"
    amax_floor: float = 0.0
    smallest_exponent: int = -126
    smallest_scale: float = 0.0
    bound: float = 448.0
    choice: Choice | None = None
    zero: str = "one"
    inf: str = "nan"
    nan: str = "nan"
    hadamard: int | None = None
    signs: str | int = "te"
    transform_format: str | None = None
    history: int | None = None
    source: str = field(default="user-defined", compare=False)
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        plain_fields(self)
        one_of("Quantizer", "scale", self.scale, SCALES)
        one_of("Quantizer", "division", self.division, DIVISIONS)
        one_of(f"Quantizer with {self.scale} scales", "arithmetic", self.arithmetic, ARITHMETICS[self.scale])
        if self.division == "max/amax" and (self.scale, self.arithmetic) != ("fp32", "amax/max"):
            raise ValueError(
                f"division='max/amax' goes with fp32 scales and arithmetic='amax/max', not {self.scale!r} and "
                f"{self.arithmetic!r}"
            )
        roundings.get(self.rounding)
        one_of("Quantizer", "negative_zero", self.negative_zero, get_args(NegativeZero))
        positive32("", "amax_floor", self.amax_floor, zero=True)
        whole("", "smallest_exponent", self.smallest_exponent, -127, -126)
        if positive("", "smallest_scale", self.smallest_scale, zero=True) > 448.0:
            raise ValueError(f"smallest_scale={self.smallest_scale!r}: 0 to 448, an E4M3 number")
        if positive("", "bound", self.bound) > 448.0:
            raise ValueError(f"bound={self.bound!r}: above 0 and at most E4M3's 448")
        if self.choice is not None:
            one_of("Quantizer", "choice", self.choice, get_args(Choice))
            if self.arithmetic != "plain":
                raise ValueError(f"choice={self.choice!r} goes with arithmetic='plain', not {self.arithmetic!r}")
        for case in ("zero", "inf", "nan"):
            one_of("Quantizer", case, getattr(self, case), ("rule", *SPECIALS))
        for case in ("inf", "nan"):
            if getattr(self, case) == "rule":
                raise ValueError(f"{case}='rule': no arithmetic has a result there; one of {', '.join(SPECIALS)}")
        for size in ("hadamard", "history"):
            value = getattr(self, size)
            whole_or_none("Quantizer", size, value)
        if isinstance(self.signs, str):
            one_of("Quantizer", "signs", self.signs, ("te", "none"))
        else:
            whole("Quantizer", "signs", self.signs, 0, LARGEST_SEED)
        if self.hadamard is not None and (self.hadamard < 2 or self.hadamard & (self.hadamard - 1)):
            raise ValueError(f"hadamard={self.hadamard!r}: a power of two, at least 2")
        if self.history is not None and not 1 <= self.history <= 1 << 20:
            raise ValueError(f"history={self.history!r}: 1 to 2^20 steps")
        formats.get(self.format)
        if self.transform_format is not None:
            if not isinstance(name := self.transform_format, str):
                raise ValueError(f"Quantizer: transform_format must be None or a name in lowprec.formats, got {name!r}")
            formats.get(name)
        Granularity.parse(self.granularity)

    @property
    def two_level(self) -> bool:
        """Whether the tensor has a scale of its own."""
        return self.scale == "e4m3" and self.arithmetic != "alone"

    def with_(self, **changes: Any) -> Quantizer:
        """Return a quantizer that differs in the given fields.

        Examples
        --------
        >>> mine = quantizers["deepgemm"].with_(name="mine", amax_floor=0.0, source="our kernel")
        >>> mine.division
        'reciprocal'
        """
        return replace(self, **changes)


quantizers: Registry[Quantizer] = Registry("quantizer", Quantizer)
"""The catalogue: each entry reproduces one published quantizer. What a recipe or codec of the same name does to values
is the same."""


def _add(name: str, *aliases: str, like: Quantizer | None = None, **fields: Any) -> Quantizer:
    entry = Quantizer(name=name, **fields) if like is None else like.with_(name=name, **fields)
    return quantizers.register(name, entry, aliases)


_V3 = "DeepSeek-V3, inference/kernel.py: act_quant, weight_quant"
_DSV3 = _add(
    "dsv3_inference", amax_floor=1e-4, source=_V3,
    note="the kernel of 2024 had no floor: a tile of zeros came out as NaN there",
)  # fmt: skip
_add(
    "dsv3_inference_ue8m0", like=_DSV3, scale="ue8m0", source=_V3 + " with scale_fmt='ue8m0' (V3.1)",
    note="the kernel takes exp2(ceil(log2(...))) in float32, which is wrong next to powers of two; bits are used here",
)  # fmt: skip
_DSV32 = _add(
    "dsv32_inference",
    arithmetic="amax*(1/max)",
    amax_floor=1e-4,
    source="DeepSeek-V3.2-Exp, inference/kernel.py: act_quant",
)
_DSV32_UE8M0 = _add(
    "dsv32_inference_ue8m0", "dsv4_inference", like=_DSV32, scale="ue8m0",
    source=_DSV32.source + " with round_scale; DeepSeek-V4, inference/kernel.py: act_quant",
)  # fmt: skip
_add(
    "dsv4_kv", like=_DSV32_UE8M0, granularity="1x64",
    source="DeepSeek-V4, inference/model.py: the 448 dimensions of keys and values without a position, in E4M3 1x64",
)  # fmt: skip
_DEEPGEMM = _add(
    "deepgemm", division="reciprocal", amax_floor=1e-4, source="DeepGEMM, deep_gemm/utils/math.py",
    note="a block with Inf or NaN gets an infinite or NaN scale there; both decode to NaN",
)  # fmt: skip
_add("deepgemm_ue8m0", like=_DEEPGEMM, scale="ue8m0", source=_DEEPGEMM.source + ", use_ue8m0")

_TILEKERNELS = _add(
    "tilekernels", division="max/amax", amax_floor=1e-4,
    source="deepseek-ai/TileKernels 36d9e45 (tile-kernels 1.0.0): per-token casts with FP32 scales",
    note="with power-of-two scales these are deepgemm_ue8m0; -0 keeps its sign here",
)  # fmt: skip
_add(
    "tilekernels_fp4", like=_TILEKERNELS, format="e2m1fn", granularity="1x32", amax_floor=6 * 2.0**-126, note="",
)  # fmt: skip

_TE = "TransformerEngine, common/recipe/recipe_common.cuh"
_CURRENT = _add(
    "te_current", granularity="tensor", arithmetic="max/amax", inf="one", nan="one", source=_TE + " (current scaling)",
    note="where max / amax overflows, bfloat16 inputs get bfloat16's maximum there, float32 ones FLT_MAX as here",
)  # fmt: skip
_add(
    "te_delayed", like=_CURRENT, history=1024, note="",
    source="TransformerEngine, common/recipe/delayed_scaling.cu; Micikevicius et al., arXiv:2209.05433",
)  # fmt: skip
_add("te_block_fp32", like=_CURRENT, granularity="1x128", source=_TE + ", NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1")
_add("te_block", like=_CURRENT, granularity="1x128", scale="ue8m0", source=_TE + " (Float8BlockScaling)")
_add(
    "torchao_fp8", granularity="tensor", arithmetic="max/amax", amax_floor=1e-12,
    source="torchao 0.18, float8/float8_utils.py: tensorwise and axiswise scaling",
    note="max / amax is divided in float64 and rounded twice there, which changes nothing: 53 >= 2 * 24 + 2 bits",
)  # fmt: skip

_MX = "OCP Microscaling formats (MX) v1.0, section 6.3"
_MX_BASE = Quantizer(
    granularity="1x32", scale="ue8m0", arithmetic="floor", smallest_exponent=-127, zero="smallest", source=_MX
)
_RCEIL = "TransformerEngine, common/util/ptx.cuh: float_to_e8m0; NVIDIA, arXiv:2506.08027"
_TORCHAO_MX = (
    "torchao 0.18 divides a block whose scale is 2^-127 by 2^-126, so that its values are halved, and gives a block "
    "with Inf a finite scale"
)
_RCEIL_NOTE = (
    "torchao 0.18 divides by max and takes float32's log2, and in a block whose scale is 2^-127 it makes all elements "
    "zeros; so does TransformerEngine, which multiplies such a block by 1 instead of 2^127"
)
_FLAVOURS: dict[str, dict[str, str]] = {
    "floor": {"source": _MX, "note": "elements between max and 2^(emax + 1) / s saturate; packages that take "
              f"floor(log2 amax) in float32 get the exponent wrong just below powers of two; {_TORCHAO_MX}"},
    "ceil": {"source": "torchao 0.18, prototype/mx_formats: ScaleCalculationMode.CEIL", "note": _TORCHAO_MX},
    "even": {"source": "torchao 0.18, ScaleCalculationMode.EVEN; AMD Quark",
             "note": "compressed-tensors rounds amax to one mantissa bit whatever the element: even_1bit; "
             f"{_TORCHAO_MX}"},
    "rceil": {"arithmetic": "amax*(1/max)", "inf": "largest", "source": _RCEIL, "note": _RCEIL_NOTE},
    "even_1bit": {"source": "compressed-tensors 0.20"},
}  # fmt: skip
for _name, _fields in _FLAVOURS.items():
    _options = {"arithmetic": _name, **_fields}
    _add(f"mxfp8_{_name}", *(["mxfp8"] if _name == "rceil" else []), like=_MX_BASE, **_options)
    _add(f"mxfp8_e5m2_{_name}", like=_MX_BASE, format="e5m2", **_options)
_add(
    "mxint8", like=_MX_BASE, format="mxint8", source=_MX, note="-2 is never made; gfloat and pychop make it of -1.9999"
)
for _name, _format in (("mxfp6_e2m3", "e2m3fn"), ("mxfp6_e3m2", "e3m2fn"), ("mxfp4", "e2m1fn")):
    _add(f"{_name}_floor", like=_MX_BASE, format=_format, source=_MX, note=_TORCHAO_MX)
    _add(f"{_name}_rceil", like=_MX_BASE, format=_format, **_FLAVOURS["rceil"])

_V4_FP4 = _add(
    "dsv4_fp4", like=_MX_BASE, format="e2m1fn", arithmetic="amax*(1/max)", amax_floor=6 * 2.0**-126,
    smallest_exponent=-126, zero="one", source="DeepSeek-V4, inference/kernel.py: fp4_act_quant with UE8M0 scales",
    note="mxfp4_rceil, other than for blocks of zeros and far below float32's normal numbers",
)  # fmt: skip
_TIES_TOWARD_ZERO = Rounding("nearest_toward_zero", 0x7FFFFFFF, 0x7FFFFFFF)
_add(
    "deepgemm_fp4", like=_V4_FP4, arithmetic="amax/max", amax_floor=1e-4, rounding=_TIES_TOWARD_ZERO,
    negative_zero="positive", source="DeepGEMM, deep_gemm/utils/math.py: per_token_cast_to_fp4",
    note="ties go toward zero and no code is -0, unlike DeepSeek-V4's own; 1e-4 is too much for gradients",
)  # fmt: skip
_add(
    "dsv41_kv_fp4", format="e2m1fn", granularity="1x16", scale="e4m3", arithmetic="alone", amax_floor=6 * 2.0**-9,
    smallest_scale=2.0**-9,
    source="DeepSeek-V4.1, inference/kernel.py: fp4_act_quant with E4M3 scales, no scale of the tensor",
)  # fmt: skip

_NV = "TransformerEngine, common/cast/nvfp4/core_nvfp4.cuh; NVIDIA, arXiv:2509.25149"
_NVFP4 = _add(
    "nvfp4_te", "nvfp4", format="e2m1fn", granularity="1x16", scale="e4m3", arithmetic="folded", zero="rule",
    inf="saturate", source=_NV,
    note="the Python reference lets a NaN poison the whole tensor; here it poisons its block; and it makes +0 of -0",
)  # fmt: skip
_add("nvfp4_te_2d", like=_NVFP4, granularity="16x16", source=_NV + " (weights)")
_RHT = _add(
    "nvfp4_te_rht", like=_NVFP4, hadamard=16, transform_format="bfloat16",
    source=_NV + " (Wgrad operands: 16-point Hadamard transform first, rounded to bfloat16: "
    "common/hadamard_transform/hadamard_transform_cast_fusion.cu)",
)  # fmt: skip
_add(
    "nvfp4_te_rht_unsigned", like=_RHT, signs="none",
    source="arXiv 2509.25149, appendix: the transform without random signs, as an ablation; other sizes take any signs",
)  # fmt: skip
_AO = _add(
    "nvfp4_torchao", like=_NVFP4, arithmetic="quotients", division="reciprocal", smallest_scale=2.0**-6,
    zero="smallest_normal", inf="nan",
    source="torchao 0.18, prototype/mx_formats/nvfp4_tensor.py: two-level scaling",
    note="block scales are not taken below E4M3's smallest normal 2^-6; a tensor of zeros gets NaN scales there",
)  # fmt: skip
_add("nvfp4_torchao_one_level", like=_AO, arithmetic="alone", source=_AO.source.replace("two", "one"), note="")
_add(
    "nvfp4_modelopt", like=_NVFP4, arithmetic="joint", smallest_scale=2.0**-9, zero="one", inf="nan",
    source="nvidia-modelopt 0.47, torch/quantization/qtensor/nvfp4_tensor.py",
    note="divides by the product of both scales; a tensor of zeros gets NaN scales there",
)  # fmt: skip
_4OVER6 = "Cook et al., arXiv:2512.02010; TransformerEngine, custom_recipes/reference_nvfp4.py"
_add("nvfp4_4over6", like=_NVFP4, arithmetic="plain", bound=256.0, choice="mae", source=_4OVER6)
_add("nvfp4_4over6_mse", like=_NVFP4, arithmetic="plain", bound=256.0, choice="mse", source=_4OVER6)
