"""How fine the scales have to be, for 8 bits and for 4, in a healthy model and with planted outliers."""

from lowprec.study import Arm, ChannelOutliers, Expectation, GradientComparison, Healthy, MeasurementStudy, sources

#: All arms have the same accumulation and differ only in granularity.
PLAIN = {"accumulator": "float32", "promote_every": None}


def scaled(name: str, form: str, tensor: str, weight: str, expected: str) -> Arm:
    """Return an arm that quantizes activations and gradients in one block and weights in another."""
    change = {**PLAIN, "x": f"{form} {tensor}", "w": f"{form} {weight}", "dy": f"{form} {tensor}"}
    return Arm(name, recipe="dsv3", change=change, expected=expected)


ablation = MeasurementStudy(
    name="granularity",
    question="One scale per tensor, per 128 x 128 block, per tile of 128 or per 32 values: what does finer buy?",
    measurement=GradientComparison((Healthy(), ChannelOutliers(octaves=12))),
    published="tiles of 1x128 make E4M3 robust against outliers that one scale per tensor does not survive",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.2",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        scaled("tensor", "e4m3fn", "tensor", "tensor", "no worse than tiles here"),
        scaled("block", "e4m3fn", "128x128", "128x128", "about as good as tiles here"),
        scaled("tile", "e4m3fn", "1x128", "128x128", "the recipe of DeepSeek-V3"),
        scaled("tile32_ue8m0", "e4m3fn", "1x32 ue8m0", "32x32 ue8m0", "worse: its scales are powers of two"),
        scaled("fp4_tensor", "e2m1fn", "tensor", "tensor", "useless"),
        scaled("fp4_tile", "e2m1fn", "1x128", "128x128", "far better than one scale"),
        scaled("fp4_tile16", "e2m1fn", "1x16", "16x16", "better again"),
    ),
    expectations=(
        Expectation("for E4M3 in a healthy model granularity hardly shows", "gradient_error", "tensor", "tile",
                    expected=(0.85, 1.25), published=(1.5, 1e6)),
        Expectation("outliers of 2^12 are where a scale per tensor loses values", "flushed", "tensor", "tile",
                    expected=(2.0, 1e9), published=(2.0, 1e9), condition="channel outliers"),
        Expectation("4 bits show it without any outlier", "kl", "fp4_tensor", "fp4_tile16",
                    expected=(3.0, 1e4), published=(1.0, 1e6)),
        Expectation("16 values a scale beat 128", "gradient_error", "fp4_tile", "fp4_tile16",
                    expected=(1.1, 3.0), published=(1.0, 1e3)),
    ),
    notes="E4M3 spans 18 octaves and a healthy small model uses 9 of them in a tile: the published effect needs "
    "outliers, which are planted here, or 4-bit elements. Under outliers of 2^12 FP4 with one scale, or one for 128 "
    "values, makes every other value 0; the norms that then see only zeros multiply gradients by 1 / sqrt(eps) = 1000, "
    "one after the other, so an error of 1e10 is no accident.",
)  # fmt: skip
