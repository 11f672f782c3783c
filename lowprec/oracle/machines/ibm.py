"""IBM's AIU: exact sums of chunks, rounded to float32 and half away from zero to DL16, and added in float32.

The rule is that of the vendor's simulation (fms-model-optimizer, PR 159), which rounds by adding to the float32 bits.
As in the simulation on a CPU, a NaN that is rounded is returned unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ..ieee import ieee_sum
from ..values import FLOAT32, Exact, Fields, decode, encode, max_code
from .base import Chained, Codes

DL16 = Fields(6, 9, 31, specials="fn", subnormals=False)


@dataclass(frozen=True)
class ChunkSums(Chained):
    """The sum of a chunk of products, rounded twice, and its sum with c.

    Attributes
    ----------
    group
        Products per chunk.
    narrow
        Format of the second rounding: without subnormals, or with the exponents of float32.
    first
        Whether the sum of a chunk is rounded to `narrow`, before c is added; if not, the sum with c is.
    to_even
        Wrong rule: ties go to the even number.
    """

    group: int = 32
    narrow: Fields = DL16
    first: bool = True
    to_even: bool = False

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one chunk to c."""
        terms = [(decode(x, fa), decode(y, fb)) for x, y in zip(a, b, strict=True)]
        c = decode(c_bits, FLOAT32)
        if not self.first:
            return self._rounded(encode(ieee_sum(terms, c), FLOAT32, "nonsaturate"))
        part = self._rounded(encode(ieee_sum(terms, Fraction(0)), FLOAT32, "nonsaturate"))
        return encode(ieee_sum([(decode(part, FLOAT32), Fraction(1))], c), FLOAT32, "nonsaturate")

    def _rounded(self, bits: int) -> int:
        """Return the bits of a float32 in the narrow format: those cut off are first increased by half a unit."""
        sign, size = bits & 0x80000000, bits & 0x7FFFFFFF
        if size >= 0x7F800000:
            return bits
        unit = 1 << 23 - self.narrow.mantissa_bits
        half = unit // 2 - (self.to_even and not size & unit)
        value: Exact = decode((size + half) // unit * unit, FLOAT32)
        if value > decode(max_code(self.narrow), self.narrow):
            return sign | 0x7F800000
        if not self.narrow.subnormals and value < decode(1, self.narrow):
            return 0
        assert math.isfinite(value)
        return sign | encode(value, FLOAT32)
