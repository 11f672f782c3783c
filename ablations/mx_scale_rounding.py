"""How the power-of-two scales of MX blocks should be rounded."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources


def mx(flavour: str, expected: str, source: str = "") -> Arm:
    """Return MXFP8 with one rule for its scales, with the same accumulation in all arms."""
    words = f"mxfp8_{flavour}"
    return Arm(flavour, recipe="mxfp8", change={"x": words, "w": words, "dy": words}, expected=expected, source=source)


ablation = MeasurementStudy(
    name="mx_scale_rounding",
    question="E8M0 scales rounded down (OCP), up, to even or by the ratio: what do saturation and lost range cost?",
    measurement=GradientComparison(),
    published="rounding down can diverge, since it saturates; rounding up trains 8B parameters on 15T tokens like BF16",
    source=sources.MXFP8,
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        mx("floor", "saturates every block whose largest value has a significand above 1.75", "OCP MX v1.0"),
        mx("even", "saturates less"),
        mx("ceil", "saturates nothing, wastes a binade of some blocks"),
        mx("rceil", "as ceil, but exact at powers of two", sources.TRANSFORMER_ENGINE),
    ),
    expectations=(
        Expectation("rounding down saturates about 19 % of blocks, so 0.5 % of values", "saturated", "floor",
                    expected=(0.001, 0.03), published=(1e-6, 1.0)),
        Expectation("rounding up saturates nothing", "saturated", "rceil", expected=(0.0, 0.0), published=(0.0, 0.0)),
        Expectation("rounding up is closer to no rounding", "kl", "floor", "rceil",
                    expected=(1.0, 2.0), published=(1.0, 1e3)),
        Expectation("gradients say the same", "gradient_error", "floor", "rceil",
                    expected=(1.0, 1.5), published=(1.0, 1e3)),
    ),
)  # fmt: skip
