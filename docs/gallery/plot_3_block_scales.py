"""
Block scales and outliers
=========================

One scale for a whole tensor serves its largest value. A few values far larger than the others, **outliers**, push the
others down to where the format has few numbers, or none.
"""

import numpy as np

import lowprec as lp

rng = np.random.default_rng(0)
x = rng.standard_normal((256, 1024), dtype=np.float32)
x[:, 7] *= 3000  # one channel, as trained models have them

# %%
# A *granularity* says how many values share a scale: "1x128" is a tile of 128 along a row, "128x128" a block, "128x1"
# a column of 128. What is lost is seen in the values that are not outliers:

usual = np.ones(1024, bool)
usual[7] = False
for granularity in ("tensor", "128x128", "128x1", "1x128"):
    q = lp.quantize(x, f"e4m3fn {granularity}")
    y = q.dequantize()
    error = f"{lp.sqnr(y[:, usual], x[:, usual]):5.1f} dB, {np.mean(y[:, usual] == 0):6.2%} are 0"
    print(f"{granularity:>8}: {error}, {q.bits_per_value:.2f} bits a value")

# %%
# Columns of their own keep the outliers to themselves; tiles along a row keep them to one tile of eight. FP8 reaches
# over 17 binades, so it bears a lot. Four bits do not:

for quantizer in ("mxfp4_floor", "nvfp4_te"):
    q = lp.quantize(x, quantizer)
    print(f"{quantizer:>11}: {lp.sqnr(q.dequantize()[:, usual], x[:, usual]):5.1f} dB, {q.bits_per_value:.2f} bits")

# %%
# Relative errors by magnitude: in one tile the small are as good as the tile's largest allows.

axes = lp.plot.errors(x, ["e4m3fn", "fp8_1x128", "mxfp8", "nvfp4"])

# %%
q
