"""`SequentialSum`: fused multiply-adds as IEEE 754 defines them, in float32 or float64."""

from __future__ import annotations

from dataclasses import dataclass

from ...cast.casts import decode
from ...format.catalogue import Format
from ...order.summation_tree import ProductLeaf, SingleRounding, SumNode
from ..accumulator import FLOAT32, FLOAT64, Accumulator, StepError
from ..engines.chain import accumulate_f32
from ..problem import Float32Matrix, GemmProblem, Matrix, canonical_nan


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SequentialSum(Accumulator):
    """Sequential fused multiply-adds in increasing k, in float32 or float64."""

    output_format: Format = FLOAT32

    summary = "fused multiply-adds in increasing k"
    oracle_class = "Sequential"
    output_formats = (FLOAT32, FLOAT64)
    multiplies_values = True

    def step(self) -> int:
        """Return 1, because a chain may end after any product."""
        return 1

    def order(self) -> SumNode:
        """Return four chained multiply-adds, in increasing k."""
        found = self.instruction("C", 0)
        for k in (1, 2, 3):
            found = self.instruction(found, k)
        return found

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return a multiply-add with one rounding."""
        words = "fused multiply-add", f"rounded to nearest, {self.output_format}"
        return SumNode(words, (state, ProductLeaf((start,))), SingleRounding(self.output_format.name))

    def step_error(self) -> StepError:
        """Return half an ulp, because a step has one product and one rounding."""
        return StepError(2.0 ** -(self.output_bits + 1), 2.0**-149 if self.output_format == FLOAT32 else 2.0**-1074)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in float32."""
        out: Float32Matrix = p.start.copy()
        accumulate_f32(decode(p.a, p.fa), decode(p.b, p.fb), out)
        return canonical_nan(out)
