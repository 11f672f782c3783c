"""``pairwise``: CDNA2's matrix cores."""

from __future__ import annotations

import numpy as np

from ...cast.casts import decode
from ...kernels.tensorcore import amd_dot
from ..accumulator import Accumulator, Kind
from ..integers import by_rows
from ..product import Matrix, Product, canonical_nan


class Pairwise(Kind):
    """Float32 additions of neighbours, without subnormals."""

    name = "pairwise"
    words = "float32 additions of neighbours, subnormals flushed"
    oracle = "FlushedPairs"

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain; subnormals are flushed, of operands and C to +0, of results to the zero of their sign."""
        x, y = decode(product.a, product.fa), decode(product.b, product.fb)
        x[np.abs(x) < product.fa.smallest_normal] = 0
        y[np.abs(y) < product.fb.smallest_normal] = 0
        state = np.array(product.start)
        by_rows(lambda start, stop: amd_dot.pairwise_dot(x, y, accumulator.group, state, start, stop), product)
        return canonical_nan(state)
