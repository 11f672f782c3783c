"""
Defining a format
=================

A few fields define a format. Casts, quantizers, products, codecs and training recipes accept it as an object;
registered under a name, it also works wherever the name of a catalogue entry does.
"""

import numpy as np

import lowprec as lp

# %%
# Three exponent bits, three mantissa bits, no infinity, and NaN as the topmost code only:

mine = lp.Format("e3m3fn", exponent_bits=3, mantissa_bits=3, specials="fn")
mine

# %%
# Functions accept the object without registration:

x = np.random.default_rng(0).standard_normal((128, 1024), dtype=np.float32)
axes = lp.plot.relative_errors(x, [mine, "e4m3fn", "e2m3fn"])

# %%
# A recipe accepts it as well, here in two quantizers:

tile, block = (lp.Quantizer("seven_bits", mine, granularity) for granularity in ("1x128", "128x128"))
recipe = lp.recipes["dsv3"].with_(
    name="seven_bits", x=tile, w=block, dy=tile, accumulator="float32", promote_every=None
)
run = lp.train("nano", recipe, steps=3)
print(lp.quantize(x, lp.Quantizer(format=mine, granularity="1x32")), run, sep="\n")

# %%
# Every rounding and every overflow policy works with it:

for rounding in ("nearest_even", "toward_zero", "stochastic"):
    seed = {"seed": 1} if rounding == "stochastic" else {}
    print(f"{rounding:>13}: {lp.round_to([0.3, 100.0, np.inf], mine, rounding=rounding, **seed)}")
