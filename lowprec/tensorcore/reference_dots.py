"""Chains of products on every kind of machine, one function each: what kernels need is prepared here.

All have the same arguments: machine, operand formats, codes a [M, K] and b [N, K], C [M, N] in the machine's own type,
and the scales that its instruction takes. They return D, with the canonical NaN and, where not said otherwise, zeros
of positive sign.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _threads
from ..cast.casts import decode
from ..format.catalogue import Format, formats
from ..kernels.tensorcore import amd_dot, fused_dot, scaled_dot
from ..kernels.tensorcore import promote as promotion
from .accumulator import ALIGNMENTS, Accumulator

Matrix = NDArray[Any]
_WORK = 1 << 17  # multiply-adds that are worth a thread
_WIDE_BITS = 31  # CDNA3: fraction bits of the sum before it is rounded


class BlockScales(NamedTuple):
    """Scales inside the instruction, as codes of the machine's scale format: [M, K / block] and [N, K / block]."""

    a: Matrix
    b: Matrix


class Parts(NamedTuple):
    """Codes taken apart, each array of the codes' shape but the last, which is [rows, groups]."""

    significand: NDArray[np.int32]
    exponent: NDArray[np.int16]
    kind: NDArray[np.int8]
    special: NDArray[np.bool_]

    @property
    def T(self) -> tuple[Matrix, ...]:
        """All four transposed, contiguous."""
        return tuple(np.ascontiguousarray(part.T) for part in self)


def result_layout(machine: Accumulator) -> tuple[int, ...]:
    """Return what `kernels.tensorcore.fused_dot.close_result` wants to know of a machine's results."""
    stored = formats[machine.dtype]
    nearest = machine.output == "float16" or machine.kind == "two_floors"
    rounding = fused_dot.NEAREST if nearest else fused_dot.TRUNCATE
    assert stored.inf_code is not None
    return stored.mantissa_bits, machine.output_bits, stored.emin, stored.inf_code, stored.sign_mask, rounding


def take_apart(codes: Matrix, fmt: Format, group: int, scale: Matrix | None = None, block: int = 1) -> Parts:
    """Split codes [R, K]; power-of-two scales (codes of E8M0, [R, K / block]) go into the exponents."""
    p = fmt.params
    rows, k = codes.shape
    significand, exponent = np.empty((rows, k), np.int32), np.empty((rows, k), np.int16)
    kind = np.empty((rows, k), np.int8)
    fused_dot.take_apart(
        codes, p.mantissa_bits, p.emin, p.max_code, p.inf_code, p.nan_code, p.sign_mask, p.has_zero,
        (significand, exponent, kind),
    )  # fmt: skip
    if scale is not None:
        _, x, nan = scale_parts(scale, formats["e8m0fnu"])
        by_code = np.repeat(x, block, axis=1)[:, :k].astype(np.int16)
        np.add(exponent, by_code, out=exponent, where=significand != 0)
        kind[np.repeat(nan, block, axis=1)[:, :k]] = fused_dot.NOT_A_NUMBER
    groups = max(-(-k // group), 1)
    padded = np.zeros((rows, groups * group), np.bool_)
    padded[:, :k] = kind != fused_dot.FINITE
    special: NDArray[np.bool_] = np.any(padded.reshape(rows, groups, group), axis=2)
    return Parts(significand, exponent, kind, special)


def fused(
    machine: Accumulator, fa: Format, fb: Format, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None
) -> Matrix:
    """Fused sums in integers."""
    sa, sb = (None, None) if scales is None else scales
    left = take_apart(a, fa, machine.group, sa, machine.scale_block)
    right = take_apart(b, fb, machine.group, sb, machine.scale_block).T
    state = _bits_of(c)

    def piece(start: int, stop: int) -> None:
        fused_dot.fused_dot(
            tuple(left), right, fa.mantissa_bits + fb.mantissa_bits, machine.group, machine.fraction_bits,
            ALIGNMENTS.index(machine.align), _zero_exponent(machine), result_layout(machine), state, start, stop,
        )  # fmt: skip

    _by_rows(piece, a, b)
    return _values_of(state, machine)


def fused_runs(
    machine: Accumulator, fa: Format, fb: Format, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None
) -> Matrix:
    """Fused sums of runs that are scaled inside the instruction."""
    assert scales is not None
    fs = formats[str(machine.scale_format)]
    largest = machine.run * machine.group * fa.max * fb.max * 2.0 ** (machine.fraction_bits + 2)
    units = fa.smallest_subnormal * fb.smallest_subnormal
    if (
        any(f.nan_code is not None or f.inf_code is not None for f in (fa, fb))
        or max(largest, largest / units) > 2.0**61
    ):
        raise ValueError(f"{machine.name}: products of {fa} and {fb} are too wide to be summed exactly in runs")
    parts = [(_whole(a, fa), *scale_parts(scales.a, fs)), (_whole(b, fb), *scale_parts(scales.b, fs))]
    left, right = tuple(parts[0]), tuple(np.ascontiguousarray(part.T) for part in parts[1])
    low_bits = fa.mantissa_bits - fa.emin + fb.mantissa_bits - fb.emin + 2 * fs.mantissa_bits
    state = _bits_of(c)

    def piece(start: int, stop: int) -> None:
        scaled_dot.scaled_dot(
            left, right, low_bits, machine.run, machine.scale_block, machine.group, machine.fraction_bits,
            ALIGNMENTS.index(machine.align), _zero_exponent(machine), result_layout(machine), state, start, stop,
        )  # fmt: skip

    _by_rows(piece, a, b)
    return _values_of(state, machine)


def halves(
    machine: Accumulator, fa: Format, fb: Format, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None
) -> Matrix:
    """Two float16 instructions for each FP8 one: k % 4 in {0, 1} first, then k % 4 in {2, 3}, C last."""
    step, half, inner = 2 * machine.group, formats["float16"], float16_unit(machine)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        d = c + np.zeros((), c.dtype)  # no product: the sum of +0 and C
    left, right = in_halves(a, fa, step), in_halves(b, fb, step)
    for p0 in range(0, a.shape[1], step):
        pieces = [np.ascontiguousarray(x[:, p0 : p0 + step]) for x in (left, right)]
        x = fused(inner, half, half, pieces[0], pieces[1], np.zeros_like(c), None)
        with np.errstate(over="ignore", invalid="ignore"):
            if machine.output == "float16":  # float64 holds the sum, so that it is rounded once
                d = (x.astype(np.float64) + d.astype(np.float64)).astype(np.float16)
            else:
                d = x + d
    return _canonical(d)


def float16_unit(machine: Accumulator) -> Accumulator:
    """Return the machine that does each half."""
    return Accumulator(
        machine.name, group=machine.group, fraction_bits=machine.fraction_bits, output=machine.output,
        zero_exponent=machine.zero_exponent,
    )  # fmt: skip


def in_halves(codes: Matrix, fmt: Format, step: int) -> NDArray[np.uint16]:
    """Return codes [R, K] as float16, K filled up with zeros; of each `step` those with k % 4 in {0, 1} come first."""
    rows, k = codes.shape
    table = decode(np.arange(1 << fmt.bits, dtype=fmt.code_dtype), fmt).astype(np.float16).view(np.uint16)
    wide = np.zeros((rows, -(-k // step) * step), np.uint16)
    wide[:, :k] = table[codes]
    if step % 4:
        return wide
    return np.ascontiguousarray(wide.reshape(rows, -1, step // 4, 2, 2).swapaxes(2, 3)).reshape(wide.shape)


def two_floors(
    machine: Accumulator, fa: Format, fb: Format, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None
) -> Matrix:
    """CDNA3: `run` interleaved partial sums; with two of them a C far below the others is dropped."""
    left, right = take_apart(a, fa, machine.group), take_apart(b, fb, machine.group)
    state = _bits_of(c)
    window = machine.fraction_bits + 1 if machine.run > 1 else 1 << 20

    def piece(start: int, stop: int) -> None:
        amd_dot.floored_dot(
            tuple(left), tuple(right), fa.mantissa_bits + fb.mantissa_bits, machine.group, machine.run,
            machine.fraction_bits, _WIDE_BITS, window, result_layout(machine), state, start, stop,
        )  # fmt: skip

    _by_rows(piece, a, b)
    return _values_of(state, machine)


def pairwise(
    machine: Accumulator, fa: Format, fb: Format, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None
) -> Matrix:
    """CDNA2: subnormals are flushed, of operands and C to +0, of results to the zero of their sign."""
    x, y = decode(a, fa), decode(b, fb)
    x[np.abs(x) < fa.smallest_normal] = 0
    y[np.abs(y) < fb.smallest_normal] = 0
    state = np.array(c)
    _by_rows(lambda start, stop: amd_dot.pairwise_dot(x, y, machine.group, state, start, stop), a, b)
    return _canonical(state)


def exact_groups(
    machine: Accumulator, fa: Format, fb: Format, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None
) -> Matrix:
    """CDNA1: a group's products and C exactly, one rounding to nearest even."""
    x, y, state = decode(a, fa), decode(b, fb), np.array(c)
    _by_rows(lambda start, stop: amd_dot.exact_group_dot(x, y, machine.group, state, start, stop), a, b)
    return _canonical(state)


def _zero_exponent(machine: Accumulator) -> int:
    return fused_dot.NEVER if machine.zero_exponent is None else machine.zero_exponent


def scale_parts(scale: Matrix, fmt: Format) -> tuple[Matrix, Matrix, NDArray[np.bool_]]:
    """Return significands, exponents and NaN flags of scale codes; a sign bit is ignored, as the hardware does."""
    unsigned = scale & fmt.code_dtype.type((1 << fmt.bits) - 1 - fmt.sign_mask)
    parts = take_apart(np.ascontiguousarray(unsigned), fmt, 1)
    nan = parts.kind != fused_dot.FINITE
    exponent = np.where(nan, 0, parts.exponent).astype(np.int32)
    return parts.significand, exponent, nan


def _whole(codes: Matrix, fmt: Format) -> NDArray[np.int32]:
    """Return codes' values as multiples of the format's smallest subnormal."""
    return (decode(codes, fmt) / np.float32(fmt.smallest_subnormal)).astype(np.int32)


def _bits_of(c: Matrix) -> NDArray[np.uint32]:
    """Return a copy of the bits of float16 or float32 numbers."""
    return np.array(np.ascontiguousarray(c).view(np.uint16 if c.dtype == np.float16 else np.uint32), np.uint32)


def _values_of(bits: NDArray[np.uint32], machine: Accumulator) -> Matrix:
    return bits.astype(np.uint16).view(np.float16) if machine.output == "float16" else bits.view(np.float32)


def _canonical(d: Matrix) -> Matrix:
    """Give every NaN the bits that a tensor core's has."""
    if d.dtype == np.float16:
        d.view(np.uint16)[np.isnan(d)] = 0x7FFF
    else:
        promotion.canonical_nan(d)
    return d


def _by_rows(piece: Any, a: Matrix, b: Matrix) -> None:
    _threads.run_chunks(piece, a.shape[0], max(1, _WORK // max(a.shape[1] * b.shape[0], 1)))
