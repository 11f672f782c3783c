"""Whether the cost of FP4 falls with size because of size, or because larger models train at smaller rates."""

from lowprec.study import Arm, Cell, Expectation, Scaling, ScalingSetting, sources


def cells(rate: float, corpus: str, *configs: str) -> tuple[Cell, ...]:
    """Return models of several sizes, all trained at one learning rate."""
    return tuple(Cell(config, 600, corpus, branch_steps=40, learning_rate=rate) for config in configs)


ablation = Scaling(
    name="fp4_rate",
    question="At one learning rate for all sizes, does what FP4 does to training still change with size?",
    expected="At one rate the training effect of FP4 does not fall with size; in `scaling`, whose rates fall with "
    "size, the rate is what changes it.",
    published="larger models lose less to FP4",
    source=f"{sources.NVFP4}; `scaling`: learning rates of 2e-3, 1.5e-3 and 1e-3",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("nvfp4", recipe="nvfp4", expected="a training effect that does not fall", source=sources.NVFP4),
    ),
    expectations=(
        Expectation("at one rate FP4's training effect does not fall with size", "training_slope", "fp4_naive",
                    condition="parameters", expected=(-0.1, 3.0), published=(-10.0, 0.0)),
        Expectation("nor does NVFP4's", "training_slope", "nvfp4", condition="parameters", expected=(-0.1, 3.0),
                    published=(-10.0, 0.0)),
    ),
    quick=ScalingSetting(cells(1e-3, "stdlib", "nano", "pilot"), checkpoints=2, seeds=1),
    full=ScalingSetting(cells(1e-3, "bible", "nano", "pilot", "tiny"), checkpoints=4, seeds=2),
    seed_block=28,
    notes="The other half of the comparison is `scaling`: its models of 600 steps on the same text, with rates that "
    "fall with size. A model of `nano` at 1e-3 is trained less far in 600 steps. "
    "Cost: quick 11 minutes of a core, full 1.4 hours, by the times of `scaling`.",
)  # fmt: skip
