"""Whether tokens that may go to few groups of experts, as to few nodes, cost the model anything."""

from lowprec.study import Ablation, Arm, Expectation, Setting, sources

ablation = Ablation(
    name="routing_groups",
    question="A token's 4 experts from 1, 2 or all 4 groups of 4: does node-limited routing cost anything?",
    expected="2 of 4 costs nothing that shows beside all 4; 1 of 4 costs a few tenths of a per cent at first",
    source=f"{sources.DEEPSEEK_V3}, section 2.1.2: at most 4 of 8 nodes; no loss of quality is reported",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("groups_1", config={"topk_groups": 1}, source=f"{sources.ISCA}, section 4.3",
            expected="worse: four experts that stand together are seldom the best four"),
        # All of them, which is one group of everything.
        Arm("groups_4", config={"expert_groups": 1, "topk_groups": 1}, source=f"{sources.ISCA}, section 4.3",
            expected="equivalent: no limit"),
    ),
    seed_block=18,
    quick=Setting("tiny", checkpoint_steps=100, branch_steps=20, checkpoints=4, seeds=1),
    full=Setting("tiny", checkpoint_steps=400, branch_steps=120, checkpoints=4, seeds=2),
    expectations=(
        Expectation("no limit is no better than 2 of 4 groups", "total_percent", "groups_4", expected=(-0.25, 0.25),
                    published=(-0.25, 0.25)),
        Expectation("1 of 4 is worse", "total_percent", "groups_1", expected=(0.05, 3.0)),
        Expectation("and loads its experts less evenly", "max_violation", "groups_1", "bf16", expected=(0.9, 3.0)),
    ),
    notes="All arms branch from checkpoints that were trained with 2 of 4 groups, so either other limit is a change "
    "that the branch has to learn. An arm is evaluated with its own routing: forward and training effect cannot be "
    "told apart here, and what is compared is the total.",
)  # fmt: skip
