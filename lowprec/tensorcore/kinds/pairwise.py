"""`PairwiseSum`: CDNA2's matrix cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import decode
from ...format.catalogue import Format
from ...kernels.tensorcore import amd_dot
from ...kernels.tensorcore.dot_tile import Form, Pairs, PairsOfPairs
from ..accumulator import Accumulator, Computed, FastKernel, StepError
from ..integers import by_rows
from ..order import Products, Rounded, Sum
from ..product import Float32Matrix, Matrix, Product, canonical_nan
from .dots import Dots

_FORMS: dict[int, type[Form]] = {2: Pairs, 4: PairsOfPairs}  # by group
_ADD = Rounded(flushes="cdna2")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairwiseSum(Accumulator):
    """Float32 additions of neighbours, without subnormals: CDNA2."""

    group: int = 4

    words = "float32 additions of neighbours, subnormals flushed"
    oracle = "FlushedPairs"

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Add neighbours, then C."""
        items: list[Sum | Products] = [Products((k,)) for k in range(start, start + self.group)]
        while len(items) > 1:
            pairs = [tuple(items[i : i + 2]) for i in range(0, len(items), 2)]
            items = [Sum(("+ in float32",), pair, _ADD) if len(pair) > 1 else pair[0] for pair in pairs]
        return Sum(("+ in float32",), (state, items[0]), _ADD)

    def step_error(self) -> StepError:
        """Return that of a product's roundings, as many as the tree is deep and two more, each flushed when tiny."""
        roundings = 2 + (self.group - 1).bit_length()
        flushes = 2 * self.group + 1
        return StepError((1 + 2.0**-24) ** roundings - 1, 2 * flushes * 2.0**-126)

    def values(self, codes: Matrix, fmt: Format) -> NDArray[np.float64]:
        """Return the values without subnormals, which are zeros here."""
        found = super().values(codes, fmt)
        return np.where(np.abs(found) < fmt.smallest_normal, 0.0, found)

    def reference(self, product: Product) -> Matrix:
        """Return one chain; subnormals are flushed, of operands and C to +0, of results to the zero of their sign."""
        x, y = decode(product.a, product.fa), decode(product.b, product.fb)
        x[np.abs(x) < product.fa.smallest_normal] = 0
        y[np.abs(y) < product.fb.smallest_normal] = 0
        state = np.array(product.start)
        by_rows(lambda start, stop: amd_dot.pairwise_dot(x, y, self.group, state, start, stop), product)
        return canonical_nan(state)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes, for groups of two and four."""
        form = _FORMS.get(self.group)
        plain = all(f.mantissa_bits <= 11 and f.signed and f.has_zero for f in (fa, fb))
        return _FlushedDots(self, form, fa, fb, True) if plain and form is not None else None


class _FlushedDots(Dots):
    """The kernel for operands of which no subnormal is multiplied, and a C whose zeros are +0."""

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel from +0 where C is -0."""
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return super().compute(product._replace(c=product.start + np.float32(0)), laid_out)

    def _values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        return self.accumulator.values(codes, fmt).astype(np.float32)
