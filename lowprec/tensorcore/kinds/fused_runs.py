"""``fused_runs``: fused sums of runs that are scaled inside the instruction (mxf4, mxf4nvf4)."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import decode
from ...format.catalogue import Format, formats
from ...kernels.tensorcore.scaled_dot import ScaledParts, scaled_dot
from ..accumulator import Accumulator, FastKernel, StepError
from ..integers import bits_of, by_rows, group_rule, result_layout, scale_parts, values_of
from ..order import Particular, Products, Sum
from ..panel_kernels import fastest, proves_itself
from ..product import BlockScales, Float32Matrix, Matrix, Product
from ..run_kernels import KERNELS, RunKernel
from .fused import FusedSum, aligned, aligned_error, aligned_words
from .panels import Float64Lanes


class FusedRuns(FusedSum):
    """As `Fused`, of runs of products that are first summed exactly and then scaled."""

    name = "fused_runs"
    words = "as fused, for runs of products that are first summed exactly and then scaled"
    own_fields = FusedSum.own_fields | {"run"}

    def check(self, accumulator: Accumulator) -> None:
        """Ask for scales, and for runs that divide their blocks and the group."""
        super().check(accumulator)
        a = accumulator
        if a.scale_format is None:
            raise ValueError(f"Accumulator {a.name}: kind={self.name!r} needs scale_format and scale_block")
        if a.scale_block % a.run or a.group % a.run:
            raise ValueError(
                f"Accumulator {a.name}: run={a.run} must divide scale_block={a.scale_block} and group={a.group}"
            )

    def check_formats(self, accumulator: Accumulator, fa: Format, fb: Format) -> None:
        """Raise a ValueError if the sum of a run can leave 64 bits."""
        largest = accumulator.run * accumulator.group * fa.max * fb.max * 2.0 ** (accumulator.fraction_bits + 2)
        units = fa.smallest_subnormal * fb.smallest_subnormal
        special = any(f.nan_code is not None or f.inf_code is not None for f in (fa, fb))
        if special or max(largest, largest / units) > 2.0**61:
            raise ValueError(f"{accumulator.name}: products of {fa} and {fb} are too wide to be summed exactly in runs")

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Sum runs exactly, scale them, and join them with C."""
        runs = [
            Sum(
                (f"exact sum, times two {accumulator.scale_format} scales",),
                (Products(tuple(range(k, k + accumulator.run))),),
                Particular("exact run", (accumulator.run, accumulator.scale_block)),
            )
            for k in range(start, start + accumulator.group, accumulator.run)
        ]
        return Sum(aligned_words(accumulator), (state, *runs), aligned(accumulator))

    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return that of a group's runs and C: a run has its scales' exponent, which no product of it falls below."""
        return aligned_error(accumulator, accumulator.group // accumulator.run + 1)

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain in integers."""
        p, fs = product, formats[str(accumulator.scale_format)]
        assert p.scales is not None
        left = ScaledParts(_whole(p.a, p.fa), *scale_parts(p.scales.a, fs))
        parts = _whole(p.b, p.fb), *scale_parts(p.scales.b, fs)
        right = ScaledParts(*(np.ascontiguousarray(part.T) for part in parts))
        low_bits = p.fa.mantissa_bits - p.fa.emin + p.fb.mantissa_bits - p.fb.emin + 2 * fs.mantissa_bits
        rule, spans = group_rule(accumulator, low_bits), (accumulator.run, accumulator.scale_block)
        state, layout = bits_of(p.start), result_layout(accumulator)

        def piece(start: int, stop: int) -> None:
            scaled_dot(left, right, rule, spans, layout, state, start, stop)

        by_rows(piece, p)
        return values_of(state, accumulator)

    def fast(self, accumulator: Accumulator, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in whole bytes and float64 lanes, where it holds."""
        kernel = fastest(KERNELS, passes, accumulator, fa, fb)
        return None if kernel is None else Float64Lanes(accumulator, kernel)


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
    accumulator = Accumulator(
        "self-test", "fused_runs", group=64, fraction_bits=35, output="float32", zero_exponent=-139,
        scale_format="e4m3fn", scale_block=16, run=16,
    )  # fmt: skip
    a, b = (rng.integers(0, 16, (rows, 192), dtype=np.uint8) for rows in (6, 40))
    scales = BlockScales(*(rng.integers(0, 0x7F, (rows, 12), dtype=np.uint8) for rows in (6, 40)))
    c = np.ldexp(rng.standard_normal((6, 40)), rng.integers(-20, 40, (6, 40))).astype(np.float32)
    got = kernel.compute(accumulator, (fp4, fp4), a, b, None, c, scales)
    return got, accumulator.rule.reference(accumulator, Product(fp4, fp4, a, b, c, scales))
