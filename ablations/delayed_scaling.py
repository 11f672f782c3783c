"""Whether scales from earlier steps can replace those of the current values."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def history(steps: int) -> dict[str, str]:
    """Return TransformerEngine's delayed scaling with a history of the given length."""
    return {"x": f"te_delayed amax_history{steps}", "w": f"te_delayed amax_history{steps}",
            "dy": f"te_delayed e5m2 amax_history{steps}"}  # fmt: skip


ablation = Ablation(
    name="delayed_scaling",
    question="One scale per tensor: from its own amax, or from the largest amax of earlier steps?",
    expected="all equivalent: amax moves slowly here, and E4M3 has 17 octaves to spare for a stale scale",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.2, scales online; {sources.MEGATRON}, which advises current scaling",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("current", recipe="te_current", expected="equivalent", source=sources.TRANSFORMER_ENGINE),
        Arm("delayed_1024", recipe="te_delayed", calibration=16, expected="equivalent",
            source=sources.TRANSFORMER_ENGINE),
        Arm("delayed_16", recipe="te_delayed", change=history(16), calibration=16, expected="equivalent"),
        Arm("delayed_1", recipe="te_delayed", change=history(1), calibration=16,
            expected="equivalent, clipped now and then"),
        Arm("delayed_cold", recipe="te_delayed", expected="equivalent: one step with scales of 1 is soon forgotten"),
    ),
    seed_block=3,
    contrast_with="current",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("current scaling costs nothing that shows", "total_percent", "current", expected=(-0.25, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("nor does the longest history", "total_percent", "delayed_1024", expected=(-0.25, 0.25),
                    published=(0.25, 100.0)),
        Expectation("nor the shortest", "total_percent", "delayed_1", expected=(-0.25, 0.25), published=(0.25, 100.0)),
        Expectation("one step with scales of 1 is forgotten", "total_percent", "delayed_cold", expected=(-0.25, 0.25)),
        Expectation("no run diverges", "diverged", "delayed_1", expected=(0.0, 0.0)),
        Expectation("current scales train weights as good as BF16's", "training_percent", "current",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("the longest history trains as current scales do",
                    "training_percent", "delayed_1024", minus="current",
                    expected=(-0.1, 0.1)),
        Expectation("so does the shortest", "training_percent", "delayed_1", minus="current", expected=(-0.1, 0.1)),
        Expectation("so does one that starts cold", "training_percent", "delayed_cold", minus="current",
                    expected=(-0.1, 0.15)),
    ),
    notes="A BF16 checkpoint has no amax histories: 16 batches fill them before the first step, but for the cold arm, "
    "whose first step has scales of 1. Training from the initial weights, with a warm-up in which amax does move, is "
    "`--set checkpoint_steps=0 --set branch_steps=300`; the noise is then about 1 %, and only a divergence would show.",
)  # fmt: skip
