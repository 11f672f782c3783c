"""
A format of your own
====================

A format is a handful of fields. Registered under a name, it works wherever a name of the catalogue does: casts,
quantizers, products, codecs, training recipes and the command line's tables.
"""

import numpy as np

import lowprec as lp

# %%
# Three exponent bits, three mantissa bits, no infinity, and NaN in the topmost code alone:

mine = lp.Format("e3m3fn", exponent_bits=3, mantissa_bits=3, specials="fn")
mine

# %%
# Without registering anything, the object itself is taken everywhere:

x = np.random.default_rng(0).standard_normal((128, 1024), dtype=np.float32)
axes = lp.plot.errors(x, [mine, "e4m3fn", "e2m3fn"])

# %%
# So it can stand in a recipe, too, by itself or in a quantizer:

tile, block = (lp.Quantizer("seven_bits", mine, granularity) for granularity in ("1x128", "128x128"))
recipe = lp.recipes["dsv3"].with_(
    name="seven_bits", x=tile, w=block, dy=tile, accumulator="float32", promote_every=None
)
run = lp.train("nano", recipe, steps=3)
print(lp.quantize(x, lp.Quantizer(format=mine, granularity="1x32")), run, sep="\n")

# %%
# Every rounding and every policy for what does not fit has it at once:

for rounding in ("nearest_even", "toward_zero", "stochastic"):
    seed = {"seed": 1} if rounding == "stochastic" else {}
    print(f"{rounding:>13}: {lp.round_to([0.3, 100.0, np.inf], mine, rounding=rounding, **seed)}")
