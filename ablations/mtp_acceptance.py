"""How often the second token that an MTP module drafts is accepted."""

from lowprec.study import Acceptance, Arm, Expectation, MeasurementStudy, sources

ablation = MeasurementStudy(
    name="mtp_acceptance",
    question="How often does the model accept the byte that its MTP module drafts, and what does precision change?",
    measurement=Acceptance(),
    published="80 to 90 % of second tokens are accepted, which makes decoding 1.8 times as fast",
    source=f"{sources.ISCA}, section 2.3.3",
    arms=(
        Arm("bf16", role="reference"),
        Arm("bf16_again", role="repeat", expected="the same bits"),
        Arm("float32", recipe="float32", role="floor", expected="as BF16 to a few tenths of a per cent"),
        Arm("dsv3", recipe="dsv3", expected="as BF16 to one per cent: both round alike", source=sources.DEEPSEEK_V3),
        Arm("mxfp8", recipe="mxfp8", expected="as BF16 to one per cent"),
        Arm("nvfp4", recipe="nvfp4", expected="one or two per cent fewer", source=sources.NVFP4),
        Arm("fp4_naive", recipe="fp4_naive", expected="some per cent fewer", source=sources.NVFP4),
        Arm("draft_logfmt3", role="control", change={"storage": {"layers.*.hidden_norm": "logfmt3"}},
            expected="far fewer: the module reads hidden states of 3 bits, the model itself is left alone"),
    ),
    expectations=(
        Expectation("a model of this size accepts fewer than 80 %", "greedy", "bf16", expected=(45.0, 75.0),
                    published=(80.0, 90.0)),
        Expectation("of the bytes it is surest of, it accepts what is published", "greedy", "bf16",
                    expected=(80.0, 100.0), published=(80.0, 90.0), condition="surest quarter"),
        Expectation("so decoding gains less than 1.8", "speed", "bf16", expected=(1.4, 1.75), published=(1.75, 1.85),
                   ),
        Expectation("FP8 accepts as many", "greedy", "dsv3", "bf16", expected=(0.98, 1.02)),
        Expectation("FP4 accepts nearly as many: draft and judge are rounded alike", "greedy", "fp4_naive", "bf16",
                    expected=(0.9, 1.01)),
    ),
    config={"mtp_depth": 1},
    notes="Bytes of a text and a model of a million parameters, not tokens of a model of 671 billion: the more certain "
    "a model is, the more drafts it accepts, which the quarters show. Speed is that of DeepSeek-V3's 61 layers.",
)  # fmt: skip
