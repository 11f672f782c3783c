"""Whether DeepSeek-V3's FP8 recipe, with Hopper's 14-bit accumulation, trains as well as BF16."""

from lowprec.study import Ablation, Arm, Expectation, Setting

ablation = Ablation(
    name="fp8_vs_bf16",
    question="Does DeepSeek-V3's FP8 recipe, with Hopper's 14-bit accumulation, train as well as BF16?",
    expected="The FP8 recipe stays within 0.25 % of BF16's loss; promotion makes no visible difference, since the "
    "longest sums of this model are short; FP4 without tricks is clearly worse.",
    source="DeepSeek-V3 technical report (arXiv:2412.19437), sections 3.3 and B.1; arXiv:2505.09343, section 2.4",
    notes="Cost on 2 cores: quick 2 minutes, full half an hour. Expectations were written before any run.",
    margin=0.0025,
    arms=(
        Arm("bf16", role="reference"),
        Arm("bf16_again", role="repeat", pairs=1, expected="the same bits"),
        Arm("perturb", role="floor", expected="the spread of a change that cannot matter"),
        Arm(
            "dsv3",
            recipe="dsv3",
            expected="equivalent: |r| < 0.25 %",
            source="arXiv:2412.19437, figure 10: below 0.25 % at 16B and 230B parameters",
        ),
        Arm(
            "dsv3_no_promotion",
            recipe="dsv3_no_promotion",
            expected="equivalent at this size; the report's 2 % error needs K of about 4096 (a what-if: its tiles' "
            "float32 scales change within a sum, which no hardware does)",
            source="arXiv:2412.19437, section 3.3.2",
        ),
        Arm(
            "tensor_no_promotion",
            recipe="dsv3_tensor_no_promotion",
            expected="equivalent at this size (with one scale per tensor Hopper can leave a sum in its registers)",
            source="arXiv:2412.19437, section 3.3.2",
        ),
        Arm(
            "fp4_naive",
            recipe="fp4_naive",
            role="control",
            expected="worse",
            source="arXiv:2509.25149: FP4 without stochastic rounding, Hadamard transforms and BF16 layers degrades",
        ),
    ),
    expectations=(
        Expectation(
            "FP8 trains weights as good as BF16's",
            "training_percent",
            "dsv3",
            expected=(-0.1, 0.15),
            published=(-0.25, 0.25),
        ),
        Expectation(
            "promotion buys training nothing that shows",
            "training_percent",
            "dsv3_no_promotion",
            minus="dsv3",
            expected=(-0.1, 0.1),
        ),
        Expectation(
            "nor where one scale spans the tensor", "training_percent", "tensor_no_promotion", expected=(-0.1, 0.15)
        ),
        Expectation("FP4 without tricks trains worse weights", "training_percent", "fp4_naive", expected=(0.1, 2.0)),
    ),
    seed_block=1,
    contrast_with="dsv3",
    # Small enough for a first verdict in minutes. The size is fixed: with one pair from each of four checkpoints no
    # look before the last could decide anything; partial numbers are shown without a verdict.
    quick=Setting(
        "nano",
        checkpoint_steps=60,
        branch_steps=24,
        checkpoints=4,
        seeds=1,
        evaluation_bytes=16_384,
        without="dsv3_no_promotion tensor_no_promotion",
    ),
    full=Setting(config="pilot", checkpoint_steps=800, branch_steps=200, checkpoints=4, seeds=3, learning_rate=1.5e-3),
)
