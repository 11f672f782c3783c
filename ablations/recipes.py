"""Whether the recipes that libraries offer end where BF16 does."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="recipes",
    question="Per-tensor, tiles and blocks, MXFP8: which published FP8 recipe trains as well as BF16?",
    expected="all of them equivalent within 0.25 %, and not told apart from each other",
    source=f"{sources.MEGATRON}: negligible difference; {sources.DEEPSEEK_V3}: below 0.25 %",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("dsv3", recipe="dsv3", expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("hybrid", recipe="dsv3", change={"dy": "e5m2 1x128"}, expected="equivalent", source=sources.FP8_FORMATS),
        Arm("te_delayed", recipe="te_delayed", calibration=16, expected="equivalent",
            source=sources.TRANSFORMER_ENGINE),
        Arm("te_current", recipe="te_current", expected="equivalent", source=sources.TRANSFORMER_ENGINE),
        Arm("te_block", recipe="te_block", expected="equivalent", source=sources.TRANSFORMER_ENGINE),
        Arm("mxfp8", recipe="mxfp8", expected="equivalent", source=sources.MXFP8),
        Arm("mxfp4", recipe="mxfp4_rceil", role="control", expected="worse, by about 1 to 3 %", source=sources.NVFP4),
    ),
    series=9,
    baseline="dsv3",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("tiles and blocks are within the margin", "total_percent", "dsv3", expected=(-0.1, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("so is one scale per tensor", "total_percent", "te_current", expected=(-0.1, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("so is MXFP8", "total_percent", "mxfp8", expected=(-0.1, 0.25), published=(-0.25, 0.25)),
        Expectation("E5M2 gradients change nothing that shows", "total_percent", "hybrid", expected=(-0.1, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("4 bits are far outside", "total_percent", "mxfp4", expected=(0.25, 4.0), published=(1.0, 4.0)),
        Expectation("tiles and blocks train weights as good as BF16's", "training_percent", "dsv3",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("so does one scale per tensor", "training_percent", "te_current",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("so do delayed scales", "training_percent", "te_delayed",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("so does MXFP8", "training_percent", "mxfp8", expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("so do E5M2 gradients", "training_percent", "hybrid",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("tensors and tiles train alike", "training_percent", "te_current", minus="dsv3",
                    expected=(-0.1, 0.1)),
        Expectation("4 bits train worse weights", "training_percent", "mxfp4", expected=(0.1, 2.0)),
    ),
)  # fmt: skip

if __name__ == "__main__":
    import sys

    from lowprec.cli import main

    main(["ablate", __file__, *sys.argv[1:]])
