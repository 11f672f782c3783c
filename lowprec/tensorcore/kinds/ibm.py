"""`ChunkedSum`: IBM's AIU, which rounds the sums of chunks of products to a 16-bit format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..._checks import check_choice
from ...cast.casts import round_to
from ...format.catalogue import Format, format_of, formats
from ...order.summation_tree import KindSpecific, ProductLeaf, SingleRounding, SumNode
from ..accumulator import Accumulator, StepError
from ..problem import Float32Matrix, GemmProblem, Matrix, canonical_nan
from .riscv import PartialSum

RoundedSum = Literal["chunk", "running"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ChunkedSum(Accumulator):
    """Sums of chunks, rounded to float32, then half away from zero to a narrower format, and added in float32.

    The products of a chunk are summed exactly. Overflow in the narrower format gives Inf.

    Parameters
    ----------
    group_size : int
        Products per chunk, 1 to 1024.
    chunk_format : Format or str
        Narrower format, with a sign and NaN.
    rounded_sum : {"chunk", "running"}
        Sum that is rounded to the narrower format: that of a chunk's products, before it is added to the running sum,
        or that of the products and the running sum.
    """

    group_size: int = 32
    chunk_format: Format = formats["dl16"]
    rounded_sum: RoundedSum = "chunk"

    summary = "exact sum of a chunk, rounded to float32 and to a narrower format, then added to C in float32"
    oracle_class = "ChunkSums"

    @property
    def largest_sum(self) -> float:
        """Largest number that a sum may reach without overflow: also the sum that is rounded to the narrower format."""
        return min(self.stored_format.max, self.chunk_format.max)

    def check(self) -> None:
        """Check the narrower format and the sum that is rounded to it."""
        caller = f"ChunkedSum {self.name}"
        fmt = format_of(f"{caller}: chunk_format", self.chunk_format)
        object.__setattr__(self, "chunk_format", fmt)
        check_choice(caller, "rounded_sum", self.rounded_sum, get_args(RoundedSum))
        if fmt.is_table or fmt.is_integer or not fmt.signed or fmt.nan_code is None:
            raise ValueError(f"{caller}: chunk_format must be a signed floating-point format with NaN, got {fmt}")

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the sum of a chunk and its addition to C."""
        fmt, products = self.chunk_format, ProductLeaf(tuple(range(start, start + self.group_size)))
        numbers = fmt.exponent_bits, fmt.mantissa_bits, fmt.emin, fmt.max_code, int(fmt.has_subnormals)
        how = KindSpecific("rounded to float32 and half away", numbers)
        words = "exact sum", f"rounded to float32, then half away to {fmt}"
        if self.rounded_sum == "running":
            return SumNode(words, (state, products), how)
        return SumNode(("+ in float32",), (state, SumNode(words, ("+0", products), how)), SingleRounding())

    def step_error(self) -> StepError:
        """Return the bound for a sum's roundings to float32 and to the narrower format, and for the addition of C."""
        fmt = self.chunk_format
        rounded, least = (1 + 2.0**-24) * (1 + 2.0 ** -(fmt.mantissa_bits + 1)), 2 * fmt.smallest_subnormal
        if self.rounded_sum == "running":
            return StepError(rounded - 1, least)
        return StepError(rounded * (1 + 2.0**-24) - 1, least + 2.0**-148, 2.0**-24)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed chunk by chunk from exact sums."""
        running, total = self.rounded_sum == "running", np.array(p.start, np.float32)
        exact = PartialSum(self.name, group_size=self.group_size, partial_rounding="exact" if running else "nearest")
        for k in range(0, max(p.shape[2], 1), self.group_size):
            chunk = p.chain(k, k + self.group_size, total if running else np.zeros_like(total))
            found = self._rounded(exact.reference(chunk))
            with np.errstate(over="ignore", invalid="ignore"):
                total = found if running else total + found
        return canonical_nan(total)

    def _rounded(self, x: Float32Matrix) -> Float32Matrix:
        """Round sums to the narrower format; overflow gives Inf, and zeros are +0 if the format has no subnormals."""
        found = round_to(x, self.chunk_format, rounding="nearest_away", overflow="nonsaturate")
        np.copysign(np.float32(np.inf), x, out=found, where=np.isnan(found) & ~np.isnan(x))
        return found if self.chunk_format.subnormals else found + np.float32(0)
