"""Whether higher precision for the last part of training makes up for 4 bits before."""

from lowprec.study import Ablation, Arm, Expectation, PrecisionSwitch, Setting, sources

PLAIN = {"a": "bfloat16", "b": "bfloat16", "accumulator": "float32", "promote_every": None}
FORWARD_IN_BF16 = {"fprop": PLAIN, "wgrad_input": "high_precision"}
BACKWARD_IN_BF16 = {"dgrad": PLAIN, "wgrad": PLAIN, "wgrad_input": "high_precision"}
SHARE = 0.18

ablation = Ablation(
    name="fp4_tail",
    question="4 bits, then BF16 for the last 18 % of the steps, in both passes or one: how much of the gap closes?",
    expected="the forward pass alone closes nearly all that both close, the backward pass alone next to nothing",
    source=f"{sources.NVFP4}, on switching precision: 1.5 % becomes 0.5 % by the forward pass alone",
    arms=(
        *sources.BRANCH_ARMS,
        Arm("mxfp4", recipe="mxfp4_rceil", expected="worse", source=sources.NVFP4),
        Arm("mxfp4_bf16", recipe="mxfp4_rceil", tail=PrecisionSwitch(SHARE), expected="a third of mxfp4's gap or less"),
        Arm("mxfp4_forward", recipe="mxfp4_rceil", tail=PrecisionSwitch(SHARE, "mxfp4_rceil", FORWARD_IN_BF16),
            expected="as mxfp4_bf16"),
        Arm("mxfp4_backward", recipe="mxfp4_rceil", tail=PrecisionSwitch(SHARE, "mxfp4_rceil", BACKWARD_IN_BF16),
            expected="as mxfp4"),
        Arm("nvfp4", recipe="nvfp4", expected="worse, by less than mxfp4", source=sources.NVFP4),
        Arm("nvfp4_bf16", recipe="nvfp4", tail=PrecisionSwitch(SHARE), expected="near the margin",
            source=sources.NVFP4),
    ),
    seed_block=4,
    contrast_with="mxfp4",
    quick=Setting("nano", checkpoint_steps=300, branch_steps=30, checkpoints=4, seeds=2),
    full=Setting("pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=3, learning_rate=1.5e-3),
    expectations=(
        Expectation("BF16 at the end closes most of the gap", "total_percent", "mxfp4_bf16", "mxfp4",
                    expected=(-0.2, 0.5), published=(0.0, 0.5)),
        Expectation("the forward pass alone does, too", "total_percent", "mxfp4_forward", "mxfp4",
                    expected=(-0.2, 0.6), published=(0.0, 0.5)),
        Expectation("the backward pass alone does not", "total_percent", "mxfp4_backward", "mxfp4",
                    expected=(0.7, 1.1), published=(0.8, 1.1)),
        Expectation("half of it is the evaluation alone", "training_percent", "mxfp4", "mxfp4_bf16",
                    expected=(1.0, 5.0)),
    ),
    notes="The published run was NVFP4's; MXFP4, with the larger gap, is the stress mode. Losses are those in the "
    "precision in which an arm ends; what evaluating mxfp4's weights in BF16 would bring is in the column beside.",
)  # fmt: skip
