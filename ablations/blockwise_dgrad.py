"""Whether output gradients can share scales across tokens."""

from lowprec.study import Arm, Expectation, GradientComparison, Healthy, MeasurementStudy, UnevenTokens, sources

ablation = MeasurementStudy(
    name="blockwise_dgrad",
    question="What do 128 x 128 blocks for output gradients cost, where tiles never mix tokens?",
    measurement=GradientComparison((Healthy(), UnevenTokens())),
    published="a 16B model diverges after about 300B tokens; suspected: outliers that belong to single tokens",
    source=f"{sources.DEEPSEEK_V3}, appendix B.2",
    headline="token_error_p99",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("tile", recipe="dsv3", expected="no token loses its gradient"),
        Arm("block", recipe="dsv3", change={"dgrad": {"a": "e4m3fn 128x128"}, "wgrad": {"a": "e4m3fn 128x128"}},
            expected="tokens with small gradients lose them where others are large"),
    ),
    expectations=(
        Expectation("the error in norm hardly moves in a healthy model", "gradient_error", "block", "tile",
                    expected=(0.95, 1.15)),
        Expectation("with uneven tokens whole rows of gradients vanish", "tokens_flushed", "block",
                    expected=(0.01, 1.0), published=(1e-6, 1.0), condition="uneven tokens"),
        Expectation("none vanishes in tiles", "tokens_flushed", "tile", expected=(0.0, 0.0), condition="uneven tokens"),
        Expectation("the median token suffers", "token_error_median", "block", "tile",
                    expected=(1.1, 50.0), published=(1.0, 1e6), condition="uneven tokens"),
    ),
    notes="The divergence itself is out of reach: it took 300B tokens. The stress weights the losses of tokens "
    "log-normally, which is what a shared scale cannot represent.",
)  # fmt: skip
