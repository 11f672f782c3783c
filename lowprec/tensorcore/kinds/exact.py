"""`ExactSum`: a single rounding of the whole sum, which no chip computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._threads import parallel_over_rows
from ...cast.casts import decode
from ...format.catalogue import Format
from ...kernels.tensorcore.reference import exact
from ...order.summation_tree import ProductLeaf, SingleRounding, SumNode
from ..accumulator import Accumulator, StepError
from ..problem import GemmProblem, Matrix, canonical_nan

_WORK = 1 << 25  # multiply-adds that justify a thread
_ROWS_AT_ONCE = 512
_MAX_K = 1 << 20


def _sum(state: SumNode | str, k: int) -> SumNode:
    words = "exact sum of all products", "rounded once, to float32"
    return SumNode(words, (state, ProductLeaf(tuple(range(k)))), SingleRounding(zeros="+0"))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactSum(Accumulator):
    """Exact sum of all products and C, rounded to float32 once."""

    summary = "exact sum of all products, one rounding to float32"
    oracle_class = "ExactSum"
    has_running_sum = False

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise ValueError if products do not fit the kernel's fixed point."""
        if fa.smallest_subnormal * fb.smallest_subnormal < 2.0**-32 or fa.max * fb.max >= 2.0**32:
            raise ValueError(f"{self.name}: products must be from 2^-32 to 2^32, as those of FP8 are, got {fa} x {fb}")

    def step(self) -> int:
        """Return 1, because a chain may have any length."""
        return 1

    def steps(self, k: int) -> int:
        """Return 1, because a sum of any length is rounded once."""
        return 1

    def order(self) -> SumNode:
        """Return one sum of all products and C."""
        return self.instruction("C", 0)

    def chain(self, k: int) -> list[SumNode]:
        """Return a single instruction, whatever the length."""
        return [_sum("C", k)]

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return an exact sum, rounded once; its 64 products stand for any number of products."""
        return _sum(state, 64)

    def step_error(self) -> StepError:
        """Return the bound for a single rounding, half an ulp."""
        return StepError(2.0**-24, 2.0**-149)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return the exact sum over all K and C, rounded once."""
        (m, n, k), c = p.shape, p.start
        if k > _MAX_K:
            raise ValueError(f"{self.name}: K must be at most {_MAX_K}, got {k}")
        x, y, out = decode(p.a, p.fa), decode(p.b, p.fb), np.empty_like(c)
        parallel_over_rows(
            lambda i, j: exact.exact_dot(x, y, c, out, i, j), m, n * 32 * max(k, 1), _WORK, _ROWS_AT_ONCE
        )
        return canonical_nan(out)
