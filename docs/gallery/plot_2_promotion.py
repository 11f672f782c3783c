"""
Why 14-bit sums need promotion
==============================

Each output of a matrix product is a sum of K products. For FP8 operands, Hopper's tensor core does not compute this sum
in float32. It aligns 32 products and the previous sum with the largest of them, keeps 13 bits below the leading bit of
the largest, and truncates the rest. The sum has a format of 22 bits, **FP22**, with 14 significant bits.
"""

import numpy as np

import lowprec as lp

hopper = lp.accumulators["hopper_fp8"]
hopper

# %%
# The figure shows the order of summation. Now add 1 to 16384 thirty-two times, in one instruction. Each 1 is below the
# 13 bits that are kept, so all of them are lost.

ones = np.full((1, 32), lp.encode(1.0, "e4m3fn"), np.uint8)
print("hopper_fp8:", lp.mma(ones, ones, [[2.0**14]], accumulator=hopper).item())
e4m3 = {"a_format": "e4m3fn", "b_format": "e4m3fn"}
plain = lp.mma(ones, ones, [[2.0**14]], accumulator="float32", **e4m3)
print("float32:   ", plain.item())

# %%
# This happens in every long sum: the larger the sum, the more bits of each new product are lost. DeepSeek-V3 therefore
# uses **promotion**: after every 128 products it adds the partial sum to a float32 sum outside the tensor core.

rng = np.random.default_rng(0)
a, b = rng.random((16, 8192), dtype=np.float32), rng.random((16, 8192), dtype=np.float32)
machines = [hopper, hopper.with_(promote_every=128), hopper.with_(promote_every=512), "float32"]
axes = lp.plot.accumulation_error(a, b, machines)

# %%
# All products are positive here, which is the worst case: nothing cancels, and all truncation errors have the same
# sign. With values of both signs the sums stay small, and the error is smaller relative to the magnitudes of the
# terms:

a, b = rng.standard_normal((2, 16, 8192), dtype=np.float32)
axes = lp.plot.accumulation_error(a, b, machines)

# %%
# The effect on a training run is the subject of a study: :doc:`/generated/findings/promotion`.
