"""Aligned sums of FP8 products in float32 lanes: NVIDIA's FP8 tensor cores.

``avx512`` and ``fma`` round toward zero in the FPU, through the instruction's encoding or the thread's rounding mode,
which the kernel restores; ``portable`` needs neither. `kernels.tensorcore.float32_lanes.sums` proves the sums exact.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._threads import Allocate, aligned_empty, parallel_over_rows, run_chunks, scratch
from ...format.catalogue import Format, formats
from ...kernels.tensorcore.float32_lanes import pack, product
from ...kernels.tensorcore.float32_lanes.pack import Signed
from ...kernels.tensorcore.reference import aligned
from ..accumulator import FLOAT16, FP22, AlignedSum
from ..problem import Float32Matrix, GemmProblem, Matrix, Places, one_chain
from .engine import NO_PLACES, Engine, PartialResult, Trial

_WORK = 1 << 25  # multiply-adds that justify a thread: some hundred microseconds, several times the cost of waking it
_ROWS_AT_ONCE, _NUMBERS_AT_ONCE = 256, 1 << 16  # rows, or elements, of A that are packed at a time: whichever is more


class Limits(NamedTuple):
    """Limits within which the sums are exact; exponents are those of leading bits.

    The first five apply to the accumulator and its formats, the others to single rows and columns. Products are
    multiples of 2^-46 below 2^32, so that sums scaled by up to 2^48 (2^24 per operand) have exponents that are valid
    for C; scales within their limits have a normal product.
    """

    group_size: int = 32  # products per group, a multiple of four
    fraction_bits: int = 14
    significant_bits: int = 8  # bits of a product
    operand: tuple[int, int] = (-16, 15)
    zero_exponent: int = -95  # largest exponent that no sum has
    lowest_c: int = -95
    highest_c: int = 97  # the limit is this number plus F
    scale: tuple[int, int] = (-63, 62)
    binades: int = 24  # range of the scales of a row or column, if a chain runs through several


LIMITS = {"avx512": Limits(), "fma": Limits(), "portable": Limits(group_size=64, fraction_bits=13)}


@dataclass(frozen=True)
class Float32Lanes(Engine):
    """Engine for fused sums of FP8 products in float32 or FP22.

    Parameters
    ----------
    form : product.Form
        Kernel of the instruction set for the accumulator's alignment.
    limits : Limits
        Limits within which the kernel's sums are exact.
    """

    accumulator: AlignedSum
    form: product.Form = field(compare=False)
    limits: Limits = field(compare=False)

    whole = True
    trial = Trial(
        {"group_size": 32, "fraction_bits": 13, "output_format": FP22}, formats["e4m3fn"], formats["e5m2"]
    )  # fmt: skip

    @classmethod
    def find(cls, accumulator: AlignedSum, fa: Format, fb: Format, machine: str) -> Float32Lanes | None:
        """Return the engine for FP8 without scales inside the instruction, if zeros have the lowest exponent."""
        a, limits, form = accumulator, LIMITS[machine], product.FORMS[machine].get(accumulator.align)
        if (
            form is not None
            and a.group_size % 4 == 0
            and a.group_size <= limits.group_size
            and a.fraction_bits <= min(limits.fraction_bits, a.output_bits)
            and a.output_format != FLOAT16
            and a.scale_format is None
            and (a.zero_exponent is None or a.zero_exponent <= limits.zero_exponent)
            and fa.mantissa_bits + fb.mantissa_bits + 2 <= limits.significant_bits
            and all(_fits(f, limits) for f in (fa, fb))
        ):
            return cls(a, fa, fb, machine, form, limits)
        return None

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None) -> Any:
        """Pack B, and find the columns of the result with NaN or Inf."""
        return self._panels(b, aligned_empty), self._specials[1].rows(b)

    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Run the kernel; A is packed by blocks of rows, and B together with them if the product is small."""
        a, b, c = p.a, p.b, p.c
        (m, k), n, group = a.shape, b.shape[0], self.accumulator.group_size
        special_a, special_b = self._specials
        at_once = max(_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // (k or 1))
        panels, columns = parts or (None, None)
        if panels is None and (m > at_once or m * n * k > _WORK):  # packed once for all parts of A
            panels, columns = self._panels(b, scratch), special_b.rows(b)
        lay_out, panels = int(panels is None), panels or self._room(b, scratch)
        groups = -(-k // group) or 1
        scale_a, scale_b, joins = p.scale_a, p.scale_b, p.joins or one_chain(k)
        if scale_a is None or scale_b is None:
            scale_a, scale_b = np.ones((1, m), np.float32), np.ones((1, n), np.float32)
        out, onto, plan = joins.result(m, n), int(joins.addend is not None), joins.in_groups(group)
        addend, use_c = (out, 0) if c is None else (c, 1)  # a single dtype, because each dtype compiles a kernel
        kernel, numbers, counts = self._kernel
        largest: list[tuple[int, int]] = []

        def some_rows(first: int, stop: int) -> None:
            quads = -(-(stop - first) // pack.ROWS) * pack.ROWS * groups
            room = quads * group + pack.SLACK
            scale = scale_a if stop - first == m else np.ascontiguousarray(scale_a[:, first:stop])
            largest.append(kernel(
                a[first:stop], b, lay_out, *numbers, onto, use_c, scratch("a_values", room, np.float32),
                scratch("a_exponents", room, np.uint32), scratch("a_signs", quads if counts else 0, np.uint32), *panels,
                scale, scale_b, plan, joins.word, joins.factors[first:stop], addend[first:stop], out[first:stop],
            ))  # fmt: skip

        parallel_over_rows(some_rows, m, n * k, _WORK, at_once)
        rows = special_a.rows(a, max(largest)[0])
        if columns is None:
            columns = special_b.rows(b, largest[0][1])
        if c is not None:
            rows = np.union1d(rows, _outside_limits(c, self.limits, self.accumulator.fraction_bits))
        if joins.rescales:
            rows = np.union1d(rows, _far_apart(scale_a, self.limits))
            columns = np.union1d(columns, _far_apart(scale_b, self.limits))
        return PartialResult(out, rows, columns)

    @functools.cached_property
    def _kernel(self) -> tuple[Any, tuple[Any, ...], bool]:
        """The compiled kernel, its constant arguments, and whether it reads signs."""
        a, form = self.accumulator, self.form
        readings = _packer_constants(self.fa, form.counts), _packer_constants(self.fb, form.counts)
        return form.run, (*readings, form.factor, a.group_size, a.fraction_bits, a.output_bits), form.counts

    @functools.cached_property
    def _specials(self) -> tuple[_Specials, _Specials]:
        return _Specials.of(self.fa), _Specials.of(self.fb)

    def _panels(self, b: Matrix, allocate: Allocate) -> Signed:
        """Pack B [N, K]."""
        group, packed = self.accumulator.group_size, self._room(b, allocate)
        depth = _up(max(b.shape[1], 1), group)
        options = group, depth, self._kernel[1][1], np.float32(self.form.factor), packed
        grain = max(1, (1 << 20) // (64 * depth)) * 64
        run_chunks(lambda i, j: pack.pack_panels(b, *options, i, j), len(b), grain)
        return packed

    def _room(self, b: Matrix, allocate: Allocate) -> Signed:
        (n, k), group = b.shape, self.accumulator.group_size
        columns, depth = -(-n // pack.COLUMNS) * pack.COLUMNS, (-(-k // group) or 1) * group
        return Signed(
            allocate("b_values", columns * depth, np.float32),
            allocate("b_exponents", columns * depth, np.uint8),
            allocate("b_signs", columns * (depth // group) if self.form.counts else 0, np.uint32),
        )


class _Specials(NamedTuple):
    """Codes of NaN and Inf in a format of up to 8 bits."""

    kind: NDArray[np.int8]  # for each code: NaN, Inf or finite
    exist: bool
    above: int | None  # the largest finite code, if all specials are above it, else None
    reading: NDArray[np.int64]

    @classmethod
    def of(cls, fmt: Format) -> _Specials:
        values = fmt.values()
        kind = np.where(np.isnan(values), aligned.NOT_A_NUMBER, np.where(np.isinf(values), aligned.INFINITE, 0))
        above = None if fmt.specials == "fnuz" else fmt.max_code
        return cls(kind.astype(np.int8), bool(kind.any()), above, _packer_constants(fmt))

    def rows(self, codes: Matrix, largest: int | None = None) -> Places:
        """Return the rows with NaN or Inf; `largest`, if known, is the largest of the codes with sign bits cleared."""
        if not self.exist:
            return NO_PLACES
        if self.above is not None:
            if largest is None:
                largest = pack.largest_magnitude(codes, self.reading)
            if largest <= self.above:  # specials are rare
                return NO_PLACES
        out = np.empty(len(codes), np.bool_)
        aligned.rows_with_special(codes, self.kind, out)
        return np.flatnonzero(out)


@functools.lru_cache(maxsize=32)
def _packer_constants(fmt: Format, tiny_zeros: bool = False) -> NDArray[np.int64]:
    """Return the `pack.Reading` of a format as an int64 array, which the packers take."""
    m = fmt.mantissa_bits
    numbers = pack.Reading(
        mantissa_bits=m,
        offset=(127 + fmt.emin - 1) << 23,
        quantum=(127 + fmt.emin - m) << 23,
        emin_a=fmt.emin - 1 + pack.A_BIAS,
        emin_b=pack.B_BIAS - (fmt.emin - 1),
        magnitude=0xFF & ~fmt.sign_mask,
        to_bit_7=8 - fmt.bits,
        zero=1 << 23 if tiny_zeros else 0,
    )
    return np.array(numbers, np.int64)


def _fits(fmt: Format, limits: Limits) -> bool:
    """Return whether the packers can read a format: at most 8 bits, a sign, subnormals, and exponents in range."""
    in_bytes = fmt.bits <= 8 and fmt.signed and not fmt.is_integer and fmt.has_subnormals
    return in_bytes and limits.operand[0] <= fmt.emin and fmt.emax <= limits.operand[1]


def _outside_limits(c: Float32Matrix, limits: Limits, fraction_bits: int) -> Places:
    """Return the rows in which C is neither zero nor within the limits."""
    usual = (c.view(np.uint32) << 1 == 0) | _within(_exponents(c), (limits.lowest_c, limits.highest_c + fraction_bits))
    return np.flatnonzero(~usual.all(axis=1))


def _far_apart(scale: Float32Matrix, limits: Limits) -> Places:
    """Return the rows in which scales [blocks, rows] span too many binades for one running sum."""
    exponents = _exponents(np.ascontiguousarray(scale))
    near = exponents.max(axis=0) - exponents.min(axis=0) < limits.binades
    return np.flatnonzero(~(near & _within(exponents, limits.scale).all(axis=0) & (scale > 0).all(axis=0)))


def _exponents(x: Float32Matrix) -> NDArray[np.int32]:
    """Return the exponents of float32 numbers: -127 for zeros and subnormals, 128 for Inf and NaN."""
    found: NDArray[np.int32] = ((x.view(np.uint32) >> 23) & 0xFF).astype(np.int32) - 127
    return found


def _within(exponents: NDArray[np.int32], limits: tuple[int, int]) -> NDArray[np.bool_]:
    return (exponents >= limits[0]) & (exponents <= limits[1])


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
