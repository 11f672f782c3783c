"""Aligned sums in float64 lanes: formats and sums too wide for float32 lanes, and scales inside the instruction.

`Float64Lanes` multiplies values (`kernels.tensorcore.float64_lanes.tile`); `SplitF16InFloat64Lanes` does this for two
float16 instructions per step. B is packed in panels of several hundred columns of the result.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._threads import Allocate, aligned_empty, parallel_over_rows, scratch
from ...cast.constants import decode_constants
from ...format.catalogue import Format
from ...kernels.cast.nearest import decode32
from ...kernels.tensorcore.epilogue import ROUND
from ...kernels.tensorcore.float64_lanes import pack, tile
from ...kernels.tensorcore.float64_lanes.sums import COLUMNS, MAX_FRACTION_BITS, ROWS
from ...kernels.tensorcore.loop import Chains, Operand, Sums
from ..accumulator import FLOAT16, FLOAT32, AlignedSum
from ..problem import Float32Matrix, GemmProblem, Joins, Matrix, one_chain, promoted_chains
from .engine import Engine, PartialResult, Trial, find_nonfinite

NO_ZERO_EXPONENT = -600  # below that of every product of two operands and two scales with 8 exponent bits
_MAX_GROUP = 256  # largest number of products whose sum is exact in float64
_ROWS_AT_ONCE = 256  # rows of A, or of B, decoded and packed at a time


class ExponentRange(NamedTuple):
    """Smallest and largest exponent of the nonzero elements of an array."""

    low: int = 1 << 12
    high: int = -(1 << 12)

    @classmethod
    def of(cls, x: Float32Matrix, fmt: Format) -> ExponentRange:
        """Return the range of the exponents of `x`, which holds values of a format."""
        if fmt.emin > -50:  # a narrow format: its extremes are enough
            return cls(fmt.emin, fmt.emax + 1)
        low, high = pack.exponent_range(x.reshape(-1))
        return cls(max(int(low), fmt.emin), int(high))

    def joined(self, other: ExponentRange) -> ExponentRange:
        """Return the range that covers both ranges."""
        return ExponentRange(min(self.low, other.low), max(self.high, other.high))

    def shifted(self, exponents: NDArray[np.int16]) -> ExponentRange:
        """Return the range after multiplication by powers of two, if `exponents` has any."""
        if exponents.size == 0:
            return self
        return ExponentRange(self.low + int(exponents.min()), self.high + int(exponents.max()))

    def is_normal(self, other: ExponentRange, fraction_bits: int, k: int) -> bool:
        """Return whether sums of K products and a C for which `_is_in_range` holds are normal float32 numbers."""
        high = self.high + other.high + 2 + max(k, 1).bit_length()
        return self.low + other.low - fraction_bits >= -126 and high <= 126


class Panel(NamedTuple):
    """Packed part of B for `columns` columns of the result from `first` on, and the range of its exponents."""

    packed: Any
    first: int
    columns: int
    extent: ExponentRange


class Form(NamedTuple):
    """Kernels of an instruction set by kind of result (`sums.RESULTS`), and a factor of B's values or scales."""

    kernels: Mapping[str, Callable[..., None]]
    factor: float


@dataclass(frozen=True)
class Panels(Engine):
    """Base class of the engines with packed panels, which differ in packing and share the loop over panels.

    Parameters
    ----------
    form : Form
        Kernels of the instruction set.
    """

    accumulator: AlignedSum
    form: Form = field(compare=False)

    whole = True
    _WORTH: ClassVar[int]  # multiply-adds that justify a thread
    #: Largest ratio of a term to the product of two numbers with the largest exponents of the operands.
    _GROWTH: ClassVar[int] = 1

    @property
    def sums(self) -> AlignedSum:
        """Accumulator of the kernel's sums."""
        return self.accumulator

    @abstractmethod
    def panels(self, b: Matrix, fmt: Format, inside: Matrix | None, allocate: Allocate = scratch) -> Iterator[Panel]:
        """Pack B in panels of several hundred columns of the result."""

    @abstractmethod
    def quads(self, a: Matrix, fmt: Format, inside: Matrix | None) -> tuple[Any, ExponentRange]:
        """Pack rows of A in a buffer that this thread's next call overwrites; return the buffer and the exponents."""

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None) -> Any:
        """Pack all panels of B."""
        return list(self.panels(b, fmt, inside, aligned_empty))

    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Run the kernel; non-finite results are outside its limits."""
        out = np.empty(p.shape[:2], np.float32) if p.joins is None else p.joins.result(*p.shape[:2])
        start = None
        if p.c is not None and p.c.view(f"uint{8 * p.c.itemsize}").any():
            with np.errstate(invalid="ignore"):  # signalling NaNs
                start = p.c.astype(np.float32)
        self._add(p._replace(c=start), out, parts)
        result = out.astype(self.accumulator.dtype, copy=False) if p.joins is None else out
        return PartialResult(result, *find_nonfinite(out))

    def _add(self, p: GemmProblem, out: Float32Matrix, parts: Iterable[Panel] | None) -> None:
        """Compute a product with float32 C, or with joins and `out` as the first sum."""
        joins = p.joins or one_chain(p.shape[2])
        for panel in parts or self.panels(p.b, p.fb, p.inside_b):
            self._some_columns(p, joins, panel, out)

    def _some_columns(self, p: GemmProblem, joins: Joins, panel: Panel, out: Float32Matrix) -> None:
        a, (m, n, k), sums, scale_a, scale_b = self.sums, p.shape, self.sums, p.scale_a, p.scale_b
        groups, first, last = -(-max(k, 1) // a.group_size), panel.first, panel.first + panel.columns
        if scale_a is None or scale_b is None:
            scale_a, scale_b = np.ones((1, m), np.float32), np.ones((1, n), np.float32)
        lowest = NO_ZERO_EXPONENT if a.zero_exponent is None else a.zero_exponent
        numbers = Sums(a.group_size, a.fraction_bits, a.output_bits, lowest)
        halves = a.output_format == FLOAT16
        plan, onto = joins.in_groups(a.group_size), int(joins.addend is not None)
        chains = Chains(groups, plan, joins.word, onto, int(p.c is not None), first, panel.columns)
        addend, usual = out if p.c is None else p.c, not joins.rescales

        def some_rows(start: int, stop: int) -> None:
            rows = slice(start, stop)
            left, extent = self.quads(p.a[rows], p.fa, None if p.inside_a is None else p.inside_a[rows])
            result = "float16" if halves else "float32"
            if not halves and usual and (p.c is None or _is_in_range(p.c[rows, first:last])):
                normal = extent.is_normal(panel.extent, sums.fraction_bits, self._GROWTH * k)
                result = "normal" if normal else result
            scale = np.ascontiguousarray(scale_a[:, rows])
            self.form.kernels[result](
                left, panel.packed, numbers, chains, scale, scale_b, joins.factors[rows], addend[rows], out[rows]
            )  # fmt: skip

        parallel_over_rows(some_rows, m, n * k, self._WORTH, _ROWS_AT_ONCE)


# --- values -----------------------------------------------------------------------------------------------------------

# Columns per panel of B: the first number, or as many as have the second number of elements if these are more.
_COLUMNS_AT_ONCE, _ELEMENTS_AT_ONCE = 512, 1 << 19


@dataclass(frozen=True)
class Float64Lanes(Panels):
    """Engine for operands of up to 11 significant bits; scales inside the instruction are multiplied into operands."""

    trial = Trial(
        {"group_size": 8, "fraction_bits": 25, "output_format": FLOAT32, "zero_exponent": -133}, FLOAT16, FLOAT16
    )  # fmt: skip
    _WORTH = 1 << 20

    @classmethod
    def find(cls, accumulator: AlignedSum, fa: Format, fb: Format, machine: str) -> Float64Lanes | None:
        """Return the engine for at most 40 fraction bits, if scales inside the instruction are powers of two."""
        form = value_form(accumulator, fa, fb, machine)
        return None if form is None else cls(accumulator, fa, fb, machine, form)

    def panels(self, b: Matrix, fmt: Format, inside: Matrix | None, allocate: Allocate = scratch) -> Iterator[Panel]:
        """Pack the values, exponents and sign masks of B."""
        (n, k), group = b.shape, self.sums.group_size
        groups, depth, words = -(-max(k, 1) // group), -(-group // 4) * 4, -(-group // 32)
        per_row, (shifts, block) = groups * depth, self._shifts(inside, n)
        at_once = max(_COLUMNS_AT_ONCE, _ELEMENTS_AT_ONCE // per_row // COLUMNS * COLUMNS)
        for first in range(0, n, at_once):
            stop = min(first + at_once, n)
            columns = -(-(stop - first) // COLUMNS) * COLUMNS
            values = allocate("wide_b_values", columns * per_row, np.float64)
            exponents = allocate("wide_b_exponents", columns * per_row, np.int16)
            masks = allocate("wide_b_masks", columns * groups * words, np.uint64)
            extent = ExponentRange()
            for j in range(first, stop, _ROWS_AT_ONCE):
                rows, at = slice(j, min(j + _ROWS_AT_ONCE, stop)), j - first
                x, shift = _decoded(b[rows], fmt), shifts[rows]
                extent = extent.joined(ExponentRange.of(x, fmt).shifted(shift))
                some = Operand(values[at * per_row :], exponents[at * per_row :], masks[at * groups * words :])
                pack.pack_panels(x, fmt.emin, group, self.form.factor, shift, block, some)
            yield Panel(Operand(values, exponents, masks), first, stop - first, extent)

    def quads(self, a: Matrix, fmt: Format, inside: Matrix | None) -> tuple[Any, ExponentRange]:
        """Pack the values, exponents and sign masks of rows of A."""
        (m, k), group = a.shape, self.sums.group_size
        groups, depth, words = -(-max(k, 1) // group), -(-group // 4) * 4, -(-group // 32)
        padded, (shift, block) = -(-m // ROWS) * ROWS, self._shifts(inside, m)
        x = _decoded(a, fmt)
        left = Operand(
            scratch("wide_a_values", padded * groups * depth, np.float64),
            scratch("wide_a_exponents", padded * groups * depth, np.int32),
            scratch("wide_a_masks", padded * groups * words, np.uint64),
        )
        pack.pack_quads(x, fmt.emin, group, shift, block, left)
        return left, ExponentRange.of(x, fmt).shifted(shift)

    def _shifts(self, inside: Matrix | None, rows: int) -> tuple[NDArray[np.int16], int]:
        """Return the exponents of scales as [rows, K / block], or [rows, 0] without scales, and the block length."""
        fmt = self.sums.scale_format
        if inside is None or fmt is None:
            return np.empty((rows, 0), np.int16), 1
        return _exponents_of(fmt)[inside], self.sums.scale_block


def value_form(accumulator: AlignedSum, fa: Format, fb: Format, machine: str) -> Form | None:
    """Return the kernels that sum products of two formats exactly as the accumulator does, or None."""
    a, kernels, stored = accumulator, tile.FORMS[accumulator.align].get(machine), accumulator.stored_format
    if (
        kernels is not None
        and (stored == FLOAT32 or stored.name in kernels)
        and a.fraction_bits <= MAX_FRACTION_BITS
        and a.group_size <= _MAX_GROUP
        # Up to C's smallest exponent: if no term is zero, E is at least the exponent of C anyway.
        and (a.zero_exponent is None or NO_ZERO_EXPONENT <= a.zero_exponent <= stored.emin)
        and all(f.mantissa_bits < tile.MAX_SIGNIFICANT_BITS and f.emin >= -126 and f.emax <= 127 for f in (fa, fb))
        and all(f.has_subnormals for f in (fa, fb))
        and (a.scale_format is None or (_multiplies_in(a.scale_format) and a.group_size % 4 == 0))
    ):
        return Form(kernels, 1.0 if machine == "portable" else tile.ALIGNED[a.align].factor)
    return None


def _multiplies_in(scale: Format) -> bool:
    """Return whether scales of a format are powers of two that can be multiplied into float64 operands."""
    plain = not (scale.mantissa_bits or scale.has_zero or scale.sign_mask)
    return plain and scale.bits <= 8 and scale.emin >= -127 and scale.emax <= 128


@functools.lru_cache(maxsize=8)
def _exponents_of(fmt: Format) -> NDArray[np.int16]:
    """Return the exponent of every code of a power-of-two format."""
    values = fmt.values()
    return np.where(np.isnan(values), pack.NOT_A_NUMBER, np.frexp(values)[1] - 1).astype(np.int16)


def _decoded(codes: Matrix, fmt: Format) -> Float32Matrix:
    """Return the values of codes in a buffer that this thread's next call overwrites."""
    x = scratch("wide_decoded", codes.size, np.float32)
    decode32(np.ascontiguousarray(codes).reshape(-1), x, decode_constants(fmt))
    return x.reshape(codes.shape)


def _is_in_range(c: Float32Matrix) -> bool:
    """Return whether every number is zero or has a magnitude from 2^-126 to 2^126."""
    magnitude = c.view(np.uint32) & np.uint32(0x7FFFFFFF)
    normal = (magnitude >= np.uint32(1 << 23)) & (magnitude < np.uint32((127 + 126) << 23))
    return bool((normal | (magnitude == 0)).all())


# --- two float16 instructions per step --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitF16InFloat64Lanes(Float64Lanes):
    """Engine that computes an FP8 instruction as two float16 ones: two groups of reordered operands, then a promotion.

    The two groups are a chain from +0, and its result is added to C, rounded to nearest: this equals a promoted chain
    with scales of 1. A float16 result is the float32 sum rounded again, which equals a single rounding: float32 has 24
    bits, twice float16's 11 plus two (Figueroa 1995).
    """

    accumulator: Any

    whole = False

    @classmethod
    def find(cls, accumulator: Any, fa: Format, fb: Format, machine: str) -> SplitF16InFloat64Lanes | None:
        """Return the engine if there are kernels with the bits of the float16 instruction."""
        form = value_form(accumulator.half, FLOAT16, FLOAT16, machine)
        return None if form is None else cls(accumulator, fa, fb, machine, form)

    @property
    def sums(self) -> AlignedSum:
        """Accumulator of one float16 instruction."""
        found: AlignedSum = self.accumulator.half
        return found

    def on_trial(self) -> Engine:
        """Return the engine of one float16 instruction for its trial."""
        return Float64Lanes(self.sums, FLOAT16, FLOAT16, self.machine, self.form).on_trial()

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None) -> Any:
        """Return None, because the chains of a scaled sum are packed again from B."""
        return None

    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Run the kernel on promoted chains; non-finite results are outside its limits."""
        step = self.accumulator.step()
        x, y = (self.accumulator.as_halves(codes, fmt) for codes, fmt in ((p.a, p.fa), (p.b, p.fb)))
        with np.errstate(invalid="ignore"):  # signalling NaNs
            out = p.start.astype(np.float32) + np.float32(0)
        operations = ROUND if self.sums.output_format == FLOAT16 else 0
        joins = Joins(promoted_chains(x.shape[1], step, operations), addend=out).rounded_to(FLOAT16)
        self._add(GemmProblem(x, y, FLOAT16, FLOAT16, joins=joins), out, None)
        return PartialResult(out.astype(self.accumulator.dtype, copy=False), *find_nonfinite(out))
