"""Whether a lower bound on amax, harmless for activations, flushes gradients."""

from lowprec.study import Arm, Expectation, GradientComparison, Healthy, MeasurementStudy, ScaledLoss, sources

ablation = MeasurementStudy(
    name="amax_floor",
    question="Released kernels bound amax from below by 1e-4: what happens to gradients, which are smaller?",
    measurement=GradientComparison(
        (Healthy(), ScaledLoss(-10, name="loss / 2^10"), ScaledLoss(-20, name="loss / 2^20"))
    ),
    published="kernels for inference clamp amax at 1e-4; TransformerEngine's epsilon is 0",
    source=f"{sources.DEEPGEMM}; {sources.TRANSFORMER_ENGINE}",
    headline="gradient_error",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("none", recipe="dsv3", expected="no bound: the loss's scale does not matter"),
        Arm("floor", recipe="dsv3", change={"dy": "e4m3fn 1x128 floor=0.0001"},
            expected="gradients lose accuracy, the more the smaller they are"),
        Arm("floor_on_x", recipe="dsv3", change={"x": "e4m3fn 1x128 floor=0.0001"}, expected="harmless"),
    ),
    expectations=(
        Expectation("already a mean loss over 2048 tokens is too small for the bound", "gradient_error", "floor",
                    "none", expected=(1.02, 20.0)),
        Expectation("a loss 2^10 times smaller loses most of its gradient", "gradient_error", "floor", "none",
                    expected=(2.0, 100.0), condition="loss / 2^10"),
        Expectation("without a bound scale does not matter", "gradient_error", "none", expected=(0.0, 0.3),
                    condition="loss / 2^20"),
        Expectation("for activations the bound is harmless", "kl", "floor_on_x", "none", expected=(0.8, 1.25)),
    ),
    notes="Found while reading released kernels; no paper reports it.",
)  # fmt: skip
