"""Whether training with FP8 attention loses by its forward pass, or by a backward pass that combines two softmaxes."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="attention_gradient",
    question="FP8 attention with the gradient of BF16 attention, or from the FP8 output: what does training lose?",
    expected="with the gradient of BF16 attention, training is equivalent; from the FP8 output it is worse",
    source="arXiv 2510.04212: an error of O in the sum of dO times O makes BF16 training fail; "
    "Dao-AILab/flash-attention, hopper: FP8 has no backward pass",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("mixed", change={"attention": "fa3_fp8 kernel_gradient"}, expected="worse",
            source="attention_training: +1.16 %"),
        Arm("plain", change={"attention": "fa3_fp8 plain_gradient"}, expected="equivalent",
            source="a straight-through estimator of the whole of attention"),
    ),
    seed_block=43,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("the plain gradient trains weights as good as BF16's", "training_percent", "plain",
                    expected=(-0.15, 0.15)),
        Expectation("FP8 in the forward pass costs little", "total_percent", "plain", expected=(-0.05, 0.2)),
        Expectation("the mixed gradient is the cause", "training_percent", "mixed", minus="plain",
                    expected=(0.2, 3.0), published=(0.0, 100.0)),
    ),
    notes="The mixed gradient computes P from BF16 scores and the log-sum-exp of the FP8 kernel, and subtracts the sum "
    "of dO times the kernel's O; the plain one computes both again without the kernel. Ranges were written when "
    "`attention_training` was known, and four of its pairs with a prototype of the plain gradient. Cost: quick 15 "
    "minutes of a core, full 1.3 hours.",
)  # fmt: skip
