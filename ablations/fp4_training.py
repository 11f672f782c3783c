"""NVFP4 or MXFP4, by where training ends."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

NVFP4_PLAIN = {"x": "nvfp4_te", "w": "nvfp4_te", "dy": "nvfp4_te", "accumulator": "blackwell_nvfp4"}

ablation = Ablation(
    name="fp4_training",
    question="4 bits in NVFP4's blocks of 16 or in MXFP4's of 32: where does training end?",
    expected="MXFP4 about twice as far from BF16 as NVFP4, both outside the margin",
    source=f"{sources.NVFP4}, section 5: 1.5 % and 2.5 % above BF16 at 8B parameters and 1T tokens",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("mxfp8", recipe="mxfp8", expected="equivalent", source=sources.MXFP8),
        Arm("mxfp4", recipe="mxfp4_rceil", expected="worse, by about 1 %", source=sources.NVFP4),
        Arm("nvfp4_plain", recipe="mxfp4_rceil", change=NVFP4_PLAIN, expected="worse, by about half of that"),
        Arm("nvfp4", recipe="nvfp4", expected="worse: the whole published recipe", source=sources.NVFP4),
    ),
    seed_block=5,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("MXFP4 is worse than NVFP4 without remedies", "total_percent", "mxfp4", "nvfp4_plain",
                    expected=(1.3, 4.0), published=(1.0, 1e3)),
        Expectation("and than the whole recipe, by more than the published 2.5 : 1.5", "total_percent", "mxfp4",
                    "nvfp4", expected=(1.5, 6.0), published=(1.4, 2.0)),
        Expectation("NVFP4 is outside the margin", "total_percent", "nvfp4_plain", expected=(0.25, 1.5),
                    published=(1.0, 2.0)),
        Expectation("8 bits are inside", "total_percent", "mxfp8", expected=(-0.25, 0.25), published=(-0.25, 0.25)),
        Expectation("MXFP4 trains worse weights than NVFP4 without remedies",
                    "training_percent", "mxfp4", minus="nvfp4_plain",
                    expected=(0.05, 1.0)),
        Expectation("those of the whole recipe are within the margin", "training_percent", "nvfp4",
                    expected=(-0.1, 0.25)),
        Expectation("8 bits train as 16 do", "training_percent", "mxfp8",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
    ),
    notes="The recipe nvfp4 keeps the last block in BF16, here one of two or three: a far larger share than the "
    "original's 10 of 62. The plain arms differ in blocks and scales alone.",
)  # fmt: skip
