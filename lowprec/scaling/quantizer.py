"""Block quantizers as data: a `Quantizer` holds its formats, its block and its scale rule (`lowprec.scaling.rules`)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self, get_args

from .._checks import MAX_SEED, check_choice, check_int, check_optional_int
from .._values import Value, describe_changes, normalize_fields
from ..format.catalogue import Format, formats
from ..format.policy import NegativeZero
from ..format.rounding import Rounding, roundings
from ..registry import Registry
from .granularity import Granularity
from .rules import E4M3, FLOAT32, AmaxRule, PythonRule

_TILE, _AMAX = Granularity(1, 128), AmaxRule()
_RULE_FIELDS = {f.name for f in dataclasses.fields(AmaxRule)}
_EDGES: dict[str, Any] = {"format": formats.get, "scale_format": formats.get, "granularity": Granularity.parse,
                          "rounding": roundings.get}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Quantizer(Value):
    """Rules that convert values to codes and scales: one entry of the catalogue.

    Parameters
    ----------
    name : str
        Name shown in results and tables; it does not affect the codes.
    format : Format or str
        Element format.
    granularity : Granularity or str
        Block that shares a scale, see `lowprec.Granularity`.
    scale_format : Format or str
        Format in which scales are stored: float32, powers of two (e8m0fnu), or any other of up to 8 bits (e4m3fn, ue5m3
        ...), without its sign.
    rule : AmaxRule, or function
        Scale of a block: from its largest magnitude, or by a function ``rule(blocks, element_format, scale_format)``,
        see `lowprec.scaling.rules.PythonRule`.
    rounding : Rounding or str
        Rounding of elements, unless a call passes another one.
    negative_zero : {"keep", "positive"}
        Whether the sign of zeros is kept, or -0 and negative values that underflow become +0.
    hadamard_size : int, optional
        Size of the Hadamard transform that is applied first, along the blocks: over the columns, or over the rows where
        a block is a piece of one column (`lowprec.hadamard`). Dequantized values remain transformed.
    hadamard_signs : {"te", "none"} or int
        Signs of the transform.
    transform_format : Format or str, optional
        Format to which transformed values are rounded before they are quantized: TransformerEngine's kernels round to
        bfloat16, as if the transform had written a tensor to memory.
    amax_history_len : int, optional
        Number of steps in delayed scaling's amax history; a quantizer with a history has state, see `DelayedScaling`.
    source : str
        Publication that defines the arithmetic.
    note : str
        Differences between vendors, or between a vendor and the publication.

    Raises
    ------
    ValueError
        If the fields contradict each other; the message quotes them and gives the allowed values.

    Examples
    --------
    >>> import lowprec as lp
    >>> mine = lp.quantizers["mxfp8"].with_(granularity="1x16", amax_floor=1e-4)
    >>> mine.name, mine.rule.amax_floor
    ('mxfp8_rceil(granularity=1x16, amax_floor=0.0001)', 0.0001)
    """

    name: str = field(default="", compare=False)
    format: Format = E4M3
    granularity: Granularity = _TILE
    scale_format: Format = FLOAT32
    rule: AmaxRule | PythonRule = _AMAX
    rounding: Rounding = roundings["nearest_even"]
    negative_zero: NegativeZero = "keep"
    hadamard_size: int | None = None
    hadamard_signs: str | int = "te"
    transform_format: Format | None = None
    amax_history_len: int | None = None
    source: str = field(default="user-defined", compare=False)
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        for name, parse in _EDGES.items():
            object.__setattr__(self, name, parse(getattr(self, name)))
        if self.transform_format is not None:
            object.__setattr__(self, "transform_format", formats.get(self.transform_format))
        if not isinstance(self.rule, AmaxRule):
            object.__setattr__(self, "rule", PythonRule.of(self.rule))
        if self.scale_format != FLOAT32 and (self.scale_format.bits > 8 or self.scale_format.is_integer):
            raise ValueError(
                "Quantizer: scale_format must be float32 or a floating-point format of up to 8 bits, "
                f"got {self.scale_format}"
            )
        if isinstance(self.rule, AmaxRule):
            self.rule.check(self.scale_format)
            if self.rule.has_row_scales and 1 not in (self.granularity.rows, self.granularity.columns):
                raise ValueError(
                    "Quantizer: granularity must be 1xN or Nx1 with tensor_scale='row', whose rows run along the "
                    f"blocks, got {self.granularity}"
                )
        elif self.amax_history_len is not None:
            raise ValueError(
                "Quantizer: amax_history_len must be None with a Python function as rule, "
                f"got {self.amax_history_len!r}"
            )
        check_choice("Quantizer", "negative_zero", self.negative_zero, get_args(NegativeZero))
        for size in ("hadamard_size", "amax_history_len"):
            check_optional_int("Quantizer", size, getattr(self, size))
        if isinstance(self.hadamard_signs, str):
            check_choice("Quantizer", "hadamard_signs", self.hadamard_signs, ("te", "none"))
        else:
            check_int("Quantizer", "hadamard_signs", self.hadamard_signs, 0, MAX_SEED)
        if self.hadamard_size is not None and (self.hadamard_size < 2 or self.hadamard_size & (self.hadamard_size - 1)):
            raise ValueError(f"Quantizer: hadamard_size must be a power of two >= 2, got {self.hadamard_size!r}")
        if self.amax_history_len is not None and not 1 <= self.amax_history_len <= 1 << 20:
            raise ValueError(f"Quantizer: amax_history_len must be from 1 to 2^20, got {self.amax_history_len!r}")

    @property
    def has_tensor_scale(self) -> bool:
        """Whether the rule also computes a tensor scale or row scales.

        It is False if the rule is a Python function, which decides that only when it is called.
        """
        return isinstance(self.rule, AmaxRule) and self.rule.has_tensor_scale

    @property
    def has_row_scales(self) -> bool:
        """Whether the rule also computes row scales.

        It is False if the rule is a Python function, which decides that only when it is called.
        """
        return isinstance(self.rule, AmaxRule) and self.rule.has_row_scales

    def with_(self, **changes: Any) -> Self:
        """Return a quantizer with the given fields replaced, fields of its `AmaxRule` included; see `Value.with_`.

        Examples
        --------
        >>> import lowprec as lp
        >>> mine = lp.quantizers["deepgemm"].with_(name="mine", amax_floor=0.0, source="our kernel")
        >>> mine.rule.scale_application
        'reciprocal'
        """
        of_rule = {name: value for name, value in changes.items() if name in _RULE_FIELDS}
        if not of_rule:
            return super().with_(**changes)
        rule = changes.get("rule", self.rule)
        if not isinstance(rule, AmaxRule):
            raise TypeError(
                f"Quantizer.with_: rule must be an AmaxRule, to change its {next(iter(of_rule))}, got {rule}"
            )
        own = {name: value for name, value in changes.items() if name not in of_rule}
        return super().with_(**{**describe_changes(self, changes), **own, "rule": dataclasses.replace(rule, **of_rule)})


quantizers: Registry[Quantizer] = Registry("quantizer", Quantizer)
"""The catalogue: each entry reproduces one published quantizer. A recipe or codec of the same name uses the same
quantizer."""


def _made(name: str, like: Quantizer, **fields: Any) -> Quantizer:
    """Return a copy of `like`, including its source, under another name and with the given fields replaced."""
    of_rule = {field: fields.pop(field) for field in tuple(fields) if field in _RULE_FIELDS}
    assert isinstance(like.rule, AmaxRule)
    return dataclasses.replace(like, name=name, rule=dataclasses.replace(like.rule, **of_rule), **fields)


def _add(name: str, *aliases: str, like: Quantizer = Quantizer(), **fields: Any) -> Quantizer:
    return quantizers.register(name, _made(name, like, **fields), aliases)


_V3 = "DeepSeek-V3, inference/kernel.py: act_quant, weight_quant"
_DSV3 = _add(
    "dsv3_inference", amax_floor=1e-4, source=_V3,
    note="the kernel of 2024 lacked the lower bound on amax and converted a tile of zeros to NaN",
)  # fmt: skip
_add(
    "dsv3_inference_ue8m0", like=_DSV3, scale_format="e8m0fnu", source=_V3 + " with scale_fmt='ue8m0' (V3.1)",
    note="the kernel computes exp2(ceil(log2(...))) in float32, wrong next to powers of two; lowprec uses the bits",
)  # fmt: skip
_DSV32 = _add(
    "dsv32_inference",
    scale_calculation="amax*(1/max)",
    amax_floor=1e-4,
    source="DeepSeek-V3.2-Exp, inference/kernel.py: act_quant",
)
_DSV32_UE8M0 = _add(
    "dsv32_inference_ue8m0", "dsv4_inference", like=_DSV32, scale_format="e8m0fnu",
    source=_DSV32.source + " with round_scale; DeepSeek-V4, inference/kernel.py: act_quant",
)  # fmt: skip
_add(
    "dsv4_kv", like=_DSV32_UE8M0, granularity="1x64",
    source="DeepSeek-V4, inference/model.py: the 448 dimensions of keys and values without a position, in E4M3 1x64",
)  # fmt: skip
_DEEPGEMM = _add(
    "deepgemm", scale_application="reciprocal", amax_floor=1e-4, source="DeepGEMM, deep_gemm/utils/math.py",
    note="DeepGEMM gives a block with Inf or NaN an infinite or NaN scale; both decode to NaN",
)  # fmt: skip
_add("deepgemm_ue8m0", like=_DEEPGEMM, scale_format="e8m0fnu", source=_DEEPGEMM.source + ", use_ue8m0")

_TILEKERNELS = _add(
    "tilekernels", scale_application="max/amax", amax_floor=1e-4,
    source="deepseek-ai/TileKernels 36d9e45 (tile-kernels 1.0.0): per-token casts with FP32 scales",
    note="with power-of-two scales equal to deepgemm_ue8m0; lowprec keeps the sign of -0",
)  # fmt: skip
_add(
    "tilekernels_fp4", like=_TILEKERNELS, format="e2m1fn", granularity="1x32", amax_floor=6 * 2.0**-126, note="",
)  # fmt: skip

_TE = "TransformerEngine, common/recipe/recipe_common.cuh"
_CURRENT = _add(
    "te_current", granularity="tensor", scale_calculation="max/amax", inf_block="one", nan_block="one",
    source=_TE + " (current scaling)",
    note="if max / amax overflows, TransformerEngine uses the maximum of the input type, lowprec always FLT_MAX",
)  # fmt: skip
_add(
    "te_delayed", like=_CURRENT, amax_history_len=1024, note="",
    source="TransformerEngine, common/recipe/delayed_scaling.cu; Micikevicius et al., arXiv:2209.05433",
)  # fmt: skip
_add("te_block_fp32", like=_CURRENT, granularity="1x128", source=_TE + ", NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1")
_add("te_block", like=_CURRENT, granularity="1x128", scale_format="e8m0fnu", source=_TE + " (Float8BlockScaling)")
_add(
    "torchao_fp8", granularity="tensor", scale_calculation="max/amax", amax_floor=1e-12,
    source="torchao 0.18, float8/float8_utils.py: tensorwise and axiswise scaling",
    note="torchao divides max / amax in float64 and rounds twice, with equal results: 53 >= 2 * 24 + 2 bits",
)  # fmt: skip

_MX = "OCP Microscaling formats (MX) v1.0, section 6.3"
_MX_BASE = _made(
    "",
    Quantizer(),
    granularity="1x32",
    scale_format="e8m0fnu",
    scale_calculation="floor",
    min_scale_exponent=-127,
    zero_block="smallest",
    source=_MX,
)
_RCEIL = "TransformerEngine, common/util/ptx.cuh: float_to_e8m0; NVIDIA, arXiv:2506.08027"
_TORCHAO_MX = (
    "torchao 0.18 divides a block with scale 2^-127 by 2^-126, which halves its values, and gives a block with Inf a "
    "finite scale"
)
_RCEIL_NOTE = (
    "torchao 0.18 divides by max and takes float32's log2; torchao, and TransformerEngine's GPU kernel, which "
    "multiplies by 1 instead of 2^127, convert all elements of a block with scale 2^-127 to zeros"
)
_FLAVOURS: dict[str, dict[str, str]] = {
    "floor": {"source": _MX, "note": "elements between max and 2^(emax + 1) / s saturate; packages that compute "
              f"floor(log2 amax) in float32 are wrong just below powers of two; {_TORCHAO_MX}"},
    "ceil": {"source": "torchao 0.18, prototype/mx_formats: ScaleCalculationMode.CEIL", "note": _TORCHAO_MX},
    "even": {"source": "torchao 0.18, ScaleCalculationMode.EVEN; AMD Quark",
             "note": "compressed-tensors rounds amax to one mantissa bit for E4M3, too: even_1bit; "
             f"{_TORCHAO_MX}"},
    "rceil": {"scale_calculation": "amax*(1/max)", "inf_block": "largest", "source": _RCEIL, "note": _RCEIL_NOTE},
    "even_1bit": {"source": "compressed-tensors 0.20"},
}  # fmt: skip
for _name, _fields in _FLAVOURS.items():
    _options = {"scale_calculation": _name, **_fields}
    _add(f"mxfp8_{_name}", *(["mxfp8"] if _name == "rceil" else []), like=_MX_BASE, **_options)
    _add(f"mxfp8_e5m2_{_name}", like=_MX_BASE, format="e5m2", **_options)
_add("mxint8", like=_MX_BASE, format="mxint8", source=_MX, note="never -2, to which gfloat rounds -1.9999")
for _name, _format in (("mxfp6_e2m3", "e2m3fn"), ("mxfp6_e3m2", "e3m2fn"), ("mxfp4", "e2m1fn")):
    _add(f"{_name}_floor", like=_MX_BASE, format=_format, source=_MX, note=_TORCHAO_MX)
    for _flavour in ("ceil", "even", "rceil"):
        _add(
            f"{_name}_{_flavour}",
            like=_MX_BASE,
            format=_format,
            **{"scale_calculation": _flavour, **_FLAVOURS[_flavour]},
        )

_V4_FP4 = _add(
    "dsv4_fp4", like=_MX_BASE, format="e2m1fn", scale_calculation="amax*(1/max)", amax_floor=6 * 2.0**-126,
    min_scale_exponent=-126, zero_block="one",
    source="DeepSeek-V4, inference/kernel.py: fp4_act_quant with UE8M0 scales",
    note="equal to mxfp4_rceil except for blocks of zeros and far below float32's normal numbers",
)  # fmt: skip
_TIES_TOWARD_ZERO = Rounding("nearest_toward_zero", 0x7FFFFFFF, 0x7FFFFFFF)
_add(
    "deepgemm_fp4", like=_V4_FP4, scale_calculation="amax/max", amax_floor=1e-4, rounding=_TIES_TOWARD_ZERO,
    negative_zero="positive", source="DeepGEMM, deep_gemm/utils/math.py: per_token_cast_to_fp4",
    note="unlike DeepSeek-V4, rounds ties toward zero and never to -0; amax >= 1e-4 is too high for gradients",
)  # fmt: skip
_MLX = "mlx 0.32, mlx/backend/cpu/quantized.cpp"
_add(
    "mxfp8_mlx", like=_MX_BASE, scale_calculation="amax*(1/max)", zero_block="one", inf_block="largest", source=_MLX,
    note="a scale below 2^-126 wraps to NaN or 2^127 in MLX; -0 becomes +0 there",
)  # fmt: skip
_add(
    "mxfp4_mlx", like=_MX_BASE, format="e2m1fn", scale_calculation="amax*(1/max)", zero_block="one",
    inf_block="largest", rounding=_TIES_TOWARD_ZERO, negative_zero="positive", source=_MLX,
    note="the nearest value by argmin: ties toward zero; a scale below 2^-126 wraps to NaN or 2^127 in MLX",
)  # fmt: skip
_add(
    "mxfp4_gguf", like=_MX_BASE, format="e2m1fn", rounding=_TIES_TOWARD_ZERO, negative_zero="positive",
    source="gguf 0.19 (llama.cpp), gguf/quants.py: MXFP4",
    note="floor(log2 amax) is computed in float32 there, and a scale below 2^-127 wraps to NaN or 2^127",
)  # fmt: skip
_add(
    "mxfp4_modelopt", like=_MX_BASE, format="e2m1fn", scale_calculation="amax/max", inf_block="largest",
    rounding=_TIES_TOWARD_ZERO,
    negative_zero="positive", source="nvidia-modelopt 0.47, torch/quantization/qtensor/mxfp4_tensor.py",
    note="modelopt computes log2 in float32, and every zero is -0 there; its NVFP4 rounds ties to even",
)  # fmt: skip
_add(
    "dsv41_kv_fp4", format="e2m1fn", granularity="1x16", scale_format="e4m3fn", scale_calculation="block_scale_only",
    amax_floor=6 * 2.0**-9, min_scale=2.0**-9,
    source="DeepSeek-V4.1, inference/kernel.py: fp4_act_quant with E4M3 scales, no scale of the tensor",
)  # fmt: skip

_NV = "TransformerEngine, common/cast/nvfp4/core_nvfp4.cuh; NVIDIA, arXiv:2509.25149"
_NVFP4 = _add(
    "nvfp4_te", "nvfp4", format="e2m1fn", granularity="1x16", scale_format="e4m3fn", scale_calculation="te_folded",
    zero_block="rule", inf_block="saturate", source=_NV,
    note="one NaN makes the whole tensor NaN in the Python reference, and its block in lowprec; the reference converts "
    "-0 to +0",
)  # fmt: skip
_add(
    "nvfp4_te_row_scaled", like=_NVFP4, tensor_scale="row",
    source="TransformerEngine d0067d0, common/cast/nvfp4/quantize_transpose_nvfp4.cuh: ROW_SCALED_NVFP4 "
    "(NVFP4BlockScaling with row_scaled_activation, since c74e5aa)",
    note="the kernels compute amaxes of rows and blocks without NaN, and the source does not define the code of NaN: "
    "in lowprec its block is NaN, and the amax of the row ignores it; for a row of zeros the Python reference "
    "multiplies by FLT_MAX instead of 1, with equal codes; flashinfer fb28d72 (nvfp4_quantize with "
    "per_token_activation) computes the same, except for the scale of a row of zeros, if "
    "FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH is set; its default, approximate reciprocals, is not reproduced",
)  # fmt: skip
_add("nvfp4_te_2d", like=_NVFP4, granularity="16x16", source=_NV + " (weights)")
_RHT = _add(
    "nvfp4_te_rht", like=_NVFP4, hadamard_size=16, transform_format="bfloat16",
    source=_NV + " (Wgrad operands: 16-point Hadamard transform first, rounded to bfloat16: "
    "common/hadamard_transform/hadamard_transform_cast_fusion.cu)",
)  # fmt: skip
_add(
    "nvfp4_te_rht_unsigned", like=_RHT, hadamard_signs="none",
    source="arXiv 2509.25149, appendix: the transform without random signs, as an ablation; other sizes take any signs",
)  # fmt: skip
_AO = _add(
    "nvfp4_torchao", like=_NVFP4, scale_calculation="two_quotients", scale_application="reciprocal", min_scale=2.0**-6,
    zero_block="smallest_normal", inf_block="nan",
    source="torchao 0.18, prototype/mx_formats/nvfp4_tensor.py: two-level scaling",
    note="block scales are at least E4M3's smallest normal, 2^-6; torchao gives a tensor of zeros NaN scales",
)  # fmt: skip
_add(
    "nvfp4_torchao_one_level",
    like=_AO,
    scale_calculation="block_scale_only",
    source=_AO.source.replace("two", "one"),
    note="",
)
_add(
    "nvfp4_modelopt", like=_NVFP4, scale_calculation="one_quotient", min_scale=2.0**-9, zero_block="one",
    inf_block="nan", source="nvidia-modelopt 0.47, torch/quantization/qtensor/nvfp4_tensor.py",
    note="divides by the product of both scales; modelopt gives a tensor of zeros NaN scales",
)  # fmt: skip
_4OVER6 = "Cook et al., arXiv:2512.02010; TransformerEngine, custom_recipes/reference_nvfp4.py"
_add(
    "nvfp4_4over6", like=_NVFP4, scale_calculation="direct", max_block_scale=256.0, four_over_six="mae", source=_4OVER6
)
_add(
    "nvfp4_4over6_mse",
    like=_NVFP4,
    scale_calculation="direct",
    max_block_scale=256.0,
    four_over_six="mse",
    source=_4OVER6,
)
quantizers.seal()
