"""Effect on a training of injected errors as large and as biased as those of long 14-bit sums."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def injected(name: str, expected: str, **gemms: str) -> Arm:
    """Return BF16 training with errors in some products."""
    return Arm(name, recipe="bf16", expected=expected,
               change={gemm: {"injected_error": error} for gemm, error in gemms.items()})  # fmt: skip


def everywhere(name: str, error: str, expected: str) -> Arm:
    """Return BF16 training with errors in all products of its linear layers."""
    return injected(name, expected, fprop=error, dgrad=error, wgrad=error)


ablation = Ablation(
    name="injected",
    question="What do errors as large and as biased as those of long 14-bit sums do to a training?",
    expected="What the longest sums of weight gradients lose cannot be seen, nor what K = 16384 would lose in all "
    "products; ten times as much can. Adam forgets a bias of gradients, and norms most of one of activations: it is "
    "noise that hurts.",
    source=f"sizes: `replay` on one checkpoint of 200 steps; {sources.DEEPSEEK_V3}, section 3.3.2: 2 % at K = 4096",
    arms=(
        *sources.BRANCH_ARMS,
        injected("long_wgrad", "as BF16: what FP22 costs Wgrad over 64k tokens", wgrad="gain=0.009 noise=0.043"),
        injected("far", "as BF16: what FP22 would cost at K = 16384", fprop="gain=-0.032 noise=0.023",
                 dgrad="gain=-0.016 noise=0.017", wgrad="gain=0.009 noise=0.043"),
        everywhere("bias_10", "gain=-0.3", "hardly worse: ten times that bias"),
        everywhere("noise_10", "noise=0.3", "worse: ten times that noise"),
    ),
    expectations=(
        Expectation("64k tokens in 14 bits train as BF16", "training_percent", "long_wgrad", expected=(-0.1, 0.1)),
        Expectation("so would K = 16384", "training_percent", "far", expected=(-0.1, 0.15), published=(0.0, 100.0)),
        Expectation("ten times the noise is seen", "training_percent", "noise_10", expected=(0.15, 5.0)),
        Expectation("it is noise that hurts, not bias", "training_percent", "bias_10", over="noise_10",
                    expected=(-0.2, 0.7)),
    ),
    seed_block=14,
    quick=Setting("nano", checkpoint_steps=300, branch_steps=60, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=2, learning_rate=1.5e-3),
    notes="Every layer and step has errors of one relative size, drawn anew; those of real sums grow with coherence "
    "and come again with the same operands. Cost: quick half an hour of a core, full about three times that.",
)  # fmt: skip
