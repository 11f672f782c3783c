"""Whether training feels output gradients that share scales across tokens."""

from typing import Any

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def gradients(tensor: str, **machine: Any) -> dict[str, Any]:
    """Return the changes to a recipe that quantize output gradients this way in all their products."""
    return {"dgrad": {"a": tensor, **machine}, "wgrad": {"a": tensor, **machine}}


FP32: dict[str, Any] = {"accumulator": "float32", "promote_every": None}  # Hopper does not multiply 4 bits


ablation = Ablation(
    name="blockwise_dgrad_training",
    question="Output gradients in 128 x 128 blocks: does the divergence of a 16B model show in a branch?",
    expected="no: E4M3 spans more than gradients of neighbouring tokens differ; with 4 bits blocks hurt",
    source=f"{sources.DEEPSEEK_V3}, appendix B.2: a 16B model diverges after about 300B tokens",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("tile", recipe="dsv3", expected="equivalent", source=sources.DEEPSEEK_V3),
        Arm("block", recipe="dsv3", change=gradients("e4m3fn 128x128"), expected="equivalent, unlike the 16B model",
            source=sources.DEEPSEEK_V3),
        Arm("fp4_tile", recipe="dsv3", change=gradients("e2m1fn 1x128", **FP32),
            expected="worse: 4 bits, the stress mode"),
        Arm("fp4_block", recipe="dsv3", change=gradients("e2m1fn 128x128", **FP32), expected="worse than fp4_tile"),
    ),
    seed_block=2,
    contrast_with="tile",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("tiles cost nothing that shows", "total_percent", "tile", expected=(-0.25, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("neither do blocks", "total_percent", "block", expected=(-0.25, 0.25), published=(0.25, 100.0)),
        Expectation("no run diverges", "diverged", "block", expected=(0.0, 0.0), published=(0.5, 1.0)),
        Expectation("with 4 bits blocks are worse", "total_percent", "fp4_block", "fp4_tile", expected=(1.1, 20.0),
                    published=(1.1, 1e3)),
        Expectation("tiles train weights as good as BF16's", "training_percent", "tile",
                    expected=(-0.1, 0.15), published=(-0.25, 0.25)),
        Expectation("blocks train as tiles do", "training_percent", "block", minus="tile", expected=(-0.1, 0.1)),
        Expectation("with 4 bits blocks train worse than tiles", "training_percent", "fp4_block", minus="fp4_tile",
                    expected=(0.05, 2.0)),
    ),
    notes="The divergence took 300B tokens. What becomes of single tokens' gradients is in the study blockwise_dgrad, "
    "with losses of tokens weighted unevenly as its stress.",
)  # fmt: skip
