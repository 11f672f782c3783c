"""Whether training feels LogFMT, or FP8, on every residual branch."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def branches(name: str, codec: str, expected: str) -> Arm:
    """Return BF16 with one codec for the outputs that blocks add to the residual stream."""
    return Arm(name, recipe="bf16", change={"storage": {"layers.*_branch": codec}}, expected=expected,
               source=f"{sources.ISCA}, section 3.2")  # fmt: skip


ablation = Ablation(
    name="residual_format_training",
    question="Every residual branch in E4M3, E5M2, LogFMT-8 or LogFMT-10: does training lose to BF16?",
    expected="LogFMT-8 and LogFMT-10 equivalent; E5M2 worse in its own precision, and equivalent in BF16",
    source=f"{sources.ISCA}, section 3.2: LogFMT-8 trains better than E4M3 and E5M2, LogFMT-10 as BF16 (dense, 7B)",
    arms=(
        *sources.BRANCH_ARMS,
        branches("e4m3", "fp8_1x128", "equivalent"),
        branches("e5m2", "e5m2_1x128", "worse within the margin"),
        branches("logfmt8", "logfmt8", "equivalent"),
        branches("logfmt10", "logfmt10", "at the floor"),
        branches("logfmt4", "logfmt4", "worse: the stress, 4 bits"),
    ),
    seed_block=13,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("E4M3 costs little", "total_percent", "e4m3", expected=(-0.05, 0.2)),
        Expectation("E5M2 costs more", "total_percent", "e5m2", expected=(0.0, 0.6), published=(0.0, 10.0)),
        Expectation("LogFMT-8 costs nothing that shows", "total_percent", "logfmt8", expected=(-0.1, 0.1),
                    published=(-0.1, 0.1)),
        Expectation("LogFMT-10 costs nothing", "total_percent", "logfmt10", expected=(-0.1, 0.1),
                    published=(-0.1, 0.1)),
        Expectation("E4M3 trains weights as good as BF16's", "training_percent", "e4m3", expected=(-0.1, 0.1)),
        Expectation("E5M2 trains little worse ones", "training_percent", "e5m2", expected=(-0.1, 0.3)),
        Expectation("LogFMT-8 trains as good ones", "training_percent", "logfmt8",
                    expected=(-0.1, 0.1), published=(-0.1, 0.1)),
    ),
    notes="Without the noise of training the same codecs are in residual_format. The codec acts in the forward pass; "
    "gradients pass it as if it were not there.",
)  # fmt: skip
