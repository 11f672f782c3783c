"""Whether the recipes that libraries offer end where BF16 does."""

from lowprec.study import Ablation, Arm, Setting, sources

ablation = Ablation(
    name="recipes",
    question="Per-tensor, tiles and blocks, MXFP8: which published FP8 recipe trains as well as BF16?",
    expected="all of them equivalent within 0.25 %, and not told apart from each other",
    source=f"{sources.MEGATRON}: negligible difference; {sources.DEEPSEEK_V3}: below 0.25 %",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("dsv3", recipe="dsv3", expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("te_current", recipe="te_current", expected="equivalent", source=sources.TRANSFORMER_ENGINE),
        Arm("te_block", recipe="te_block", expected="equivalent", source=sources.TRANSFORMER_ENGINE),
        Arm("mxfp8", recipe="mxfp8", expected="equivalent", source=sources.MXFP8),
        Arm("mxfp4", recipe="mxfp4", role="control", expected="worse, by about 1 to 3 %", source=sources.NVFP4),
    ),
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=2, seeds=3),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=2, seeds=6, learning_rate=1.5e-3),
)  # fmt: skip

if __name__ == "__main__":
    import sys

    from lowprec.cli import main

    main(["ablate", __file__, *sys.argv[1:]])
