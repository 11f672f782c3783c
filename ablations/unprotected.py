"""Which of the components that stay in BF16 needs it."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources


def also(name: str, pattern: str, expected: str) -> Arm:
    """Return DeepSeek-V3's recipe with one more kind of layer in FP8."""
    return Arm(name, recipe="dsv3", change={"quantize": [pattern]}, expected=expected)


ablation = MeasurementStudy(
    name="unprotected",
    question="Output head or router's gate in FP8 as well: what does giving up their protection cost?",
    measurement=GradientComparison(),
    published="embedding, output head, gate, norms and attention keep BF16 or FP32; routers elsewhere run in FP32",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.1; {sources.MEGATRON}",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("dsv3", recipe="dsv3", expected="both protected"),
        also("head_fp8", "head", "predictions move most: nothing averages behind the head"),
        also("gate_fp8", "layers.*.ffn.gate", "more tokens change experts"),
        Arm("both_fp8", recipe="dsv3", change={"quantize": ["head", "layers.*.ffn.gate"]}, expected="both"),
    ),
    expectations=(
        Expectation("the head in FP8 moves predictions more than all else together", "kl", "head_fp8", "dsv3",
                    expected=(1.2, 10.0), published=(1.0, 1e3)),
        Expectation("the gate in FP8 changes more tokens' experts", "routing_flips", "gate_fp8", "dsv3",
                    expected=(1.2, 5.0), published=(1.0, 1e3)),
        Expectation("through the experts that costs predictions, too", "kl", "gate_fp8", "dsv3",
                    expected=(1.0, 2.0), published=(1.0, 1e3)),
    ),
    notes="8 experts with a share of 1 in 4: routers of hundreds of experts decide between far closer scores.",
)  # fmt: skip
