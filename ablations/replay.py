"""K and coherence at which a 14-bit sum matters, sufficient fraction bits, and the benefit of promotion."""

from lowprec.study import Expectation, GemmArm, Replay, ReplaySetting, sources


def bits(count: int) -> GemmArm:
    """Return sums that never leave the tensor core, with another number of fraction bits."""
    output = "float32" if count > 13 else "fp22"
    change = {"fraction_bits": count, "output_format": output}
    expected = "every bit halves the error, until FP32's registers end"
    return GemmArm(f"bits_{count}", f"{count} bits", "hopper_fp8", expected=expected, change=change)


def every(length: int) -> GemmArm:
    """Return Hopper's sums promoted to FP32 at an interval."""
    expected = "nothing beside quantization" if length <= 128 else "a little"
    return GemmArm(f"fp22_{length}", f"FP22, every {length}", "hopper_fp8", promote_every=length, expected=expected)


ablation = Replay(
    name="replay",
    question="At which K and coherence does a 14-bit sum matter, how many bits suffice, what does promotion buy?",
    published="a maximum relative error of nearly 2 % at K = 4096; promotion every 128 mends it; 34 bits would be "
    "needed to add 32 products exactly",
    source=f"{sources.DEEPSEEK_V3}, sections 3.3.2 and 3.5.2",
    arms=(
        GemmArm("fp32", "FP32", "float32", role="reference", expected="nothing beside quantization"),
        GemmArm("fp22", "FP22, never promoted", "hopper_fp8", role="control",
                  expected="nothing at the K of Fprop here, much of quantization's error over 64k tokens"),
        *(every(length) for length in (32, 64, 128, 256, 512)),
        GemmArm("tiles_128", "FP22 in tiles, every 128", "hopper_fp8", promote_every=128, blocks="1x128",
                  expected="DeepSeek-V3's way: nothing beside quantization"),
        GemmArm("tiles", "FP22 in tiles, never (no hardware)", "hopper_fp8", blocks="1x128",
                  expected="as with a scale per tensor, or a little worse"),
        *(bits(count) for count in range(7, 26) if count != 13),
    ),
    expectations=(
        Expectation("in the Fprop of this model 14 bits are enough", "over_quantization", "fp22", condition="fprop",
                    expected=(0.002, 0.05)),
        Expectation("over 64k tokens they are not", "over_quantization", "fp22", condition="wgrad_64k",
                    expected=(0.15, 3.0), published=(0.15, 100.0)),
        Expectation("nor in an Fprop with K = 16384", "over_quantization", "fp22", condition="fprop_at_16k",
                    expected=(0.1, 3.0), published=(0.1, 100.0)),
        Expectation("sums over 64k tokens come out short", "bias_percent", "fp22", condition="wgrad_64k",
                    expected=(-3.0, -0.05)),
        Expectation("promotion every 128 leaves nothing to see", "over_quantization", "fp22_128", condition="wgrad_64k",
                    expected=(0.0, 0.05), published=(0.0, 0.1)),
        Expectation("every 512 costs a few times as much", "over_quantization", "fp22_512", over="fp22_128",
                    condition="wgrad_64k", expected=(1.2, 6.0)),
        Expectation("17 bits need no promotion", "over_quantization", "bits_17", condition="wgrad_64k",
                    expected=(0.0, 0.1), published=(0.0, 0.1)),
    ),
    quick=ReplaySetting(),
    full=ReplaySetting("pilot", checkpoint_steps=800, checkpoints=4, seeds=2, tokens=65536, rows=256, columns=64,
                       learning_rate=1.5e-3),
    notes="Ranges are informed by prototypes with normal, outlying and positive data. The operands are those of a "
    "small model after a short training: coherence may grow with both. What extends them to K = 16384 are copies of "
    "themselves, whose quantization errors are copies, too. Cost: quick 2 minutes of a core, full half an hour and "
    "ten minutes for the checkpoints.",
)  # fmt: skip
