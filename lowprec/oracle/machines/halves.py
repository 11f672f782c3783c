"""FP8 `mma.sync` on Hopper and B200: two steps of the float16 unit and an addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..ieee import ieee_sum
from ..values import FLOAT16, FLOAT32, Fields, decode, encode
from .base import Codes, DotRule
from .fused import Rule, fused_dot


@dataclass(frozen=True)
class Halves(DotRule):
    """Operands are converted to float16, 32 products form two groups of 16, and c is added last.

    ``x = step(k % 4 in {0, 1}, +0); x = step(k % 4 in {2, 3}, x); d = nearest(x + c)``: the steps are those of the
    float16 unit with 25 fraction bits, each result rounded to nearest in float16 or truncated to float32.

    Attributes
    ----------
    output
        "f16" or "f32".
    fraction_bits, swapped, contiguous, c_first
        Fraction bits of the steps; then three wrong rules: the second half of the products comes first, the two halves
        are contiguous in k, c is the addend of the first step.
    """

    output: Literal["f16", "f32"] = "f16"
    fraction_bits: int = 25
    swapped: bool = False
    contiguous: bool = False
    c_first: bool = False

    @property
    def c_format(self) -> Fields:
        """Format of c and of the result."""
        return FLOAT16 if self.output == "f16" else FLOAT32

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of two code vectors to c, in chained instructions of 32 products."""
        step = Rule(16, self.fraction_bits, output=self.output, zero_exponent=-21 if self.output == "f16" else -133)
        wide = [[_half(int(code), fmt) for code in side] for side, fmt in ((a, fa), (b, fb))]
        for start in range(0, max(len(a), 1), 32):
            indices = range(start, min(start + 32, len(a)))
            first = [k for k in indices if (k % 32 < 16 if self.contiguous else k % 4 < 2)]
            halves = [first, [k for k in indices if k not in first]]
            x = c_bits if self.c_first else 0
            for half in halves[::-1] if self.swapped else halves:
                x = fused_dot([wide[0][k] for k in half], [wide[1][k] for k in half], x, step, FLOAT16, FLOAT16)
            c_bits = x if self.c_first else _add(x, c_bits, self.c_format)
        return c_bits


def _half(code: int, fmt: Fields) -> int:
    return encode(decode(code, fmt), FLOAT16, "nonsaturate")


def _add(x: int, y: int, fmt: Fields) -> int:
    one = decode(encode(1, fmt), fmt)
    total = ieee_sum([(decode(x, fmt), one)], decode(y, fmt))
    return (1 << fmt.width) - 1 if total != total else encode(total, fmt, "nonsaturate")
