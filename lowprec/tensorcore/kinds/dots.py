"""What kinds of CPUs, CDNA1 and CDNA2 share: kernels in plain float32 and float64 lanes, and what they hold for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._threads import Allocate, fresh, over_rows, scratch
from ...cast.constants import decode_constants
from ...format.catalogue import Format
from ...kernels.cast.nearest import decode32
from ...kernels.tensorcore import dot_gemm
from ...kernels.tensorcore.dot_tile import COLUMNS, ROWS, Form
from ...kernels.vectors import F32
from ..accumulator import Accumulator, Computed
from ..product import Float32Matrix, Matrix, Product
from .panels import not_finite

_WORK = 1 << 25  # multiply-adds that are worth a thread
_ROWS_AT_ONCE = 512
_NONE = np.empty(0, np.intp)
Bounds = tuple[NDArray[np.intp], NDArray[np.intp]]
_STEPS = 4  # that a tile takes at a time


class Spread(NamedTuple):
    """Exponents of each row's least and largest magnitude, zeros aside; (127, -127) where all are zeros."""

    low: NDArray[np.int32]
    high: NDArray[np.int32]

    @classmethod
    def of(cls, x: Float32Matrix, least: int) -> Spread:
        """Find those of rows [R, K], at least the smallest normal number's `least`; Inf and NaN have 128."""
        low, high = (np.empty(len(x), np.uint32) for _ in range(2))
        dot_gemm.extents(x, low, high)
        exponents = [np.maximum((bits >> 23).astype(np.int32) - 127, least) for bits in (low, high)]
        exponents[0][high == 0], exponents[1][high == 0] = 127, -127
        return cls(exponents[0], exponents[1])


class LaidOut(NamedTuple):
    """B in panels, and its rows' exponents."""

    panels: NDArray[Any]
    spread: Spread


@dataclass(frozen=True)
class Dots:
    """One form of the kernel for one accumulator.

    Parameters
    ----------
    accumulator : Accumulator
    form : type of Form
        What a step does.
    fa, fb : Format
        What is multiplied.
    flushes : bool
        Whether operands that are subnormal as float32 are zeros.
    """

    accumulator: Accumulator
    form: type[Form]
    fa: Format
    fb: Format
    flushes: bool

    @property
    def factor(self) -> float:
        """What products are multiplied by."""
        return 2.0**self.accumulator.product_exponent

    def covers(self, product: Product) -> bool:
        """Take single chains; of a schedule each is one."""
        return product.schedule is None

    def _values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        return read(self.accumulator, codes, fmt, self.flushes)

    def depth(self, k: int) -> tuple[int, int]:
        """Return K with the zeros that fill its last group, and with those that fill a tile's last steps."""
        group, products = self.accumulator.group, self.form.products
        whole = -(-max(k, 1) // group) * group
        every = group if self.form.lanes else products * _STEPS
        return whole, -(-whole // every) * every

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None, allocate: Allocate = fresh) -> LaidOut:
        """Lay out B, and find its rows' exponents."""
        y = self._values(b, fmt)
        columns, dtype = -(-len(b) // COLUMNS) * COLUMNS, np.float32 if self.form.element is F32 else np.float64
        panels = allocate("dots_b", columns * self.depth(b.shape[1])[1], dtype)
        dot_gemm.pack_panels(y, dtype(self.factor), panels)
        return LaidOut(panels, Spread.of(y, fmt.emin))

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel; rows and columns with operands that it does not hold for are left to the reference."""
        p, (m, n, k) = product, product.shape
        panels, right = laid_out or self.lay_out(p.b, p.fb, None, scratch)
        whole, depth = self.depth(k)
        x, out = self._values(p.a, p.fa), np.array(p.start, np.float32)
        left = Spread.of(x, p.fa.emin)
        bounds = self._bounds_normal if self.form.element is F32 else self._bounds_exact
        rows, columns = bounds(left, right, k, p.start)
        dots, steps = dot_gemm.dots[self.form], self.accumulator.group // self.form.products if self.form.lanes else 0

        def some_rows(first: int, stop: int) -> None:
            quads = scratch("dots_a", -(-(stop - first) // ROWS) * ROWS * depth, panels.dtype)
            dot_gemm.pack_quads(x[first:stop], whole, quads)
            dots(quads, panels, self.form.products, steps, out[first:stop])

        over_rows(some_rows, m, n * depth, _WORK, _ROWS_AT_ONCE)
        more = not_finite(out)
        rows, columns = (np.union1d(some, others) for some, others in zip((rows, columns), more, strict=True))
        return Computed(out, rows, columns)

    def _bounds_normal(self, left: Spread, right: Spread, k: int, c: Matrix) -> Bounds:
        """Return rows and columns without which all terms are multiples of 2^-126 and all sums below 2^126."""
        least = -126 + self.fa.mantissa_bits + self.fb.mantissa_bits  # of a product's exponent
        most = 126 - 2 - max(k, 1).bit_length()
        rows, columns = _NONE, _NONE
        if left.low.min() + right.low.min() < least or left.high.max() + right.high.max() > most:
            rows = np.flatnonzero((left.low < least // 2) | (left.high > most // 2))
            columns = np.flatnonzero((right.low < least - least // 2) | (right.high > most - most // 2))
        magnitude = c.view(np.uint32) & np.uint32(0x7FFFFFFF)
        usual = (magnitude == 0) | ((magnitude >= (127 - 103) << 23) & (magnitude < (127 + 125) << 23))
        return np.union1d(rows, np.flatnonzero(~usual.all(axis=1))), columns

    def _bounds_exact(self, left: Spread, right: Spread, k: int, c: Matrix) -> Bounds:
        """Return rows and columns without which float64 holds every sum of a group and C."""
        bits = self.fa.mantissa_bits + self.fb.mantissa_bits
        shift, more = self.accumulator.product_exponent, 3 + max(k, 1).bit_length()
        low = left.low + right.low.min() + (shift - bits)
        if (c.view(np.uint32) & np.uint32(0x7FFFFFFF)).any():
            of_c = Spread.of(np.ascontiguousarray(c, np.float32), -126)
            low = np.minimum(low, of_c.low - 23)
            high = np.maximum(left.high + right.high.max() + shift, of_c.high)
            return np.flatnonzero((high + more - low > self.form.span) | (low < -149)), _NONE
        rows = np.flatnonzero(low < -149)
        room = self.form.span - bits - more  # between the exponents of an output's largest and least products
        spans = [s.high - s.low for s in (left, right)]
        if spans[0].max() + spans[1].max() <= room:
            return rows, _NONE
        return np.union1d(rows, np.flatnonzero(spans[0] > room // 2)), np.flatnonzero(spans[1] > room // 2)


def read(accumulator: Accumulator, codes: Matrix, fmt: Format, flushes: bool) -> Float32Matrix:
    """Return the values of codes as they are multiplied: a subnormal that is flushed is the zero of its sign."""
    x = np.empty(codes.shape, np.float32)
    decode32(np.ascontiguousarray(codes).reshape(-1), x.reshape(-1), decode_constants(fmt))
    least = 2.0**-126 if flushes and fmt.smallest_subnormal < 2.0**-126 else 0.0
    if accumulator.flushes(fmt):
        least = fmt.smallest_normal
    if least:
        np.copysign(np.float32(0), x, out=x, where=np.abs(x) < np.float32(least))
    return x
