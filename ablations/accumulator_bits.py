"""How few fraction bits a tensor core's sums may keep before training shows it, with and without promotion."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def bits(count: int, promote_every: int | None, expected: str) -> Arm:
    """Return FP8 with one scale per tensor and sums of the given number of fraction bits."""
    change = {"accumulator": f"hopper_fp8(fraction_bits={count})", "promote_every": promote_every}
    return Arm(f"bits_{count}" + ("_promoted" if promote_every else ""), recipe="dsv3_tensor_no_promotion",
               change=change, expected=expected)  # fmt: skip


ablation = Ablation(
    name="accumulator_bits",
    question="How few fraction bits of a tensor core's sums break training, and does promotion every 128 mend it?",
    expected="Seven bits without promotion are worse than FP32 sums; ten bits are not told from them; promotion every "
    "128 products does not help much, because each group of 32 is truncated before.",
    source=f"{sources.DEEPSEEK_V3}, sections 3.3.2 and 3.5.2; `replay` measures the coherence of the operands",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("fp32", recipe="dsv3_tensor_no_promotion", change={"accumulator": "float32"}, expected="no sums lost"),
        bits(13, None, "as FP32 sums"),
        bits(10, None, "as FP32 sums"),
        bits(8, None, "a little worse"),
        bits(7, None, "worse"),
        bits(6, None, "clearly worse"),
        bits(10, 128, "as FP32 sums"),
        bits(7, 128, "better than without promotion"),
        bits(6, 128, "better than without promotion"),
    ),
    expectations=(
        Expectation("ten bits train as FP32", "training_percent", "bits_10", minus="fp32", expected=(-0.06, 0.06),
                    published=(0.0, 100.0)),
        Expectation("so do Hopper's thirteen", "training_percent", "bits_13", minus="fp32", expected=(-0.06, 0.06)),
        Expectation("six bits do not", "training_percent", "bits_6", minus="fp32", expected=(0.05, 100.0)),
        Expectation("seven do not", "training_percent", "bits_7", minus="fp32", expected=(0.0, 10.0)),
        Expectation("promotion helps where bits are short", "training_percent", "bits_6_promoted", minus="bits_6",
                    expected=(-100.0, 0.0)),
    ),
    seed_block=25,
    contrast_with="fp32",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=1),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    notes="Sums here have at most 2048 products (weight gradients); those of large models are longer, and lose "
    "about as much with more bits: `replay` relates the two by K and coherence. Copies of operands along K, "
    "which lengthen sums there, are not part of training. Cost: quick 20 minutes of a core, full 1.7 hours.",
)  # fmt: skip
