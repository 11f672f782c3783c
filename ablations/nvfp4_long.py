"""Which of NVFP4's ingredients a branch of a thousand steps needs."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

LAST_BLOCK = [f"layers.-1.{name}" for name in ("attn.w*", "ffn.w*", "ffn.shared.*", "ffn.experts.*")]

ablation = Ablation(
    name="nvfp4_long",
    question="Over a thousand steps, which of NVFP4's ingredients does training need?",
    expected="Stochastic rounding and the BF16 block matter, and more than in 120 steps; the transform does not.",
    source=f"{sources.NVFP4}, section 4; `nvfp4_ingredients`: branches of 120 steps",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("nvfp4", recipe="nvfp4", expected="worse than BF16", source=sources.NVFP4),
        Arm("no_bf16_block", recipe="nvfp4", change={"quantize": LAST_BLOCK}, expected="worse than nvfp4"),
        Arm("round_to_nearest", recipe="nvfp4", expected="worse than nvfp4",
            change={"dgrad": {"a": "nvfp4_te"}, "wgrad": {"a": "nvfp4_te_rht", "b": "nvfp4_te_rht"}}),
        Arm("no_hadamard", recipe="nvfp4", change={"wgrad": {"a": "nvfp4_te stochastic", "b": "nvfp4_te"}},
            expected="as nvfp4: few outliers to spread"),
        Arm("none", recipe="nvfp4", expected="worst",
            change={"x": "nvfp4_te", "w": "nvfp4_te", "dy": "nvfp4_te", "quantize": LAST_BLOCK}),
    ),
    expectations=(
        Expectation("without its BF16 block NVFP4 trains worse", "training_percent", "no_bf16_block", minus="nvfp4",
                    expected=(0.0, 1.0)),
        Expectation("so it does without stochastic rounding", "training_percent", "round_to_nearest", minus="nvfp4",
                    expected=(0.0, 1.0), published=(0.0, 100.0)),
        Expectation("without the transform it trains the same", "training_percent", "no_hadamard", minus="nvfp4",
                    expected=(-0.15, 0.15), published=(0.0, 100.0)),
        Expectation("without all of them nothing diverges", "diverged", "none", expected=(0.0, 0.0),
                    published=(0.5, 1.0)),
    ),
    seed_block=27,
    contrast_with="nvfp4",
    quick=Setting("nano", checkpoint_steps=60, branch_steps=60, checkpoints=4, seeds=1),
    full=Setting("nano", checkpoint_steps=300, branch_steps=1000, checkpoints=4, seeds=2),
    notes="A model of two million parameters has few outliers; the published divergences came after 10^11 tokens. "
    "Cost: quick 18 minutes of a core, full 7.4 hours.",
)  # fmt: skip
