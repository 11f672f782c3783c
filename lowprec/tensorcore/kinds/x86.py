"""``flushed_fma``, ``lanes`` and ``pair_lanes``: x86's dot products, which flush subnormals whatever the mode."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format
from ...kernels.tensorcore import cpu_dot
from ...kernels.tensorcore.dot_tile import FlushedFma as FlushedFmaForm
from ...kernels.tensorcore.dot_tile import Form
from ...kernels.tensorcore.dot_tile import Lanes as LanesForm
from ...kernels.tensorcore.dot_tile import PairLanes as PairLanesForm
from ..accumulator import Accumulator, FastKernel, Kind, StepError
from ..integers import by_rows
from ..order import Products, Rounded, Sum
from ..product import Float32Matrix, Matrix, Product, canonical_nan
from .dots import Dots, read

_U, _LEAST = 2.0**-24, 2.0**-126
_FMA = ("fused multiply-add", "rounded to nearest, float32, subnormals flushed")
_ADD = ("+ in float32, subnormals flushed",)
_HOW = Rounded(flushes="x86")


class Flushing(Kind):
    """What they share: float32 sums to nearest even without subnormals."""

    form: ClassVar[type[Form]]
    own_fields = frozenset({"flushed"})

    def values(self, accumulator: Accumulator, codes: Matrix, fmt: Format) -> NDArray[np.float64]:
        """Return the values with what is flushed as zero."""
        return read(accumulator, codes, fmt, True).astype(np.float64)

    @abstractmethod
    def roundings(self, accumulator: Accumulator) -> int:
        """Return how often a product is rounded on its way, alone or as part of a sum."""

    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return that of so many roundings; every product and sum may be flushed."""
        flushes = 2 * accumulator.group + accumulator.run + 2
        return StepError((1 + _U) ** self.roundings(accumulator) - 1, 2 * flushes * _LEAST)

    @abstractmethod
    def add(
        self, accumulator: Accumulator, x: Float32Matrix, y: Float32Matrix, state: Float32Matrix, i: int, j: int
    ) -> None:
        """Add rows i to j of X Y^T onto `state`, by the slow loop."""

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain, sum by sum."""
        p, state = product, np.array(product.start)
        x, y = read(accumulator, p.a, p.fa, True), read(accumulator, p.b, p.fb, True)
        by_rows(lambda start, stop: self.add(accumulator, x, y, state, start, stop), p)
        return canonical_nan(state)

    @abstractmethod
    def has_form(self, accumulator: Accumulator) -> bool:
        """Tell whether the numbers are those of its form."""

    def fast(self, accumulator: Accumulator, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes, for operands of at most 12 significant bits."""
        short = all(f.mantissa_bits <= 11 and f.signed and f.has_zero for f in (fa, fb))
        return Dots(accumulator, self.form, fa, fb, True) if short and self.has_form(accumulator) else None


class FlushedFma(Flushing):
    """Fused multiply-adds, the last product of each group first."""

    name = "flushed_fma"
    words = "fused multiply-adds, the last product of a group first, subnormals flushed"
    oracle = "FlushedFma"
    form = FlushedFmaForm

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Multiply and add, the last product first."""
        found: Sum | str = state
        for k in range(start + accumulator.group - 1, start - 1, -1):
            found = Sum(_FMA, (found, Products((k,))), _HOW)
        assert isinstance(found, Sum)
        return found

    def roundings(self, accumulator: Accumulator) -> int:
        """Return the group: all of it is one chain."""
        return accumulator.group

    def add(
        self, accumulator: Accumulator, x: Float32Matrix, y: Float32Matrix, state: Float32Matrix, i: int, j: int
    ) -> None:
        """Add rows i to j."""
        cpu_dot.flushed_fma_dot(x, y, accumulator.group, state, i, j)

    def has_form(self, accumulator: Accumulator) -> bool:
        """Ask for pairs."""
        return accumulator.group == 2


class Lanes(Flushing):
    """`run` chains of fused multiply-adds from +0, whose sum is added to C."""

    name = "lanes"
    words = "interleaved chains of fused multiply-adds, their sum added to C, subnormals flushed"
    oracle = "Lanes"
    form: ClassVar[type[Form]] = LanesForm
    own_fields = frozenset({"flushed", "run"})
    together: ClassVar[int] = 1

    def check(self, accumulator: Accumulator) -> None:
        """Ask for whole lanes."""
        super().check(accumulator)
        if accumulator.group % (accumulator.run * self.together):
            raise ValueError(
                f"Accumulator {accumulator.name}: group={accumulator.group} is not a multiple of "
                f"{accumulator.run * self.together}, {self.together} for each of {accumulator.run} lanes"
            )

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Deal the products to lanes, add these, then C."""
        lanes: list[Sum | str] = ["+0"] * accumulator.run
        for t in range(0, accumulator.group, self.together):
            lane, some = t // self.together % accumulator.run, range(start + t, start + t + self.together)
            if self.together == 1:
                lanes[lane] = Sum(_FMA, (lanes[lane], Products((some[0],))), _HOW)
            else:
                pair = Sum(_ADD, tuple(Products((k,)) for k in some), _HOW)
                lanes[lane] = Sum(_ADD, (lanes[lane], pair), _HOW)
        total = lanes[0]
        for other in lanes[1:]:
            total = Sum(_ADD, (total, other), _HOW)
        return Sum(_ADD, (state, total), _HOW)

    def roundings(self, accumulator: Accumulator) -> int:
        """Return those of a product, of a lane's chain, of the sum of lanes, and of C's addition."""
        return self.together + accumulator.group // (accumulator.run * self.together) + accumulator.run

    def add(
        self, accumulator: Accumulator, x: Float32Matrix, y: Float32Matrix, state: Float32Matrix, i: int, j: int
    ) -> None:
        """Add rows i to j."""
        cpu_dot.lanes_dot(x, y, accumulator.group, accumulator.run, self.together, state, i, j)

    def has_form(self, accumulator: Accumulator) -> bool:
        """Ask for two lanes and whole rounds of the tile."""
        return accumulator.run == self.form.lanes and accumulator.group % (4 * self.form.products) == 0


class PairLanes(Lanes):
    """The same for sums of two products."""

    name = "pair_lanes"
    words = "interleaved chains of sums of two products, their sum added to C, subnormals flushed"
    form = PairLanesForm
    together = 2
