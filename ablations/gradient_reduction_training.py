"""Whether training feels gradients of 16 ranks that are added in few bits."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def reduced(name: str, way: str, expected: str) -> Arm:
    """Return BF16 with gradients of 16 ranks that are reduced some way, through a codec."""
    return Arm(name, change={"all_reduce": f"16 {way}"}, expected=expected, source=f"{sources.ISCA}, section 6.5")


ablation = Ablation(
    name="gradient_reduction_training",
    question="Gradients of 16 ranks added in BF16, FP8 or LogFMT-8: does training lose to one rank's?",
    expected="none of 8 bits is told from the floor; a ring in NVFP4 is, if anything is",
    source=f"{sources.ISCA}, section 6.5: in-network computation and compression, LogFMT natively in the network",
    arms=(
        *sources.BRANCH_ARMS,
        reduced("ring_float32", "ring float32", "at the floor: another order of sums"),
        reduced("ring_bf16", "ring bf16", "at the floor"),
        reduced("ring_fp8", "ring fp8_1x128", "equivalent"),
        reduced("two_level_fp8", "two_level fp8_1x128", "equivalent"),
        reduced("in_network_fp8", "two_step fp8_1x128", "equivalent"),
        reduced("ring_logfmt8", "ring logfmt8", "equivalent"),
        reduced("ring_nvfp4", "ring nvfp4", "worse: the stress, 4.5 bits at each of 15 hops"),
    ),
    seed_block=15,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=1),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("BF16 in a ring costs nothing", "training_percent", "ring_bf16", expected=(-0.1, 0.1),
                    published=(-0.25, 0.25)),
        Expectation("nor does FP8", "training_percent", "ring_fp8", expected=(-0.1, 0.15)),
        Expectation("nor LogFMT-8", "training_percent", "ring_logfmt8", expected=(-0.1, 0.1),
                    published=(-0.1, 0.1)),
        Expectation("nor FP8 in the network", "training_percent", "in_network_fp8", expected=(-0.1, 0.1)),
        Expectation("four bits in a ring do", "training_percent", "ring_nvfp4", expected=(0.0, 1.0)),
    ),
    notes="Every rank has one sequence of the batch, and everything that a rank computes it computes alone. What the "
    "gradients themselves lose, up to 64 ranks, is in gradient_reduction.",
)  # fmt: skip
