"""`SequentialSum`: fused multiply-adds as IEEE 754 defines them, in float32 or float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import _threads
from ...cast.casts import decode
from ...format.catalogue import Format
from ...kernels.tensorcore.float64_dot import sequential64
from ..accumulator import FLOAT32, FLOAT64, Accumulator, StepError
from ..float32 import accumulate_f32
from ..order import Products, Rounded, Sum
from ..product import Float32Matrix, Matrix, Product, canonical_nan


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SequentialSum(Accumulator):
    """One fused multiply-add after the other in increasing k, in float32 or float64."""

    output_format: Format = FLOAT32

    words = "one fused multiply-add after the other in increasing k"
    oracle = "Sequential"
    output_formats = (FLOAT32, FLOAT64)
    multiplies_values = True

    def step(self) -> int:
        """Return 1: a chain may end after any product."""
        return 1

    def order(self) -> Sum:
        """Return four multiply-adds: the order is that of k."""
        found = self.instruction("C", 0)
        for k in (1, 2, 3):
            found = self.instruction(found, k)
        return found

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Multiply and add with one rounding."""
        words = "fused multiply-add", f"rounded to nearest, {self.output_format}"
        return Sum(words, (state, Products((start,))), Rounded(self.output_format.name))

    def step_error(self) -> StepError:
        """Return half a unit in the last place, of a step that has one product."""
        return StepError(2.0 ** -(self.output_bits + 1), 2.0**-149 if self.output_format == FLOAT32 else 2.0**-1074)

    def reference(self, product: Product) -> Matrix:
        """Return one chain in float32."""
        out: Float32Matrix = product.start.copy()
        accumulate_f32(decode(product.a, product.fa), decode(product.b, product.fb), out)
        return canonical_nan(out)


def sequential_f64(x: NDArray[np.float64], y: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``X @ Y.T + C`` of float64 numbers, which no `Format` holds."""
    out, turned = np.array(c), np.ascontiguousarray(y.T)
    grain = max(1, (1 << 18) // max(y.size, 1))
    _threads.run_chunks(lambda i, j: sequential64(x, turned, out, i, j), x.shape[0], grain)
    out[np.isnan(out)] = np.nan
    return out
