"""
The ingredients of NVFP4
========================

**NVFP4** stores numbers in four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Four ingredients make this
usable: an E4M3 scale for every 16 values, a float32 scale for the tensor, a Hadamard transform that spreads outliers,
and stochastic rounding of gradients.
"""

import numpy as np

import lowprec as lp

axes = lp.plot.format_values("e2m1fn", "ue4m3")

# %%
# The scales first, on values with a few outliers. MXFP4 has one scale per 32 values, a power of two; NVFP4 has one
# per 16 values, with mantissa bits.

rng = np.random.default_rng(0)
x = (rng.standard_normal((256, 1024)) * np.exp2(6 * (rng.random((256, 1024)) < 0.002))).astype(np.float32)
for quantizer in ("mxfp4_floor", "nvfp4_te"):
    q = lp.quantize(x, quantizer)
    print(f"{quantizer:>11}: {lp.sqnr(q.dequantize(), x):.2f} dB with {q.bits_per_value:.2f} bits")

# %%
# The Hadamard transform rotates groups of 16 values: it spreads an outlier over all 16. Both operands of a product are
# rotated, so that the product does not change.


def peak(values: np.ndarray) -> np.ndarray:
    """Return how far the largest of 16 values exceeds their root mean square."""
    tiles = values.reshape(-1, 16)
    return np.abs(tiles).max(axis=1) / np.sqrt((tiles**2).mean(axis=1))


outliers = peak(x) > 3.5
for name, values in (("original", x), ("rotated", lp.hadamard(x, 16))):
    print(f"{name:>9}: the largest of 16 is {peak(values)[outliers].mean():.2f} times their root mean square")

# %%
# Stochastic rounding is unbiased, which matters if small gradients are summed over many steps. In steps of 0.5,
# rounding 0.1 to nearest always gives 0; stochastic rounding gives 0.5 one time in five.

g = np.full(100_000, 0.1, np.float32)
print("nearest:   ", lp.round_to(g, "e2m1fn").mean())
print("stochastic:", lp.round_to(g, "e2m1fn", rounding="stochastic", seed=1).mean().round(4))

# %%
# The product, with the scales applied inside the instruction as on Blackwell:

q, w = lp.quantize(x[:64], "nvfp4_te"), lp.quantize(x[64:128], "nvfp4_te 16x16")
d = lp.gemm(q, w, accumulator="blackwell_nvfp4", out_format="bfloat16")
lp.compare(d, q.dequantize().astype(np.float64) @ w.dequantize().astype(np.float64).T)

# %%
# The whole training recipe as a map. A study measures the effect of each ingredient:
# :doc:`/generated/findings/nvfp4_ingredients`.

lp.recipes["nvfp4"]
