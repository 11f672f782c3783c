"""Whether a learning rate far too high makes coarse or stale scales of gradients diverge, where fine ones do not."""

from typing import Any

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def gradients(tensor: str) -> dict[str, Any]:
    """Return the changes to a recipe that quantize output gradients this way in both their products."""
    return {"dgrad": {"a": tensor}, "wgrad": {"a": tensor}}


ablation = Ablation(
    name="divergence",
    question="At eight times the learning rate, do output gradients in blocks, or scales of earlier steps, diverge?",
    expected="On the text `bible`: no run diverges that BF16 survives; scales of the step before lose most.",
    source=f"{sources.DEEPSEEK_V3}, appendix B.2: a 16B model diverges after about 300B tokens",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("tile", recipe="dsv3", expected="as BF16"),
        Arm("block", recipe="dsv3", change=gradients("e4m3fn 128x128"), expected="as tiles"),
        Arm("current", recipe="te_current", expected="as BF16"),
        Arm("delayed_1024", recipe="te_delayed", calibration=16, expected="as current scales"),
        Arm("delayed_1", recipe="te_delayed", calibration=16, expected="worse: amax moves",
            change={"x": "te_delayed amax_history1", "w": "te_delayed amax_history1",
                    "dy": "te_delayed e5m2 amax_history1"}),
    ),
    contrast_with="tile",
    expectations=(
        Expectation("no run with blocks diverges", "diverged", "block", expected=(0.0, 0.0), published=(0.5, 1.0)),
        Expectation("nor one with scales of the step before", "diverged", "delayed_1", expected=(0.0, 0.0)),
        Expectation("blocks train as tiles", "training_percent", "block", minus="tile", expected=(-0.2, 0.2)),
        Expectation("scales of the step before are worse than current ones", "training_percent", "delayed_1",
                    minus="current", expected=(0.0, 5.0)),
    ),
    seed_block=23,
    quick=Setting("nano", checkpoint_steps=60, branch_steps=30, checkpoints=4, seeds=1, learning_rate=1.6e-2),
    full=Setting("nano", checkpoint_steps=300, branch_steps=400, checkpoints=4, seeds=2, learning_rate=1.6e-2),
    notes="The dose is the learning rate of checkpoint and branch. Outliers that are planted and grow, depth and the "
    "precision of the rest are not varied.",
)  # fmt: skip
