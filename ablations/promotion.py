"""How often FP22 sums have to be promoted to FP32, seen from a model's predictions and gradients."""

from lowprec.study import Arm, Expectation, GradientComparison, MeasurementStudy, sources


def every(length: int | None, expected: str) -> Arm:
    """Return DeepSeek-V3's recipe with another promotion interval."""
    return Arm(f"every_{length}" if length else "never", recipe="dsv3", change={"promote_every": length},
               expected=expected)  # fmt: skip


ablation = MeasurementStudy(
    name="promotion",
    question="What does each promotion interval of Hopper's 14-bit sums cost a model?",
    measurement=GradientComparison(),
    published="a maximum relative error of nearly 2 % at K = 4096; 128 is the shortest interval without overhead",
    source=f"{sources.DEEPSEEK_V3}, section 3.3.2",
    headline="gradient_error",
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("fp32", recipe="dsv3", change={"accumulator": "float32", "promote_every": None},
            expected="what quantization alone costs"),
        every(32, "as FP32"), every(64, "as FP32"), every(128, "as FP32"),
        every(None, "most, in weight gradients, whose sums run over all tokens (a what-if: float32 scales change "
              "within a sum, which no hardware does)"),
        Arm("pow2_128", recipe="dsv3_ue8m0", expected="more than 128: coarser scales"),
        Arm("pow2_never", recipe="dsv3_ue8m0_no_promotion",
            expected="as never beside pow2_128 (an instruction could add such scales to exponents, as Blackwell's do)"),
        Arm("tensor_128", recipe="dsv3_tensor_no_promotion", change={"promote_every": 128},
            expected="as 128: E4M3 has range to spare"),
        Arm("tensor_never", recipe="dsv3_tensor_no_promotion",
            expected="as never beside tensor_128 (what Hopper's tensor cores do when nothing is promoted)"),
        Arm("te", recipe="dsv3", change={"fprop": {"promote_every": None}},
            expected="as 128: TransformerEngine's default, fast accumulation in the forward pass alone",
            source=sources.TRANSFORMER_ENGINE),
    ),
    expectations=(
        Expectation("promotion every 128 costs nothing beside quantization", "gradient_error", "every_128", "fp32",
                    expected=(0.98, 1.02), published=(0.98, 1.02)),
        Expectation("without promotion gradients lose a little more", "gradient_error", "never", "fp32",
                    expected=(1.0, 1.1), published=(1.02, 10.0)),
        Expectation("so they do where hardware could do it: powers of two", "gradient_error", "pow2_never", "pow2_128",
                    expected=(1.0, 1.1), published=(1.02, 10.0)),
        Expectation("and one scale per tensor", "gradient_error", "tensor_never", "tensor_128", expected=(1.0, 1.1),
                    published=(1.02, 10.0)),
        Expectation("predictions hardly notice: K is at most 384", "kl", "never", "fp32", expected=(0.9, 1.1),
                    published=(1.1, 10.0)),
    ),
    notes="Sums of this model are short (K of 128 to 384, 2048 tokens in a weight gradient); `accumulation` has K up "
    "to 16384. A gradient's error in norm holds what changed routes do to it, a few per cent either way at random; the "
    "median token's is the finer measure. An interval longer than a tile's 128 values would leave its scale behind, so "
    "the next one is never.",
)  # fmt: skip
