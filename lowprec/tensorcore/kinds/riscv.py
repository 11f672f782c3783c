"""RISC-V's matrix products and dot products, as the drafts of the matrix extension and of Zvdota define them.

`PartialSum` has exact products, `BulkNormalizedSum` aligned ones (RVBNA).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..._checks import check_choice
from ...kernels.tensorcore.reference import riscv
from ...order.summation_tree import KindSpecific, ProductLeaf, SingleRounding, SumNode
from ..accumulator import Accumulator, StepError
from ..engines.reference import decompose, parallel_over_rows
from ..problem import GemmProblem, Matrix

PartialRounding = Literal["exact", "nearest", "odd"]
SumRounding = Literal["nearest", "odd"]
_ULP = {"exact": 0.0, "nearest": 2.0**-24, "odd": 2.0**-23}  # largest relative error


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PartialSum(Accumulator):
    """Exact sum of a group's products, rounded to float32, then added to C and rounded: RISC-V's matrix extension.

    Every NaN is 0x7FC00000; subnormals are kept.

    Parameters
    ----------
    group_size : int
        Products per partial sum, 1 to 1024.
    partial_rounding : {"odd", "nearest", "exact"}
        Rounding of a partial sum to float32; ``exact``: it is not rounded, only its sum with C.
    sum_rounding : {"nearest", "odd"}
        Rounding of the sum of a partial sum and C.
    """

    group_size: int = 4
    partial_rounding: PartialRounding = "odd"
    sum_rounding: SumRounding = "nearest"

    summary = "exact sum of a group, rounded to odd, to nearest or not at all, then added to C and rounded"
    oracle_class = "PartialSums"
    has_canonical_nan = False

    def check(self) -> None:
        """Check both roundings."""
        caller = f"PartialSum {self.name}"
        check_choice(caller, "partial_rounding", self.partial_rounding, get_args(PartialRounding))
        check_choice(caller, "sum_rounding", self.sum_rounding, get_args(SumRounding))

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the sum of the group, rounded, then the addition of C."""
        products = self.products(start)
        last = SingleRounding(rounding=self.sum_rounding)
        if self.partial_rounding == "exact":
            words = "exact sum", f"rounded to {self.sum_rounding}, float32"
            return SumNode(words, (state, "+0", products), last)
        words = "exact sum", f"rounded to {self.partial_rounding}, float32"
        part = SumNode(words, ("+0", products), SingleRounding(rounding=self.partial_rounding))
        return SumNode((f"+ rounded to {self.sum_rounding}",), (state, part), last)

    def products(self, start: int) -> ProductLeaf | SumNode:
        """Return the products of a group, which are exact."""
        return ProductLeaf(tuple(range(start, start + self.group_size)))

    def step_error(self) -> StepError:
        """Return the bound for aligned products, their rounded sum, and the rounded sum with C."""
        cut = 0.0 if self.kept_bits < 0 else self.group_size * 2.0**-self.kept_bits
        part, last = _ULP[self.partial_rounding], _ULP[self.sum_rounding]
        return StepError((1 + cut) * (1 + part) * (1 + last) - 1, 2 * 2.0**-149, last)

    @property
    def kept_bits(self) -> int:
        """Fraction bits of aligned products, or -1 if products are exact."""
        return -1

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in integers or in exact sums of float64 numbers."""
        left, right = decompose(p.a, p.fa, self.group_size), decompose(p.b, p.fb, self.group_size)
        how = {"exact": riscv.EXACT, "nearest": riscv.NEAREST, "odd": riscv.ODD}
        rule = riscv.PartialRule(
            p.fa.mantissa_bits + p.fb.mantissa_bits, self.group_size, self.kept_bits,
            how[self.partial_rounding], how[self.sum_rounding],
        )  # fmt: skip
        state = np.array(p.start, np.float32)
        parallel_over_rows(lambda start, stop: riscv.partial_dot(left, right, rule, state, start, stop), p)
        return state


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BulkNormalizedSum(PartialSum):
    """Products aligned to the largest exponent and rounded to odd, then added as in `PartialSum`: RISC-V's RVBNA.

    Parameters
    ----------
    fraction_bits : int
        Fraction bits kept below the largest exponent; in RVBNA 23 + ceil(log2(group_size)).
    """

    fraction_bits: int = 25

    summary = "products aligned and rounded to odd, their sum rounded to odd, then added to C and rounded"
    oracle_class = "BulkSums"

    def products(self, start: int) -> ProductLeaf | SumNode:
        """Return the sum of a group's aligned products."""
        bits = self.fraction_bits
        words = "aligned to the largest exponent", f"rounded to odd, {bits} fraction bits kept", "added exactly"
        return SumNode(words, (super().products(start),), KindSpecific("aligned, to odd", (bits,), kept=bits))

    @property
    def kept_bits(self) -> int:
        """Fraction bits of aligned products."""
        return self.fraction_bits
