"""
An attention row from float32 to bits
=====================================

**A kernel computes softmax without the whole row: it takes a tile of keys at a time, keeps the largest score so far,
and corrects sum and output where a tile exceeds it.** This page computes one query with 32 keys as FlashAttention-3
does in FP8, with NumPy and one instruction of the tensor core, and arrives at the bits of ``lp.attention``. The reader
needs to know softmax only.
"""

import matplotlib.pyplot as plt
import numpy as np

import lowprec as lp

rng = np.random.default_rng(3)
keys, tile, channels, offset = 32, 8, 32, 8
q, k, v = (lp.round_to(rng.standard_normal((n, channels), dtype=np.float32), "e4m3fn") for n in (1, keys, keys))

# %%
# Softmax of a row
# ----------------
#
# Scores are products of the query with the keys, times 1/sqrt(D). Their exponentials, divided by the sum, are the
# probabilities P, and the output is the mean of the values with weights P. In float64:

scores = (q.astype(np.float64) @ k.T.astype(np.float64))[0] * channels**-0.5
p = np.exp(scores - scores.max())
exact = p @ v / p.sum()
print(exact[:4])

# %%
# Scores from the tensor core
# ---------------------------
#
# Hopper's tensor core multiplies FP8 exactly, and keeps 14 significant bits of the sum of 32 products.

instruction = {"accumulator": "hopper_fp8", "a_format": "e4m3fn", "b_format": "e4m3fn"}
q_codes, k_codes, v_codes = (lp.encode(x, "e4m3fn") for x in (q, k, v))
s = lp.mma(q_codes, k_codes, **instruction)[0]
print(f"largest difference from the exact scores: {np.abs(s * channels**-0.5 - scores).max():.1e}")

# %%
# Octaves instead of e
# --------------------
#
# A GPU has an instruction for 2^x. So the scale is multiplied by log2(e) once, and scores are then in octaves. Tiles
# run from the last key to the first. The maximum of the keys so far can only rise. Where it does, sum and output so far
# are multiplied by 2^(old - new).

scale = np.float32(np.float64(np.float32(channels**-0.5)) * np.log2(np.e))
starts = range(keys - tile, -1, -tile)
maxima = np.maximum.accumulate([s[start : start + tile].max() for start in starts])

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.set(xlabel="key (the kernel runs from right to left)", ylabel="score, octaves", title="The maximum so far")
axes.plot(s * scale, "o", label="score")
for start, largest in zip(starts, maxima, strict=True):
    axes.plot([start - 0.5, start + tile - 0.5], [largest * scale] * 2, color="C1", label=None if start else "maximum")
    axes.axvline(start - 0.5, color="0.85", zorder=0)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# One tile after the other
# ------------------------
#
# P is computed relative to the maximum so far, times 2^8. The smallest positive E4M3 number is 2^-9: without the
# factor, half of the range of P would become zero. The sum l takes P in float32, and the product with V takes P in
# E4M3. Four threads share the sum of a row: thread t adds keys 2t and 2t + 1 of every eight, with a fused multiply-
# add for the first one.


def fused(a, b, c):
    """Return a * b + c in float32, rounded once: the product of two float32 numbers is exact in float64."""
    return np.float32(np.float64(a) * b + c)


def power_of_two(x):
    """Return 2^x in float32, and zero below the smallest normal number."""
    found = np.float32(np.exp2(np.float64(x)))
    return np.where(found < np.float32(2.0**-126), np.float32(0), found)


def attend(s, threshold=0.0):
    """Return the output, P of each tile in float32 and in E4M3; the maximum is kept if it would rise by less."""
    largest, sums, out, every, rounded = np.float32(-np.inf), np.zeros(4, np.float32), None, [], []
    for start in starts:
        here = s[start : start + tile]
        new = max(largest, here.max())
        growth = np.float32((largest - new) * scale)
        factor = power_of_two(growth)
        if out is not None and threshold and growth >= -threshold:
            new, factor = largest, np.float32(1)
        largest, shift = new, fused(new, scale, -offset)
        p = power_of_two(fused(here, scale, -shift))
        codes = lp.encode(p, "e4m3fn", policy="ocp_sat")
        pairs = p.reshape(4, 2)
        sums = fused(sums, factor, pairs[:, 0]) + pairs[:, 1]
        before = None if out is None else out * factor
        out = lp.mma(codes[None], np.ascontiguousarray(v_codes[start : start + tile].T), before, **instruction)
        every.append(p)
        rounded.append(lp.decode(codes, "e4m3fn"))
    total = (sums[0] + sums[2]) + (sums[1] + sums[3])
    return out[0] * (np.float32(1) / total), *(np.concatenate(x[::-1]) for x in (every, rounded))


out, p, codes = attend(s)

# %%
# The same kernel in the catalogue, with tiles of eight keys, has these bits:

kernel = lp.attentions["fa3_fp8"].with_(key_tiles=((channels, tile, tile, tile),))
reference = lp.attention(q, k, v, kernel=kernel, out_format="float32").out[0]
print("bits of", *(f"{x:08x}" for x in reference.view(np.uint32)[:4]))
assert out.tobytes() == reference.tobytes()
print(f"relative error: {np.linalg.norm(out - exact) / np.linalg.norm(exact):.1%}")

# %%
# P in eight bits
# ---------------
#
# E4M3 has three bits after the leading one, so P is off by up to 6 %. Errors of many keys cancel in the mean, and
# saturation does not: if the maximum may lag by up to four octaves, as FlashAttention-4 allowed for a while, P exceeds
# 448, the largest number of E4M3. The sum l has all of P, and the output only a part.

_, late, clipped = attend(s, threshold=4.0)
figure, panels = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True, layout="constrained")
titles = "maximum so far", "maximum may lag by 4 octaves"
for axes, x, y, title in zip(panels, (p, late), (codes, clipped), titles, strict=True):
    axes.set(xlabel="key", title=title, yscale="log")
    axes.axhline(448, color="0.7", linestyle="--")
    axes.plot(x, "o", label="P in float32")
    axes.plot(np.where(y > 0, y, np.nan), "x", label="P in E4M3")
    axes.spines[["top", "right"]].set_visible(False)
panels[0].legend(frameon=False)

for threshold in (0.0, 4.0):
    error = np.linalg.norm(attend(s, threshold)[0] - exact) / np.linalg.norm(exact)
    print(f"threshold {threshold:g}: relative error {error:.1%}")

# %%
# In long rows, another effect is larger: the 14 bits of the sum in the tensor core. It is the subject of the tutorial
# "Why did FP8 attention forget the needle?".
