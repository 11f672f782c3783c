"""Whether results of branches with FP8 and FP4 hold for training from the first step."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="from_scratch",
    question="Does training in FP8 or FP4 from the first step cost what branches of BF16 checkpoints say?",
    expected="Neither can be told from BF16 with the pairs of a minute; with those of a night FP8 stays within 1 % and "
    "FP4 is worse. What branches say lies within the interval.",
    source=f"{sources.DEEPSEEK_V3}, section B.1, whose trainings are from scratch; branches: `fp8_vs_bf16`, `scaling`",
    arms=(
        Arm("bf16", role="reference"),
        Arm("bf16_again", role="repeat", pairs=1, expected="the same bits"),
        Arm("perturb", role="floor", expected="about 1 %: from scratch, runs that differ in one weight part"),
        Arm("dsv3", recipe="dsv3", expected="not resolved, or equivalent", source=sources.DEEPSEEK_V3),
        Arm("fp4_naive", recipe="fp4_naive", role="control", expected="worse", source=sources.NVFP4),
    ),
    expectations=(
        Expectation("FP8 from scratch trains as its branches do", "training_percent", "dsv3", expected=(-0.3, 0.3),
                    published=(-0.25, 0.25)),
        Expectation("FP4 from scratch trains worse than its branches", "training_percent", "fp4_naive",
                    expected=(0.0, 3.0)),
        Expectation("and is worse in its own precision", "total_percent", "fp4_naive", expected=(0.5, 5.0)),
    ),
    quick=Setting("nano", checkpoint_steps=0, branch_steps=60, checkpoints=2, seeds=1),
    full=Setting("nano", checkpoint_steps=0, branch_steps=400, checkpoints=24, seeds=1),
    margin=0.01,
    seed_block=16,
    notes="Each pair has initial weights of its own. The floor is some twenty times that of branches, and an interval "
    "of n pairs is about the floor times 2 / sqrt(n): 24 pairs see 0.5 %, 100 see 0.2 %. Cost: quick 4 minutes of "
    "a core, full some 3 hours; `--checkpoints 100` makes a night of it on four cores.",
)  # fmt: skip
