"""In which format experts' outputs should travel back to their tokens."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources


def combined(name: str, codec: str, expected: str) -> Arm:
    """Return BF16 with one codec for combine."""
    return Arm(name, recipe="bf16", change={"combine": codec}, expected=expected, source=f"{sources.ISCA}, section 3.2")


ablation = MeasurementStudy(
    name="combine_format",
    question="Expert outputs combined in E4M3, E5M2, E5M6, LogFMT-8 or LogFMT-10: what do predictions lose to BF16?",
    measurement=GradientComparison(),
    published="LogFMT-8 is more accurate than E4M3 and E5M2; LogFMT-10 is like BF16",
    source=f"{sources.ISCA}, section 3.2",
    arms=(
        # BF16 is the reference here: its own storage is further from no rounding than most codecs are from it.
        Arm("bf16", role="reference"),
        Arm("bf16_again", role="repeat", expected="the same bits"),
        Arm("float32", recipe="float32", role="floor", expected="how far BF16 storage itself is from no rounding"),
        Arm("fp4_naive", recipe="fp4_naive", role="control", expected="far more", source=sources.NVFP4),
        combined("e4m3", "fp8_1x128", "more than LogFMT-8"),
        combined("e5m2", "e5m2_1x128", "most"),
        combined("e5m6", "e5m6_1x128_ue8m0", "like BF16"),
        combined("logfmt8", "logfmt8", "less than E4M3"),
        combined("logfmt10", "logfmt10", "like BF16"),
        Arm("dispatch_e4m3", recipe="bf16", change={"dispatch": "fp8_1x128_ue8m0"},
            expected="of the same order as combine in E4M3"),
    ),
    expectations=(
        Expectation("LogFMT-8 beats E4M3", "kl", "logfmt8", "e4m3", expected=(0.1, 0.7), published=(0.0, 1.0)),
        Expectation("E4M3 beats E5M2", "kl", "e5m2", "e4m3", expected=(1.5, 8.0), published=(1.0, 100.0)),
        Expectation("LogFMT-10 is like BF16", "kl", "logfmt10", "e4m3", expected=(0.0, 0.2), published=(0.0, 0.2)),
    ),
    notes="Combine is a small part of this model. A first run had float32 as its reference, in which BF16 storage "
    "drowned the codecs (LogFMT-8 over E4M3: 1.02); the reference was changed, and the ranges follow from the noise of "
    "normal tiles (`logfmt_rounding`), squared. The codec acts in the forward pass alone, so predictions are compared.",
)  # fmt: skip
