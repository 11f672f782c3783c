"""GEMM libraries in exact arithmetic: chains, promotion to float32 and scales outside the tensor core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .ieee import fma32, ieee_sum
from .machines.base import DotRule
from .values import FLOAT32, AnyFormat, Exact, decode, encode

_NEGATIVE_ZERO = 1 << FLOAT32.width  # as c, it leaves a product unchanged


@dataclass(frozen=True)
class Order:
    """An order of operations around chains of consecutive instructions; results are float32.

    Attributes
    ----------
    scales
        ``promotion``: ``D = fma(s, chain, D)`` for each chain, ``s = fl(scale_a * scale_b)``; ``end``: chains are added
        and the sum is multiplied by s.
    promote_every
        Length of a chain; None: all of K.
    fused
        Whether multiplication by s and addition are fused; False is a wrong rule: the product with s is rounded first.
    rounded_scale
        Whether s is rounded to float32; False is a wrong rule.
    one_by_one
        Whether the two scales multiply separately, as cuBLASLt's for rows and 1x128: that of a before that of b at
        promotion, that of b first at the end. A wrong rule for the others.
    backwards
        Wrong rule: the last chain comes first.
    """

    scales: Literal["promotion", "end"] = "promotion"
    promote_every: int | None = 128
    fused: bool = True
    rounded_scale: bool = True
    one_by_one: bool = False
    backwards: bool = False

    def dot(
        self,
        a: Sequence[int],
        b: Sequence[int],
        scales: Sequence[tuple[int, int]],
        rule: DotRule,
        a_format: AnyFormat,
        b_format: AnyFormat,
        block: int,
    ) -> int:
        """Return one output's float32 bits.

        `scales` are pairs of float32 bits, one per `block` of k; the first applies if scales are applied at the end.
        """
        step = self.promote_every or max(len(a), 1)
        starts = list(range(0, len(a), step))
        total = 0
        for start in starts[::-1] if self.backwards else starts:
            part = rule.dot(a[start : start + step], b[start : start + step], 0, a_format, b_format)
            pair = scales[start // block]
            if self.scales == "end":
                total = _add(part, total)
            elif self.fused and self.rounded_scale and not self.one_by_one:
                total = fma32(_times(*pair), part, total)
            else:
                total = self._other(pair, part, total)
        return total if self.scales == "promotion" else self._scaled(scales[0], total)

    def _scaled(self, pair: tuple[int, int], total: int) -> int:
        if self.one_by_one:
            return _times(pair[0], _times(pair[1], total))
        if self.rounded_scale:
            return _times(_times(*pair), total)
        return _exact_product(pair, total, _NEGATIVE_ZERO)

    def _other(self, pair: tuple[int, int], part: int, total: int) -> int:
        if self.one_by_one:
            own = _times(pair[0], part)
            return fma32(pair[1], own, total) if self.fused else _add(_times(pair[1], own), total)
        if not self.rounded_scale:
            return _exact_product(pair, part, total)
        return _add(_times(_times(*pair), part), total)


def _times(x: int, y: int) -> int:
    return fma32(x, y, _NEGATIVE_ZERO)


def _add(x: int, y: int) -> int:
    return fma32(x, encode(1, FLOAT32), y)


def _exact_product(pair: tuple[int, int], part: int, total: int) -> int:
    x, y, z, c = (decode(bits, FLOAT32) for bits in (*pair, part, total))
    if any(not math.isfinite(v) for v in (x, y)):
        return fma32(_times(*pair), part, total)
    scale: Exact = x * y
    return encode(ieee_sum([(scale, z)], c), FLOAT32, "nonsaturate")


ORDERS = {
    "deepgemm": Order(),
    "cublaslt": Order(scales="end"),
    "cublaslt_fast": Order(scales="end", promote_every=None),
    "cublaslt_1x128": Order(one_by_one=True),
    "cutlass_2xacc": Order(scales="end"),
}
"""Orders of operations of the catalogue's libraries, by name; for scales per tensor where they come at the end."""
