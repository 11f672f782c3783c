"""Whether gradients need E5M2's range once every tile has its own scale."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources

ablation = MeasurementStudy(
    name="gradient_format",
    question="E4M3 everywhere, E5M2 for the gradients alone, or E5M2 everywhere: which is closest to no rounding?",
    measurement=GradientComparison(),
    published="E4M3 on all tensors, made possible by fine-grained scales, where others give gradients E5M2",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.2; {sources.FP8_FORMATS}",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("e4m3", recipe="dsv3", expected="the least error of the three"),
        Arm("hybrid", recipe="dsv3", change={"dy": "e5m2 1x128"}, expected="a little worse, in gradients alone"),
        Arm("e5m2", recipe="dsv3", change={"x": "e5m2 1x128", "w": "e5m2 128x128", "dy": "e5m2 1x128"},
            expected="clearly worse, in predictions and gradients"),
    ),
    expectations=(
        Expectation("E5M2 gradients add to the gradient's error", "gradient_error", "hybrid", "e4m3",
                    expected=(1.0, 1.2), published=(1.0, 10.0)),
        Expectation("E5M2 everywhere adds about half", "gradient_error", "e5m2", "e4m3",
                    expected=(1.3, 1.8), published=(1.0, 10.0)),
        Expectation("the gradients' format cannot move predictions", "kl", "hybrid", "e4m3", expected=(1.0, 1.0)),
        Expectation("predictions suffer from E5M2 in the forward pass", "kl", "e5m2", "e4m3",
                    expected=(2.0, 6.0), published=(1.0, 100.0)),
    ),
    notes="Gradients that leave E4M3's range under one scale per tensor need a larger and longer trained model.",
)  # fmt: skip
