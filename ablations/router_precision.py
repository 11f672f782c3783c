"""Whether the router needs float32, its logits or all of it."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources

GATE = "layers.*.ffn.gate"
LOGITS = {"out_format": "float32"}
WHOLE = {"x": "float32", "w": "float32", "dy": "float32", "out_format": "float32"}


def router(name: str, recipe: str, change: dict[str, str], expected: str) -> Arm:
    """Return a recipe whose router differs in some words."""
    return Arm(name, recipe=recipe, change={"layers": {GATE: change}}, expected=expected)


ablation = MeasurementStudy(
    name="router_precision",
    question="Routing logits in BF16 or float32: how many tokens change experts, and does it move predictions?",
    measurement=GradientComparison(),
    published="float32 or float64 for the router makes training more stable, above all with many experts",
    source=f"{sources.MEGATRON}, moe-router-dtype",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        router("only_logits_bf16", "float32", {"out_format": "bfloat16"},
               "nothing else is rounded: what BF16 logits cost"),
        router("bf16_logits_float32", "bf16", LOGITS, "a few flips fewer than bf16"),
        router("bf16_router_float32", "bf16", WHOLE, "fewer still; its input is BF16 all the same"),
        Arm("dsv3", recipe="dsv3", expected="BF16 operands and logits, as in bf16; FP8 around them"),
        router("dsv3_logits_float32", "dsv3", LOGITS, "lost behind what FP8 did to the router's input"),
        router("dsv3_router_float32", "dsv3", WHOLE, "the same"),
    ),
    expectations=(
        Expectation("BF16 logits alone make a good part of a BF16 model's flips", "routing_flips", "only_logits_bf16",
                    "bf16", expected=(0.2, 0.8), published=(0.5, 1e3)),
        Expectation("in BF16 a float32 router saves flips", "routing_flips", "bf16", "bf16_router_float32",
                    expected=(1.05, 2.0), published=(1.0, 1e3)),
        Expectation("in FP8 it saves hardly any", "routing_flips", "dsv3", "dsv3_router_float32",
                    expected=(0.95, 1.1), published=(1.1, 1e3)),
        Expectation("nor does it bring predictions closer", "kl", "dsv3", "dsv3_router_float32",
                    expected=(0.9, 1.1), published=(1.1, 1e3)),
    ),
    headline="routing_flips",
    notes="8 experts with a share of 1 in 4: routers of hundreds of experts decide between far closer scores. "
    "In float32 the router still multiplies what the norm before it stored, as routers on top of BF16 models do.",
)  # fmt: skip
