"""Effect of a flipped bit on a forward pass in FP8, and its detection by a checksum of the product."""

from lowprec.study import Arm, CheckpointSize, Expectation, Faults, MeasurementStudy, sources

ablation = MeasurementStudy(
    name="silent_corruption",
    question="One flipped bit in an FP8 product or a weight: how often does it hurt, and does a checksum see it?",
    measurement=Faults(),
    published="silent errors degrade models and pass ECC; hardware should offer checksum-based validation",
    source=f"{sources.ISCA}, section 6.1",
    arms=(
        Arm("dsv3", recipe="dsv3", role="reference"),
        Arm("dsv3_again", recipe="dsv3", role="repeat", expected="the same bits"),
        Arm("bits25", recipe="dsv3", change={"accumulator": "blackwell_fp8"},
            expected="as many harmful flips; more of them detected, since sums of 25 bits explain less"),
    ),
    expectations=(
        Expectation("no product without a flip trips the checksum", "false_alarms", "dsv3", expected=(0.0, 0.0)),
        Expectation("nor with 25 bits", "false_alarms", "bits25", expected=(0.0, 0.0)),
        Expectation("most flips do no harm", "harmful", "dsv3", expected=(1.0, 15.0)),
        Expectation("the top bit of a scale does", "harmful", "dsv3", expected=(30.0, 100.0),
                    condition="scale of x, bit 30"),
        Expectation("and is always seen", "detected", "dsv3", expected=(99.0, 100.0), condition="scale of x, bit 30"),
        Expectation("the top bit of a master weight does, too", "harmful", "dsv3", expected=(20.0, 100.0),
                    condition="master weight, bit 30"),
        Expectation("no checksum of a product sees that", "detected", "dsv3", expected=(0.0, 0.0),
                    condition="master weight, bit 30"),
        Expectation("a low bit of a sum is nothing", "harmful", "dsv3", expected=(0.0, 0.0),
                    condition="float32 sum, bit 10"),
        Expectation("the top bit of an FP22 register makes sums 0, as most are above 2", "harmful", "dsv3",
                    expected=(0.0, 30.0), condition="FP22 register, bit 30"),
        Expectation("a 25-bit accumulator lets more be seen", "detected", "bits25", "dsv3", expected=(1.1, 3.0)),
    ),
    full=CheckpointSize("pilot", checkpoint_steps=400, checkpoints=4, seeds=2),
    notes="Flips are transient: one product of one layer has the wrong operand or sum, but a struck master weight "
    "stays in all three multiplications. The checksum sums 128 rows, or columns, of a product and trips where they are "
    "off by more than rounding could take them, however the operands lie: a bound, not an estimate.",
)  # fmt: skip
