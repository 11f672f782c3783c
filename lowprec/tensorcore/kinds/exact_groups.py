"""`ExactGroupSum`: CDNA1's matrix cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...cast.casts import decode
from ...format.catalogue import Format
from ...kernels.tensorcore import amd_dot
from ...kernels.tensorcore.dot_tile import ExactPairs, ExactQuads, Form
from ..accumulator import Accumulator, FastKernel, StepError
from ..integers import by_rows
from ..order import Products, Rounded, Sum
from ..product import Matrix, Product, canonical_nan
from .dots import Dots

_FORMS: dict[int, type[Form]] = {2: ExactPairs, 4: ExactQuads}  # by group


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactGroupSum(Accumulator):
    """Exact sums of a group and C, each rounded once: CDNA1."""

    group: int = 4

    words = "a group and C summed exactly, one rounding to nearest even"
    oracle = "ExactGroups"

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Sum a group and C exactly."""
        products = Products(tuple(range(start, start + self.group)))
        return Sum(("exact sum", "rounded to nearest even, float32"), (state, products), Rounded(zeros="+0"))

    def step_error(self) -> StepError:
        """Return half a unit in the last place."""
        return StepError(2.0**-24, 2.0**-149)

    def reference(self, product: Product) -> Matrix:
        """Return one chain: a group's products and C exactly, one rounding to nearest even."""
        x, y, state = decode(product.a, product.fa), decode(product.b, product.fb), np.array(product.start)
        by_rows(lambda start, stop: amd_dot.exact_group_dot(x, y, self.group, state, start, stop), product)
        return canonical_nan(state)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float64 lanes, for groups of two and four."""
        form = _FORMS.get(self.group)
        plain = all(f.mantissa_bits <= 11 and f.signed and f.has_zero for f in (fa, fb))
        return Dots(self, form, fa, fb, False) if plain and form is not None else None
