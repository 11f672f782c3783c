"""
Why did FP8 attention forget the needle?
========================================

**Because Hopper's tensor core keeps 14 significant bits of a sum of FP8 products, and FlashAttention-3 adds the output
of all keys in one such sum.** Each new product is aligned with a sum that grows with the context, its low bits are
dropped, and the output becomes too small: by more than half at 128k keys, if values have a mean. A layer that was
trained in higher precision then reads the wrong word. In vLLM (issue 23813), retrieval at 128k keys fell from 91.2 %
to 13.0 %; with a float32 sum outside of the tensor core it was 89.2 %. This page shows both effects in seconds, without
a GPU.
"""

import matplotlib.pyplot as plt
import numpy as np

import lowprec as lp
from lowprec.attn.attention import softmax_attention
from lowprec.attn.operands import quantize_operands
from lowprec.study import load
from lowprec.study.tensors.counts import Share

# %%
# One row of attention
# --------------------
#
# A kernel never has the whole row of scores. It takes a tile of keys at a time, from the last to the first, and keeps
# three things per query: the largest score so far, the sum of the probabilities, and the output. Where a tile raises
# the maximum, sum and output are multiplied by 2^(old - new). The probabilities P of a tile are at most 1; in FP8 they
# are multiplied by 2^8, so that small ones do not become zero, and rounded to E4M3. P V is a matrix product, and the
# output is its addend.

kernel = lp.attentions["fa3_fp8"]
print(kernel.key_tiles[2], kernel.values, f"P times 2^{kernel.p_offset} in {kernel.p_format}")

# %%
# The sum that does not fit
# -------------------------
#
# As the tiles pass, the output before its division grows with the number of keys: it is a sum of thousands of
# probabilities. Each new product is aligned with that sum, and bits below its 14th bit are dropped. The output is
# therefore too small, more so the longer the context. Values with a mean show it; values around zero hide it.

rng = np.random.default_rng(0)
rows, channels = 8, 128


def operands(keys, mean):
    """Return q, k, v of one head on the grid of E4M3."""
    q, k, v = (rng.standard_normal((n, channels), dtype=np.float32) for n in (rows, keys, keys))
    return [lp.round_to(x, "e4m3fn") for x in (q, k, v + np.float32(mean))]


def gain(out, exact):
    """Return the size of the output along the exact one, minus 1."""
    return float((out * exact).sum() / (exact * exact).sum()) - 1


lengths = (2048, 8192, 32768)
losses = {}
for promoted in (None, 64, 4, 1):
    for keys in lengths:
        q, k, v = operands(keys, mean=1.0)
        one = kernel.with_(promote_every=promoted, key_tiles=((128, 128, 128, 128),))
        out = lp.attention(q, k, v, kernel=one, out_format="float32").out
        losses[promoted, keys] = gain(out, softmax_attention(q, k, v))

for promoted in (None, 64, 4, 1):
    words = "never promoted" if promoted is None else f"every {promoted} tiles"
    print(f"{words:15s}", *(f"{losses[promoted, keys]:+7.1%}" for keys in lengths))

# %%
# *Promoted* means that P V leaves the tensor core after n tiles and is added to the output in float32, as vLLM's
# fork does after each tile (``lp.attentions["vllm_fa3_fp8"]``). It is the remedy that DeepSeek-V3 describes for matrix
# products, found again in attention.

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.set(xscale="log", xlabel="keys", ylabel="lost of the output, %", title="FP8 attention on Hopper, values of mean 1")
axes.minorticks_off()
for promoted, words in ((None, "never"), (64, "every 64 tiles"), (4, "every 4 tiles"), (1, "every tile")):
    line = axes.plot(lengths, [-100 * losses[promoted, keys] for keys in lengths], marker="o")[0]
    axes.annotate(
        words, (lengths[-1], -100 * losses[promoted, lengths[-1]]), (6, {1: -5, 4: 5}.get(promoted, 0)),
        textcoords="offset points", va="center", color=line.get_color(),
    )  # fmt: skip
axes.set_xticks(lengths, [f"{keys // 1024}k" for keys in lengths])
axes.set_xlim(lengths[0] * 0.9, lengths[-1] * 2.4)
axes.spines[["top", "right"]].set_visible(False)

# %%
# The needle
# ----------
#
# Does it matter? The study ``attention_needle`` plants 32 keys among up to 131,072 and gives one query for each. The
# value of a key is one of 256 words, plus a mean of its channel. A linear readout subtracts the mean of the values,
# which a layer that was trained in high precision knows, and takes the nearest word. It finds all needles in the output
# of float32 arithmetic, although a needle has 1 % of the probability. Here is one context of each length; bars are 90 %
# intervals.

study = load("attention_needle")
shares = {key: Share.of([(int(np.sum(found)), len(found))]) for key, found in study.trials(0).items()}
contexts = [name for name in study.points if "mean" not in name]
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.set(xlabel="keys", ylabel="needles found, %", title="One head, FP8 on Hopper: P V is promoted ...")
for i, arm in enumerate(arm.name for arm in study.arms):
    found = [shares[name, arm].estimate for name in contexts]
    value = np.array([one.value for one in found])
    bars = np.abs(np.array([one.ci90 for one in found]).T - value)
    axes.errorbar(np.arange(len(found)) + 0.04 * i, value, bars, marker="o", markersize=4, capsize=3, label=arm)
axes.set_xticks(range(len(contexts)), contexts)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

for name in study.points:
    print(f"{name:12s}", *(f"{arm.name} {shares[name, arm.name].estimate.value:.0f} %;" for arm in study.arms))

# %%
# ``lowprec ablate attention_needle`` counts 512 needles of 16 contexts. At 128k keys, the kernel that is never promoted
# finds 2.7 % [1.7, 4.2] of them, with a float32 addition every 64 tiles 96.7 % [94.8, 98.0], and every 4 tiles or every
# tile 100 % [99.4, 100.0], as float32 does (90 % intervals).

# %%
# Why tests did not see it
# ------------------------
#
# Test data are usually normal with mean zero. The same kernel, never promoted, on such values:

for mean in (0.0, 0.25, 1.0):
    q, k, v = operands(8192, mean)
    out = lp.attention(q, k, v, kernel="fa3_fp8", out_format="float32").out
    print(f"mean {mean:4.2f}: {gain(out, softmax_attention(q, k, v)):+.1%}")

# %%
# When the maximum lags
# ---------------------
#
# FlashAttention-4 saves work on Blackwell: it keeps an old maximum until a tile exceeds it by more than a threshold. P
# may then exceed 2^8, and E4M3 ends at 448. With a threshold of 4 octaves the largest probabilities, those that matter,
# saturate (flash-attention issues 2577 and 2694; FP8 has a threshold of 0 since). ``saturated`` counts them.

q, k, v = operands(8192, mean=0.0)
for threshold, offset in ((0.0, 8), (4.0, 8), (4.0, 4)):
    one = lp.attentions["fa4_fp8"].with_(rescale_threshold=threshold, p_offset=offset)
    got, exact = lp.attention(q, k, v, kernel=one, out_format="float32"), softmax_attention(q, k, v)
    error = np.linalg.norm(got.out - exact) / np.linalg.norm(exact)
    print(f"threshold {threshold:g}, P times 2^{offset}: error {error:.1%}, {got.saturated.sum()} of P saturated")

# %%
# How much is lost depends on the number of keys. A kernel starts at the last tile; where that tile has few keys, their
# maximum is low, all other tiles exceed it, and P saturates (issue 2577, one query of six heads as here):

q, k, v = (
    lp.round_to(rng.standard_normal((*n, channels), dtype=np.float32), "e4m3fn") for n in ((6, 1), (1, 700), (1, 700))
)
lengths = [
    n for tile in range(64, 640, 128) for n in (tile, tile + 62, tile + 64, *range(tile + 65, tile + 74), tile + 96)
]


def cosine(keys, threshold):
    """Return the cosine of the angle between the output and the exact one."""
    one, data = lp.attentions["fa4_fp8"].with_(rescale_threshold=threshold), (q, k[:, :keys], v[:, :keys])
    got, exact = lp.attention(*data, kernel=one).out.ravel(), softmax_attention(*data).ravel()
    return got @ exact / np.linalg.norm(got) / np.linalg.norm(exact)


figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.set(xlabel="keys", ylabel="cosine with the exact output", title="FP8 on Blackwell, tiles of 128 keys")
for threshold in (0.0, 4.0):
    axes.plot(lengths, [cosine(keys, threshold) for keys in lengths], label=f"threshold {threshold:g}")
axes.set_xticks(range(128, 641, 128))
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# E5M2 has a range that holds such P, and half the precision of E4M3. Saturation makes E4M3 the worse of both (issue
# 2716); with P times 2^4 it is the better one, as its precision lets expect.

data = [rng.standard_normal((1, 1, n, channels)) for n in (32, 2048, 2048)]
for name, offset in (("e4m3fn", 8), ("e4m3fn", 4), ("e5m2", 8)):
    fields = {"operands": lp.formats[name], "p_format": lp.formats[name], "p_offset": offset}
    one = lp.attentions["fa4_fp8"].with_(rescale_threshold=4.0, **fields)
    *operands_of_one, descale = quantize_operands(*data, one)
    got, exact = lp.attention(*operands_of_one, kernel=one, descale=descale).out, softmax_attention(*data)
    print(f"{name}, P times 2^{offset}: error {np.linalg.norm(got - exact) / np.linalg.norm(exact):.1%}")
