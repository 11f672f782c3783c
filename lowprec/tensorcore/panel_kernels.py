"""Fused sums in float64 lanes: what their kernels share.

A kernel comes in three forms, of which the fastest is taken that the CPU has and that proves itself; what
`fused_kernels` is told to use, these use too. B is laid out in panels, some hundred columns of the result each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import _jit
from ..format.catalogue import Format
from ..kernels.tensorcore.wide_pack import exponent_range
from .accumulator import AlignedSum
from .fused_kernels import fused_kernels, rounds_to_nearest
from .product import Float32Matrix
from .selection import selected_kernel

NO_ZERO_EXPONENT = -600  # below every product of two operands, and two scales, with 8 exponent bits


@dataclass(frozen=True)
class PanelKernel:
    """One form of a kernel.

    Parameters
    ----------
    name : str
        As the `fused_kernels` entry that it goes with.
    factor : float
        What B's values, or its scales, are multiplied by beforehand.
    forms : mapping
        Compiled kernel by kind of result (`kernels.tensorcore.wide_sum.RESULTS`).
    """

    name: str
    factor: float
    forms: Mapping[str, Callable[..., None]]

    def supports(self, accumulator: AlignedSum, fa: Format, fb: Format) -> bool:
        """Tell whether an accumulator and its operands lie within the kernel's bounds."""
        raise AssertionError("every kernel has its own")


Kernel = TypeVar("Kernel", bound=PanelKernel)


def fastest(
    kernels: Mapping[str, Kernel], passes: Callable[[str], bool], accumulator: AlignedSum, fa: Format, fb: Format
) -> Kernel | None:
    """Return the form to use for an accumulator and its operands, None if there is none; the portable need not pass."""
    for name in (selected_kernel().name, "portable"):
        candidate = kernels.get(name)  # None: a fused kernel of one's own, which has no such form
        if candidate is not None and candidate.supports(accumulator, fa, fb) and (name == "portable" or passes(name)):
            return candidate
    return None


def proves_itself(kernel: Kernel, trial: Callable[[Kernel], tuple[Float32Matrix, Float32Matrix]]) -> bool:
    """Tell whether the CPU has what a form needs, and a trial gives the bits that it should: it returns both."""
    if fused_kernels[kernel.name].features - _jit.cpu_features():
        return False
    got, wanted = trial(kernel)
    return rounds_to_nearest() and got.tobytes() == wanted.tobytes()


def lowest_exponent(accumulator: AlignedSum) -> int:
    """Return the exponent that an accumulator's zero products count as, one below all where they do not count."""
    return NO_ZERO_EXPONENT if accumulator.zero_exponent is None else accumulator.zero_exponent


class Panel(NamedTuple):
    """Part of B as a kernel wants it: `columns` of the result from `first`, and the exponents in it."""

    packed: Any
    first: int
    columns: int
    extent: Extent


class Extent(NamedTuple):
    """Smallest and largest exponent among nonzero numbers."""

    low: int = 1 << 12
    high: int = -(1 << 12)

    def widened(self, x: Float32Matrix, fmt: Format) -> Extent:
        """Return the exponents of `x`, values of a format, as well as these."""
        if fmt.emin > -50:  # whatever they are, nothing leaves float32
            return Extent(min(self.low, fmt.emin), max(self.high, fmt.emax + 1))
        low, high = exponent_range(x.reshape(-1))
        return Extent(min(self.low, max(int(low), fmt.emin)), max(self.high, int(high)))

    def joined(self, other: Extent) -> Extent:
        """Return the exponents of both."""
        return Extent(min(self.low, other.low), max(self.high, other.high))

    def shifted(self, exponents: NDArray[np.int16]) -> Extent:
        """Return the exponents after multiplication by powers of two, if there are any."""
        if exponents.size == 0:
            return self
        return Extent(self.low + int(exponents.min()), self.high + int(exponents.max()))

    def is_normal(self, other: Extent, accumulator: AlignedSum, k: int) -> bool:
        """Tell whether sums of K products and a usual C stay within float32's normal numbers."""
        high = self.high + other.high + 2 + max(k, 1).bit_length()
        return self.low + other.low - accumulator.fraction_bits >= -126 and high <= 126


def is_usual(c: Float32Matrix) -> bool:
    """Tell whether every number is zero or in 2^-126 .. 2^126."""
    magnitude = c.view(np.uint32) & np.uint32(0x7FFFFFFF)
    normal = (magnitude >= np.uint32(1 << 23)) & (magnitude < np.uint32((127 + 126) << 23))
    return bool((normal | (magnitude == 0)).all())
