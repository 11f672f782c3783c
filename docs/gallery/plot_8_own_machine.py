"""
A hypothetical tensor core
==========================

How many bits should the next tensor core keep? An accumulator is data: lowprec computes a hypothetical one with the
same kernels and at the same speed as those of existing GPUs.
"""

import numpy as np

import lowprec as lp

# %%
# Hopper's FP8 accumulator keeps 13 bits below the largest term of a group. These variants keep more, and return float32
# instead of FP22:

hopper = lp.accumulators["hopper_fp8"]
machines = [hopper, *(hopper.with_(fraction_bits=bits, output_format="float32") for bits in (16, 19, 22, 25))]
rng = np.random.default_rng(0)
a, b = rng.random((64, 4096), np.float32), rng.random((128, 4096), np.float32)
axes = lp.plot.accumulation_error(a[:16], b[:16], machines)

# %%
# Every field can be varied: the number of products summed at once, the alignment, the number of fraction bits. The
# operands are positive, the worst case of truncation: all errors have the same sign and accumulate.

qa, qb = lp.quantize(a, "e4m3fn tensor"), lp.quantize(b, "e4m3fn tensor")
exact = lp.gemm(qa, qb, accumulator="exact")
for change in (
    {},
    {"group_size": 8},
    {"group_size": 128},
    {"align": "nearest"},
    {"fraction_bits": 20, "output_format": "float32"},
):
    d = lp.gemm(qa, qb, accumulator=hopper.with_(**change) if change else hopper, promote_every=None)
    print(f"{np.abs(d / exact - 1).max():8.3%}  {change or 'Hopper'}")

# %%
# The figure of an accumulator is drawn from its fields:

hopper.with_(group_size=8, fraction_bits=20, output_format="float32")

# %%
# A recipe uses it for training:

recipe = lp.recipes["dsv3"].with_(accumulator=hopper.with_(fraction_bits=20), promote_every=None)
print(recipe.spec("layers.1.attn.wo"))
