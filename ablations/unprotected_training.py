"""Whether training feels the loss of protection of a single component."""

from typing import Any

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def dsv3_and(name: str, expected: str, **change: Any) -> Arm:
    """Return DeepSeek-V3's recipe with one more component in FP8."""
    return Arm(name, recipe="dsv3", change=change, expected=expected, source=sources.DEEPSEEK_V3)


TILES = "fp8_1x128"
ablation = Ablation(
    name="unprotected_training",
    question="Head, gate, embedding, norms or attention in FP8 as well: which of them needs its BF16?",
    expected="the head costs most, the rest is at the floor",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.1, keeps all of them in BF16 or FP32",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("dsv3", recipe="dsv3", expected="equivalent: all of them protected", source=sources.DEEPSEEK_V3),
        dsv3_and("head", "worse than dsv3, within the margin", quantize=["head"]),
        dsv3_and("gate", "equivalent: 8 experts are told apart in FP8", quantize=["layers.*.ffn.gate"]),
        dsv3_and("embedding", "equivalent", storage={"embed": TILES}),
        dsv3_and("norms", "equivalent", storage={"*norm": TILES}),
        dsv3_and("attention", "equivalent", storage={"layers.*.attn.[qkv]": TILES, "layers.*.attn.probs": TILES}),
    ),
    seed_block=11,
    contrast_with="dsv3",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=3, learning_rate=1.5e-3),
    expectations=(
        Expectation("all of them protected is within the margin", "total_percent", "dsv3", expected=(-0.1, 0.2),
                    published=(-0.25, 0.25)),
        Expectation("the head in FP8 shows, within the margin", "total_percent", "head", expected=(0.05, 0.25),
                    published=(0.25, 100.0)),
        Expectation("the gate does not show", "total_percent", "gate", expected=(-0.1, 0.25), published=(0.25, 100.0)),
        Expectation("nor does attention", "total_percent", "attention", expected=(-0.1, 0.25), published=(0.25, 100.0)),
        Expectation("all of them protected train weights as good as BF16's", "training_percent", "dsv3",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("the head in FP8 adds nothing to training", "training_percent", "head", minus="dsv3",
                    expected=(-0.1, 0.1)),
        Expectation("nor does the gate", "training_percent", "gate", minus="dsv3", expected=(-0.1, 0.1)),
        Expectation("nor does attention", "training_percent", "attention", minus="dsv3", expected=(-0.1, 0.15)),
    ),
    notes="Routers of hundreds of experts decide between far closer scores than this one of 8. How many tokens change "
    "their experts on the same weights is the routing-flip rate of the study unprotected.",
)  # fmt: skip
