"""Whether training feels a combine, or all four wires between tokens and experts, in fewer bits."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

WIRES = ("dispatch", "combine", "dispatch_grad", "combine_grad")


def combined(name: str, codec: str, expected: str) -> Arm:
    """Return BF16 with one codec for combine."""
    return Arm(name, change={"combine": codec}, expected=expected, source=f"{sources.ISCA}, section 3.2")


def all_wires(name: str, codec: str, expected: str) -> Arm:
    """Return BF16 with one codec for all four wires."""
    return Arm(name, change=dict.fromkeys(WIRES, codec), expected=expected, source=f"{sources.ISCA}, section 6.5")


ablation = Ablation(
    name="combine_format_training",
    question="Combine, or all four wires, in E4M3, E5M6, LogFMT-8 or LogFMT-10: does training lose to BF16?",
    expected="no format of 8 bits or more is told from BF16 on combine, nor on all wires; four bits are",
    source=f"{sources.ISCA}, section 3.2: combine stays in BF16 for accuracy; FP8, E5M6 and mixtures are being tested",
    arms=(
        *sources.BRANCH_ARMS,
        combined("e4m3", "fp8_1x128", "equivalent"),
        combined("e5m2", "e5m2_1x128", "equivalent"),
        combined("e5m6", "e5m6_1x128_ue8m0", "at the floor"),
        combined("logfmt8", "logfmt8", "equivalent"),
        combined("logfmt10", "logfmt10", "at the floor"),
        all_wires("all_e4m3", "fp8_1x128", "equivalent"),
        all_wires("all_logfmt8", "logfmt8", "equivalent"),
        all_wires("all_nvfp4", "nvfp4", "worse: the stress, 4.5 bits"),
    ),
    seed_block=12,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("combine in E4M3 costs nothing that shows", "total_percent", "e4m3", expected=(-0.1, 0.1),
                    published=(0.0, 1.0)),
        Expectation("combine in LogFMT-8 neither", "total_percent", "logfmt8", expected=(-0.1, 0.1),
                    published=(-0.1, 0.1)),
        Expectation("combine in LogFMT-10 neither", "total_percent", "logfmt10", expected=(-0.1, 0.1),
                    published=(-0.1, 0.1)),
        Expectation("nor all wires in E4M3", "total_percent", "all_e4m3", expected=(-0.1, 0.15)),
        Expectation("four bits on all wires cost more", "total_percent", "all_nvfp4", expected=(0.02, 1.0)),
        Expectation("combine in E4M3 trains weights as good as BF16's", "training_percent", "e4m3",
                    expected=(-0.1, 0.1), published=(0.0, 1.0)),
        Expectation("so does LogFMT-8", "training_percent", "logfmt8", expected=(-0.1, 0.1), published=(-0.1, 0.1)),
        Expectation("four bits on all wires train little worse ones", "training_percent", "all_nvfp4",
                    expected=(-0.05, 0.5)),
    ),
    notes="Combine carries what one of this model's two blocks adds; in DeepSeek-V3 it is 58 of 61. What predictions "
    "lose without the noise of training is in combine_format.",
)  # fmt: skip
