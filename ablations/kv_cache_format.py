"""Error of MLA's latent cache in eight bits or fewer, by position in the context."""

from lowprec.study import Arm, ByPosition, Expectation, MeasurementStudy, sources

LATENT = "layers.*.attn.kv_norm"


def cached(name: str, codec: str, expected: str) -> Arm:
    """Return BF16 with the latent that is cached in a codec."""
    return Arm(name, change={"storage": {LATENT: codec}}, expected=expected)


ablation = MeasurementStudy(
    name="kv_cache_format",
    question="MLA's latent cache in E4M3, INT8, LogFMT-8 or 4 bits: what do predictions lose, and where?",
    measurement=ByPosition(),
    published="the cache is kept in BF16 (70 kB a token); FP8 with scales per 128 is what later kernels cache",
    source=f"{sources.ISCA}, section 2.1.2 and table 1; FlashMLA: latent in E4M3 1x128, rotated keys in BF16",
    arms=(
        Arm("bf16", role="reference"),
        Arm("bf16_again", role="repeat", expected="the same bits"),
        Arm("float32", recipe="float32", role="floor", expected="how far BF16 storage itself is from no rounding"),
        cached("e4m3", "fp8_1x128", "below 0.1 % of the loss, at every position alike"),
        cached("e4m3_pow2", "fp8_1x128_ue8m0", "a little more than E4M3"),
        cached("int8", "int8_1x128", "less than E4M3: a normalised latent has no outliers"),
        cached("logfmt8", "logfmt8", "between INT8 and E4M3"),
        cached("e5m2", "e5m2_1x128", "some four times E4M3's"),
        cached("nvfp4", "nvfp4", "above 0.3 %"),
        Arm("logfmt3", role="control", change={"storage": {LATENT: "logfmt3"}}, expected="far more: 3 bits"),
    ),
    expectations=(
        Expectation("E4M3 costs less than 0.1 % of the loss", "kl_percent", "e4m3", expected=(0.005, 0.1)),
        Expectation("and moves the loss by less than 0.05 %", "loss_percent", "e4m3", expected=(-0.05, 0.05),
                    published=(-0.25, 0.25)),
        Expectation("INT8 is better than E4M3", "kl_percent", "int8", "e4m3", expected=(0.1, 0.7)),
        Expectation("LogFMT-8 is better than E4M3", "kl_percent", "logfmt8", "e4m3", expected=(0.2, 0.8),
                    published=(0.0, 1.0)),
        Expectation("E5M2 is worse than E4M3", "kl_percent", "e5m2", "e4m3", expected=(2.0, 6.0)),
        Expectation("far into the context E4M3 costs no more than 0.15 %", "kl_percent", "e4m3", expected=(0.005, 0.15),
                    condition="256-511"),
    ),
    config={"sequence": 512, "batch": 4},
    notes="Contexts of 512 bytes, of weights trained on such. The latent is rounded as it is written, so that a token "
    "reads its own from the cache, too; rotated keys stay in BF16. The backward pass is not asked.",
)  # fmt: skip
