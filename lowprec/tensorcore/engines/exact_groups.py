"""Engine for grouped fused sums of FP4 products, mxf4 and mxf4nvf4 (`kernels.tensorcore.float64_lanes.runs_tile`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._threads import Allocate, scratch
from ...format.catalogue import Format, formats
from ...kernels.tensorcore.float64_lanes import runs_pack, runs_tile
from ...kernels.tensorcore.float64_lanes.sums import COLUMNS, ROWS
from ..accumulator import FLOAT16, FLOAT32, AlignedSum
from ..problem import Matrix
from .engine import Trial
from .float64_lanes import NO_ZERO_EXPONENT, ExponentRange, Form, Panel, Panels
from .reference import decompose_scales

_COLUMNS_AT_ONCE = 1024  # columns of the result per panel of B
_KERNELS = {"avx512": runs_tile.gemm_avx512, "fma": runs_tile.gemm_fma, "portable": runs_tile.gemm_portable}


@dataclass(frozen=True)
class ExactGroupEngine(Panels):
    """Engine with exact partial sums of FP4 products in bytes, scaled inside the instruction (mxf4, mxf4nvf4)."""

    trial = Trial(
        {
            "group_size": 64, "fraction_bits": 35, "output_format": FLOAT32, "zero_exponent": -139,
            "scale_format": formats["e4m3fn"], "scale_block": 16, "exact_group": 16,
        },
        formats["e2m1fn"], formats["e2m1fn"],
    )  # fmt: skip
    _WORTH = 1 << 21
    _GROWTH = 36 * 4

    @classmethod
    def find(cls, accumulator: AlignedSum, fa: Format, fb: Format, machine: str) -> ExactGroupEngine | None:
        """Return the engine for groups of 16 products, truncated alignment, and sums below 2^51."""
        a, scale = accumulator, accumulator.scale_format
        assert scale is not None
        term = 4 * runs_tile.MAX_SUM * fa.smallest_subnormal * fb.smallest_subnormal * 2**a.fraction_bits
        if (
            a.exact_group == runs_pack.RUN
            and a.align == "truncate"
            and all(_is_small(f) for f in (fa, fb))
            and scale.bits <= 8
            and scale.mantissa_bits <= 3
            and scale.emin >= -127
            and scale.emax <= 128
            and a.output_format != FLOAT16
            and (a.zero_exponent is None or NO_ZERO_EXPONENT <= a.zero_exponent <= -126)
            and a.group_size // a.exact_group * (term + 1) + 2 ** (a.fraction_bits + 1) + 1 < 2**51
            and term < 2**48.5
        ):
            factor = 1.0 if machine == "portable" else runs_tile.FACTOR
            return cls(a, fa, fb, machine, Form(_KERNELS[machine], factor))
        return None

    def panels(self, b: Matrix, fmt: Format, inside: Matrix | None, allocate: Allocate = scratch) -> Iterator[Panel]:
        """Pack panels of B as records of elements and scales."""
        assert inside is not None
        (n, k), a, scales = b.shape, self.accumulator, self._scales
        runs = -(-max(k, 1) // a.group_size) * (a.group_size // runs_pack.RUN)
        tables = runs_pack.Tables(_elements_of(fmt), *scales, self.form.factor * fmt.smallest_subnormal)
        for first in range(0, n, _COLUMNS_AT_ONCE):
            columns = slice(first, min(first + _COLUMNS_AT_ONCE, n))
            width = columns.stop - first
            records = allocate("runs_b", -(-width // COLUMNS) * runs * runs_pack.B_BYTES, np.uint8)
            runs_pack.pack_panels(b[columns], inside[columns], a.scale_block, tables, runs, records)
            yield Panel(records, first, width, scales.extent(inside[columns]))

    def quads(self, a: Matrix, fmt: Format, inside: Matrix | None) -> tuple[Any, ExponentRange]:
        """Pack rows of A as records of elements and scales."""
        assert inside is not None
        (m, k), group, scales = a.shape, self.accumulator.group_size, self._scales
        runs = -(-max(k, 1) // group) * (group // runs_pack.RUN)
        tables = runs_pack.Tables(_elements_of(fmt), *scales, fmt.smallest_subnormal)
        records = scratch("runs_a", -(-m // ROWS) * runs * runs_pack.A_BYTES, np.uint8)
        runs_pack.pack_quads(a, inside, self.accumulator.scale_block, tables, runs, records)
        return records, scales.extent(inside)

    @property
    def _scales(self) -> _Scales:
        return _scales_of(self.accumulator.scale_format)


class _Scales(NamedTuple):
    """Value and unnormalized exponent (0 for NaN and zero) of each code of a scale format; the sign bit is ignored."""

    value: NDArray[np.float64]
    exponent: NDArray[np.int16]

    def extent(self, codes: Matrix) -> ExponentRange:
        """Return the smallest and the largest exponent of an array of scales."""
        if codes.size == 0:
            return ExponentRange(0, 0)
        exponents = self.exponent[codes]
        return ExponentRange(int(exponents.min()), int(exponents.max()))


@functools.lru_cache(maxsize=8)
def _scales_of(fmt: Format) -> _Scales:
    significand, exponent, nan = decompose_scales(np.arange(1 << fmt.bits, dtype=fmt.code_dtype)[:, None], fmt)
    exponent = np.where((significand == 0) | nan, 0, exponent)
    value = np.ldexp(significand.astype(np.float64), exponent - fmt.mantissa_bits)
    return _Scales(np.where(nan, np.nan, value)[:, 0], exponent[:, 0].astype(np.int16))


@functools.lru_cache(maxsize=8)
def _elements_of(fmt: Format) -> NDArray[np.int8]:
    """Return the value of every code, in units of the smallest subnormal."""
    return (fmt.values().astype(np.float64) / fmt.smallest_subnormal).astype(np.int8)


def _is_small(fmt: Format) -> bool:
    """Return whether all values are at most 6, and at most 12 times the smallest one."""
    plain = fmt.nan_code is None and fmt.inf_code is None and fmt.has_subnormals and fmt.bits <= 8
    return plain and fmt.max / fmt.smallest_subnormal <= runs_pack.LARGEST and fmt.max <= 6
