"""LogFMT on every residual branch, the experiment with which it was published in place of combine."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources


def branches(name: str, codec: str, expected: str) -> Arm:
    """Return BF16 with one codec for the outputs that blocks add to the residual stream."""
    return Arm(name, recipe="bf16", change={"storage": {"layers.*_branch": codec}}, expected=expected,
               source=f"{sources.ISCA}, section 3.2")  # fmt: skip


ablation = MeasurementStudy(
    name="residual_format",
    question="Every residual branch in E4M3, E5M2, E5M6, LogFMT-8 or LogFMT-10: what do predictions lose to BF16?",
    measurement=GradientComparison(),
    published="LogFMT-8 is more accurate than E4M3 and E5M2; LogFMT-10 is like BF16 (dense models, 7B)",
    source=f"{sources.ISCA}, section 3.2",
    arms=(
        Arm("bf16", role="reference"),
        Arm("bf16_again", role="repeat", expected="the same bits"),
        Arm("float32", recipe="float32", role="floor", expected="how far BF16 storage itself is from no rounding"),
        Arm("fp4_naive", recipe="fp4_naive", role="control", expected="more", source=sources.NVFP4),
        branches("e4m3", "fp8_1x128", "more than LogFMT-8"),
        branches("e5m2", "e5m2_1x128", "most"),
        branches("e5m6", "e5m6_1x128_ue8m0", "nearer to BF16 than LogFMT-8"),
        branches("logfmt8", "logfmt8", "less than E4M3"),
        branches("logfmt10", "logfmt10", "like BF16: below what BF16 storage costs"),
        branches("int8", "int8_1x128", "as LogFMT-8 on tiles without outliers"),
        Arm("combine_logfmt8", change={"combine": "logfmt8"}, expected="less: experts' outputs alone"),
    ),
    expectations=(
        Expectation("LogFMT-8 beats E4M3", "kl", "logfmt8", "e4m3", expected=(0.15, 0.7), published=(0.0, 1.0)),
        Expectation("E4M3 beats E5M2", "kl", "e5m2", "e4m3", expected=(2.0, 6.0)),
        Expectation("LogFMT-10 costs no more than BF16 storage", "kl", "logfmt10", "float32", expected=(0.0, 0.7),
                    published=(0.0, 1.0)),
        Expectation("combine alone is a small part of it", "kl", "combine_logfmt8", "logfmt8", expected=(0.05, 0.7)),
    ),
    notes="A block adds to the stream twice, after attention and after its network; the codec acts on what is added, "
    "in the forward pass alone. The published test has dense models, whose networks' outputs stand for combine.",
)  # fmt: skip
