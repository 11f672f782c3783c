"""Aligned sums against fpy2, whose contexts round exact real numbers and share no code with lowprec or its oracle."""

from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from peers import peer, sampled

import lowprec as lp
from lowprec import oracle

pytestmark = pytest.mark.peers


def aligned_sum(fpy2: ModuleType, unit: Any, a: list[int], b: list[int], c: int) -> int:
    """Return the bits of one group's sum: every term cut at the largest exponent, the exact sum rounded."""
    read, stored = oracle.FORMATS[unit.default_format.name], oracle.FORMATS[unit.dtype.name]
    terms = []
    for x, y, fa, fb in [*((x, y, read, read) for x, y in zip(a, b, strict=True)), (c, None, stored, None)]:
        value, exponent = Fraction(1), 0
        for code, fmt in ((x, fa), (y, fb)):
            if fmt is not None:
                value *= Fraction(oracle.decode(code, fmt))
                exponent += max(code >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1), 1) - fmt.bias
        terms.append((value, exponent if value else unit.zero_exponent))
    cut = fpy2.MPFixedContext(max(e for _, e in terms) - unit.fraction_bits - 1, fpy2.RM.RTZ)
    total = sum((cut.round(value).as_rational() for value, _ in terms), Fraction(0))
    width = stored.exponent_bits + 1 + unit.output_bits
    nearest = unit.output_format.name == "float16"
    context = fpy2.IEEEContext(stored.exponent_bits, width, fpy2.RM.RNE if nearest else fpy2.RM.RTZ)
    bits: int = context.encode(context.round(total)) << (stored.mantissa_bits - unit.output_bits)
    return 0 if total == 0 or bits << 1 & ((2 << stored.width) - 1) == 0 else bits


@pytest.mark.parametrize("name", ["hopper_bf16", "ada_fp8", "hopper_f16_f16"])
def test_fpy(name: str) -> None:
    fpy2, unit = peer("fpy2"), lp.accumulators[name]
    fmt, n, rng = unit.default_format, len(sampled("fpy2", range(300))), np.random.default_rng(6)
    kinds = rng.integers(0, 3, (n, 1))
    x = rng.standard_normal((2, n, unit.group_size)) * np.choose(kinds, [1.0, fmt.smallest_normal**0.5, 16.0])
    a, b = lp.encode(np.where(rng.random(x.shape) < 0.33, 0, x), fmt)
    c = (rng.standard_normal((n, 1)) * np.choose(kinds, [1.0, fmt.smallest_normal, 0.0])).astype(unit.dtype)
    got = np.array([lp.mma(a[i : i + 1], b[i : i + 1], c[i : i + 1], accumulator=unit).item() for i in range(n)])
    bits = c.view(f"u{c.itemsize}")
    wanted = [aligned_sum(fpy2, unit, a[i].tolist(), b[i].tolist(), int(bits[i, 0])) for i in range(n)]
    assert got.astype(unit.dtype).view(bits.dtype).tolist() == wanted
