"""
Your GPU's dump against ours
============================

You have the operands of a matrix product as raw codes, and what a GPU returned. Which machine adds up like that?
"""

import tempfile
from pathlib import Path

import numpy as np

import lowprec as lp

# %%
# A dump is an .npz with codes ``a`` [M, K] and ``b`` [N, K] and the result ``d`` [M, N]; ``c``, if there is one, is
# what was there before. No GPU stands behind this page, so the dump is made here, of a machine that we pretend not to
# know:

rng = np.random.default_rng(3)
a, b = (lp.encode(rng.standard_normal((32, 256)), "e4m3fn") for _ in range(2))
c = rng.standard_normal((32, 32)).astype(np.float32)
dump = Path(tempfile.mkdtemp()) / "dump.npz"
np.savez(dump, a=a, b=b, c=c, d=lp.mma(a, b, c, accumulator="ada_fp8"))

# %%
# Ask every machine that multiplies E4M3 and returns float32:

found = np.load(dump)
for name in lp.accumulators:
    machine = lp.accumulators[name]
    if machine.lists(lp.formats["e4m3fn"]) and machine.dtype == np.float32 and machine.scale_format is None:
        d = lp.mma(found["a"], found["b"], found["c"], accumulator=machine)
        wrong = np.sum(d.view(np.uint32) != found["d"].view(np.uint32))
        print(f"{name:20} {wrong:4d} of {d.size} outputs differ{'  <- this one' * (not wrong)}")

# %%
# On the command line that is ``lowprec mma dump.npz --accumulator ada_fp8``. How near the nearest wrong rule is
# decides what a comparison is worth. With a sum in 12 bits, or groups of 32:

for change in ({"fraction_bits": 12}, {"group": 32}, {"align": "nearest"}):
    d = lp.mma(a, b, c, accumulator=lp.accumulators["ada_fp8"].with_(**change))
    print(f"{change}: {np.mean(d != found['d']):.0%} of the outputs tell it apart")

# %%
# Codes of a quantizer are asked about in the same way: ``lowprec check codes.npz --values x.npy``. To record a Hopper
# GPU of your own: :doc:`/generated/repository/reference_data/capture/README`.
