"""
Why 14-bit sums need promotion
==============================

A matrix product adds up K products for each output. Hopper's tensor core, told to multiply FP8, does not add them in
float32: it aligns 32 products and the sum so far to the largest of them, keeps 13 bits below that one's leading bit,
and drops the rest. The sum lives in a format of 22 bits, **FP22**, with 14 significant ones.
"""

import numpy as np

import lowprec as lp

hopper = lp.accumulators["hopper_fp8"]
hopper

# %%
# The picture is the order of its sums. Add 1 to 16384 thirty-two times, in one instruction: each 1 lies below the 13
# bits that are kept, so all of them vanish.

ones = np.full((1, 32), lp.encode(1.0, "e4m3fn"), np.uint8)
print("hopper_fp8:", lp.mma(ones, ones, [[2.0**14]], accumulator=hopper).item())
e4m3 = {"a_format": "e4m3fn", "b_format": "e4m3fn"}
plain = lp.mma(ones, ones, [[2.0**14]], accumulator="float32", **e4m3)
print("float32:   ", plain.item())

# %%
# That happens in every long sum: the larger it is, the more of each new product is dropped. DeepSeek-V3 therefore
# takes the sum out after every 128 products and adds it to a float32 number outside the tensor core: **promotion**.

rng = np.random.default_rng(0)
a, b = rng.random((16, 8192), dtype=np.float32), rng.random((16, 8192), dtype=np.float32)
machines = [hopper, hopper.with_(promote_every=128), hopper.with_(promote_every=512), "float32"]
axes = lp.plot.accumulation(a, b, machines)

# %%
# All products are positive here, the worst case: nothing cancels, and every cut is in the same direction. With values
# of either sign sums stay small, and the error is smaller beside the magnitudes of what is added:

a, b = rng.standard_normal((2, 16, 8192), dtype=np.float32)
axes = lp.plot.accumulation(a, b, machines)

# %%
# What that costs a training run is another question: :doc:`/generated/findings/promotion`.
