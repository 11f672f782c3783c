"""In which formats the optimizer can keep its moments."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="optimizer_formats",
    question="AdamW's moments in FP32 or FP8, master weights in fewer bits: which branches end where BF16's does?",
    expected="FP32 and BF16 moments are equivalent; E4M3 for m and E5M2 for v nearly so; E4M3 for v fails, since "
    "squares of gradients span more than its range",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.3; {sources.TRILLION}",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("moments_fp32", change={"moments": "float32"}, expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("m_e4m3_v_e5m2", change={"moment_m": "e4m3fn tensor", "moment_v": "e5m2 tensor"}, expected="equivalent",
            source=sources.TRILLION),
        Arm("v_e4m3", role="control", change={"moment_v": "e4m3fn tensor"}, expected="worse", source=sources.TRILLION),
        Arm("master_fp16", change={"master_weights": "float16 tensor"}, expected="equivalent: 11 bits and a scale",
            source=sources.FP8_LM),
        Arm("master_bf16", change={"master_weights": "bfloat16"}, expected="worse: updates below half a unit vanish",
            source=sources.FP8_LM),
        Arm("master_e4m3", change={"master_weights": "e4m3fn tensor"}, expected="far worse", source=sources.FP8_LM),
    ),
    seed_block=8,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=3, learning_rate=1.5e-3),
    expectations=(
        Expectation("BF16 moments, the reference, lose nothing to FP32", "total_percent", "moments_fp32",
                    expected=(-0.25, 0.25), published=(-0.25, 0.25)),
        Expectation("8 bits will do, with range for the second", "total_percent", "m_e4m3_v_e5m2",
                    expected=(-0.25, 0.25), published=(-0.25, 0.25)),
        Expectation("without range the second fails", "total_percent", "v_e4m3", expected=(0.25, 1e3),
                    published=(0.25, 1e9)),
        Expectation("16 bits of FP16 with a scale will do for master weights", "total_percent", "master_fp16",
                    expected=(-0.25, 0.25), published=(-0.25, 0.25)),
        Expectation("8 bits will not", "total_percent", "master_e4m3", expected=(1.0, 1e3), published=(0.25, 1e9)),
    ),
)  # fmt: skip
