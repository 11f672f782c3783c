"""Share of planted keys that one attention head finds, by the length of the context and the accumulator of P V."""

import numpy as np

import lowprec as lp
from lowprec.study import ClaimSetting, CountStudy, ErrorArm, Expectation

CHANNELS, NEEDLES, WORDS = 128, 32, 256
SPREAD = np.float32(0.65)  # deviation of the scores
#: Tiles of 128 keys after which P V leaves the tensor core; None: never.
PROMOTED = {"never": None, "64 tiles": 64, "4 tiles": 4, "every tile": 1}
#: Number of keys, and the standard deviation of the mean of a channel of the values.
POINTS = {
    "2k": (2048, 0.4), "8k": (8192, 0.4), "32k": (32768, 0.4), "128k": (131072, 0.4), "128k, mean 0": (131072, 0.0),
}  # fmt: skip


def needles(seed: int) -> dict[tuple[str, str], np.ndarray]:
    """Return which of the needles of one context are found, by (number of keys, arm)."""
    found = {}
    kernel = lp.attentions["fa3_fp8"].with_(key_tiles=((CHANNELS, 128, 128, 128),))
    for point, (keys, mean) in POINTS.items():
        rng = np.random.default_rng([seed, keys, round(10 * mean)])
        words = rng.choice(np.float32([-1, 1]), (WORDS, CHANNELS))
        means = np.float32(mean) * rng.standard_normal(CHANNELS, dtype=np.float32)
        k, word = rng.standard_normal((keys, CHANNELS), dtype=np.float32), rng.integers(0, WORDS, keys)
        places = rng.choice(keys, NEEDLES, replace=False)
        q = k[places] * (SPREAD * np.sqrt(np.float32(CHANNELS)) / np.linalg.norm(k[places], axis=1, keepdims=True))
        q, k, v = (lp.round_to(x, "e4m3fn") for x in (q, k, words[word] + means))
        background = v.mean(0, dtype=np.float64).astype(np.float32)  # a readout that knows the mean of the values

        def right(out: np.ndarray) -> np.ndarray:
            return ((out - background) @ words.T).argmax(1) == word[places]  # noqa: B023

        p = np.exp(q @ k.T / np.float32(np.sqrt(CHANNELS)))
        found[point, "float32"] = right(p @ v / p.sum(1, keepdims=True))
        for arm, every in PROMOTED.items():
            out = lp.attention(q, k, v, kernel=kernel.with_(promote_every=every), out_format="float32").out
            found[point, arm] = right(out)
    return found


def expect(words: str, arm: str, point: str, low: float, high: float, minus: str = "") -> Expectation:
    """Return the expectation of a share of needles found."""
    return Expectation(words, "success_percent", arm, condition=point, minus=minus, expected=(low, high))


ablation = CountStudy(
    name="attention_needle",
    question="Which share of planted keys does FP8 attention find, and how often must its sum be promoted?",
    published="at 128k keys, retrieval falls from 91.2 % to 13.0 % without promotion and is 85.6, 88 and 89 % with a "
    "float32 addition every 64 tiles, every 4 and every one",
    source="vllm-project/vllm 23813, vllm-project/flash-attention 104 and 122",
    arms=(ErrorArm("float32", "float32"), *(ErrorArm(name, name) for name in PROMOTED)),
    trials=needles,
    points=tuple(POINTS),
    axis="keys",
    success="needles found",
    control="float32",
    quick=ClaimSetting(2),
    full=ClaimSetting(16),
    expectations=(
        expect("at 2k keys all find the needle", "never", "2k", 97, 100),
        expect("at 32k, never promoted, some are lost", "never", "32k", 65, 99),
        expect("at 128k, nearly all", "never", "128k", 0, 10),
        expect("every 64 tiles, most are found at 128k", "64 tiles", "128k", 60, 98),
        expect("far more than never", "64 tiles", "128k", 55, 100, minus="never"),
        expect("but fewer than every tile", "64 tiles", "128k", -40, -2, minus="every tile"),
        expect("every 4 tiles, nearly all are found", "4 tiles", "128k", 97, 100),
        expect("every tile, all are found", "every tile", "128k", 97, 100),
        expect("without a mean, nothing is lost", "never", "128k, mean 0", 97, 100),
    ),
    notes="One head of 128 channels; keys are normal, a query is a key of norm 0.65 sqrt(128), and the value of a "
    "key is one of 256 words of +1 and -1 plus a mean of its channel (normal, deviation 0.4). A linear readout "
    "subtracts the mean of the values, as a layer trained in high precision would, and takes the word with the "
    "largest product. At 128k keys a needle has 1 % of the probability. Operands and P are in E4M3; float32 has the "
    "same operands. The 32 needles of a context share keys and values: intervals allow for it by the dispersion "
    "between contexts, except where all or none are found. Ranges were written after a prototype with other seeds. "
    "Cost: quick 20 seconds of a core, full 3 minutes.",
)
