"""Whether an error that comes again every step harms training more than fresh noise of its size."""

from typing import Any

from lowprec.study import Ablation, Arm, Expectation, Setting, sources


def everywhere(error: str) -> dict[str, Any]:
    """Return the change to a recipe that injects an error into all products of its linear layers."""
    return {gemm: {"injected_error": error} for gemm in ("fprop", "dgrad", "wgrad")}


ablation = Ablation(
    name="frozen_noise",
    question="Does an error with one pattern in all steps harm training more than fresh noise of the same size?",
    expected="Frozen noise does more to weight gradients, where it is a bias that fresh noise averages away.",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.2: errors of 14-bit sums, which operands determine, harm accuracy",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("fresh", recipe="bf16", change=everywhere("noise=0.1"), expected="a little worse"),
        Arm("frozen", recipe="bf16", change=everywhere("noise=0.1 frozen"), expected="worse than fresh"),
        Arm("fresh_wgrad", recipe="bf16", change={"wgrad": {"injected_error": "noise=0.1"}}, expected="as BF16"),
        Arm("frozen_wgrad", recipe="bf16", change={"wgrad": {"injected_error": "noise=0.1 frozen"}},
            expected="worse than fresh"),
    ),
    expectations=(
        Expectation("frozen noise is worse", "training_percent", "frozen", minus="fresh", expected=(0.0, 5.0)),
        Expectation("so it is in weight gradients alone", "training_percent", "frozen_wgrad", minus="fresh_wgrad",
                    expected=(0.0, 5.0)),
        Expectation("frozen noise harms training", "training_percent", "frozen", expected=(0.0, 10.0),
                    published=(0.0, 100.0)),
        Expectation("fresh noise there does nothing", "training_percent", "fresh_wgrad", expected=(-0.1, 0.1)),
    ),
    seed_block=26,
    contrast_with="fresh",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=60, checkpoints=4, seeds=1),
    full=Setting("nano", checkpoint_steps=300, branch_steps=400, checkpoints=4, seeds=2),
    notes="Frozen noise follows the place of an output, not its operands: the errors of real sums lie between the two. "
    "It scales with the root mean square of the product. Other batches have other products at the same place. "
    "Cost: quick 22 minutes of a core, full 2.4 hours.",
)  # fmt: skip
