"""Cost of training in FP8 from the first step, and the part of the training in which it accrues."""

from lowprec.study import Ablation, Arm, Expectation, PrecisionSwitch, Setting, sources

#: Of 400 steps: the switch is at step 150.
LAST_250_STEPS = 0.625

ablation = Ablation(
    name="from_scratch_switch",
    question="What does training in FP8 from the first step cost, and does that cost accrue early or late?",
    expected="On the text `bible`: FP8 costs less than 0.3 %, if anything. What it costs accrues after step 150, when "
    "the loss falls slowly; FP8 in the first 150 steps alone leaves nothing that can be told.",
    source=f"{sources.DEEPSEEK_V3}, section B.1; `from_scratch`: +0.333 % [+0.027, +0.638] with 16 other weights",
    arms=(
        Arm("bf16", role="reference"),
        Arm("perturb", role="floor", expected="about 0.8 %, as in `from_scratch`"),
        Arm("dsv3", recipe="dsv3", expected="equivalent within 0.3 %", source=sources.DEEPSEEK_V3),
        Arm("fp8_then_bf16", recipe="dsv3", tail=PrecisionSwitch(LAST_250_STEPS, "bf16"),
            expected="not told from BF16"),
        Arm("bf16_then_fp8", tail=PrecisionSwitch(LAST_250_STEPS, "dsv3"), expected="as FP8 throughout"),
    ),
    expectations=(
        Expectation("FP8 from the first step costs less than 0.3 %", "training_percent", "dsv3", expected=(-0.3, 0.3),
                    published=(-0.25, 0.25)),
        Expectation("FP8 in the first 150 steps alone leaves nothing", "training_percent", "fp8_then_bf16",
                    expected=(-0.2, 0.2)),
        Expectation("FP8 after step 150 alone costs less than 0.3 %", "training_percent", "bf16_then_fp8",
                    expected=(-0.2, 0.3)),
        Expectation("the later part costs more than the first", "training_percent", "bf16_then_fp8",
                    minus="fp8_then_bf16", expected=(0.0, 0.5)),
        Expectation("rounding in the forward pass costs what it costs a branch, or a little more", "forward_percent",
                    "dsv3", expected=(0.05, 0.2)),
    ),
    quick=Setting("nano", checkpoint_steps=0, branch_steps=60, checkpoints=2, first_checkpoint=24, seeds=1),
    full=Setting("nano", checkpoint_steps=0, branch_steps=400, checkpoints=54, first_checkpoint=24, seeds=1),
    margin=0.003,
    seed_block=21,
    second_reference="perturb",
    interim=False,
    notes="The initial weights have seeds 24 to 77: none of those of `from_scratch`. The primary outcome is the "
    "training effect of `dsv3`. With two references, half of their noise averages out; if a pair's spread is that of "
    "`from_scratch`, 54 pairs find a difference of 0.3 % with a probability of at least 80 %. Arms that switch share "
    "every bit of their first 150 steps with `dsv3` or `bf16`. There is no control; in `from_scratch` FP4 was seen, "
    "+2.4 %. The effects are read once, when all runs are finished. Cost: quick 4 minutes of a core, full 8 hours.",
)  # fmt: skip
