"""`FlushedFmaSum`, `LaneChains` and `PairedLaneChains`: x86's dot products, which always flush subnormals."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...format.catalogue import Format
from ...kernels.tensorcore.dots import tile
from ...kernels.tensorcore.reference import cpu
from ...order.summation_tree import ProductLeaf, SingleRounding, SumNode
from ..accumulator import Accumulator, StepError
from ..engines.dots import DotSum
from ..engines.reference import parallel_over_rows
from ..problem import Float32Matrix, GemmProblem, Matrix, canonical_nan

_U, _LEAST = 2.0**-24, 2.0**-126
_FMA = ("fused multiply-add", "rounded to nearest, float32, subnormals flushed")
_ADD = ("+ in float32, subnormals flushed",)
_HOW = SingleRounding(flushes="x86")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _X86Sum(DotSum):
    """Base class of float32 sums that are rounded to nearest even, with subnormals flushed.

    Parameters
    ----------
    group_size : int
        Products per instruction, 1 to 1024.
    daz_formats : sequence of Format or str
        Formats whose subnormals are read as zeros, as are values that are subnormal in float32 in all formats.
    """

    group_size: int = 2
    daz_formats: tuple[Format, ...] = ()

    form: ClassVar[type[tile.Form]]

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the decoded values; flushed subnormals become zeros of their sign."""
        return flushed(self, codes, fmt)

    @abstractmethod
    def roundings(self) -> int:
        """Return the number of roundings of a product, including those of sums that contain it."""

    def step_error(self) -> StepError:
        """Return the bound for `roundings` roundings; every product and sum may be flushed."""
        flushes = 2 * self.group_size + self.lanes + 2
        return StepError((1 + _U) ** self.roundings() - 1, 2 * flushes * _LEAST, (1 + _U) ** self.of_c() - 1)

    def of_c(self) -> int:
        """Return the number of roundings of C, which is one if C is added last."""
        return 1

    @abstractmethod
    def add(self, x: Float32Matrix, y: Float32Matrix, state: Float32Matrix, i: int, j: int) -> None:
        """Add rows i to j of X Y^T to `state` with the reference loop."""

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, sum by sum."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        parallel_over_rows(lambda start, stop: self.add(x, y, state, start, stop), p)
        return canonical_nan(state)


def flushed(accumulator: Accumulator, codes: Matrix, fmt: Format) -> Float32Matrix:
    """Decode codes; float32 subnormals are flushed, as are the format's subnormals if the accumulator flushes them."""
    x = Accumulator.values(accumulator, codes, fmt)
    least = fmt.smallest_normal if accumulator.is_daz(fmt) else 2.0**-126
    if fmt.smallest_subnormal < least:
        np.copysign(np.float32(0), x, out=x, where=np.abs(x) < np.float32(least))
    return x


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FlushedFmaSum(_X86Sum):
    """Chained fused multiply-adds, starting with the last product of each group: VDPBF16PS."""

    summary = "fused multiply-adds, the last product of a group first, subnormals flushed to zero"
    oracle_class = "FlushedFma"
    form = tile.FlushedFma

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return chained multiply-adds that start with the last product."""
        found: SumNode | str = state
        for k in range(start + self.group_size - 1, start - 1, -1):
            found = SumNode(_FMA, (found, ProductLeaf((k,))), _HOW)
        assert isinstance(found, SumNode)
        return found

    def roundings(self) -> int:
        """Return the group size, because a group is one chain."""
        return self.group_size

    def of_c(self) -> int:
        """Return the number of roundings of C: the group size, because the chain begins with C."""
        return self.group_size

    def add(self, x: Float32Matrix, y: Float32Matrix, state: Float32Matrix, i: int, j: int) -> None:
        """Add rows i to j with the reference loop."""
        cpu.flushed_fma_dot(x, y, self.group_size, state, i, j)

    def dots_form(self) -> type[tile.Form] | None:
        """Return the form of `DotEngine` for groups of two, else None."""
        return self.form if self.group_size == 2 else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LaneChains(_X86Sum):
    """Interleaved chains of fused multiply-adds from +0, with their sum added to C: AMX.

    Parameters
    ----------
    lanes : int
        Number of chains; products are assigned to them cyclically.
    """

    lanes: int = 2

    summary = "interleaved chains of fused multiply-adds, their sum added to C, subnormals flushed to zero"
    oracle_class = "Lanes"
    form: ClassVar[type[tile.Form]] = tile.Lanes
    together: ClassVar[int] = 1

    def check(self) -> None:
        """Check that the lanes divide the group."""
        super().check()
        if self.group_size % (self.lanes * self.together):
            raise ValueError(
                f"{type(self).__name__} {self.name}: group_size must be a multiple of {self.lanes * self.together}, "
                f"{self.together} for each of {self.lanes} lanes, got {self.group_size}"
            )

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return chains of the lanes' products, their sum, then the addition of C."""
        lanes: list[SumNode | str] = ["+0"] * self.lanes
        for t in range(0, self.group_size, self.together):
            lane, some = t // self.together % self.lanes, range(start + t, start + t + self.together)
            if self.together == 1:
                lanes[lane] = SumNode(_FMA, (lanes[lane], ProductLeaf((some[0],))), _HOW)
            else:
                pair = SumNode(_ADD, tuple(ProductLeaf((k,)) for k in some), _HOW)
                lanes[lane] = SumNode(_ADD, (lanes[lane], pair), _HOW)
        total = lanes[0]
        for other in lanes[1:]:
            total = SumNode(_ADD, (total, other), _HOW)
        return SumNode(_ADD, (state, total), _HOW)

    def roundings(self) -> int:
        """Return the number of roundings of a product, in its lane's chain, in the sum of the lanes and with C."""
        return self.together + self.group_size // (self.lanes * self.together) + self.lanes

    def add(self, x: Float32Matrix, y: Float32Matrix, state: Float32Matrix, i: int, j: int) -> None:
        """Add rows i to j with the reference loop."""
        cpu.lanes_dot(x, y, self.group_size, self.lanes, self.together, state, i, j)

    def dots_form(self) -> type[tile.Form] | None:
        """Return the form of `DotEngine` if it has as many lanes and groups fill whole steps, else None."""
        whole = self.lanes == self.form.lanes and self.group_size % (4 * self.form.products) == 0
        return self.form if whole else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairedLaneChains(LaneChains):
    """Interleaved chains of sums of two products, with their sum added to C: AMX-FP8."""

    summary = "interleaved chains of sums of two products, their sum added to C, subnormals flushed to zero"
    form = tile.PairLanes
    together = 2
