"""Which way the cost of low precision goes with parameters, with bytes trained on, and with the text."""

from lowprec.study import Arm, Cell, Expectation, Scaling, ScalingSetting, sources

RATES = {"nano": 2e-3, "pilot": 1.5e-3, "tiny": 1e-3}
LENGTHS = (300, 600, 1200)


def cells(config: str, corpus: str, lengths: tuple[int, ...] = LENGTHS) -> tuple[Cell, ...]:
    """Return a model's cells on one text."""
    return tuple(Cell(config, steps, corpus, branch_steps=40, learning_rate=RATES[config]) for steps in lengths)


ablation = Scaling(
    name="scaling",
    question="Do forward and training effect of low precision grow with parameters, with training, with another text?",
    published="FP8 stays below 0.25 % at 16B and 230B parameters, on trillions of tokens; FP4 loses more the longer it "
    "trains",
    source=f"{sources.DEEPSEEK_V3}, section B.1; {sources.NVFP4}",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("dsv3", recipe="dsv3", expected="both effects small everywhere", source=sources.DEEPSEEK_V3),
        Arm("mxfp8", recipe="mxfp8", expected="as dsv3", source=sources.MXFP8),
        Arm("nvfp4", recipe="nvfp4", expected="a forward effect that grows with training", source=sources.NVFP4),
    ),
    expectations=(
        Expectation("longer trained weights lose more to FP4's rounding", "forward_slope", "fp4_naive",
                    condition="bytes", expected=(0.05, 5.0)),
        Expectation("those of larger models too, or as much", "forward_slope", "fp4_naive", condition="parameters",
                    expected=(-0.3, 3.0)),
        Expectation("FP8's rounding costs little more", "forward_slope", "dsv3", condition="bytes",
                    expected=(-0.05, 0.2)),
        Expectation("nor does training in it with size", "training_slope", "dsv3", condition="parameters",
                    expected=(-0.2, 0.2), published=(-0.1, 0.1)),
        Expectation("what FP8 does to training is small at the centre", "training_percent", "dsv3",
                    expected=(-0.1, 0.1), published=(-0.25, 0.25)),
        Expectation("FP4 hurts training more than FP8 does", "training_percent", "fp4_naive", expected=(0.02, 2.0)),
    ),
    quick=ScalingSetting(
        (*cells("nano", "stdlib", (150, 300)), *cells("pilot", "stdlib", (150,))), checkpoints=2, seeds=1
    ),
    full=ScalingSetting(
        (
            *cells("nano", "stdlib"), *cells("nano", "bible"), *cells("pilot", "stdlib"), *cells("pilot", "bible"),
            *cells("tiny", "stdlib"), *cells("tiny", "bible", (600,)),
        ),
        checkpoints=4, seeds=2,
    ),
    seed_block=19,
    notes="One decade lies between the smallest and the largest product of parameters and bytes here, and eleven more "
    "from there to DeepSeek-V3: what counts is which way a line goes, and that its interval says so. Learning rates "
    "fall with size, as is usual. A line in logarithms is a choice.",
)  # fmt: skip
