"""
Block scales and outliers
=========================

A scale for a whole tensor is determined by its largest value. If a few values, the **outliers**, are far larger than
the rest, the rest fall into a range where the format has few numbers or none.
"""

import numpy as np

import lowprec as lp

rng = np.random.default_rng(0)
x = rng.standard_normal((256, 1024), dtype=np.float32)
x[:, 7] *= 3000  # one channel, as trained models have them

# %%
# The *granularity* is the shape of the blocks that share a scale: "1x128" is a tile of 128 along a row, "128x128" a
# block, "128x1" a column of 128. The loss shows in the values that are not outliers:

usual = np.ones(1024, bool)
usual[7] = False
for granularity in ("tensor", "128x128", "128x1", "1x128"):
    q = lp.quantize(x, f"e4m3fn {granularity}")
    y = q.dequantize()
    error = f"{lp.sqnr(y[:, usual], x[:, usual]):5.1f} dB, {np.mean(y[:, usual] == 0):6.2%} are 0"
    print(f"{granularity:>8}: {error}, {q.bits_per_value:.2f} bits per value")

# %%
# With columns as blocks, outliers affect no other values; with tiles along a row, they affect one tile of eight. FP8
# spans 17 binades and tolerates this. Formats of four bits do not:

for quantizer in ("mxfp4_floor", "nvfp4_te"):
    q = lp.quantize(x, quantizer)
    print(f"{quantizer:>11}: {lp.sqnr(q.dequantize()[:, usual], x[:, usual]):5.1f} dB, {q.bits_per_value:.2f} bits")

# %%
# Relative errors by magnitude: the largest value of a tile limits the precision of the small ones.

axes = lp.plot.relative_errors(x, ["e4m3fn", "fp8_1x128", "mxfp8", "nvfp4"])

# %%
q
