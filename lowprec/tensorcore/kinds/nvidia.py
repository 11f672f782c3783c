"""NVIDIA's tensor cores: products of a group and C are aligned, truncated and summed in one operation.

`FusedSum` is the general rule, `GroupedFusedSum` the rule of mxf4 and mxf4nvf4, and `SplitF16Sum` that of FP8 products
computed by two float16 instructions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import decode, encode
from ...format.catalogue import Format
from ...kernels.tensorcore.bounds.chains import SPLIT, BlockError
from ...kernels.tensorcore.reference.aligned import fused_dot
from ...kernels.tensorcore.reference.runs import ScaledParts, scaled_dot
from ...order.summation_tree import AlignedAddition, KindSpecific, ProductLeaf, SingleRounding, SumNode
from ..accumulator import FLOAT16, FLOAT32, Accumulator, AlignedSum, StepError
from ..engines.exact_groups import ExactGroupEngine
from ..engines.float32_lanes import Float32Lanes
from ..engines.float64_lanes import Float64Lanes, SplitF16InFloat64Lanes
from ..engines.reference import (
    decompose,
    decompose_scales,
    from_bits,
    fused_sum_rule,
    parallel_over_rows,
    result_layout,
    to_bits,
)
from ..problem import GemmProblem, Matrix, canonical_nan


def aligned_error(accumulator: AlignedSum, terms: int) -> StepError:
    """Return the error bound of a sum of `terms` terms that are aligned, truncated, added and rounded to the result.

    The largest exponent E is at most that of the terms' magnitudes, of the result's smallest normal number (which is
    the exponent of a subnormal C), or of a zero. Each term loses less than 2^(E - F), or at most half of it if rounded,
    and the sum loses less than an ulp, or at most half of it for float16.
    """
    half, least = accumulator.output_format == FLOAT16, accumulator.stored_format.smallest_normal
    lost = terms * 2.0**-accumulator.fraction_bits * (0.5 if accumulator.align == "nearest" else 1.0)
    last = 2.0 ** -(accumulator.output_bits + half)
    zero = 0.0 if accumulator.zero_exponent is None else 2.0**accumulator.zero_exponent
    return StepError(
        lost + last * (1 + lost), lost * (1 + last) * (zero + least) + least * 2.0**-accumulator.output_bits
    )


#: Alignment of terms, as labels of drawings.
_CUT = {"truncate": "cut toward zero", "floor": "cut downwards", "nearest": "rounded to nearest"}


def aligned_words(accumulator: AlignedSum) -> tuple[str, ...]:
    """Return labels for the steps of a fused sum, one line of text each."""
    last = f"{'rounded' if accumulator.output_format == FLOAT16 else 'cut'} to {accumulator.output_format}"
    return (
        "aligned to the largest exponent",
        f"{_CUT[accumulator.align]}, {accumulator.fraction_bits} fraction bits kept",
        f"added exactly, {last}",
    )


def aligned(accumulator: AlignedSum, operands: str = "") -> AlignedAddition:
    """Return the steps of a fused sum as data."""
    a = accumulator
    return AlignedAddition(a.fraction_bits, a.align, a.output_format.name, a.zero_exponent, operands)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FusedSum(AlignedSum):
    """Sums of a group and C in one operation, as on NVIDIA's tensor cores; scales, if any, are powers of two."""

    summary = "a group of products and C aligned, truncated and summed at once"
    engines = (Float32Lanes, Float64Lanes)

    def check(self) -> None:
        """Check that the scales are powers of two, which add to the exponents."""
        super().check()
        if self.scale_format is not None and self.scale_format.mantissa_bits:
            raise ValueError(
                f"FusedSum {self.name}: scale_format must have no mantissa bits (its values are powers of two), "
                f"got {self.scale_format}"
            )

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return one sum of the group and C."""
        products = ProductLeaf(tuple(range(start, start + self.group_size)))
        scaled = () if self.scale_format is None else (f"exponents of {self.scale_format} scales added",)
        return SumNode((*scaled, *aligned_words(self)), (state, products), aligned(self))

    def step_error(self) -> StepError:
        """Return the bound for a group's products and C."""
        return aligned_error(self, self.group_size + 1)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in integers."""
        group = self.group_size
        scaling = self.scale_format, self.scale_block
        left = decompose(p.a, p.fa, group, p.inside_a, *scaling)
        right = decompose(p.b, p.fb, group, p.inside_b, *scaling).T
        rule = fused_sum_rule(self, p.fa.mantissa_bits + p.fb.mantissa_bits)
        state, layout = to_bits(p.start), result_layout(self)

        def piece(start: int, stop: int) -> None:
            fused_dot(left, right, rule, layout, state, start, stop)

        parallel_over_rows(piece, p)
        return from_bits(state, self)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GroupedFusedSum(AlignedSum):
    """Fused sums of scaled partial sums, each an exact sum of products (mxf4, mxf4nvf4).

    Parameters
    ----------
    exact_group : int
        Products per exact sum; it divides `group_size` and `scale_block`. Scales are required.
    """

    exact_group: int = 1

    summary = "as `FusedSum`, for exact sums of short runs of products, each scaled"
    engines = (ExactGroupEngine,)

    def check(self) -> None:
        """Check that there are scales, and that `exact_group` divides their blocks and the group."""
        super().check()
        a = self
        if a.scale_format is None:
            raise ValueError(f"GroupedFusedSum {a.name}: scale_format must be a format, got None")
        if a.scale_block % a.exact_group or a.group_size % a.exact_group:
            raise ValueError(
                f"GroupedFusedSum {a.name}: exact_group must divide group_size={a.group_size} and "
                f"scale_block={a.scale_block}, got {a.exact_group}"
            )

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise ValueError if a partial sum can exceed 64 bits."""
        largest = self.exact_group * self.group_size * fa.max * fb.max * 2.0 ** (self.fraction_bits + 2)
        units = fa.quantum * fb.quantum
        special = any(f.nan_code is not None or f.inf_code is not None for f in (fa, fb))
        if special or max(largest, largest / units) > 2.0**61:
            raise ValueError(
                f"{self.name}: products must be narrow enough for exact sums of {self.exact_group}, got {fa} x {fb}"
            )

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return one sum of C and the scaled exact partial sums."""
        runs = [
            SumNode(
                (f"exact sum, times two {self.scale_format} scales",),
                (ProductLeaf(tuple(range(k, k + self.exact_group))),),
                KindSpecific("exact run", (self.exact_group, self.scale_block)),
            )
            for k in range(start, start + self.group_size, self.exact_group)
        ]
        return SumNode(aligned_words(self), (state, *runs), aligned(self))

    def step_error(self) -> StepError:
        """Return the bound for C and a group's scaled partial sums, with exponents up to those of scaled products."""
        return aligned_error(self, self.group_size // self.exact_group + 1)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in integers."""
        fs = self.scale_format
        assert fs is not None
        assert p.inside_a is not None
        assert p.inside_b is not None
        left = ScaledParts(_whole(p.a, p.fa), *decompose_scales(p.inside_a, fs))
        parts = _whole(p.b, p.fb), *decompose_scales(p.inside_b, fs)
        right = ScaledParts(*(np.ascontiguousarray(part.T) for part in parts))
        low_bits = p.fa.mantissa_bits - p.fa.emin + p.fb.mantissa_bits - p.fb.emin + 2 * fs.mantissa_bits
        rule, spans = fused_sum_rule(self, low_bits), (self.exact_group, self.scale_block)
        state, layout = to_bits(p.start), result_layout(self)

        def piece(start: int, stop: int) -> None:
            scaled_dot(left, right, rule, spans, layout, state, start, stop)

        parallel_over_rows(piece, p)
        return from_bits(state, self)


def _whole(codes: Matrix, fmt: Format) -> NDArray[np.int32]:
    """Return the values of codes as multiples of the format's quantum."""
    return (decode(codes, fmt) / np.float32(fmt.quantum)).astype(np.int32)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SplitF16Sum(Accumulator):
    """Two chained float16 fused sums from +0: products with k % 4 in {0, 1}, then in {2, 3}; C is added to the result.

    Parameters
    ----------
    group_size, fraction_bits, output_format, zero_exponent
        Parameters of each fused sum, see `FusedSum`.
    """

    group_size: int = 16
    fraction_bits: int = 25
    output_format: Format = FLOAT32
    zero_exponent: int | None = None

    summary = "two fused sums of float16 operands, the first from +0, the second from the first; then C is added"
    oracle_class = "Halves"
    output_formats = (FLOAT32, FLOAT16)
    reference_is_compiled = False
    engines = (SplitF16InFloat64Lanes,)

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise ValueError unless float16 represents all values of both formats: operands are converted to float16."""
        for fmt in (fa, fb):
            whole = fmt.is_integer and fmt.mantissa_bits <= 11 and fmt.quantum >= 2.0**-24
            if not (FLOAT16.can_represent_all(fmt) or (whole and -fmt.min <= FLOAT16.max)):
                raise ValueError(f"{self.name}: operands must be of formats whose values float16 has, got {fmt}")

    def step(self) -> int:
        """Return the number of products of both groups."""
        return 2 * self.group_size

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the chained sums of both halves, starting from +0, then the addition of C."""
        inner, step = self.half, self.step()
        words, how = aligned_words(inner), aligned(inner, "float16")
        ks = tuple(start + i for i in _order(step))
        first = SumNode(words, ("+0", ProductLeaf(ks[: step // 2])), how)
        second = SumNode(words, (first, ProductLeaf(ks[step // 2 :])), how)
        return SumNode(
            (f"added, rounded to {self.output_format}",), (state, second), SingleRounding(self.output_format.name)
        )

    def step_error(self) -> StepError:
        """Return the bound for two chained groups and the addition of C, which rounds to nearest."""
        inner = aligned_error(self.half, self.group_size + 1)
        both = 2 * inner.relative * (1 + inner.relative) ** 2
        last = 2.0 ** -(self.output_bits + 1)
        least = self.stored_format.smallest_subnormal
        absolute = (1 + last) * 2 * inner.absolute * (1 + inner.relative) + least
        return StepError(both + last * (1 + both), absolute, last)

    def block_length(self) -> int:
        """Return the number of products of one instruction."""
        return self.step()

    def block_error(self) -> BlockError:
        """Return the bound of `step_error` if one of the two sums may lose bits, else the bound of the last addition.

        The sum of the magnitudes of the products bounds all partial sums.
        """
        error, kept = self.step_error(), min(self.fraction_bits, self.output_bits)
        normal = self.stored_format.smallest_normal
        return BlockError(
            SPLIT, unit=2.0**-kept, least=normal, relative=error.relative, last=2.0 ** -(self.output_bits + 1),
            absolute=error.absolute,
        )  # fmt: skip

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, instruction by instruction."""
        step, inner = self.step(), self.half
        with np.errstate(invalid="ignore"):  # signalling NaNs
            d = p.start + np.zeros((), p.start.dtype)  # the result without products: the sum of +0 and C
        left, right = self.as_halves(p.a, p.fa), self.as_halves(p.b, p.fb)
        for k in range(0, p.shape[2], step):
            x, y = (np.ascontiguousarray(side[:, k : k + step]) for side in (left, right))
            half = inner.reference(GemmProblem(x, y, FLOAT16, FLOAT16, np.zeros_like(d)))
            with np.errstate(over="ignore", invalid="ignore"):
                if self.output_format == FLOAT16:  # the sum is exact in float64, so it is rounded once
                    d = (half.astype(np.float64) + d.astype(np.float64)).astype(np.float16)
                else:
                    d = half + d
        return canonical_nan(d)

    @functools.cached_property
    def half(self) -> FusedSum:
        """Accumulator of each float16 instruction."""
        return FusedSum(
            self.name, group_size=self.group_size, fraction_bits=self.fraction_bits, output_format=self.output_format,
            zero_exponent=self.zero_exponent,
        )  # fmt: skip

    def as_halves(self, codes: Matrix, fmt: Format) -> NDArray[np.uint16]:
        """Convert codes [R, K] to float16, with K zero-padded, and those with k % 4 in {0, 1} first within each step.

        Products keep their order if the step is not a multiple of four.
        """
        (rows, k), step = codes.shape, self.step()
        wide = np.zeros((rows, -(-k // step) * step), codes.dtype)
        wide[:, :k] = codes
        if step % 4 == 0 and wide.itemsize == 1:  # move two bytes at a time
            pairs = wide.view(np.uint16).reshape(rows, -1, step // 4, 2)
            wide = np.ascontiguousarray(pairs.swapaxes(2, 3)).view(np.uint8).reshape(wide.shape)
        elif step % 4 == 0:
            wide = np.ascontiguousarray(wide.reshape(rows, -1, step // 4, 2, 2).swapaxes(2, 3)).reshape(wide.shape)
        return encode(decode(wide, fmt), FLOAT16)


def _order(step: int) -> list[int]:
    """Return the indices of an instruction's products: those of the first half, then those of the second."""
    return sorted(range(step), key=lambda i: i % 4 >= 2) if step % 4 == 0 else list(range(step))
