"""How a product is computed: by the fastest kernel that is exact for it, and by the reference where none is.

`multiply` is what `lowprec.mma` and `lowprec.gemm` call. What a kind of accumulator does itself is in `kinds`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..format.catalogue import Format
from ..kernels.tensorcore import epilogue
from ..registry import cached
from .accumulator import Accumulator, FastKernel
from .product import Float32Matrix, Matrix, Product, Schedule, canonical_nan
from .selection import REFERENCE, selected_name


class Kept(NamedTuple):
    """What a kernel, which knows its accumulator, has made of B, to be used again."""

    kernel: FastKernel
    parts: Any


def multiply(
    accumulator: Accumulator, product: Product, promote_every: int | None = None, kept: Kept | None = None
) -> Matrix:
    """Return a chain [M, N] in the accumulator's type, or what a schedule makes of chains, in float32.

    With `promote_every`, a product without a schedule is cut into chains of so many products, see `Chains.promoted`.
    """
    chains = chains_of(accumulator, product.fa, product.fb)
    if promote_every is not None and product.schedule is None:
        return chains.promoted(product, promote_every)
    return chains.compute(product, kept)


def chains_of(accumulator: Accumulator, fa: Format, fb: Format) -> Chains:
    """Return what computes an accumulator's chains for two operand formats, with the kernel in use now."""
    found = _chains(accumulator, fa, fb, selected_name())
    # Equal accumulators share an entry of the cache; messages name the one that was given.
    return found if found.accumulator is accumulator else replace(found, accumulator=accumulator)


@cached(256)
def _chains(accumulator: Accumulator, fa: Format, fb: Format, kernel_name: str) -> Chains:
    accumulator.check_formats(fa, fb)
    return Chains(accumulator, None if kernel_name == REFERENCE else accumulator.fast(fa, fb))


@dataclass(frozen=True)
class Chains:
    """Chains of products on one accumulator, by a fast kernel; None: by the reference alone."""

    accumulator: Accumulator
    kernel: FastKernel | None

    def compute(self, product: Product, kept: Kept | None = None) -> Matrix:
        """Return one chain over all K, starting from C; or the scaled sum that a schedule makes of chains."""
        # Without products, what a group of zeros makes of C is the reference's to say: loops have no group then.
        if self.kernel is not None and product.shape[2] and self.kernel.covers(product):
            return self._patched(self.kernel, product, kept)
        if product.schedule is not None:
            return self._by_block(product, product.schedule)
        return self.accumulator.reference(product)

    def _patched(self, kernel: FastKernel, product: Product, kept: Kept | None) -> Matrix:
        """Run the fast kernel on everything, then the reference on the rows and columns that it cannot do."""
        usable = kept is not None and (kept.kernel is kernel or kept.kernel == kernel)
        out, rows, columns = kernel.compute(product, kept.parts if kept is not None and usable else None)
        if rows.size:
            out[rows] = self.reference.compute(product.of_rows(rows))
        if columns.size:
            out[:, columns] = self.reference.compute(product.of_columns(columns))
        return out

    @property
    def reference(self) -> Chains:
        """The same without a fast kernel."""
        return replace(self, kernel=None)

    def keep(self, b: Matrix, fmt: Format, scale: Matrix | None = None) -> Kept | None:
        """Lay out B, with its scales inside the instruction; None where there is nothing to be laid out."""
        return None if self.kernel is None else Kept(self.kernel, self.kernel.lay_out(b, fmt, scale))

    def _by_block(self, product: Product, schedule: Schedule) -> Float32Matrix:
        """Return the scaled sum of the blocks' chains, block by block."""
        result = np.zeros(product.shape[:2], np.float32)
        state: Matrix = np.zeros(result.shape, self.accumulator.dtype)
        scale_a, scale_b, length = schedule.scale_a, schedule.scale_b, schedule.length
        for i, (sa, sb) in enumerate(zip(scale_a, scale_b, strict=True)):
            if schedule.promote:
                state[...] = 0
            elif i:
                epilogue.rescale(state, scale_a[i - 1], scale_b[i - 1], sa, sb, self.accumulator.output_bits)
            state = self.compute(product.chain(i * length, (i + 1) * length, state))
            if schedule.promote:
                epilogue.promote(state.astype(np.float32, copy=False), sa, sb, result)
        if not schedule.promote:
            epilogue.promote(state.astype(np.float32, copy=False), scale_a[-1], scale_b[-1], result)
        return canonical_nan(result)

    def promoted(self, product: Product, promote_every: int) -> Matrix:
        """Add chains of `promote_every` products, each from +0, to C in float32 and return C's type."""
        block, c = self.accumulator.scale_block, product.start
        if block and promote_every % block:
            raise ValueError(
                f"{self.accumulator}: promote_every={promote_every} is not a multiple of the scales' {block}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            total: Float32Matrix = c.astype(np.float32)
            for k in range(0, max(product.shape[2], 1), promote_every):
                total += self.compute(product.chain(k, k + promote_every, np.zeros_like(c), block))
            return canonical_nan(total.astype(c.dtype))
