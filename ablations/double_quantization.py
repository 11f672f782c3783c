"""Error of quantizing a cached activation twice, and the reason for scales that are powers of two."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources

#: All scales float32, and no codec but plain E4M3 tiles: what the arms then change.
FP32 = {"x": "e4m3fn 1x128", "dy": "e4m3fn 1x128", "accumulator": "float32", "promote_every": None,
        "saved_attention_output": "bf16", "saved_swiglu_input": "bf16", "dispatch": "bf16",
        "combine_grad": "bf16"}  # fmt: skip
POW2 = FP32 | {"x": "e4m3fn 1x128 ue8m0", "dy": "e4m3fn 1x128 ue8m0"}

ablation = MeasurementStudy(
    name="double_quantization",
    question="Cached 1x128 tiles are dequantized, transposed and quantized again to 128x1: what does that cost?",
    measurement=GradientComparison(),
    published="scales that are integral powers of two make the conversion free; E5M6 for the input after attention",
    source=f"{sources.DEEPSEEK_V3}, sections 3.3.3 and 3.5.2",
    headline="gradient_error",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("fp32_once", recipe="dsv3", change=FP32 | {"wgrad_input": "high_precision"},
            expected="float32 scales, once"),
        Arm("fp32_twice", recipe="dsv3", change=FP32, expected="some per cent more error than once"),
        Arm("pow2_once", recipe="dsv3", change=POW2 | {"wgrad_input": "high_precision"},
            expected="more error than float32 scales"),
        Arm("pow2_twice", recipe="dsv3", change=POW2, expected="no more than once"),
        Arm("pow2_e5m6", recipe="dsv3", change=POW2 | {"saved_attention_output": "e5m6_1x128_ue8m0"},
            expected="a little less than pow2_twice, in wo alone"),
        Arm("pow2_o_e4m3", recipe="dsv3", change=POW2 | {"saved_attention_output": "fp8_1x128_ue8m0"},
            expected="a little more than pow2_e5m6: attention's backward pass reads what is kept, too"),
        Arm("bf16_o_e5m6", recipe="bf16", change={"saved_attention_output": "e5m6_1x128_ue8m0"}, expected="as bf16"),
        Arm("bf16_o_e4m3", recipe="bf16", change={"saved_attention_output": "fp8_1x128_ue8m0"},
            expected="clearly more than bf16: why the report keeps 12 bits here"),
    ),
    expectations=(
        Expectation("with float32 scales a second quantization costs", "gradient_error", "fp32_twice", "fp32_once",
                    expected=(1.01, 1.15), published=(1.0001, 2.0)),
        Expectation("with powers of two it is free", "gradient_error", "pow2_twice", "pow2_once",
                    expected=(0.99, 1.01), published=(0.99, 1.01)),
        Expectation("powers of two cost more than they save here", "gradient_error", "pow2_twice", "fp32_twice",
                    expected=(1.05, 1.4)),
        Expectation("E5M6 helps wo", "gradient_error", "pow2_e5m6", "pow2_twice",
                    expected=(0.97, 1.0), published=(0.0, 0.9999)),
        Expectation("E4M3 would cost attention's own gradients, too", "gradient_error", "pow2_o_e4m3", "pow2_e5m6",
                    expected=(1.0, 1.05), published=(1.0001, 10.0)),
        Expectation("beside BF16 alone that shows", "gradient_error", "bf16_o_e4m3", "bf16", expected=(1.05, 3.0),
                    published=(1.0001, 100.0)),
        Expectation("and E5M6 is free", "gradient_error", "bf16_o_e5m6", "bf16", expected=(0.98, 1.03),
                    published=(0.9, 1.1)),
    ),
)  # fmt: skip
