"""Error of saving SwiGLU's inputs in FP8 and recomputing its output."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources

ablation = MeasurementStudy(
    name="swiglu_cache",
    question="SwiGLU's inputs kept in FP8 and its output recomputed, or kept in BF16: what do gradients lose?",
    measurement=GradientComparison(),
    published="inputs cached in FP8 with fine-grained scales strike a balance of memory and accuracy",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.3",
    headline="gradient_error",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("kept_bf16", recipe="bf16", change={"saved_swiglu_input": "bf16"}, expected="as bf16, bit for bit"),
        Arm("kept_fp8", recipe="bf16", change={"saved_swiglu_input": "fp8_1x128"},
            expected="some per cent of error, from this cache alone"),
        Arm("kept_fp8_pow2", recipe="bf16", change={"saved_swiglu_input": "fp8_1x128_ue8m0"}, expected="more"),
        Arm("dsv3_bf16", recipe="dsv3", change={"saved_swiglu_input": "bf16"}, expected="FP8 with the BF16 cache"),
        Arm("dsv3", recipe="dsv3", expected="FP8 with the FP8 cache: a little worse"),
    ),
    expectations=(
        Expectation("a cache cannot move predictions", "kl", "kept_fp8", "kept_bf16", expected=(1.0, 1.0)),
        Expectation("alone it is clearly visible in gradients", "gradient_error", "kept_fp8", "kept_bf16",
                    expected=(1.3, 5.0), published=(1.0, 10.0)),
        Expectation("beside FP8 multiplications it costs little", "gradient_error", "dsv3", "dsv3_bf16",
                    expected=(1.0, 1.1), published=(0.9, 1.1)),
    ),
)  # fmt: skip
