"""The catalogue of training recipes."""

from __future__ import annotations

from typing import Any

from .description import LayerRule
from .linears import BF16_LINEAR, LinearSpec
from .recipe import Recipe
from .recipe import recipes as recipes

#: The router's gate multiplies BF16 values; its gradient is not rounded.
GATE = LayerRule("layers.*.ffn.gate", BF16_LINEAR.with_(dy="float32"))
_V3 = "DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3"
#: Projection of the multi-token prediction module. The released weights have it in BF16: layers.61.eh_proj of
#: deepseek-ai/DeepSeek-V3 has no weight_scale_inv, and vLLM builds it without a quantization (deepseek_mtp.py). The
#: report does not list it. In DeepSeek-V4 it stays FP8: vLLM builds it as a quantized layer; this was not compared with
#: the released weights.
_V3_PROJECTION = LayerRule("layers.*.projection", BF16_LINEAR)


def every_block_linear(spec: LinearSpec, **experts: LinearSpec) -> tuple[LayerRule, ...]:
    """Return rules for the linear layers of attention, feed-forward and experts, but not gate, head and embedding."""
    first = tuple(LayerRule(f"layers.*.ffn.experts.*.{name}", linear) for name, linear in experts.items())
    places = ("layers.*.attn.w*", "layers.*.ffn.*", "layers.*.projection")
    return (*first, GATE, *(LayerRule(place, spec) for place in places))


def _add(name: str, description: str, rules: tuple[LayerRule, ...], **more: Any) -> None:
    recipes.register(name, Recipe(name, description, rules, **more))


_IN_BF16 = every_block_linear(BF16_LINEAR)
_add("bf16", "BF16 operands and storage, float32 accumulation: the reference", _IN_BF16)
_add(
    "float32",
    "float32 throughout, in fixed order: the reference for the effects of rounding",
    (LayerRule("*", LinearSpec.from_tensors("float32", "float32", "float32")),),
    activations="float32",
    moment_m="float32",
    moment_v="float32",
)
_add(
    "float64",
    "NumPy's float64 throughout, for gradient checks",
    (),
    activations="float64",
    moment_m="float64",
    moment_v="float64",
    master_weights="float64",
)


def _dsv3(promote_every: int | None, scale: str = "") -> tuple[LayerRule, ...]:
    def linear(x: str, dy: str) -> LinearSpec:
        return LinearSpec.from_tensors(x, f"e4m3fn 128x128 {scale}", dy, "hopper_fp8", promote_every)

    tile, pow2 = f"e4m3fn 1x128 {scale}", "e4m3fn 1x128 ue8m0"
    # Experts consume dispatched tokens: tiles with power-of-two scales, in both directions. The output of attention,
    # wo's input, has such scales along the channels, along the tokens and as saved for the backward pass.
    experts = {"w1": linear(pow2, tile), "w3": linear(pow2, tile), "w2": linear(tile, pow2)}
    wo = LayerRule("layers.*.attn.wo", linear(pow2, tile))
    return (wo, _V3_PROJECTION, *every_block_linear(linear(tile, tile), **experts))


_FP8_WIRES = {
    "dispatch": "fp8_1x128_ue8m0",
    "combine_grad": "fp8_1x128_ue8m0",
    "saved_attention_output": "e5m6_1x128_ue8m0",
    "saved_swiglu_input": "fp8_1x128",
}
_add(
    "dsv3",
    "DeepSeek-V3 report 3.3: E4M3 tiles and blocks, Hopper's FP22 promoted every 128",
    _dsv3(128),
    source=_V3,
    **_FP8_WIRES,
)
_add(
    "dsv3_ue8m0",
    "dsv3 with power-of-two scales everywhere, as in DeepSeek-V3.1",
    _dsv3(128, "ue8m0"),
    source="DeepSeek-V3.1, config_v3.1.json: scale_fmt ue8m0",
    **_FP8_WIRES | {"saved_swiglu_input": "fp8_1x128_ue8m0"},
)
_add(
    "dsv3_no_promotion",
    "dsv3 with sums that never leave FP22 registers, although float32 scales change along K; hypothetical",
    _dsv3(None),
    source=_V3,
    **_FP8_WIRES,
)
_add(
    "dsv3_ue8m0_no_promotion",
    "dsv3_ue8m0 with sums that never leave FP22 registers: its scales could add to exponents inside an instruction",
    _dsv3(None, "ue8m0"),
    source=_V3,
    **_FP8_WIRES | {"saved_swiglu_input": "fp8_1x128_ue8m0"},
)
_add(
    "dsv3_tensor_no_promotion",
    "dsv3 with one scale per tensor, so that sums stay in FP22 registers, as Hopper's tensor cores allow",
    (
        _V3_PROJECTION,
        *every_block_linear(LinearSpec.from_tensors("e4m3fn tensor", "e4m3fn tensor", "e4m3fn tensor", "hopper_fp8")),
    ),
    source=_V3,
)


def _dsv4() -> tuple[LayerRule, ...]:
    tile, block = "dsv4_inference", "e4m3fn 128x128 ue8m0"
    linear = LinearSpec.from_tensors(tile, block, "e4m3fn 1x128 ue8m0", "blackwell_fp8", 128)
    # Routed experts' weights are E2M1 in products with activations, and E4M3 in products with gradients.
    expert = linear.with_(fprop={"b": "dsv4_fp4", "promote_every": 32})
    return every_block_linear(linear, w1=expert, w2=expert, w3=expert)


_add(
    "dsv4",
    "the public parts of DeepSeek-V4: E4M3, power-of-two scales, experts' weights in E2M1 1x32; gradients as V3's",
    _dsv4(),
    source="DeepSeek-V4, inference/kernel.py, model.py; VeOmni 1089; formats of gradients and sums are not public",
    **_FP8_WIRES | {"saved_swiglu_input": "fp8_1x128_ue8m0"},
)

_TE = "TransformerEngine 2.x, common/recipe"


def _te(x: str, w: str, dy: str, **more: Any) -> tuple[LayerRule, ...]:
    wgrad = more.pop("wgrad", {})
    return every_block_linear(
        LinearSpec.from_tensors(x, w, dy, wgrad_input="high_precision", **more).with_(wgrad=wgrad)
    )


def _hopper(gemms: tuple[LayerRule, ...]) -> tuple[LayerRule, ...]:
    """Return rules with Hopper's fast accumulation in Fprop, FP22 without promotion; Dgrad and Wgrad are unchanged."""
    fast = {"fprop": {"library": "cublaslt_fast", "promote_every": None}}
    return tuple(LayerRule(r.pattern, r.linear.with_(**fast)) if r.linear.quantized else r for r in gemms)


_SPLIT: dict[str, Any] = {"accumulator": "hopper_fp8", "promote_every": 128, "library": "cublaslt"}
_add(
    "te_delayed",
    "one scale per tensor from the largest amax of 1024 earlier steps; E4M3 forward, E5M2 gradients",
    _hopper(_te("te_delayed", "te_delayed", "te_delayed e5m2", **_SPLIT)),
    source=f"{_TE}: DelayedScaling, HYBRID",
)
_add(
    "te_current",
    "one scale per tensor from its current amax; E4M3 forward, E5M2 gradients; fast accumulation in Fprop",
    _hopper(_te("te_current", "te_current", "te_current e5m2", **_SPLIT)),
    source=f"{_TE}: Float8CurrentScaling",
)
_add(
    "te_block",
    "E4M3 in tiles of 128 and blocks of 128x128 with power-of-two scales, both directions quantized from the source",
    _te("te_block", "te_block 128x128", "te_block", accumulator="hopper_fp8", promote_every=128),
    source=f"{_TE}: Float8BlockScaling",
)
# Weights kept in FP8 alone need no BF16 copy. TransformerEngine casts their masters to BF16 first, "to keep numerical
# consistency" with those that have one, so that its FP8 weights change memory and traffic and not a bit of te_block.
_add(
    "te_block_fp8_params",
    "te_block with FP8 weights straight from float32 masters, no BF16 between; TransformerEngine's go through BF16",
    recipes["te_block"].rules,
    weight_source="float32",
    source="TransformerEngine 2.x, cast_master_weights_to_fp8; Megatron Core, --fp8-param-gather",
)
_add(
    "mxfp8",
    "E4M3 in blocks of 32 with E8M0 scales rounded up, both directions from the source, inside Blackwell's instruction",
    _te("mxfp8_rceil", "mxfp8_rceil", "mxfp8_rceil", accumulator="blackwell_mxf8"),
    source=f"{_TE}: MXFP8BlockScaling; arXiv 2506.08027",
)
_add(
    "mxfp4_rceil",
    "E2M1 in blocks of 32 with E8M0 scales rounded up: the baseline of NVFP4",
    _te("mxfp4_rceil", "mxfp4_rceil", "mxfp4_rceil", accumulator="blackwell_mxf4"),
    source="OCP MX v1.0; arXiv 2509.25149, section 5",
)
_NVFP4: dict[str, Any] = {"accumulator": "blackwell_nvfp4"}
_add(
    "nvfp4",
    "E2M1 in tiles of 16, weights in 16x16; stochastic rounding of gradients, Wgrad through Hadamard; last block BF16",
    (
        LayerRule("layers.-1.ffn.gate", GATE.linear),
        LayerRule("layers.-1.*", BF16_LINEAR),
        *_te(
            "nvfp4_te",
            "nvfp4_te_2d",
            "nvfp4_te stochastic",
            wgrad={"a": "nvfp4_te_rht stochastic", "b": "nvfp4_te_rht"},
            **_NVFP4,
        ),
    ),
    source="arXiv 2509.25149, section 4; the original keeps its last eight and first two of 62 blocks in BF16",
)
_FORWARD, _EDEN = "nvfp4_4over6_mse", "nvfp4_te eden resample_signs hadamard128"
_add(
    "quartet2",
    "Quartet II: forward NVFP4 to nearest, four over six; backward MS-EDEN of Fprop's dequantized operands",
    every_block_linear(
        LinearSpec.from_tensors(_FORWARD, _FORWARD, _FORWARD, dgrad_weight="dequantized", **_NVFP4).with_(
            dgrad={"a": _EDEN, "b": _EDEN}, wgrad={"a": _EDEN, "b": _EDEN}
        )
    ),
    source="arXiv 2601.22813; IST-DASLab/Quartet-II 8776a90, quartet_2.py (Triton); its CUDA kernels differ from that",
)
_add(
    "fp4_naive",
    "E2M1 in tiles of 16 with float32 scales and none of the known remedies: the positive control",
    every_block_linear(LinearSpec.from_tensors("e2m1fn 1x16", "e2m1fn 16x16", "e2m1fn 1x16")),
)
for _codec in ("logfmt8", "logfmt10", "e5m6_1x128_ue8m0", "fp8_1x128", "e5m2_1x128"):
    _add(
        f"combine_{_codec.partition('_')[0]}",
        f"bf16 with expert outputs combined in {_codec}",
        _IN_BF16,
        combine=_codec,
        source="arXiv 2505.09343, section 3.2",
    )
recipes.seal()
