"""Share of the outputs of decoding that change with the number of splits, the batch size and the pages of the cache."""

import math

import numpy as np

import lowprec as lp
from lowprec.study import Claims, ClaimSetting, ErrorArm, Expectation

HEADS, KEYS, CHANNELS, GROUP = 8, 8192, 128, 4
PROCESSORS = 132  # of an H100
KERNELS = ("flash2_splitkv", "fa3_bf16", "fa3_fp8", "vllm_fa3_fp8", "fa4_bf16", "fa4_fp8")
SPLITS, BATCHES = (2, 4, 16), (1, 4, 12, 64)


def splits_of(batch: int, key_heads: int, keys: int, tile: int) -> int:
    """Return the number of splits that FlashAttention-3 chooses for one query (hopper/heuristics.h)."""
    blocks, tiles = batch * key_heads, -(-keys // tile)
    if blocks >= 0.8 * PROCESSORS or tiles <= 4:
        return 1
    waves = [blocks * splits / PROCESSORS for splits in range(1, min(128, PROCESSORS, tiles) + 1)]
    shares = [each / math.ceil(each) for each in waves]
    return next(i for i, share in enumerate(shares, 1) if share >= 0.85 * max(shares))


def changed(seeds: int) -> dict[tuple[str, str], float]:
    """Percent of the outputs of one query whose bits differ from those of one split and contiguous keys."""
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        shapes = ((HEADS, 1), (HEADS // GROUP, KEYS), (HEADS // GROUP, KEYS))
        normal = [rng.standard_normal((*shape, CHANNELS), dtype=np.float32) for shape in shapes]
        for name in KERNELS:
            kernel = lp.attentions[name]
            q, k, v = (lp.round_to(x, kernel.operands) for x in normal)
            tile = next(row.keys for row in kernel.key_tiles if row.head_dim >= CHANNELS)
            cases = {f"{n} splits": {"splits": n} for n in SPLITS}
            if name in ("fa3_bf16", "fa3_fp8"):
                cases |= {f"batch {b}": {"splits": splits_of(b, HEADS // GROUP, KEYS, tile)} for b in BATCHES}
            if name != "flash2_splitkv":
                cases["pages of 16"] = {"page_size": 16}
            one = lp.attention(q, k, v, kernel=kernel).out
            for metric, options in cases.items():
                out = lp.attention(q, k, v, kernel=kernel, **options).out
                found.setdefault((metric, name), []).append(100 * float((out != one).mean()))
    return {key: float(np.mean(shares)) for key, shares in found.items()}


def expect(words: str, metric: str, arm: str, low: float, high: float) -> Expectation:
    """Return an expectation without a published range."""
    return Expectation(words, metric, arm, expected=(low, high))


ablation = Claims(
    name="attention_splits",
    question="Which share of a decoded token's attention changes with splits, batch size and pages of the cache?",
    published="the number of splits follows the batch and the GPU; outputs of another split are not bitwise the same",
    source="Dao-AILab/flash-attention, hopper/heuristics.h; vllm-project/vllm 51902",
    arms=tuple(ErrorArm(name) for name in KERNELS),
    values=changed,
    quick=ClaimSetting(1),
    full=ClaimSetting(8),
    expectations=(
        expect("two splits change some outputs in BF16", "2 splits", "fa3_bf16", 2.0, 40.0),
        expect("FlashAttention-2, too", "2 splits", "flash2_splitkv", 2.0, 40.0),
        expect("and FlashAttention-4", "2 splits", "fa4_bf16", 2.0, 40.0),
        expect("16 splits change more", "16 splits", "fa3_bf16", 2.0, 60.0),
        expect("in FP8, two splits change most outputs", "2 splits", "fa3_fp8", 50.0, 100.0),
        expect(
            "also if every tile is promoted: P is rounded for another maximum", "2 splits", "vllm_fa3_fp8", 30.0, 100.0
        ),
        expect("a batch of 64 fills the GPU: one split", "batch 64", "fa3_bf16", 0.0, 0.0),
        expect("alone in the batch, a token has other bits", "batch 1", "fa3_bf16", 2.0, 60.0),
        expect("a cache in pages changes them, too", "pages of 16", "fa3_bf16", 2.0, 40.0),
        expect("not in vLLM's kernel", "pages of 16", "vllm_fa3_fp8", 0.0, 0.0),
    ),
    notes="One query in 8 heads, 2 key heads of 128 channels and 8192 keys, normal numbers; outputs in BF16. "
    "Batches: equal sequences on an H100 of 132 processors, whose splits FlashAttention-3's heuristic chooses. "
    "Ranges were written before a run. Cost: quick 10 seconds of a core, full a minute.",
)
