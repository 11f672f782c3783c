"""Fused sums of runs that are scaled inside the instruction (mxf4, mxf4nvf4), in whole bytes and float64 lanes.

One kernel in three forms (`kernels.tensorcore.runs_tile`, `panel_kernels`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._threads import Allocate, over_rows, scratch
from ..format.catalogue import Format
from ..kernels.tensorcore import runs_pack as pack
from ..kernels.tensorcore import runs_tile as gemm
from ..kernels.tensorcore.gemm import Chains, Sums
from ..kernels.tensorcore.runs_pack import Tables
from ..kernels.tensorcore.runs_tile import FACTOR, MAX_SUM
from ..kernels.tensorcore.wide_sum import COLUMNS, ROWS
from .accumulator import FLOAT16, AlignedSum
from .integers import scale_parts
from .panel_kernels import (
    NO_ZERO_EXPONENT,
    Extent,
    Panel,
    PanelKernel,
    is_usual,
    lowest_exponent,
)
from .product import BlockScales, Float32Matrix, Schedule

_WORK = 1 << 21  # multiply-adds that are worth a thread
_ROWS_AT_ONCE = 256  # rows of A that are laid out together
_COLUMNS_AT_ONCE = 1024  # columns of the result, whose part of B is laid out at a time


@dataclass(frozen=True)
class RunKernel(PanelKernel):
    """One form of the kernel; B's scales are multiplied by `factor`."""

    def supports(self, accumulator: AlignedSum, fa: Format, fb: Format) -> bool:
        """Tell whether an accumulator and its operands lie within the kernel's bounds."""
        scale = accumulator.scale_format
        if scale is None or accumulator.run != pack.RUN or accumulator.align != "truncate":
            return False
        runs = accumulator.group // accumulator.run
        term = 4 * MAX_SUM * fa.smallest_subnormal * fb.smallest_subnormal * 2**accumulator.fraction_bits
        return (
            all(_is_small(f) for f in (fa, fb))
            and scale.bits <= 8
            and scale.mantissa_bits <= 3
            and scale.emin >= -127
            and scale.emax <= 128
            and accumulator.output_format != FLOAT16
            and (accumulator.zero_exponent is None or NO_ZERO_EXPONENT <= accumulator.zero_exponent <= -126)
            and runs * (term + 1) + 2 ** (accumulator.fraction_bits + 1) + 1 < 2**51
            and term < 2**48.5
        )

    def compute(
        self, accumulator: AlignedSum, operands: tuple[Format, Format], a: NDArray[Any], b: NDArray[Any],
        schedule: Schedule | None, c: Float32Matrix | None, scales: BlockScales | None = None,
        panels: Iterable[Panel] | None = None,
    ) -> Float32Matrix:  # fmt: skip
        """Return one chain over all K [M, N]; where it is not finite, it may be wrong.

        Arguments are those of `wide_kernels.WideKernel.compute`; `schedule` says nothing, as all scales are inside.
        """
        assert scales is not None
        out = np.empty((a.shape[0], b.shape[0]), np.float32)
        for panel in panels or self.panels(accumulator, operands[1], b, scales.b):
            self._some_columns(accumulator, operands[0], a, scales.a, panel, c, out)
        return out

    def panels(
        self, accumulator: AlignedSum, fmt: Format, b: NDArray[Any], scale: NDArray[Any] | None,
        allocate: Allocate = scratch,
    ) -> Iterator[Panel]:  # fmt: skip
        """Lay out B, some hundred columns of the result at a time."""
        assert scale is not None
        (n, k), of_scale = b.shape, _scales_of(accumulator.scale_format)
        runs = -(-max(k, 1) // accumulator.group) * (accumulator.group // pack.RUN)
        tables = Tables(_elements_of(fmt), *of_scale, self.factor * fmt.smallest_subnormal)
        for first in range(0, n, _COLUMNS_AT_ONCE):
            columns = slice(first, min(first + _COLUMNS_AT_ONCE, n))
            width = columns.stop - first
            records = allocate("runs_b", -(-width // COLUMNS) * runs * pack.B_BYTES, np.uint8)
            pack.pack_panels(b[columns], scale[columns], accumulator.scale_block, tables, runs, records)
            yield Panel(records, first, width, of_scale.extent(scale[columns]))

    def _some_columns(
        self, accumulator: AlignedSum, fa: Format, a: NDArray[Any], scale: NDArray[Any], panel: Panel,
        c: Float32Matrix | None, out: Float32Matrix,
    ) -> None:  # fmt: skip
        """Compute the columns of a panel."""
        (m, k), first, n = a.shape, panel.first, panel.columns
        of_scale = _scales_of(accumulator.scale_format)
        tables = Tables(_elements_of(fa), *of_scale, fa.smallest_subnormal)
        runs, groups = accumulator.group // pack.RUN, -(-max(k, 1) // accumulator.group)
        addend = out if c is None else c
        sums = Sums(accumulator.group, accumulator.fraction_bits, accumulator.output_bits, lowest_exponent(accumulator))
        chains = Chains(groups, groups, 0, 0, int(c is not None), first, n)
        ones = np.ones((1, max(_ROWS_AT_ONCE, first + n)), np.float32)  # all scales are inside

        def some_rows(start: int, stop: int) -> None:
            rows = slice(start, stop)
            records = scratch("runs_a", -(-(stop - start) // ROWS) * groups * runs * pack.A_BYTES, np.uint8)
            pack.pack_quads(a[rows], scale[rows], accumulator.scale_block, tables, groups * runs, records)
            result = "float32"
            if c is None or is_usual(c[rows, first : first + n]):
                normal = of_scale.extent(scale[rows]).is_normal(panel.extent, accumulator, 36 * 4 * k)
                result = "normal" if normal else result
            self.forms[result](records, panel.packed, sums, chains, ones, ones, addend[rows], out[rows])

        over_rows(some_rows, m, n * k, _WORK, _ROWS_AT_ONCE)


class _Scales(NamedTuple):
    """Per code of a scale format, its sign ignored: value, and un-normalised exponent (0 for NaN and zero)."""

    value: NDArray[np.float64]
    exponent: NDArray[np.int16]

    def extent(self, codes: NDArray[Any]) -> Extent:
        """Return the smallest and the largest exponent of some scales."""
        if codes.size == 0:
            return Extent(0, 0)
        exponents = self.exponent[codes]
        return Extent(int(exponents.min()), int(exponents.max()))


@functools.lru_cache(maxsize=8)
def _scales_of(fmt: Format) -> _Scales:
    significand, exponent, nan = scale_parts(np.arange(1 << fmt.bits, dtype=fmt.code_dtype)[:, None], fmt)
    exponent = np.where((significand == 0) | nan, 0, exponent)
    value = np.ldexp(significand.astype(np.float64), exponent - fmt.mantissa_bits)
    return _Scales(np.where(nan, np.nan, value)[:, 0], exponent[:, 0].astype(np.int16))


@functools.lru_cache(maxsize=8)
def _elements_of(fmt: Format) -> NDArray[np.int8]:
    """Return the value of every code, in units of the smallest subnormal."""
    return (fmt.values().astype(np.float64) / fmt.smallest_subnormal).astype(np.int8)


def _is_small(fmt: Format) -> bool:
    """Tell whether a format has nothing but multiples, up to twelve times, of its smallest number, and none above 6."""
    plain = fmt.nan_code is None and fmt.inf_code is None and fmt.has_zero and fmt.bits <= 8
    return plain and fmt.max / fmt.smallest_subnormal <= pack.LARGEST and fmt.max <= 6


KERNELS = {
    "avx512": RunKernel("avx512", FACTOR, gemm.gemm_avx512),
    "fma": RunKernel("fma", FACTOR, gemm.gemm_fma),
    "portable": RunKernel("portable", 1.0, gemm.gemm_portable),
}
