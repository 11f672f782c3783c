"""Fused group sums that float32 lanes are too narrow for: float16, bfloat16 and TF32, 22 to 40 fraction bits.

One kernel in three forms (`kernels.tensorcore.wide_tile`, `panel_kernels`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._threads import Allocate, over_rows, scratch
from ..cast.constants import decode_constants
from ..format.catalogue import Format
from ..kernels.cast.nearest import decode32
from ..kernels.tensorcore import wide_pack as pack
from ..kernels.tensorcore.gemm import Chains, Operand, Sums
from ..kernels.tensorcore.wide_sum import COLUMNS, MAX_FRACTION_BITS, ROWS
from ..kernels.tensorcore.wide_tile import ALIGNED, FORMS, MAX_SIGNIFICANT_BITS
from .accumulator import ALIGNMENTS, FLOAT16, FLOAT32, Align, AlignedSum
from .panel_kernels import (
    NO_ZERO_EXPONENT,
    Extent,
    Panel,
    PanelKernel,
    is_usual,
    lowest_exponent,
)
from .product import BlockScales, Float32Matrix, Schedule

_WORK = 1 << 20  # multiply-adds that are worth a thread
_ROWS_AT_ONCE = 256  # rows of A, or of B, that are decoded and laid out together
# Columns of the result, whose part of B is laid out at a time: at least so many, and as many as hold so many elements.
_COLUMNS_AT_ONCE, _ELEMENTS_AT_ONCE = 512, 1 << 19


@dataclass(frozen=True)
class WideKernel(PanelKernel):
    """One form of the kernel, for one way to align terms; B's values are multiplied by `factor`."""

    align: Align = "truncate"

    def supports(self, accumulator: AlignedSum, fa: Format, fb: Format) -> bool:
        """Tell whether an accumulator and its operands lie within the kernel's bounds."""
        stored = accumulator.stored_format
        smallest = stored.emin if stored.name in self.forms or stored == FLOAT32 else None
        return (
            smallest is not None
            and accumulator.align == self.align
            and accumulator.fraction_bits <= MAX_FRACTION_BITS
            # Where no term is zero, C is not, and then E is at least its exponent anyway.
            and (accumulator.zero_exponent is None or NO_ZERO_EXPONENT <= accumulator.zero_exponent <= smallest)
            and all(f.mantissa_bits < MAX_SIGNIFICANT_BITS and f.emin >= -126 and f.emax <= 127 for f in (fa, fb))
            and all(f.has_zero for f in (fa, fb))
            and (accumulator.scale_format is None or _has_fitting_scales(accumulator))
        )

    def compute(
        self, accumulator: AlignedSum, operands: tuple[Format, Format], a: NDArray[Any], b: NDArray[Any],
        schedule: Schedule, c: Float32Matrix | None, scales: BlockScales | None = None,
        panels: Iterable[Panel] | None = None, onto: Float32Matrix | None = None,
    ) -> Float32Matrix:  # fmt: skip
        """Return the scaled sums of chains [M, N]; where they are not finite, they may be wrong.

        Parameters
        ----------
        accumulator : AlignedSum
            One that it `supports`.
        operands : (Format, Format)
            Formats of A and B.
        a, b : [M, K], [N, K] codes
            NaN and Inf among them make results that are not finite.
        schedule : Schedule
            Scales by block of K, and promotion.
        c : [M, N] float32 or None
            First addend of the chain.
        scales : BlockScales, optional
            Scales inside the instruction.
        panels : iterable of Panel, optional
            What `panels` made of B.
        onto : [M, N] float32, optional
            What promoted chains are added to, in place of +0. Every sum is then rounded to the accumulator's own type.
        """
        out = np.empty((a.shape[0], b.shape[0]), np.float32) if onto is None else onto
        halves = onto is not None and accumulator.output_format == FLOAT16
        promote = int(schedule.promote) + halves, int(onto is not None)
        shifts = Shifts.of(scales and scales.a, accumulator, len(a))
        for panel in panels or self.panels(accumulator, operands[1], b, scales and scales.b):
            self._some_columns(accumulator, operands[0], a, panel, schedule, promote, c, shifts, out)
        return out

    def panels(
        self, accumulator: AlignedSum, fmt: Format, b: NDArray[Any], scale: NDArray[Any] | None,
        allocate: Allocate = scratch,
    ) -> Iterator[Panel]:  # fmt: skip
        """Lay out B, some hundred columns of the result at a time."""
        (n, k), group = b.shape, accumulator.group
        groups, depth, words = -(-max(k, 1) // group), -(-group // 4) * 4, -(-group // 32)
        per_row, shifts = groups * depth, Shifts.of(scale, accumulator, n)
        at_once = max(_COLUMNS_AT_ONCE, _ELEMENTS_AT_ONCE // per_row // COLUMNS * COLUMNS)
        for first in range(0, n, at_once):
            stop = min(first + at_once, n)
            columns = -(-(stop - first) // COLUMNS) * COLUMNS
            values = allocate("wide_b_values", columns * per_row, np.float64)
            exponents = allocate("wide_b_exponents", columns * per_row, np.int16)
            masks = allocate("wide_b_masks", columns * groups * words, np.uint64)
            extent = Extent()
            for j in range(first, stop, _ROWS_AT_ONCE):
                rows = slice(j, min(j + _ROWS_AT_ONCE, stop))
                x, shift, at = _values(b[rows], fmt), shifts.rows(rows), j - first
                extent = extent.joined(Extent().widened(x, fmt).shifted(shift.exponents))
                some = Operand(values[at * per_row :], exponents[at * per_row :], masks[at * groups * words :])
                pack.pack_panels(x, fmt.emin, group, self.factor, shift.exponents, shift.block, some)
            yield Panel(Operand(values, exponents, masks), first, stop - first, extent)

    def _some_columns(
        self, accumulator: AlignedSum, fa: Format, a: NDArray[Any], panel: Panel, schedule: Schedule,
        promote: tuple[int, int], c: Float32Matrix | None, shifts: Shifts, out: Float32Matrix,
    ) -> None:  # fmt: skip
        """Compute the columns of a panel."""
        group, (m, k), n, first = accumulator.group, a.shape, panel.columns, panel.first
        groups, depth, words = -(-max(k, 1) // group), -(-group // 4) * 4, -(-group // 32)
        per_row = groups * depth
        addend = out if c is None else c
        sums = Sums(group, accumulator.fraction_bits, accumulator.output_bits, lowest_exponent(accumulator))
        chains = Chains(groups, schedule.length // group, *promote, int(c is not None), first, n)
        usual = schedule.promote or schedule.scale_a.shape[0] == 1

        def some_rows(start: int, stop: int) -> None:
            rows = slice(start, stop)
            x, shift = _values(a[rows], fa), shifts.rows(rows)
            padded = -(-x.shape[0] // ROWS) * ROWS
            left = Operand(
                scratch("wide_a_values", padded * per_row, np.float64),
                scratch("wide_a_exponents", padded * per_row, np.int32),
                scratch("wide_a_masks", padded * groups * words, np.uint64),
            )
            pack.pack_quads(x, fa.emin, group, shift.exponents, shift.block, left)
            result = "float32" if accumulator.output_format != FLOAT16 else "float16"
            if result == "float32" and usual and (c is None or is_usual(c[rows, first : first + n])):
                normal = Extent().widened(x, fa).shifted(shift.exponents).is_normal(panel.extent, accumulator, k)
                result = "normal" if normal else result
            scale_a = np.ascontiguousarray(schedule.scale_a[:, rows])
            self.forms[result](left, panel.packed, sums, chains, scale_a, schedule.scale_b, addend[rows], out[rows])

        over_rows(some_rows, m, n * k, _WORK, _ROWS_AT_ONCE)


def _values(codes: NDArray[Any], fmt: Format) -> Float32Matrix:
    """Return what some codes mean, valid until this thread's next call."""
    x = scratch("wide_decoded", codes.size, np.float32)
    decode32(np.ascontiguousarray(codes).reshape(-1), x, decode_constants(fmt))
    return x.reshape(codes.shape)


class Shifts(NamedTuple):
    """Exponents of power-of-two scales inside the instruction, [rows, K / block]; no columns if there are none."""

    exponents: NDArray[np.int16]
    block: int

    @classmethod
    def of(cls, scale: NDArray[Any] | None, accumulator: AlignedSum, rows: int) -> Shifts:
        """Read an operand's scales, given as codes."""
        if scale is None:
            return cls(np.empty((rows, 0), np.int16), 1)
        return cls(_exponents_of(accumulator.scale_format)[scale], accumulator.scale_block)

    def rows(self, some: slice) -> Shifts:
        """Return those of some rows."""
        return Shifts(self.exponents[some], self.block)


@functools.lru_cache(maxsize=8)
def _exponents_of(fmt: Format) -> NDArray[np.int16]:
    """Return the exponent of every code of a power-of-two format."""
    values = fmt.values()
    exponents = np.frexp(values)[1] - 1
    return np.where(np.isnan(values), pack.NOT_A_NUMBER, exponents).astype(np.int16)


def _has_fitting_scales(accumulator: AlignedSum) -> bool:
    """Tell whether an accumulator's scales can be multiplied into the operands: powers of two that float64 bears."""
    fmt = accumulator.scale_format
    assert fmt is not None
    plain = not (fmt.mantissa_bits or fmt.has_zero or fmt.sign_mask)
    return plain and fmt.bits <= 8 and fmt.emin >= -127 and fmt.emax <= 128 and accumulator.group % 4 == 0


def _kernels(align: Align) -> dict[str, WideKernel]:
    factor = ALIGNED[align].factor
    return {
        name: WideKernel(name, 1.0 if name == "portable" else factor, forms, align)
        for name, forms in FORMS[align].items()
    }


KERNELS = {align: _kernels(align) for align in ALIGNMENTS}
"""By the way to align, and by name."""
