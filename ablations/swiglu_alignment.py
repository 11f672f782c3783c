"""Effect on formats of aligned SwiGLU weights, the final state of long trainings."""

from lowprec.study import AlignedSwiGLU, Arm, Expectation, GradientComparison, Healthy, MeasurementStudy, sources

TENSOR = {"x": "e4m3fn tensor", "w": "e4m3fn tensor", "dy": "e5m2 tensor", "accumulator": "float32",
          "promote_every": None, "saved_swiglu_input": "bf16", "dispatch": "bf16", "combine_grad": "bf16"}  # fmt: skip

ablation = MeasurementStudy(
    name="swiglu_alignment",
    question="When both inputs of SwiGLU read the same direction, which scales survive the outliers of its output?",
    measurement=GradientComparison((Healthy(), AlignedSwiGLU(factor=8.0))),
    published="FP8 training becomes unstable after about 200B tokens, as the two weights align; Smooth-SwiGLU cures it",
    source=sources.TRILLION,
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("tile", recipe="dsv3", expected="outliers stay in their tile"),
        Arm("tensor", recipe="dsv3", change=TENSOR, expected="suffers more than tiles once outliers are planted"),
    ),
    expectations=(
        Expectation("in a healthy model tiles and tensors are alike", "kl", "tensor", "tile", expected=(0.7, 1.6)),
        Expectation("alignment hurts one scale per tensor more", "kl", "tensor", "tile",
                    expected=(1.2, 100.0), published=(1.0, 1e6), condition="aligned SwiGLU"),
        Expectation("values are flushed under one scale", "flushed", "tensor", "tile",
                    expected=(2.0, 1e6), published=(1.0, 1e9), condition="aligned SwiGLU"),
    ),
    notes="Alignment takes hundreds of billions of tokens; here it is planted, which changes the function that the "
    "model computes, for the reference as well.",
)  # fmt: skip
