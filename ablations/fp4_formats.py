"""NVFP4 or MXFP4: what blocks of 16 with E4M3 scales buy over blocks of 32 with powers of two."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources

ablation = MeasurementStudy(
    name="fp4_formats",
    question="4 bits in NVFP4's blocks or in MXFP4's: how much closer to no rounding are the finer, finer-scaled ones?",
    measurement=GradientComparison(),
    published="relative loss 1.5 % for NVFP4, 2.5 % for MXFP4 at 8B parameters and 1T tokens",
    source=f"{sources.NVFP4}, section 5",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("mxfp8", recipe="mxfp8", expected="8 bits, for comparison"),
        Arm("mxfp4", recipe="mxfp4_rceil", expected="worst"),
        Arm("nvfp4", recipe="mxfp4_rceil", change={"x": "nvfp4_te", "w": "nvfp4_te", "dy": "nvfp4_te",
                                             "accumulator": "blackwell_nvfp4"}, expected="clearly better than mxfp4"),
    ),
    expectations=(
        Expectation("NVFP4's predictions are closer", "kl", "mxfp4", "nvfp4",
                    expected=(1.2, 4.0), published=(1.0, 1e3)),
        Expectation("and its gradients", "gradient_error", "mxfp4", "nvfp4", expected=(1.05, 2.0),
                    published=(1.0, 1e3)),
        Expectation("both are far from 8 bits", "kl", "nvfp4", "mxfp8", expected=(4.0, 50.0), published=(1.0, 1e6)),
    ),
)  # fmt: skip
