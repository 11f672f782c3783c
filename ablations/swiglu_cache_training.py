"""Whether training feels SwiGLU's inputs kept in FP8."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="swiglu_cache_training",
    question="SwiGLU's inputs kept in FP8 or in BF16 for the backward pass: does the trained model differ?",
    expected="equivalent, with and without FP8 multiplications around it",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.3: a balance between memory and accuracy",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("kept_fp8", change={"saved_swiglu_input": "fp8_1x128"}, expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("kept_fp4", change={"saved_swiglu_input": "mxfp4_floor"}, expected="worse: the stress mode, 4 bits"),
        Arm("dsv3", recipe="dsv3", expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("dsv3_kept_bf16", recipe="dsv3", change={"saved_swiglu_input": "bf16"}, expected="equivalent"),
    ),
    seed_block=10,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=3, learning_rate=1.5e-3),
    expectations=(
        Expectation("the cache alone costs nothing that shows", "total_percent", "kept_fp8", expected=(-0.1, 0.1),
                    published=(-0.25, 0.25)),
        Expectation("with 4 bits it costs more", "total_percent", "kept_fp4", expected=(0.0, 1.0)),
        Expectation("beside FP8 it stays within the margin", "total_percent", "dsv3", expected=(-0.15, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("the cache in FP8 trains weights as good as BF16's", "training_percent", "kept_fp8",
                    expected=(-0.1, 0.1), published=(-0.25, 0.25)),
        Expectation("with 4 bits it trains worse ones", "training_percent", "kept_fp4", expected=(0.0, 1.0)),
        Expectation("FP8 and its cache train as FP8 alone does", "training_percent", "dsv3", minus="dsv3_kept_bf16",
                    expected=(-0.1, 0.1)),
    ),
    notes="The error of the gradients themselves, without noise, is in the study swiglu_cache.",
)  # fmt: skip
