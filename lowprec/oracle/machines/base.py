"""Rules of matrix units: a dot product of codes, and the chain of groups that most of them are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..values import E8M0FNU, FLOAT32, AnyFormat, Fields, Parts, fields, parts

Codes = Sequence[int]


class Scales(NamedTuple):
    """Scales inside the instruction: one code for every `block` consecutive k, for a and for b.

    The sign bit of a code in an unsigned format is ignored.
    """

    a: Sequence[int]
    b: Sequence[int]
    format: Fields = E8M0FNU
    block: int = 32

    def of(self, k: int) -> tuple[Parts, Parts]:
        """Return the scales of a and of b at an index."""
        mask = (1 << self.format.width) - 1
        i = k // self.block
        return parts(int(self.a[i]) & mask, self.format), parts(int(self.b[i]) & mask, self.format)


class DotRule(ABC):
    """Rule by which a matrix unit adds products to c."""

    @property
    def c_format(self) -> Fields:
        """Format of c and of the result."""
        return FLOAT32

    def dot(
        self, a: Codes, b: Codes, c_bits: int, a_format: AnyFormat, b_format: AnyFormat, scales: Scales | None = None
    ) -> int:
        """Return the dot product of two code vectors plus c, as bits of `c_format`."""
        if scales is not None:
            raise ValueError("the instruction has no scales")
        return self.sum_products(a, b, c_bits, fields(a_format), fields(b_format))

    @abstractmethod
    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of two code vectors to c."""


class Chained(DotRule):
    """A rule that adds groups of products in increasing k, using the result of each group as c of the next."""

    group: int

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add groups of products to c; a short last group is zero-padded."""
        c_bits = self.start(c_bits)
        for start in range(0, max(len(a), 1), self.group):
            x, y = ([int(code) for code in side[start : start + self.group]] for side in (a, b))
            c_bits = self.step(x + [0] * (self.group - len(x)), y + [0] * (self.group - len(y)), c_bits, fa, fb)
        return c_bits

    def start(self, c_bits: int) -> int:
        """Return the addend of the first group."""
        return c_bits

    @abstractmethod
    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
