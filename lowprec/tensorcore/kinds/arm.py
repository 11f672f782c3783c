"""``odd``, ``rounded_groups`` and ``scaled_groups``: Arm's dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format, formats
from ...kernels.tensorcore import cpu_dot
from ...kernels.tensorcore import dot_tile as tile
from ..accumulator import Accumulator, Computed, FastKernel, Kind, StepError
from ..float32 import accumulate_f32
from ..integers import by_rows
from ..order import Products, Rounded, Sum
from ..product import Matrix, Product, canonical_nan
from .dots import Dots, read
from .panels import not_finite

_ODD = Rounded(rounding="odd", flushes="odd")


class Odd(Kind):
    """Every product and every sum rounded to odd, without subnormals."""

    name = "odd"
    words = "products, their sum and the sum with C rounded to odd, subnormals flushed"
    oracle = "Odd"

    def values(self, accumulator: Accumulator, codes: Matrix, fmt: Format) -> NDArray[np.float64]:
        """Return the values without float32's subnormals."""
        return read(accumulator, codes, fmt, True).astype(np.float64)

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Add products one after the other, then C."""
        found: Sum | Products = Products((start,))
        for k in range(start + 1, start + accumulator.group):
            found = Sum(("+ rounded to odd",), (found, Products((k,))), _ODD)
        return Sum(("+ rounded to odd",), (state, found), _ODD)

    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return that of a product's roundings, each less than a unit in the last place, and of flushes."""
        return StepError((1 + 2.0**-23) ** (accumulator.group + 1) - 1, 2 * (2 * accumulator.group + 1) * 2.0**-126)

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain, sum by sum."""
        p, state = product, np.array(product.start)
        x, y = read(accumulator, p.a, p.fa, True), read(accumulator, p.b, p.fb, True)
        by_rows(lambda start, stop: cpu_dot.odd_dot(x, y, accumulator.group, state, start, stop), p)
        return canonical_nan(state)

    def fast(self, accumulator: Accumulator, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes, for pairs of at most 12 significant bits."""
        return Dots(accumulator, tile.Odd, fa, fb, True) if accumulator.group == 2 and _short(fa, fb) else None


class RoundedGroups(Kind):
    """A group's exact sum rounded to float32, then added to C."""

    name = "rounded_groups"
    words = "a group summed exactly and rounded, then added to C and rounded"
    oracle = "RoundedGroups"

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Sum a group exactly and round it, then add C."""
        products = Products(tuple(range(start, start + accumulator.group)))
        group = Sum(("exact sum", "rounded to nearest even, float32"), (products,), Rounded())
        return Sum(("+ in float32",), (state, group), Rounded())

    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return that of two roundings."""
        return StepError((1 + 2.0**-24) ** 2 - 1, 2 * 2.0**-149)

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain, group by group."""
        p, state = product, np.array(product.start)
        x, y = read(accumulator, p.a, p.fa, False), read(accumulator, p.b, p.fb, False)
        by_rows(lambda start, stop: cpu_dot.rounded_groups_dot(x, y, accumulator.group, state, start, stop), p)
        return canonical_nan(state)

    def fast(self, accumulator: Accumulator, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes, for pairs of at most 12 significant bits."""
        pairs = accumulator.group == 2 and _short(fa, fb)
        return Dots(accumulator, tile.RoundedPairs, fa, fb, False) if pairs else None


class ScaledGroups(Kind):
    """A group's exact sum, times a power of two, and C: one rounding."""

    name = "scaled_groups"
    words = "a group's exact sum times a power of two, and C, rounded once"
    oracle = "ScaledGroups"
    outputs = ("float32", "float16")
    own_fields = frozenset({"product_exponent", "saturate"})

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Sum a group, times the power of two, and C exactly."""
        a = accumulator
        products = Products(tuple(range(start, start + a.group)), a.product_exponent)
        how = Rounded(a.output, saturates=a.saturate)
        return Sum(("exact sum", f"rounded to nearest even, {a.output}"), (state, products), how)

    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return half a unit in the last place, in units of products that are not yet multiplied."""
        stored = formats[accumulator.dtype]
        return StepError(
            2.0 ** -(stored.mantissa_bits + 1), stored.smallest_subnormal * 2.0**-accumulator.product_exponent
        )

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain, group by group."""
        p, stored = product, formats[accumulator.dtype]
        x, y = read(accumulator, p.a, p.fa, False), read(accumulator, p.b, p.fb, False)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            state = p.start.astype(np.float64)
        beyond = float(stored.max) if accumulator.saturate else np.inf
        layout = float(stored.smallest_normal), stored.mantissa_bits, float(stored.max), beyond
        factor, group = 2.0**accumulator.product_exponent, accumulator.group
        by_rows(lambda start, stop: cpu_dot.scaled_groups_dot(x, y, group, factor, layout, state, start, stop), p)
        with np.errstate(invalid="ignore"):
            return canonical_nan(state.astype(accumulator.dtype))

    def fast(self, accumulator: Accumulator, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float64 lanes for four products, that of float32 sums for one."""
        if accumulator.output != "float32" or not _short(fa, fb):
            return None
        if accumulator.group == 4:
            return Dots(accumulator, tile.ScaledGroups, fa, fb, False)
        factor = 2.0**accumulator.product_exponent
        stays = fb.smallest_subnormal * factor >= 2.0**-149 and fb.max * factor < 2.0**127
        return Scaled(accumulator) if accumulator.group == 1 and stays else None


@dataclass(frozen=True)
class Scaled:
    """Fused multiply-adds in float32, one operand multiplied by the power of two before."""

    accumulator: Accumulator

    def covers(self, product: Product) -> bool:
        """Take single chains; of a schedule each is one."""
        return product.schedule is None

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None) -> Any:
        """Keep nothing but the values."""
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return read(self.accumulator, b, fmt, False) * np.float32(2.0**self.accumulator.product_exponent)

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel; what comes out other than finite is left to the reference."""
        p, out = product, np.array(product.start)
        y = self.lay_out(p.b, p.fb, None) if laid_out is None else laid_out
        accumulate_f32(read(self.accumulator, p.a, p.fa, False), y, out)
        return Computed(out, *not_finite(out))


def _short(fa: Format, fb: Format) -> bool:
    """Tell whether products of two formats are exact in float32, exponents aside."""
    return all(f.mantissa_bits <= 11 and f.signed and f.has_zero for f in (fa, fb))
