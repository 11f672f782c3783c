"""Whether the forward or the backward pass does the damage."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources

BF16 = {"a": "bfloat16", "b": "bfloat16", "accumulator": "float32", "promote_every": None}
FORWARD = {"dgrad": BF16, "wgrad": BF16, "wgrad_input": "high_precision", "combine_grad": "bf16"}
BACKWARD = {"fprop": BF16, "wgrad_input": "high_precision", "dispatch": "bf16"}

ablation = MeasurementStudy(
    name="forward_or_backward",
    question="FP8 in the forward multiplications alone, or in the backward ones alone: which does the damage?",
    measurement=GradientComparison(),
    published="in FP4 training most of the loss gap closes when the forward pass alone returns to BF16",
    source=f"{sources.NVFP4}, on switching precision late in training",
    headline="gradient_error",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("both", recipe="dsv3", expected="the whole recipe"),
        Arm("forward", recipe="dsv3", change=FORWARD, expected="most of the error"),
        Arm("backward", recipe="dsv3", change=BACKWARD, expected="less than half of it; no change of predictions"),
    ),
    expectations=(
        Expectation("the forward pass has nearly all of the error", "gradient_error", "forward", "both",
                    expected=(0.8, 1.0), published=(0.7, 1.0)),
        Expectation("the backward pass has about half, or less", "gradient_error", "backward", "both",
                    expected=(0.2, 0.6), published=(0.0, 0.7)),
        Expectation("backward alone cannot move predictions", "kl", "backward", "bf16", expected=(1.0, 1.0)),
    ),
)  # fmt: skip
