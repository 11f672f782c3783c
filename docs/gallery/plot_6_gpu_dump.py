"""
Which accumulator produced a GPU's outputs?
===========================================

You have the operands of a matrix product as raw codes, and the outputs of a GPU. Which accumulator gives these outputs?
"""

import tempfile
from pathlib import Path

import numpy as np

import lowprec as lp

# %%
# A dump is an .npz with codes ``a`` [M, K] and ``b`` [N, K], the result ``d`` [M, N], and optionally the addend ``c``.
# This page runs without a GPU and computes a dump with an accumulator that we pretend not to know:

rng = np.random.default_rng(3)
a, b = (lp.encode(rng.standard_normal((32, 256)), "e4m3fn") for _ in range(2))
c = rng.standard_normal((32, 32)).astype(np.float32)
dump = Path(tempfile.mkdtemp()) / "dump.npz"
np.savez(dump, a=a, b=b, c=c, d=lp.mma(a, b, c, accumulator="ada_fp8"))

# %%
# Compare every accumulator that multiplies E4M3 and returns float32:

found = np.load(dump)
for name in lp.accumulators:
    machine = lp.accumulators[name]
    if machine.accepts(lp.formats["e4m3fn"]) and machine.dtype == np.float32 and machine.scale_format is None:
        d = lp.mma(found["a"], found["b"], found["c"], accumulator=machine)
        wrong = np.sum(d.view(np.uint32) != found["d"].view(np.uint32))
        print(f"{name:20} {wrong:4d} of {d.size} outputs differ{'  <- this one' * (not wrong)}")

# %%
# On the command line, ``lowprec mma dump.npz --accumulator ada_fp8`` computes the same. A comparison is only as
# strong as its power to reject similar rules. With 12 fraction bits, groups of 32, or another alignment:

for change in ({"fraction_bits": 12}, {"group_size": 32}, {"align": "nearest"}):
    d = lp.mma(a, b, c, accumulator=lp.accumulators["ada_fp8"].with_(**change))
    print(f"{change}: {np.mean(d != found['d']):.0%} of the outputs differ")

# %%
# ``lowprec identify`` searches further, and ``lowprec check codes.npz --values x.npy`` checks the codes of a quantizer
# (:doc:`/identify`). To record a Hopper GPU, see :doc:`/generated/repository/reference_data/capture/README`.
