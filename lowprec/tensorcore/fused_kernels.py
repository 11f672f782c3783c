"""Which kernel emulates tensor cores: the fastest that this CPU has and that proves itself, or the one asked for.

All give the same bits. ``avx512`` and ``fma`` round toward zero in the FPU (by the instruction's encoding, or by the
thread's rounding mode, set and put back within the kernel); ``portable`` needs neither. `selection` chooses one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .. import _threads
from .._threads import Allocate, scratch
from ..format.catalogue import Format, formats
from ..kernels.tensorcore import fused_dot, narrow_gemm, narrow_pack
from ..kernels.tensorcore.narrow_pack import Signed
from ..registry import Registry
from .accumulator import FLOAT16, FP22, AlignedSum
from .product import Float32Matrix, Schedule


class Limits(NamedTuple):
    """For which numbers a kernel in float32 lanes is exact; exponents are those of the leading bit.

    Beyond the first five, an accumulator and its formats take another kernel; beyond the last three, single rows and
    columns take the reference. Products are multiples of 2^-46 below 2^32, so that sums that scales move by up to 2^48,
    2^24 for each operand, keep exponents that C may have; scales within their limits have a product that is normal.
    """

    group: int = 32  # products of a group, a multiple of four
    fraction_bits: int = 14
    significant_bits: int = 8  # of a product
    operand: tuple[int, int] = (-16, 15)
    zero_exponent: int = -95  # the largest that no sum reaches
    lowest_c: int = -95
    highest_c: int = 97  # above F
    scale: tuple[int, int] = (-63, 62)
    binades: int = 24  # that scales of a row or column span, where a chain runs through several


@dataclass(frozen=True)
class FusedKernel:
    """A way to compute fused group sums of FP8 products, with the conditions under which it is exact.

    Parameters
    ----------
    name : str
        How it is chosen.
    features : frozenset of str
        What the CPU must have, in LLVM's names.
    limits : Limits
        For which numbers the kernel is exact.
    forms : mapping
        Compiled kernel by the way terms are aligned, with what it wants of operands.
    """

    name: str
    features: frozenset[str]
    limits: Limits
    forms: Mapping[str, narrow_gemm.Form] = field(hash=False)

    def supports(self, accumulator: AlignedSum, fa: Format, fb: Format) -> bool:
        """Tell whether an accumulator and its operands lie within the kernel's limits."""
        a, limits = accumulator, self.limits
        return (
            a.align in self.forms
            and a.group % 4 == 0
            and a.group <= limits.group
            and a.fraction_bits <= min(limits.fraction_bits, a.output_bits)
            and a.output_format != FLOAT16
            and a.scale_format is None
            and (a.zero_exponent is None or a.zero_exponent <= limits.zero_exponent)
            and fa.mantissa_bits + fb.mantissa_bits + 2 <= limits.significant_bits
            and all(_has_byte_fields(f) for f in (fa, fb))
            and all(limits.operand[0] <= f.emin and f.emax <= limits.operand[1] for f in (fa, fb))
        )

    def pack_panels(
        self, accumulator: AlignedSum, codes: NDArray[Any], fmt: Format, allocate: Allocate = scratch
    ) -> Signed:
        """Lay out operand B [N, K]."""
        packed, form = self._room_for_panels(accumulator, codes, allocate), self.forms[accumulator.align]
        group, depth = accumulator.group, _up(max(codes.shape[1], 1), accumulator.group)
        options = group, depth, reading(fmt, form.counts), np.float32(form.factor), packed
        grain = max(1, (1 << 20) // (64 * depth)) * 64
        _threads.run_chunks(lambda i, j: narrow_pack.pack_panels(codes, *options, i, j), len(codes), grain)
        return packed

    def _room_for_panels(self, accumulator: AlignedSum, codes: NDArray[Any], allocate: Allocate) -> Signed:
        (n, k), group, form = codes.shape, accumulator.group, self.forms[accumulator.align]
        columns, depth = _up(n, narrow_pack.COLUMNS), _up(max(k, 1), group)
        return Signed(
            allocate("b_values", columns * depth, np.float32),
            allocate("b_exponents", columns * depth, np.uint8),
            allocate("b_signs", columns * (depth // group) if form.counts else 0, np.uint32),
        )

    def compute(
        self, accumulator: AlignedSum, a: NDArray[Any], fa: Format, b: NDArray[Any], fb: Format, schedule: Schedule,
        c: Float32Matrix | None, out: Float32Matrix, panels: Signed | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Compute some rows of ``D = A @ B.T``.

        Parameters
        ----------
        accumulator : AlignedSum
            One that it `supports`.
        a, b : [M, K], [N, K] uint8
            Codes of the formats `fa` and `fb`: what is not finite spoils its row or column.
        schedule : Schedule
            Scales by block of K, and promotion.
        c : [M, N] float32 or None
            First addend of the chain.
        out : [M, N] float32
            Where the result goes.
        panels : Signed, optional
            `b` from `pack_panels`; it is laid out here by default.

        Returns
        -------
        tuple of int
            The largest code of `a`, and of `b` unless panels came, without signs.
        """
        (m, k), group, form = a.shape, accumulator.group, self.forms[accumulator.align]
        rows, depth = _up(m, narrow_pack.ROWS), _up(max(k, 1), group)
        b_values, b_exponents, b_signs = panels or self._room_for_panels(accumulator, b, scratch)
        largest: tuple[int, int] = form.run(
            a, b, int(panels is None), reading(fa, form.counts), reading(fb, form.counts), form.factor,
            group, accumulator.fraction_bits, accumulator.output_bits, schedule.length // group, int(schedule.promote),
            int(c is not None),
            scratch("a_values", rows * depth + narrow_pack.SLACK, np.float32),
            scratch("a_exponents", rows * depth + narrow_pack.SLACK, np.uint32),
            scratch("a_signs", rows * (depth // group) if form.counts else 0, np.uint32),
            b_values, b_exponents, b_signs, schedule.scale_a, schedule.scale_b, out if c is None else c, out,
        )  # fmt: skip
        return largest


fused_kernels: Registry[FusedKernel] = Registry("fused kernel", FusedKernel)
"""The kernels, fastest first."""
for _kernel in (
    FusedKernel(
        "avx512",
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vpopcntdq"}),
        Limits(),
        forms=narrow_gemm.FORMS["avx512"],
    ),
    FusedKernel(
        "fma",
        frozenset({"avx2", "fma"}),
        Limits(),
        forms=narrow_gemm.FORMS["fma"],
    ),
    FusedKernel(
        "portable",
        frozenset(),
        Limits(group=64, fraction_bits=13),
        forms=narrow_gemm.FORMS["portable"],
    ),
):
    fused_kernels.register(_kernel.name, _kernel)


_E4M3, _E5M2 = formats["e4m3fn"], formats["e5m2"]


def self_test(candidate: FusedKernel) -> bool:
    """Compare a kernel with the integer reference on all finite codes of both FP8 formats, signs and scales mixed.

    It takes some milliseconds and guards against a compiler or a CPU that does not do what the kernel relies on; a
    thread left in another rounding mode counts as a failure too.
    """
    m, n, k, group = 8, 70, 160, 32
    rng = np.random.Generator(np.random.Philox(2024))
    a = rng.integers(0, 0x7F, (m, k), dtype=np.uint8) | rng.integers(0, 2, (m, k), dtype=np.uint8) << 7
    b = rng.integers(0, 0x7C, (n, k), dtype=np.uint8) | rng.integers(0, 2, (n, k), dtype=np.uint8) << 7
    a[rng.random((m, k)) < 0.2] = 0
    x, y = operand_tables(_E4M3), operand_tables(_E5M2)
    expected, got = np.zeros((m, n), np.float32), np.zeros((m, n), np.float32)
    rule = fused_dot.Rule(5, group, 13, fused_dot.TRUNCATE, fused_dot.NEVER)
    tables = (x.significand, x.exponent), (y.significand, y.exponent)
    fused_dot.fused_dot_reference(a, b, *tables, rule, 13, got, expected)
    numbers = {"group": group, "fraction_bits": 13, "output_bits": FP22.mantissa_bits, "align": "truncate"}
    accumulator = cast(AlignedSum, SimpleNamespace(**numbers))  # all that is read; `FusedSum` imports this module
    candidate.compute(accumulator, a, _E4M3, b, _E5M2, Schedule.one_chain(m, n, k, group), None, got)
    return rounds_to_nearest() and got.tobytes() == expected.tobytes()


def rounds_to_nearest() -> bool:
    """Tell whether this thread rounds as it should, whatever a kernel has done to its rounding mode."""
    return bool(np.float32(1) + np.float32(2.0**-24 * 1.5) == np.float32(1 + 2.0**-23))


@dataclass(frozen=True)
class OperandTables:
    """Per code of a format: what the integer reference looks up."""

    significand: NDArray[np.int64]  # signed; +-1 for Inf
    exponent: NDArray[np.int64]
    kind: NDArray[np.int8]
    special: bool  # whether any code is NaN or Inf
    max_code: int  # the largest finite one


@functools.lru_cache(maxsize=32)
def operand_tables(fmt: Format) -> OperandTables:
    """Return the tables of a format of up to 8 bits."""
    if fmt.bits > 8:
        raise ValueError(f"tensor cores of this catalogue multiply formats of up to 8 bits, not {fmt}")
    values = fmt.values()
    codes = np.arange(values.size)
    magnitude = codes & ~fmt.sign_mask
    field, fraction = magnitude >> fmt.mantissa_bits, magnitude & ((1 << fmt.mantissa_bits) - 1)
    significand = fraction + np.where(field > 0, 1 << fmt.mantissa_bits, 0)
    kind = np.where(np.isnan(values), fused_dot.NOT_A_NUMBER, np.where(np.isinf(values), fused_dot.INFINITE, 0))
    significand = np.where(kind == fused_dot.INFINITE, 1, np.where(kind == fused_dot.NOT_A_NUMBER, 0, significand))
    return OperandTables(
        np.where(codes & fmt.sign_mask, -significand, significand).astype(np.int64),
        (np.maximum(field, 1) - 1 + fmt.emin).astype(np.int64),
        kind.astype(np.int8),
        bool(kind.any()),
        fmt.max_code,
    )


@functools.lru_cache(maxsize=32)
def reading(fmt: Format, tiny_zeros: bool = False) -> NDArray[np.int64]:
    """Return how the packers read codes: `narrow_pack.Reading` as they take it."""
    m = fmt.mantissa_bits
    numbers = narrow_pack.Reading(
        mantissa_bits=m,
        offset=(127 + fmt.emin - 1) << 23,
        quantum=(127 + fmt.emin - m) << 23,
        emin_a=fmt.emin - 1 + narrow_pack.A_BIAS,
        emin_b=narrow_pack.B_BIAS - (fmt.emin - 1),
        magnitude=0xFF & ~fmt.sign_mask,
        to_bit_7=8 - fmt.bits,
        zero=1 << 23 if tiny_zeros else 0,
    )
    return np.array(numbers, np.int64)


def _has_byte_fields(fmt: Format) -> bool:
    """Tell whether the packers can read a format: sign, exponent and mantissa in a byte, and zero."""
    return fmt.bits <= 8 and fmt.signed and not fmt.is_integer and fmt.has_zero


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
