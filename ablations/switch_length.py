"""Whether the cost of low precision grows with the steps trained in it, saturates, or heals in BF16."""

from lowprec.study import Ablation, Arm, Expectation, PrecisionSwitch, Setting, sources

#: Of 600 steps: the last 20, 60 and 200; and the last 400, before which 200 steps are in low precision.
LAST_20, LAST_60, LAST_200, LAST_400 = 1 / 30, 0.1, 1 / 3, 2 / 3


def arms(recipe: str) -> tuple[Arm, ...]:
    """Return arms with more and more steps in a recipe at the end of the branch, and one with BF16 after it."""
    ends = {20: LAST_20, 60: LAST_60, 200: LAST_200}
    return (
        *(Arm(f"{recipe}_last_{steps}", tail=PrecisionSwitch(share, recipe), expected="less than over all steps")
          for steps, share in ends.items()),
        Arm(f"{recipe}_all", recipe=recipe, expected="most"),
        Arm(f"{recipe}_first_200", recipe=recipe, tail=PrecisionSwitch(LAST_400, "bf16"),
            expected="nearly nothing: BF16 heals"),
    )  # fmt: skip


ablation = Ablation(
    name="switch_length",
    question="Does the cost of training in low precision grow with its steps, saturate, or heal in BF16 afterwards?",
    expected="The cost comes within the first tens of steps and then stays; 400 steps in BF16 remove nearly all of it.",
    source=f"{sources.NVFP4}: higher precision near the end recovers most of the loss",
    arms=(*sources.BRANCH_ARMS, *arms("nvfp4"), *arms("mxfp8"),
          Arm("dsv3", recipe="dsv3", expected="not told from BF16")),
    expectations=(
        Expectation("sixty steps cost at least half of what all of them do", "training_percent", "nvfp4_last_60",
                    over="nvfp4_all", expected=(0.5, 1.5)),
        Expectation("the last 200 cost nearly as much as all", "training_percent", "nvfp4_last_200", over="nvfp4_all",
                    expected=(0.75, 1.5)),
        Expectation("BF16 heals NVFP4", "training_percent", "nvfp4_first_200", over="nvfp4_all", expected=(-0.3, 0.3),
                    published=(0.0, 0.5)),
        Expectation("all steps cost more than the last 20", "training_percent", "nvfp4_all", minus="nvfp4_last_20",
                    expected=(0.0, 0.5)),
        Expectation("FP8 costs little over all steps", "training_percent", "mxfp8_all", expected=(-0.1, 0.1)),
    ),
    seed_block=24,
    contrast_with="nvfp4_all",
    quick=Setting("nano", checkpoint_steps=60, branch_steps=60, checkpoints=4, seeds=1),
    full=Setting("nano", checkpoint_steps=600, branch_steps=600, checkpoints=4, seeds=2),
    notes="All arms end at the same step of one schedule, with the learning rate going linearly to 0: an arm that is "
    "in low precision for fewer steps is so at smaller rates. Arms that differ in the length of the end share every "
    "bit before it. A rate that stays constant is not studied. Cost: quick 26 minutes of a core, full 6.4 hours.",
)  # fmt: skip
