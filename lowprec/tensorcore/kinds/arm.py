"""`RoundToOddSum`, `RoundedGroupSum` and `ScaledGroupSum`: Arm's dot products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...format.catalogue import Format
from ...kernels.tensorcore.dots import tile
from ...kernels.tensorcore.reference import cpu
from ...order.summation_tree import ProductLeaf, SingleRounding, SumNode
from ..accumulator import FLOAT16, FLOAT32, StepError
from ..engines.chain import ScaledChain
from ..engines.dots import DotEngine, DotSum
from ..engines.reference import parallel_over_rows
from ..problem import Float32Matrix, GemmProblem, Matrix, canonical_nan
from .x86 import flushed

_ODD = SingleRounding(rounding="odd", flushes="odd")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RoundToOddSum(DotSum):
    """Products and sums that are each rounded to odd, with subnormals flushed: BFDOT with FPCR.EBF = 0."""

    group_size: int = 2

    summary = "products, their sum, and the sum with C each rounded to odd, subnormals flushed to zero"
    oracle_class = "Odd"

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the decoded values, with float32 subnormals flushed."""
        return flushed(self, codes, fmt)

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return sequential additions of the products, then of C."""
        found: SumNode | ProductLeaf = ProductLeaf((start,))
        for k in range(start + 1, start + self.group_size):
            found = SumNode(("+ rounded to odd",), (found, ProductLeaf((k,))), _ODD)
        return SumNode(("+ rounded to odd",), (state, found), _ODD)

    def step_error(self) -> StepError:
        """Return the bound for a product's roundings, each below one ulp, and for flushes."""
        absolute = 2 * (2 * self.group_size + 1) * 2.0**-126
        return StepError((1 + 2.0**-23) ** (self.group_size + 1) - 1, absolute, 2.0**-23)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, sum by sum."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        parallel_over_rows(lambda start, stop: cpu.odd_dot(x, y, self.group_size, state, start, stop), p)
        return canonical_nan(state)

    def dots_form(self) -> type[tile.Form] | None:
        """Return the form of `DotEngine` for groups of two, else None."""
        return tile.Odd if self.group_size == 2 else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RoundedGroupSum(DotSum):
    """Exact sum of a group, rounded to float32 and added to C: BFDOT with FPCR.EBF = 1."""

    group_size: int = 2

    summary = "exact sum of a group, rounded, then added to C and rounded"
    oracle_class = "RoundedGroups"

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return an exact sum of the group, rounded, then the addition of C."""
        products = ProductLeaf(tuple(range(start, start + self.group_size)))
        group = SumNode(("exact sum", "rounded to nearest even, float32"), (products,), SingleRounding())
        return SumNode(("+ in float32",), (state, group), SingleRounding())

    def step_error(self) -> StepError:
        """Return the bound for the roundings of the group's sum and of the addition of C."""
        return StepError((1 + 2.0**-24) ** 2 - 1, 2 * 2.0**-149, 2.0**-24)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, group by group."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        parallel_over_rows(lambda start, stop: cpu.rounded_groups_dot(x, y, self.group_size, state, start, stop), p)
        return canonical_nan(state)

    def dots_form(self) -> type[tile.Form] | None:
        """Return the form of `DotEngine` for groups of two, else None."""
        return tile.RoundedPairs if self.group_size == 2 else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScaledGroupSum(DotSum):
    """Exact sum of a group, times a power of two, plus C, rounded once: Arm's FP8 dot products.

    Parameters
    ----------
    group_size : int
        Products per sum, 1 to 1024.
    output_format : Format or str
        Format of results: ``float32`` or ``float16``.
    product_scale_log2 : int
        Power of two that multiplies the products, -127 to 127 (minus FPMR.LSCALE).
    saturate : bool
        Whether a finite sum beyond the largest finite number saturates to it instead of becoming Inf (FPMR.OSM).
    """

    group_size: int = 4
    output_format: Format = FLOAT32
    product_scale_log2: int = 0
    saturate: bool = False

    summary = "exact sum of a group times a power of two, plus C, one rounding"
    oracle_class = "ScaledGroups"
    engines = (DotEngine, ScaledChain)
    output_formats = (FLOAT32, FLOAT16)

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the exact sum of C and the group's products times the power of two."""
        a = self
        products = ProductLeaf(tuple(range(start, start + a.group_size)), a.product_scale_log2)
        how = SingleRounding(a.output_format.name, saturates=a.saturate)
        return SumNode(("exact sum", f"rounded to nearest even, {a.output_format}"), (state, products), how)

    def step_error(self) -> StepError:
        """Return the bound for a single rounding, relative to products not yet multiplied by the power of two."""
        least = self.output_format.smallest_subnormal * 2.0**-self.product_scale_log2
        return StepError(2.0 ** -(self.output_bits + 1), least)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, group by group."""
        x, y, stored = self.values(p.a, p.fa), self.values(p.b, p.fb), self.output_format
        with np.errstate(invalid="ignore"):  # signalling NaNs
            state = p.start.astype(np.float64)
        beyond = float(stored.max) if self.saturate else np.inf
        layout = float(stored.smallest_normal), stored.mantissa_bits, float(stored.max), beyond
        factor, group = 2.0**self.product_scale_log2, self.group_size
        parallel_over_rows(
            lambda start, stop: cpu.scaled_groups_dot(x, y, group, factor, layout, state, start, stop), p
        )
        with np.errstate(invalid="ignore"):
            return canonical_nan(state.astype(self.dtype))

    def dots_form(self) -> type[tile.Form] | None:
        """Return the form of `DotEngine` for groups of four and float32 sums, else None."""
        return tile.ScaledGroups if self.group_size == 4 and self.output_format == FLOAT32 else None
