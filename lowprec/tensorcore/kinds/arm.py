"""`RoundToOddSum`, `RoundedGroupSum` and `ScaledGroupSum`: Arm's dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format
from ...kernels.tensorcore import cpu_dot
from ...kernels.tensorcore import dot_tile as tile
from ..accumulator import FLOAT16, FLOAT32, Accumulator, Computed, FastKernel, StepError
from ..float32 import accumulate_f32
from ..integers import by_rows
from ..order import Products, Rounded, Sum
from ..product import Matrix, Product, canonical_nan
from .dots import Dots, read
from .panels import not_finite

_ODD = Rounded(rounding="odd", flushes="odd")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RoundToOddSum(Accumulator):
    """Every product and every sum rounded to odd, without subnormals: BFDOT with FPCR.EBF = 0."""

    group: int = 2

    words = "products, their sum and the sum with C rounded to odd, subnormals flushed"
    oracle = "Odd"

    def values(self, codes: Matrix, fmt: Format) -> NDArray[np.float64]:
        """Return the values without float32's subnormals."""
        return read(self, codes, fmt, True).astype(np.float64)

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Add products one after the other, then C."""
        found: Sum | Products = Products((start,))
        for k in range(start + 1, start + self.group):
            found = Sum(("+ rounded to odd",), (found, Products((k,))), _ODD)
        return Sum(("+ rounded to odd",), (state, found), _ODD)

    def step_error(self) -> StepError:
        """Return that of a product's roundings, each less than a unit in the last place, and of flushes."""
        return StepError((1 + 2.0**-23) ** (self.group + 1) - 1, 2 * (2 * self.group + 1) * 2.0**-126)

    def reference(self, product: Product) -> Matrix:
        """Return one chain, sum by sum."""
        p, state = product, np.array(product.start)
        x, y = read(self, p.a, p.fa, True), read(self, p.b, p.fb, True)
        by_rows(lambda start, stop: cpu_dot.odd_dot(x, y, self.group, state, start, stop), p)
        return canonical_nan(state)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes, for pairs of at most 12 significant bits."""
        return Dots(self, tile.Odd, fa, fb, True) if self.group == 2 and _short(fa, fb) else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RoundedGroupSum(Accumulator):
    """A group's exact sum rounded to float32, then added to C: BFDOT with FPCR.EBF = 1."""

    group: int = 2

    words = "a group summed exactly and rounded, then added to C and rounded"
    oracle = "RoundedGroups"

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Sum a group exactly and round it, then add C."""
        products = Products(tuple(range(start, start + self.group)))
        group = Sum(("exact sum", "rounded to nearest even, float32"), (products,), Rounded())
        return Sum(("+ in float32",), (state, group), Rounded())

    def step_error(self) -> StepError:
        """Return that of two roundings."""
        return StepError((1 + 2.0**-24) ** 2 - 1, 2 * 2.0**-149)

    def reference(self, product: Product) -> Matrix:
        """Return one chain, group by group."""
        p, state = product, np.array(product.start)
        x, y = read(self, p.a, p.fa, False), read(self, p.b, p.fb, False)
        by_rows(lambda start, stop: cpu_dot.rounded_groups_dot(x, y, self.group, state, start, stop), p)
        return canonical_nan(state)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes, for pairs of at most 12 significant bits."""
        pairs = self.group == 2 and _short(fa, fb)
        return Dots(self, tile.RoundedPairs, fa, fb, False) if pairs else None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScaledGroupSum(Accumulator):
    """A group's exact sum, times a power of two, and C, rounded once: Arm's FP8 dot products.

    Parameters
    ----------
    group : int
        Products per sum, 1 to 256.
    output_format : Format or str
        ``float32`` or ``float16``.
    product_exponent : int
        Products are multiplied by 2 to this power, -127 to 127 (minus FPMR.LSCALE).
    saturate : bool
        Whether a finite sum beyond the largest number is that number instead of Inf (FPMR.OSM).
    """

    group: int = 4
    output_format: Format = FLOAT32
    product_exponent: int = 0
    saturate: bool = False

    words = "a group's exact sum times a power of two, and C, rounded once"
    oracle = "ScaledGroups"
    output_formats = (FLOAT32, FLOAT16)

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Sum a group, times the power of two, and C exactly."""
        a = self
        products = Products(tuple(range(start, start + a.group)), a.product_exponent)
        how = Rounded(a.output_format.name, saturates=a.saturate)
        return Sum(("exact sum", f"rounded to nearest even, {a.output_format}"), (state, products), how)

    def step_error(self) -> StepError:
        """Return half a unit in the last place, in units of products that are not yet multiplied."""
        least = self.output_format.smallest_subnormal * 2.0**-self.product_exponent
        return StepError(2.0 ** -(self.output_bits + 1), least)

    def reference(self, product: Product) -> Matrix:
        """Return one chain, group by group."""
        p, stored = product, self.output_format
        x, y = read(self, p.a, p.fa, False), read(self, p.b, p.fb, False)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            state = p.start.astype(np.float64)
        beyond = float(stored.max) if self.saturate else np.inf
        layout = float(stored.smallest_normal), stored.mantissa_bits, float(stored.max), beyond
        factor, group = 2.0**self.product_exponent, self.group
        by_rows(lambda start, stop: cpu_dot.scaled_groups_dot(x, y, group, factor, layout, state, start, stop), p)
        with np.errstate(invalid="ignore"):
            return canonical_nan(state.astype(self.dtype))

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float64 lanes for four products, that of float32 sums for one."""
        if self.output_format != FLOAT32 or not _short(fa, fb):
            return None
        if self.group == 4:
            return Dots(self, tile.ScaledGroups, fa, fb, False)
        factor = 2.0**self.product_exponent
        stays = fb.smallest_subnormal * factor >= 2.0**-149 and fb.max * factor < 2.0**127
        return Scaled(self) if self.group == 1 and stays else None


@dataclass(frozen=True)
class Scaled:
    """Fused multiply-adds in float32, one operand multiplied by the power of two before."""

    accumulator: ScaledGroupSum

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
