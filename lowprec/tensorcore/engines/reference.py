"""Reference implementation, which defines the bits: each accumulator's `reference`, and scaled sums of chains.

Several kinds share `decompose` and the functions after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _threads
from ...cast.casts import round_to
from ...format.catalogue import Format
from ...kernels.tensorcore import epilogue
from ...kernels.tensorcore.reference import aligned
from ...kernels.tensorcore.reference.aligned import Parts, Result, Rule
from ..accumulator import ALIGNMENTS, FLOAT16, Accumulator, AlignedSum
from ..problem import Float32Matrix, GemmProblem, Joins, Matrix, canonical_nan, times

_WORK = 1 << 17  # multiply-adds that justify a thread
Chain = Callable[[GemmProblem], Matrix]


def solve(accumulator: Accumulator, p: GemmProblem) -> Matrix:
    """Compute a product with the accumulator's reference only."""
    return accumulator.reference(p) if p.joins is None else solve_joined(accumulator, p, p.joins, accumulator.reference)


def solve_joined(accumulator: Accumulator, p: GemmProblem, joins: Joins, chain: Chain) -> Float32Matrix:
    """Return the result of several chains, each computed by `chain`."""
    m, n, _ = p.shape
    stack = begin_stack(joins, m, n)
    state: Matrix = np.zeros((m, n), accumulator.dtype)
    first, before = 0, None  # block of scales of the running sum, while a chain continues
    for end, top, push, operations, block in joins.plan.tolist():
        if before is None:
            state[...] = 0
        elif p.scale_a is not None and p.scale_b is not None:
            scales = p.scale_a[before], p.scale_b[before], p.scale_a[block], p.scale_b[block]
            epilogue.rescale(state, *scales, accumulator.output_bits)
        state = chain(p.chain(first, end, state, accumulator.scale_block))
        first, before = end, block if push == epilogue.CONTINUE else None
        if before is None:
            part, last = state.astype(np.float32, copy=False), stack[top - 1]
            last[...] = last if push == epilogue.PROMOTE else 0
            if p.scale_a is not None and p.scale_b is not None:
                scale_a = p.scale_a[block]
                if joins.scales_one_by_one:
                    part, scale_a = times(part, scale_a[:, None]), np.ones_like(scale_a)
                epilogue.promote(part, scale_a, p.scale_b[block], last)
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    last += part
            join(stack, top, operations, joins)
    return canonical_nan(stack[0])


def begin_stack(joins: Joins, m: int, n: int) -> Float32Matrix:
    """Return the stack of sums [levels, m, n] before the first chain."""
    stack = np.zeros((joins.plan[:, 1].max(), m, n), np.float32)
    stack[0] = 0 if joins.addend is None else joins.addend
    return stack


def join(stack: Float32Matrix, top: int, operations: int, joins: Joins) -> None:
    """Apply operations to the last of `top` sums on a stack [levels, M, N], as `kernels.tensorcore.epilogue.join`."""
    while operations:
        epilogue.join(stack.reshape(-1), stack[0].size, top, operations & 6, joins.word, joins.factors.reshape(-1))
        top -= (operations & epilogue.ADD) // epilogue.ADD
        if operations & epilogue.ROUND and joins.target is not None:
            round_to(stack[top - 1], joins.target, out=stack[top - 1])
        operations >>= epilogue.BITS


def solve_promoted(accumulator: Accumulator, p: GemmProblem, every: int, chain: Chain) -> Matrix:
    """Add C and chains of `every` products, each from +0, in float32; return the sum in the accumulator's dtype."""
    block = accumulator.scale_block
    if block and every % block:
        raise ValueError(f"{accumulator}: promote_every must be a multiple of scale_block={block}, got {every}")
    with np.errstate(over="ignore", invalid="ignore"):
        total: Float32Matrix = p.start.astype(np.float32)
        for k in range(0, max(p.a.shape[1], 1), every):
            total += chain(p.chain(k, k + every, np.zeros_like(p.start), block))
        return canonical_nan(total.astype(p.start.dtype))


def decompose(
    codes: Matrix,
    fmt: Format,
    group: int,
    scale: Matrix | None = None,
    scale_format: Format | None = None,
    block: int = 1,
) -> Parts:
    """Split codes [R, K] into `Parts`; power-of-two scales, given as codes [R, K / block], are added to exponents."""
    rows, k = codes.shape
    significand, exponent = np.empty((rows, k), np.int32), np.empty((rows, k), np.int16)
    kind = np.empty((rows, k), np.int8)
    aligned.take_apart(codes, fmt.params, significand, exponent, kind)
    if not fmt.subnormals:  # code 0 and its negative would otherwise be normal numbers
        zeros = (codes & ~codes.dtype.type(fmt.sign_mask)) == 0
        significand[zeros], exponent[zeros] = 0, aligned.FAR
    if scale is not None and scale_format is not None:
        _, x, nan = decompose_scales(scale, scale_format)
        by_code = np.repeat(x, block, axis=1)[:, :k].astype(np.int16)
        np.add(exponent, by_code, out=exponent, where=significand != 0)
        kind[np.repeat(nan, block, axis=1)[:, :k]] = aligned.NOT_A_NUMBER
    groups = max(-(-k // group), 1)
    padded = np.zeros((rows, groups * group), np.bool_)
    padded[:, :k] = kind != aligned.FINITE
    special: NDArray[np.bool_] = np.any(padded.reshape(rows, groups, group), axis=2)
    return Parts(significand, exponent, kind, special)


def decompose_scales(scale: Matrix, fmt: Format) -> tuple[Matrix, Matrix, NDArray[np.bool_]]:
    """Return significands, exponents and NaN flags of scale codes; the sign bit is ignored, as in hardware."""
    unsigned = scale & fmt.code_dtype.type((1 << fmt.bits) - 1 - fmt.sign_mask)
    parts = decompose(np.ascontiguousarray(unsigned), fmt, 1)
    nan = parts.kind != aligned.FINITE
    exponent = np.where(nan, 0, parts.exponent).astype(np.int32)
    return parts.significand, exponent, nan


def result_layout(accumulator: Accumulator, nearest: bool = False) -> Result:
    """Return the format of an accumulator's results.

    Results are truncated unless they are float16 or `nearest` is set.
    """
    stored = accumulator.stored_format
    rounding = aligned.NEAREST if nearest or accumulator.output_format == FLOAT16 else aligned.TRUNCATE
    assert stored.inf_code is not None
    return Result(
        stored.mantissa_bits, accumulator.output_bits, stored.emin, stored.inf_code, stored.sign_mask, rounding
    )


def fused_sum_rule(accumulator: AlignedSum, low_bits: int) -> Rule:
    """Return the constants of a fused sum of products with significands that end at 2^-low_bits."""
    zero = aligned.NEVER if accumulator.zero_exponent is None else accumulator.zero_exponent
    align = (aligned.TRUNCATE, aligned.FLOOR, aligned.NEAREST)[ALIGNMENTS.index(accumulator.align)]
    return Rule(low_bits, accumulator.group_size, accumulator.fraction_bits, align, zero)


def to_bits(c: Matrix) -> NDArray[np.uint32]:
    """Return a copy of the bits of float16 or float32 numbers."""
    return np.array(np.ascontiguousarray(c).view(np.uint16 if c.dtype == np.float16 else np.uint32), np.uint32)


def from_bits(bits: NDArray[np.uint32], accumulator: Accumulator) -> Matrix:
    """Return an accumulator's results, in its dtype, from their bits."""
    return bits.astype(np.uint16).view(np.float16) if accumulator.output_format == FLOAT16 else bits.view(np.float32)


def parallel_over_rows(piece: Any, p: GemmProblem) -> None:
    """Run ``piece(start, stop)`` over all rows of a product, on several threads."""
    m, n, k = p.shape
    _threads.run_chunks(piece, m, max(1, _WORK // max(k * n, 1)))
