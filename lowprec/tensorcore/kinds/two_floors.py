"""`TruncateFloorSum`: CDNA3's matrix cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._threads import over_rows, scratch
from ...cast.constants import decode_constants
from ...format.catalogue import Format
from ...kernels.cast.nearest import decode32
from ...kernels.tensorcore import amd_dot
from ...kernels.tensorcore import floored_columns as columns
from ..accumulator import FLOAT32, Accumulator, Computed, FastKernel, StepError
from ..integers import bits_of, by_rows, result_layout, take_apart, values_of
from ..order import Particular, Products, Sum
from ..product import Matrix, Product
from .dots import Spread
from .panels import not_finite

_WIDE_BITS = 31  # fraction bits of the sum before it is rounded
# Where the smaller of two products of 8 bits has bits below so many that are kept, it is less than half a unit in the
# last place of the larger, which has no bits there; a test goes through all pairs.
_ROUNDS_PAIRS = 31
_C_BITS = 23  # fraction bits of a float32 number: so many are never cut where its own exponent is the largest
_WORK = 1 << 20  # multiply-adds that are worth a thread
_ROWS_AT_ONCE, _COLUMNS_AT_ONCE = 64, 512


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TruncateFloorSum(Accumulator):
    """Products cut toward zero, then joined with C by cutting toward minus infinity: CDNA3.

    Parameters
    ----------
    group : int
        Products per sum, 1 to 256.
    fraction_bits : int
        Fraction bits kept below the largest exponent, 3 to 40.
    run : int
        Number of interleaved partial sums.
    """

    group: int = 8
    fraction_bits: int = 24
    run: int = 1

    words = "products cut toward zero, then joined with C by cutting downwards, one rounding"
    oracle = "FlooredSum"

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Sum products that were cut, and join the sum with C."""
        bits, run = self.fraction_bits, min(self.run, self.group)  # others have no products
        words = "aligned to the largest exponent", f"cut toward zero, {bits} fraction bits kept", "added exactly"
        lanes = [Products(tuple(range(start + i, start + self.group, run))) for i in range(run)]
        parts = [Sum(words, (lane,), Particular("cut", (bits,), kept=bits)) for lane in lanes]
        join = Particular("joined", (bits, run), kept=bits)
        joined = parts[0] if run == 1 else Sum(("aligned, cut downwards, added",), tuple(parts), join)
        last = f"aligned, cut downwards: C to {bits} bits", "added, cut to 31 bits, rounded to float32"
        pairs = bits >= _ROUNDS_PAIRS
        whole = Particular("joined with C", (_WIDE_BITS,), rounds_pairs=pairs)
        kept = bits if bits >= _C_BITS else None  # and C is not dropped for a window of one more
        how = Particular("joined with C", (bits, int(self.run > 1)), pairs, kept, whole, cuts_first=True)
        return Sum(last, (state, joined), how)

    def step_error(self) -> StepError:
        """Return that of products cut once, of two joints and C cut downwards, and of two roundings of the sum.

        A zero C takes part with float32's smallest exponent; one that is dropped is worth less than a cut.
        """
        lost = (self.group + 4) * 2.0**-self.fraction_bits + 2.0**-_WIDE_BITS
        last = 2.0**-24 + 2.0**-_WIDE_BITS
        return StepError(lost + last * (1 + lost), 2 * lost * 2.0**-126 + 2.0**-149)

    def reference(self, product: Product) -> Matrix:
        """Return one chain over all K; with two partial sums a C far below the others is dropped."""
        p, group = product, self.group
        left, right = take_apart(p.a, p.fa, group), take_apart(p.b, p.fb, group)
        state, layout = bits_of(p.start), result_layout(self, nearest=True)
        low_bits = p.fa.mantissa_bits + p.fb.mantissa_bits
        window = _window(self)

        rule = amd_dot.Floors(low_bits, group, self.run, self.fraction_bits, _WIDE_BITS, window)

        def piece(start: int, stop: int) -> None:
            amd_dot.floored_dot(left, right, rule, layout, state, start, stop)

        by_rows(piece, p)
        return values_of(state, self)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel for many columns, where products are exact in float64."""
        plain = all(f.signed and f.has_zero and f.mantissa_bits <= 11 for f in (fa, fb))
        within = fa.emin + fb.emin > -900
        short = self.fraction_bits <= columns.MAX_FRACTION_BITS
        return Columns(self) if plain and within and short and self.output_format == FLOAT32 else None


def _window(accumulator: TruncateFloorSum) -> int:
    """Return by how much C's exponent may be smaller than the largest for it to count."""
    return accumulator.fraction_bits + 1 if accumulator.run > 1 else 1 << 20


@dataclass(frozen=True)
class Columns:
    """The kernel in float64 lanes for one accumulator; what it gives that is not finite is left to the reference.

    So are rows and columns of operands so large that a product may leave float32: it counts as Inf then.
    """

    accumulator: TruncateFloorSum

    def covers(self, product: Product) -> bool:
        """Take single chains; of a schedule each is one."""
        return product.schedule is None

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None) -> Any:
        """Keep nothing: what is laid out is sixteen times B's codes."""
        return None

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel, some columns of the result at a time."""
        p, (m, n, k) = product, product.shape
        group, lanes = self.accumulator.group, self.accumulator.run
        depth = -(-group // (lanes * columns.STEP)) * columns.STEP
        window = 2.0 ** min(_window(self.accumulator), 900)
        rule = columns.Floors(lanes, depth, self.accumulator.fraction_bits, window)
        per_row = max(-(-k // group), 1) * lanes * depth
        with np.errstate(invalid="ignore"):  # signalling NaNs
            out = np.array(p.start, np.float32)

        def dealt(side: str, codes: Matrix, fmt: Format) -> columns.Dealt:
            shape = len(codes), per_row
            parts = (scratch(f"floors_{side}_{of}", len(codes) * per_row, np.float64) for of in ("values", "powers"))
            found = columns.Dealt(*(part.reshape(shape) for part in parts))
            columns.deal(_values(codes, fmt), 2.0**fmt.emin, group, rule, found)
            return found

        for first in range(0, n, _COLUMNS_AT_ONCE):
            some = slice(first, min(first + _COLUMNS_AT_ONCE, n))
            y = dealt("b", p.b[some], p.fb)
            size = -(-len(y.values) // columns.COLUMNS) * columns.COLUMNS * per_row
            panels = columns.Dealt(*(scratch(f"floors_panels_{i}", size, np.float64) for i in range(2)))
            columns.turn(y, panels)

            def some_rows(start: int, stop: int, some: slice = some, panels: columns.Dealt = panels) -> None:
                columns.floored_columns(dealt("a", p.a[start:stop], p.fa), panels, rule, out[start:stop, some])

            over_rows(some_rows, m, (some.stop - some.start) * per_row, _WORK, _ROWS_AT_ONCE)
        large, more = _large(p), not_finite(out)
        return Computed(out, *(np.union1d(some, others) for some, others in zip(large, more, strict=True)))


def _large(p: Product) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows and columns without which all products are below 2^128."""
    none = np.empty(0, np.intp)
    if p.fa.emax + p.fb.emax + 2 <= 128:
        return none, none
    left, right = (Spread.of(_values(codes, fmt), fmt.emin).high for codes, fmt in ((p.a, p.fa), (p.b, p.fb)))
    if left.max() + right.max() + 2 <= 128:
        return none, none
    return np.flatnonzero(left > 63), np.flatnonzero(right > 63)


def _values(codes: Matrix, fmt: Format) -> NDArray[np.float32]:
    """Return what codes mean, valid until this thread's next call."""
    x = scratch("floors_decoded", codes.size, np.float32)
    decode32(np.ascontiguousarray(codes).reshape(-1), x, decode_constants(fmt))
    return x.reshape(codes.shape)
