"""
What FP8 does to a tensor
=========================

FP8 is eight bits: a sign, an exponent that says how large, a mantissa that says how fine. **E4M3** has 4 exponent and
3 mantissa bits, **E5M2** has 5 and 2. So E4M3 is finer, and E5M2 reaches further.
"""

import numpy as np

import lowprec as lp

# %%
# Every positive value of three formats, a tick each. Each *binade*, from a power of two to the next, has the same
# number of ticks; below the smallest normal number the steps stop shrinking (*subnormals*), and then there is only 0.

axes = lp.plot.grid("e4m3fn", "e5m2", "e2m1fn")

# %%
# A format shows itself in a notebook:

lp.formats["e4m3fn"]

# %%
# Values are rounded to the nearest of these. What does not fit is cut to the largest (it *saturates*), what is too
# small becomes 0. Both happen to a tensor whose values are not centred where the format is:

x = np.random.default_rng(0).standard_normal((256, 1024), dtype=np.float32)
for factor in (1.0, 1000.0, 1e-4):
    y = lp.round_to(x * np.float32(factor), "e4m3fn") / np.float32(factor)
    print(f"times {factor:g}: {lp.sqnr(y, x):5.1f} dB, {np.mean(y[x != 0] == 0):.1%} became 0")

# %%
# SQNR is signal to quantization noise: 20 dB more is an error ten times smaller. So before the cast one multiplies by
# a number that brings the tensor into the format's range, and divides afterwards: a **scale**. lowprec's convention
# is that the scale multiplies codes back to values.

q = lp.quantize(x * np.float32(1e-4), "e4m3fn tensor")
print(f"{lp.sqnr(q.dequantize(), x * np.float32(1e-4)):.1f} dB with the scale {q.scale.item():.3g}")

# %%
# The error depends on the size of a value. Where the format has normal numbers the relative error is flat; towards 0
# it rises to 1, which is a value that became 0.

axes = lp.plot.errors(x * np.geomspace(1e-4, 1, 1024, dtype=np.float32), ["bf16", "e5m2", "e4m3fn"])
