"""`GroupedFusedSum`: fused sums of runs that are scaled inside the instruction (mxf4, mxf4nvf4)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import decode
from ...format.catalogue import Format, formats
from ...kernels.tensorcore.scaled_dot import ScaledParts, scaled_dot
from ..accumulator import FLOAT32, AlignedSum, FastKernel, StepError
from ..integers import bits_of, by_rows, group_rule, result_layout, scale_parts, values_of
from ..order import Particular, Products, Sum
from ..panel_kernels import fastest, proves_itself
from ..product import BlockScales, Float32Matrix, Matrix, Product
from ..run_kernels import KERNELS, RunKernel
from .fused import aligned, aligned_error, aligned_words
from .panels import Float64Lanes


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GroupedFusedSum(AlignedSum):
    """Sums of runs of products that are first summed exactly and then scaled (mxf4, mxf4nvf4).

    Parameters
    ----------
    run : int
        Products of an exact sum; it divides `group` and `scale_block`. Scales are needed.
    """

    run: int = 1

    words = "as fused, for runs of products that are first summed exactly and then scaled"

    def check(self) -> None:
        """Ask for scales, and for runs that divide their blocks and the group."""
        super().check()
        a = self
        if a.scale_format is None:
            raise ValueError(f"GroupedFusedSum {a.name}: scale_format and scale_block are needed")
        if a.scale_block % a.run or a.group % a.run:
            raise ValueError(
                f"GroupedFusedSum {a.name}: run must divide group={a.group} and scale_block={a.scale_block}, "
                f"got {a.run}"
            )

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise a ValueError if the sum of a run can leave 64 bits."""
        largest = self.run * self.group * fa.max * fb.max * 2.0 ** (self.fraction_bits + 2)
        units = fa.smallest_subnormal * fb.smallest_subnormal
        special = any(f.nan_code is not None or f.inf_code is not None for f in (fa, fb))
        if special or max(largest, largest / units) > 2.0**61:
            raise ValueError(f"{self.name}: products of {fa} and {fb} are too wide to be summed exactly in runs")

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Sum runs exactly, scale them, and join them with C."""
        runs = [
            Sum(
                (f"exact sum, times two {self.scale_format} scales",),
                (Products(tuple(range(k, k + self.run))),),
                Particular("exact run", (self.run, self.scale_block)),
            )
            for k in range(start, start + self.group, self.run)
        ]
        return Sum(aligned_words(self), (state, *runs), aligned(self))

    def step_error(self) -> StepError:
        """Return that of a group's runs and C: a run has its scales' exponent, which no product of it falls below."""
        return aligned_error(self, self.group // self.run + 1)

    def reference(self, product: Product) -> Matrix:
        """Return one chain in integers."""
        p, fs = product, self.scale_format
        assert p.scales is not None
        assert fs is not None
        left = ScaledParts(_whole(p.a, p.fa), *scale_parts(p.scales.a, fs))
        parts = _whole(p.b, p.fb), *scale_parts(p.scales.b, fs)
        right = ScaledParts(*(np.ascontiguousarray(part.T) for part in parts))
        low_bits = p.fa.mantissa_bits - p.fa.emin + p.fb.mantissa_bits - p.fb.emin + 2 * fs.mantissa_bits
        rule, spans = group_rule(self, low_bits), (self.run, self.scale_block)
        state, layout = bits_of(p.start), result_layout(self)

        def piece(start: int, stop: int) -> None:
            scaled_dot(left, right, rule, spans, layout, state, start, stop)

        by_rows(piece, p)
        return values_of(state, self)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in whole bytes and float64 lanes, where it holds."""
        kernel = fastest(KERNELS, passes, self, fa, fb)
        return None if kernel is None else Float64Lanes(self, kernel)


def _whole(codes: Matrix, fmt: Format) -> NDArray[np.int32]:
    """Return codes' values as multiples of the format's smallest subnormal."""
    return (decode(codes, fmt) / np.float32(fmt.smallest_subnormal)).astype(np.int32)


_E2M1 = formats["e2m1fn"]


@functools.cache
def passes(name: str) -> bool:
    """Compare a form with the reference: all codes, zero and subnormal scales, a C that moves the alignment."""
    return proves_itself(KERNELS[name], _trial)


def _trial(kernel: RunKernel) -> tuple[Float32Matrix, Float32Matrix]:
    """Return what a form makes of some products, and what is right."""
    rng = np.random.Generator(np.random.Philox(2026))
    fp4 = _E2M1
    accumulator = GroupedFusedSum(
        "self-test", group=64, fraction_bits=35, output_format=FLOAT32, zero_exponent=-139,
        scale_format=formats["e4m3fn"], scale_block=16, run=16,
    )  # fmt: skip
    a, b = (rng.integers(0, 16, (rows, 192), dtype=np.uint8) for rows in (6, 40))
    scales = BlockScales(*(rng.integers(0, 0x7F, (rows, 12), dtype=np.uint8) for rows in (6, 40)))
    c = np.ldexp(rng.standard_normal((6, 40)), rng.integers(-20, 40, (6, 40))).astype(np.float32)
    got = kernel.compute(accumulator, (fp4, fp4), a, b, None, c, scales)
    return got, accumulator.reference(Product(fp4, fp4, a, b, c, scales))
