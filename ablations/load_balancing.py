"""Means of balancing the load of experts, and their cost."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="load_balancing",
    question="Experts balanced by the bias on their scores, by an auxiliary loss, or not at all?",
    expected="without balancing the busiest expert has several times the mean load; losses cannot be told apart",
    source=f"{sources.DEEPSEEK_V3}, section 4.5.3: 2.253 with the bias, 2.258 with the loss per sequence, at 1B",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("bias_alone", config={"balance_alpha": 0.0}, expected="as the reference, which has a loss of 0.0001 too"),
        Arm("loss_per_sequence", config={"bias_update_speed": 0.0, "balance_alpha": 0.01},
            expected="balanced; not resolved", source=sources.DEEPSEEK_V3),
        Arm("weak_loss", config={"bias_update_speed": 0.0}, expected="hardly balanced: 0.0001 alone is too weak"),
        Arm("none", config={"bias_update_speed": 0.0, "balance_alpha": 0.0}, expected="unbalanced",
            source=sources.DEEPSEEK_V3),
    ),
    seed_block=6,
    quick=Setting("nano", checkpoint_steps=0, branch_steps=300, checkpoints=4, seeds=1),
    full=Setting("pilot", checkpoint_steps=0, branch_steps=1000, checkpoints=6, seeds=1),
    expectations=(
        Expectation("nothing done leaves experts unbalanced", "max_violation", "none", "bf16",
                    expected=(1.3, 20.0), published=(1.3, 100.0)),
        Expectation("the bias alone balances as well", "max_violation", "bias_alone", "bf16", expected=(0.7, 1.4),
                    published=(0.7, 1.4)),
        Expectation("a loss per sequence balances", "max_violation", "loss_per_sequence", "none",
                    expected=(0.05, 0.8), published=(0.0, 0.8)),
        Expectation("and costs loss", "total_percent", "loss_per_sequence", expected=(-1.5, 1.5),
                    published=(0.1, 0.4)),
    ),
    notes="From scratch the spread of a pair is about 1 %: the published 0.2 % would take over a hundred pairs, so "
    "balance is what this study resolves, by the largest load over the mean, minus 1 (MaxVio).",
)  # fmt: skip
