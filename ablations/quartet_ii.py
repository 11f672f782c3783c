"""MS-EDEN compared with stochastic rounding: the same forward pass, and three roundings of backward operands."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

QUARTET = "Quartet II (arXiv:2601.22813)"


def backward(words: str) -> dict[str, object]:
    """Return all four operands of Dgrad and Wgrad in the same words."""
    return {"dgrad": {"a": words, "b": words}, "wgrad": {"a": words, "b": words}}


PLAIN = {"a": "bfloat16", "b": "bfloat16", "accumulator": "float32"}

ablation = Ablation(
    name="quartet_ii",
    question="NVFP4 backward: MS-EDEN's scales that make up for rounding to nearest, or stochastic rounding?",
    expected="MS-EDEN between stochastic rounding and a BF16 backward pass; in so short a run the three lie close",
    source=f"{QUARTET}: more than twice the squared error of stochastic rounding is gone, and both are unbiased",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("quartet2", recipe="quartet2", expected="the best of the unbiased", source=QUARTET),
        Arm("stochastic", recipe="quartet2", change=backward("nvfp4_te stochastic resample_signs hadamard128"),
            expected="a little worse than quartet2: twice the squared error of gradients", source=QUARTET),
        Arm("nearest", recipe="quartet2", change=backward("nvfp4_te resample_signs hadamard128"),
            expected="as quartet2 in so short a run: the bias is 0.3 % of a gradient's length"),
        Arm("forward_only", recipe="quartet2", change={"dgrad": PLAIN, "wgrad": PLAIN},
            expected="what the forward pass costs alone"),
        Arm("nvfp4", recipe="nvfp4", expected="NVIDIA's recipe, with its last block in BF16", source=sources.NVFP4),
    ),
    seed_block=20,
    contrast_with="quartet2",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=120, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    expectations=(
        Expectation("MS-EDEN trains no worse weights than stochastic rounding",
                    "training_percent", "quartet2", minus="stochastic",
                    expected=(-0.3, 0.03), published=(-1e3, 0.0)),
        Expectation("stochastic rounding backward costs something",
                    "training_percent", "stochastic", minus="forward_only",
                    expected=(0.0, 0.5)),
        Expectation("MS-EDEN backward costs less than the margin",
                    "training_percent", "quartet2", minus="forward_only",
                    expected=(-0.05, 0.25)),
        Expectation("rounding to nearest backward is as good in so short a run",
                    "training_percent", "nearest", minus="quartet2",
                    expected=(-0.1, 0.15)),
        Expectation("four bits forward are outside the margin", "total_percent", "quartet2", expected=(0.25, 1.5)),
    ),
    notes="All arms but nvfp4 have the same forward pass in every block, and requantize what it multiplied. Signs of "
    "the transform are drawn anew in every step. Stochastic rounding has no room in its scales here; TetraJet-v2 has.",
)  # fmt: skip
