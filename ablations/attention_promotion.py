"""Error of FP8 attention if the tensor core accumulates the output over all tiles, by the length of the context."""

import numpy as np

import lowprec as lp
from lowprec.study import Claims, ErrorArm, Expectation

ROWS, CHANNELS = 8, 128
#: Tiles of 128 keys after which P V leaves the tensor core; None: never.
PROMOTED = {"never": None, "64 tiles": 64, "4 tiles": 4, "every tile": 1}
LENGTHS = {"8k": 8192, "32k": 32768, "128k": 131072}


def lost(seeds: int) -> dict[tuple[str, str], float]:
    """Percent by which the output is too small along the exact one, for values of mean 1, and 0 at 8k keys."""
    from lowprec.attn.attention import softmax_attention  # compiles, and listing studies does not

    kernel = lp.attentions["fa3_fp8"].with_(key_tiles=((128, 128, 128, 128),))
    shares: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        for metric, keys, mean in (("lost_8k_mean_0", 8192, 0), *((f"lost_{n}", LENGTHS[n], 1) for n in LENGTHS)):
            rng = np.random.default_rng([seed, keys, mean])
            q, k, v = (rng.standard_normal((n, CHANNELS), dtype=np.float32) for n in (ROWS, keys, keys))
            q, k, v = (lp.round_to(x, "e4m3fn") for x in (q, k, v + np.float32(mean)))
            exact = softmax_attention(q, k, v)
            for arm, every in PROMOTED.items():
                out = lp.attention(q, k, v, kernel=kernel.with_(promote_every=every), out_format="float32").out
                gain = float((out * exact).sum() / (exact * exact).sum())
                shares.setdefault((metric, arm), []).append(100 * (1 - gain))
    return {key: float(np.mean(found)) for key, found in shares.items()}


ablation = Claims(
    name="attention_promotion",
    question="How much of its output does FP8 attention lose in a 14-bit sum, and how often must it be promoted?",
    published="at 128k keys, retrieval falls from 91.2 % to 13.0 % without promotion and is 85.6, 88 and 89 % with a "
    "float32 addition every 64 tiles, every 4 and every one",
    source="vllm-project/vllm 23813, vllm-project/flash-attention 104 and 122",
    arms=tuple(ErrorArm(name) for name in PROMOTED),
    values=lost,
    expectations=(
        Expectation("never promoted, a tenth is lost at 8k keys", "lost_8k", "never", expected=(7.0, 13.0)),
        Expectation("about a third at 32k", "lost_32k", "never", expected=(25.0, 36.0)),
        Expectation("more than half at 128k", "lost_128k", "never", expected=(50.0, 65.0)),
        Expectation("every 64 tiles bounds the loss by that of 8k keys", "lost_128k", "64 tiles",
                    expected=(7.0, 13.0)),
        Expectation("every 4 tiles, half a percent is lost", "lost_128k", "4 tiles", expected=(0.2, 0.7)),
        Expectation("every tile, a tenth of a percent: one tile's own truncation", "lost_128k", "every tile",
                    expected=(0.0, 0.2)),
        Expectation("with values of mean 0 the loss hides", "lost_8k_mean_0", "never", expected=(-0.5, 1.0)),
    ),
    notes="One head of 128 channels, normal queries, keys and values on E4M3's grid, P times 2^8 in E4M3, tiles of 128 "
    "keys from the last. Retrieval is a model's; here the size of one head's output is measured, which a gain below 1 "
    "makes too small in every head and layer. Ranges were written after a prototype had shown the numbers.",
)  # fmt: skip
