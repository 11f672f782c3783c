"""Whether training feels attention in FlashAttention-3's FP8, or in its BF16 tiles."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def attending(name: str, kernel: str, expected: str) -> Arm:
    """Return BF16 with the forward pass of attention in one kernel."""
    return Arm(name, change={"attention": kernel}, expected=expected, source="Dao-AILab/flash-attention, hopper")


ablation = Ablation(
    name="attention_training",
    question="Attention in FlashAttention-3's FP8 or BF16 kernel, or in vLLM's: does training lose to BF16?",
    expected="the BF16 kernel is at the floor; FP8 is worse by less than the margin, promoted or not at 128 keys",
    source="Dao-AILab/flash-attention, hopper; DeepSeek-V3 keeps attention in BF16",
    arms=(
        *sources.BRANCH_ARMS,
        attending("fa3_bf16", "fa3_bf16", "at the floor"),
        attending("fa3_fp8", "fa3_fp8", "a little worse in its own precision, equivalent in BF16"),
        attending("vllm_fa3_fp8", "vllm_fa3_fp8", "as fa3_fp8: contexts are shorter than a tile"),
    ),
    seed_block=42,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("the BF16 kernel costs nothing that shows", "total_percent", "fa3_bf16", expected=(-0.1, 0.1)),
        Expectation("nor does it train other weights", "training_percent", "fa3_bf16", expected=(-0.1, 0.1)),
        Expectation("FP8 costs little", "total_percent", "fa3_fp8", expected=(-0.05, 0.3),
                    published=(0.0, 100.0)),
        Expectation("and trains weights as good as BF16's", "training_percent", "fa3_fp8", expected=(-0.1, 0.15)),
        Expectation("promotion does not matter at this length", "total_percent", "vllm_fa3_fp8", minus="fa3_fp8",
                    expected=(-0.05, 0.05)),
    ),
    notes="The backward pass is straight through: BF16, from the kernel's output and log-sum-exp. Operands are "
    "rounded to E4M3 with a scale per sequence and KV head. Sequences have 128 bytes: what the sum loses over "
    "long ones is in attention_promotion and attention_needle. Cost: quick 20 minutes of a core, full an hour and a "
    "half.",
)  # fmt: skip
