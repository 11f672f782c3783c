"""The catalogue of training recipes."""

from __future__ import annotations

from typing import Any

from lowprec.registry import Registry

from .description import Recipe, Rule
from .linears import BF16_LINEAR, LinearSpec

recipes: Registry[Recipe] = Registry("recipe", Recipe)
"""The catalogue of training recipes."""

#: The router's gate multiplies BF16 values, its gradient as it comes.
GATE = Rule("layers.*.ffn.gate", BF16_LINEAR.with_(dy="float32"))
_V3 = "DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3"


def every_block_linear(spec: LinearSpec, **experts: LinearSpec) -> tuple[Rule, ...]:
    """Return rules for all linears of attention, feed-forward and experts: not the gate, the head, the embedding."""
    first = tuple(Rule(f"layers.*.ffn.experts.*.{name}", linear) for name, linear in experts.items())
    places = ("layers.*.attn.w*", "layers.*.ffn.*", "layers.*.projection")
    return (*first, GATE, *(Rule(place, spec) for place in places))


def _add(name: str, description: str, rules: tuple[Rule, ...], **more: Any) -> None:
    recipes.register(name, Recipe(name, description, rules, **more))


_IN_BF16 = every_block_linear(BF16_LINEAR)
_add("bf16", "BF16 operands and storage, float32 accumulation: the reference", _IN_BF16)
_add(
    "float32",
    "float32 throughout, in fixed order: what rounding is measured against",
    (Rule("*", LinearSpec.of("float32", "float32", "float32", out="float32")),),
    activations="float32",
    moment_m="float32",
    moment_v="float32",
)
_add(
    "float64",
    "no rounding anywhere: for gradient checks",
    (),
    activations="float64",
    moment_m="float64",
    moment_v="float64",
    master="float64",
)


def _dsv3(promote_every: int | None) -> tuple[Rule, ...]:
    def linear(x: str, dy: str) -> LinearSpec:
        return LinearSpec.of(x, "e4m3fn 128x128", dy, "hopper_fp8", promote_every)

    tile, pow2 = "e4m3fn 1x128", "e4m3fn 1x128 ue8m0"
    # Experts consume what dispatch delivered: tiles with power-of-two scales, in both directions.
    return every_block_linear(linear(tile, tile), w1=linear(pow2, tile), w3=linear(pow2, tile), w2=linear(tile, pow2))


_FP8_WIRES = {"dispatch": "fp8_1x128_ue8m0", "combine_grad": "fp8_1x128_ue8m0"}
_add(
    "dsv3",
    "DeepSeek-V3 report 3.3: E4M3 tiles and blocks, Hopper's FP22 promoted every 128",
    _dsv3(128),
    source=_V3,
    **_FP8_WIRES,
)
_add(
    "dsv3_no_promotion",
    "dsv3 with sums that never leave the tensor core's FP22 registers",
    _dsv3(None),
    source=_V3,
    **_FP8_WIRES,
)
_add(
    "fp4_naive",
    "E2M1 in tiles of 16 with float32 scales and none of the known remedies: the positive control",
    every_block_linear(LinearSpec.of("e2m1fn 1x16", "e2m1fn 16x16", "e2m1fn 1x16")),
)
for _bits in (8, 10):
    _add(
        f"combine_logfmt{_bits}",
        f"bf16 with expert outputs combined in LogFMT-{_bits} (ISCA 2025, section 3.2)",
        _IN_BF16,
        combine=f"logfmt{_bits}",
        source="arXiv 2505.09343, section 3.2",
    )
