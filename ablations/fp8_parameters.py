"""Whether training feels parameters that are quantized straight from the master weights, or kept in FP8 alone."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="fp8_parameters",
    question="FP8 weights made of the master weights, of their BF16 copy, or kept in FP8 alone: does training differ?",
    expected="straight from the master weights it is as from their BF16 copy; without master weights it is far worse",
    source=f"{sources.MEGATRON}: FP8 primary weights, fp8-param-gather",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("from_bf16", recipe="dsv3", expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("primary", recipe="dsv3", change={"weight_source": "float32"}, expected="as from_bf16: one rounding less",
            source=sources.MEGATRON),
        Arm("te_primary", recipe="te_current", change={"weight_source": "float32"}, expected="equivalent"),
        Arm("master_bf16", recipe="dsv3", change={"master_weights": "bfloat16"},
            expected="worse: updates below half a unit of BF16 are lost"),
        Arm("master_fp8", recipe="dsv3", change={"master_weights": "e4m3fn 1x128"},
            expected="far worse: most updates are lost, which is why nobody does it"),
    ),
    seed_block=17,
    contrast_with="from_bf16",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=1),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("primary weights train as those from BF16", "training_percent", "primary", expected=(-0.15, 0.15),
                    published=(-0.15, 0.15)),
        Expectation("their forward pass differs by nothing, too", "forward_percent", "primary", expected=(-0.05, 0.15)),
        Expectation("BF16 master weights cost something", "training_percent", "master_bf16", expected=(0.05, 3.0)),
        Expectation("FP8 ones far more", "training_percent", "master_fp8", expected=(0.5, 50.0)),
    ),
    notes="Megatron gathers parameters in FP8 and keeps float32 master weights; what changes in the arithmetic is that "
    "weights are quantized from these and not from a BF16 copy. Half of the bytes of a gather is the gain.",
)  # fmt: skip
