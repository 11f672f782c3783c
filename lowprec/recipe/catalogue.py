"""The catalogue of training recipes."""

from __future__ import annotations

from lowprec.registry import Registry

from .description import BF16_LINEAR, LinearSpec, Recipe, Rule, TensorSpec

recipes: Registry[Recipe] = Registry("recipe", Recipe)
"""The catalogue of training recipes."""

_BF16 = recipes.register("bf16", Recipe("bf16", "BF16 operands and storage, float32 accumulation: the reference"))
recipes.register(
    "float64", Recipe("float64", "no rounding anywhere: for gradient checks", activations="float64", moments="float64")
)


def _fp8(x: TensorSpec, w: TensorSpec, dy: TensorSpec, promote_every: int | None) -> LinearSpec:
    return LinearSpec(x, w, dy, accumulator="hopper_fp8", promote_every=promote_every)


def _every_block_linear(spec: LinearSpec, **experts: LinearSpec) -> tuple[Rule, ...]:
    """Return rules for all linears of attention, feed-forward and experts: not the gate, the head, the embedding."""
    first = tuple(Rule(f"layers.*.ffn.experts.*.{name}", linear) for name, linear in experts.items())
    gate = Rule("layers.*.ffn.gate", BF16_LINEAR)
    return (*first, gate, Rule("layers.*.attn.w*", spec), Rule("layers.*.ffn.*", spec))


_TILE, _BLOCK = TensorSpec(), TensorSpec(granularity="128x128")
_TILE_POW2 = TensorSpec(scale="ue8m0")


def _dsv3(name: str, description: str, promote_every: int | None) -> Recipe:
    linear = _fp8(_TILE, _BLOCK, _TILE, promote_every)
    # Experts consume what dispatch delivered: tiles with power-of-two scales, in both directions.
    up = _fp8(_TILE_POW2, _BLOCK, _TILE, promote_every)
    down = _fp8(_TILE, _BLOCK, _TILE_POW2, promote_every)
    return Recipe(
        name,
        description,
        _every_block_linear(linear, w1=up, w3=up, w2=down),
        dispatch="fp8_1x128_ue8m0",
        combine_grad="fp8_1x128_ue8m0",
    )


_DSV3 = recipes.register(
    "dsv3", _dsv3("dsv3", "DeepSeek-V3 report 3.3: E4M3 tiles and blocks, Hopper's FP22 promoted every 128", 128)
)
recipes.register(
    "dsv3_no_promotion",
    _dsv3("dsv3_no_promotion", "dsv3 with sums that never leave the tensor core's FP22 registers", None),
)
recipes.register(
    "fp4_naive",
    Recipe(
        "fp4_naive",
        "E2M1 in tiles of 16 with float32 scales and none of the known remedies: the positive control",
        _every_block_linear(
            LinearSpec(TensorSpec("e2m1fn", "1x16"), TensorSpec("e2m1fn", "16x16"), TensorSpec("e2m1fn", "1x16")),
        ),
    ),
)
for _bits in (8, 10):
    recipes.register(
        f"combine_logfmt{_bits}",
        _BF16.with_(
            name=f"combine_logfmt{_bits}",
            description=f"bf16 with expert outputs combined in LogFMT-{_bits} (ISCA 2025, section 3.2)",
            combine=f"logfmt{_bits}",
        ),
    )
