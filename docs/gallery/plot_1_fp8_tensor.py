"""
The effect of FP8 on a tensor
=============================

An FP8 number has eight bits: a sign, an exponent for its magnitude and a mantissa for its precision. **E4M3** has 4
exponent and 3 mantissa bits, **E5M2** has 5 and 2. E4M3 therefore has more precision, and E5M2 more range.
"""

import numpy as np

import lowprec as lp

# %%
# The figure shows every positive value of three formats, one tick per value. Each *binade*, the interval from one power
# of two to the next, has the same number of ticks. Below the smallest normal number the steps are equal
# (*subnormals*) down to 0.

axes = lp.plot.format_values("e4m3fn", "e5m2", "e2m1fn")

# %%
# Notebooks display a format as a figure and a table:

lp.formats["e4m3fn"]

# %%
# A cast rounds values to the nearest of these. Values beyond the range are clamped to the largest (they *saturate*);
# values that are too small become 0. A tensor outside the range of the format suffers from one or the other:

x = np.random.default_rng(0).standard_normal((256, 1024), dtype=np.float32)
for factor in (1.0, 1000.0, 1e-4):
    y = lp.round_to(x * np.float32(factor), "e4m3fn") / np.float32(factor)
    print(f"times {factor:g}: {lp.sqnr(y, x):5.1f} dB, {np.mean(y[x != 0] == 0):.1%} became 0")

# %%
# SQNR is the signal-to-quantization-noise ratio: 20 dB more is an error ten times smaller. To bring the tensor into the
# range of the format, divide it by a **scale** before the cast and multiply by the scale afterwards. In lowprec, the
# scale is the factor that converts codes back to values.

q = lp.quantize(x * np.float32(1e-4), "e4m3fn tensor")
print(f"{lp.sqnr(q.dequantize(), x * np.float32(1e-4)):.1f} dB with the scale {q.scale.item():.3g}")

# %%
# The error depends on the magnitude of a value. The relative error is constant over the normal numbers of the format.
# Toward 0 it rises to 1, where values are rounded to 0.

axes = lp.plot.relative_errors(x * np.geomspace(1e-4, 1, 1024, dtype=np.float32), ["bf16", "e5m2", "e4m3fn"])
