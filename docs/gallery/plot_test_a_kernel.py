"""
How do I test my FP8 kernel?
============================

A test compares a kernel with a reference, and someone guesses ``atol``. These six steps replace the guess. Two kernels
run here, both of torch on a CPU: the product of bfloat16 matrices, then the FP8 product ``torch._scaled_mm``.
"""

import warnings

import numpy as np
import torch

import lowprec as lp
from lowprec.testing import assert_product, criterion, criterion_power, faults, operands

warnings.filterwarnings("ignore", category=UserWarning)


def kernel(a, b):
    """Multiply A [M, K] and B [N, K] in bfloat16, with a bfloat16 result."""
    return (a @ b.T).float().numpy()


# %%
# **Step 1: the usual test.** Normal data, the defaults of ``torch.testing.assert_close`` for bfloat16. They accept this
# kernel, and one whose outputs are all 0.5 % too large:

values = operands("normal", 64, 96, 1024)
x, y = (torch.from_numpy(v).bfloat16() for v in values)
got = kernel(x, y)
want = (x.double() @ y.double().T).numpy()
for factor in (1.0, 1.005):
    print(factor, "accepted:", np.allclose(lp.round_to(got * factor, "bfloat16"), want, rtol=1.6e-2, atol=1e-5))

# %%
# **Step 2: the usual repair.** FP8 sums err more, and the same test refuses a right FP8 kernel of Hopper. Someone
# raises ``atol`` until it passes. Which faults pass now? `criterion_power` tries a criterion on correct kernels and on
# every fault:

print(criterion_power("torch_bfloat16", m=64, n=96, k=1024, draws=1).sentence)

power = criterion_power("allclose(1.6e-2, 0.5)", m=64, n=96, k=1024, draws=1)
print(power.sentence)
print([row.kernel for row in power.rows[1:] if row.passes])

# %%
# **Step 3: name the arithmetic.** The operands are bfloat16 numbers without scales. The sum may be that of any of three
# ways in which a CPU multiplies bfloat16, in any order of K:


def plain(tensor):
    """Return a bfloat16 matrix as an operand: its codes, and a scale of 1."""
    codes = np.ascontiguousarray(tensor.view(torch.int16).numpy()).view(np.uint16)
    return lp.Quantized(codes, np.ones((1, 1), np.float32), "bfloat16", "tensor")


arithmetic = {
    "accumulator": ["avx512_bf16", "amx_bf16", "float32"],
    "promote_every": None,
    "out_format": "bfloat16",
    "order": "any",
}
t = lp.tolerance(plain(x), plain(y), **arithmetic)
print(t.test(got))

# %%
# **Step 4: numbers for a suite that must have them.** The smallest pair that never refuses a correct kernel, and one
# that does so once in a million products:

print(t.atol_rtol())
print(t.atol_rtol(1e-6))

# %%
# **Step 5: one line in the suite.** `assert_product` compares each output with its own bound, and all of them with the
# errors that are expected. A wrong kernel is named:

assert_product(got, plain(x), plain(y), **arithmetic)
wrong = kernel(torch.from_numpy(np.where(np.arange(1024) // 32 == 16, 0, values[0])).bfloat16(), y)
try:
    assert_product(wrong, plain(x), plain(y), **arithmetic)
except AssertionError as error:
    print(error)

# %%
# **Step 6: data on which faults show.** On normal data a scale that is 6 % off moves few outputs; where every tile has
# its own size, it moves its own. Which faults does a common criterion let live, by kind of data?

for kind in ("normal", "positive", "tiles", "integers"):
    power = criterion_power("calc_diff<1e-3", m=64, n=64, k=1024, data=kind, draws=1)
    lived = [row.kernel for row in power.rows[1:] if row.passes]
    ours = [row.kernel for row in power.rows[1:] if row.ours]
    print(f"{kind}: calc_diff accepts {len(lived)} of {len(power.rows) - 1} faults, the derived tolerance {ours}")

# %%
# A second kernel: FP8 with scales
# --------------------------------
# ``torch._scaled_mm`` multiplies E4M3 codes, with one scale for each matrix. Its arithmetic on a CPU is undocumented.
# Its operands become `Quantized`, and the six steps are the same:


def scaled_mm(a, b, dtype=torch.float32):
    """Multiply A [M, K] and B [N, K], quantized with one scale per matrix."""
    x, y = (torch.from_numpy(q.codes).view(torch.float8_e4m3fn) for q in (a, b))
    scales = (torch.tensor(q.scale[0, 0]) for q in (a, b))
    return torch._scaled_mm(x, y.t(), *scales, out_dtype=dtype).float().numpy()


specs = "e4m3fn tensor", "e4m3fn tensor"
a, b = (lp.quantize(v, spec) for v, spec in zip(values, specs, strict=True))
got = scaled_mm(a, b)

# %%
# **Step 1: the usual test** compares with the product of the values before quantization, so its limit must exceed the
# error of quantization. 1.01 times the result is accepted as well:

want = values[0].astype(np.float64) @ values[1].astype(np.float64).T
for factor in (1.0, 1.01):
    print(factor, "accepted:", criterion("calc_diff<1e-3")(got * np.float32(factor), want))

# %%
# **Step 2: which faults pass it?**

fp8 = {"quantizers": specs, "accumulator": "float32", "promote_every": None, "out_format": "float32"}
power = criterion_power("calc_diff<1e-3", m=64, n=96, k=1024, draws=1, **fp8)
print(power.sentence)

# %%
# **Step 3: name the arithmetic.** It is unknown, so try three: Hopper's tensor core; float32 sums of codes, multiplied
# by the scales at the end; and float32 sums of values that were multiplied by their scales first. A verdict `Unlike`,
# or errors far below the expected ones, excludes a candidate:

candidates = {
    "tensor core": {"accumulator": "hopper_fp8", "promote_every": 128},
    "scales last": {"accumulator": "float32", "promote_every": None, "library": "cublaslt"},
    "scales first": {"accumulator": "float32", "promote_every": None},
}
for name, options in candidates.items():
    t = lp.tolerance(a, b, order="any", **options)
    error = np.sqrt(np.square(got - t.exact).mean() / np.square(t.expected).mean())
    print(f"{name}: {type(t.test(got, name_faults=False)).__name__}; errors {error:.3f} of the expected")

# %%
# It multiplies by the scales first. The bits confirm it: they are those of torch's float32 product of such values.

x, y = (torch.from_numpy(q.dequantize()) for q in (a, b))
print("equal bits:", np.array_equal(got, (x @ y.T).numpy()))

# %%
# **Steps 4 and 5: numbers, or one line.** The result is now compared with the product of the quantized operands. Only
# rounding is allowed, so a result that is 1 % too large is rejected:

arithmetic = {**candidates["scales first"], "order": "any", "out_format": "float32"}
print(lp.tolerance(a, b, **arithmetic).atol_rtol(1e-6))
assert_product(got, a, b, **arithmetic)
try:
    assert_product(got * np.float32(1.01), a, b, **arithmetic)
except AssertionError as error:
    print(error)

# %%
# **Step 6: data on which faults show**, for both criteria:

for kind in ("normal", "positive", "tiles", "integers"):
    power = criterion_power("calc_diff<1e-3", m=64, n=64, k=1024, data=kind, draws=1, **fp8)
    lived = [row.kernel for row in power.rows[1:] if row.passes]
    ours = [row.kernel for row in power.rows[1:] if row.ours]
    print(f"{kind}: calc_diff accepts {len(lived)} of {len(power.rows) - 1} faults, the derived tolerance {ours}")

# %%
# The catalogue has a sentence for each fault, and a suite of yours can be run under all of them from the command line:
# ``lowprec mutate --target package.module:kernel -- pytest tests/test_kernel.py``.

for name in ("zeros", "never promoted", "one bit less"):
    print(f"{name}: {faults[name].summary}")
