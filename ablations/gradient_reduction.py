"""Errors of gradients in an all-reduce of few bits, for 2 to 64 ranks."""

from lowprec.study import Arm, CheckpointSize, Expectation, MeasurementStudy, ReducedGradients, sources


def reduced(name: str, algorithm: str, codec: str, expected: str, role: str = "treatment") -> Arm:
    """Return BF16 with gradients that are reduced through a codec."""
    return Arm(name, role=role, change={"all_reduce": f"2 {algorithm} {codec}"}, expected=expected)


ablation = MeasurementStudy(
    name="gradient_reduction",
    question="Gradients of 2 to 64 ranks added in BF16, FP8 or LogFMT-8, in a ring, on two levels or in the network?",
    measurement=ReducedGradients(),
    published="in-network aggregation, and LogFMT natively in network hardware, are asked for",
    source=f"{sources.ISCA}, section 6.5",
    arms=(
        Arm("float32", role="reference"),
        Arm("float32_again", role="repeat", expected="the same bits"),
        reduced("ring_float32", "ring", "float32", "float32's own rounding", role="floor"),
        reduced("ring_bf16", "ring", "bf16", "1 % at 64 ranks, growing as their root"),
        reduced("ring_fp8", "ring", "fp8_1x128", "the codec's noise times the root of half the ranks"),
        reduced("ring_logfmt8", "ring", "logfmt8", "half of FP8's"),
        reduced("two_level_fp8", "two_level", "fp8_1x128", "half of a ring's: a quarter of the hops"),
        reduced("in_network_fp8", "two_step", "fp8_1x128", "the codec's noise times root 2, whatever the ranks"),
        reduced("in_network_logfmt8", "two_step", "logfmt8", "half of FP8's"),
        reduced("ring_nvfp4", "ring", "nvfp4", "most", role="control"),
    ),
    expectations=(
        Expectation("a ring's error grows with the root of its ranks", "gradient_error", "ring_fp8", "in_network_fp8",
                    expected=(2.0, 5.0), condition="64"),
        Expectation("at 2 ranks it is the smaller one", "gradient_error", "ring_fp8", "in_network_fp8",
                    expected=(0.3, 1.0), condition="2"),
        Expectation("two levels halve it", "gradient_error", "two_level_fp8", "ring_fp8", expected=(0.35, 0.6),
                    condition="64"),
        Expectation("LogFMT-8 halves it, too", "gradient_error", "ring_logfmt8", "ring_fp8", expected=(0.3, 0.7),
                    condition="64"),
        Expectation("in the network LogFMT-8 costs about 2 %", "gradient_error", "in_network_logfmt8",
                    expected=(0.005, 0.03), condition="64"),
        Expectation("a ring in BF16 costs about 1 % at 64 ranks", "gradient_error", "ring_bf16",
                    expected=(0.003, 0.02), condition="64"),
    ),
    full=CheckpointSize("pilot", checkpoint_steps=400, checkpoints=4, seeds=2),
    config={"sequence": 32, "batch": 64},
    notes="64 sequences of 32 bytes, dealt out to the ranks, so that at 64 each has one. Nothing else is rounded "
    "otherwise than in BF16. What training makes of it is in gradient_reduction_training.",
)  # fmt: skip
