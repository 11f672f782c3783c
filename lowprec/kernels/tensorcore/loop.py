"""The loop of every fused GEMM: rows in batches, columns in panels, K in blocks with constant scales.

Lanes and layouts determine the sweep, which adds a block's products to the running sums of a batch of rows and a panel
of columns; `make_gemm` takes it as an argument. C and scales are handled in the same way for all sweeps.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, set_rounding, variant

from ..vectors import aligned_f32
from .epilogue import (
    ADD,
    BITS,
    CONTINUE,
    PROMOTE,
    ROUND,
    begin_stack,
    is_short,
    join,
    round_number,
    round_short,
    store_tile,
)  # fmt: skip

U = np.uint32
TO_NEAREST, TOWARD_ZERO = np.int32(1), np.int32(0)


class Operand(NamedTuple):
    """A or B as packed, in flat arrays: values, unnormalized exponents and sign masks."""

    values: Any
    exponents: Any
    masks: Any


class Sums(NamedTuple):
    """Parameters of an accumulator for one group of products."""

    group: int  # products, before padding
    fraction_bits: int  # F
    keep: int  # fraction bits of the result
    lowest: int  # smallest exponent E


class Chains(NamedTuple):
    """How groups form an output, and which outputs are computed."""

    groups: int  # number of groups in K
    # For each chain: its end in groups; the number of sums on the stack with it; `CONTINUE`, `PUSH` or `PROMOTE`; the
    # operations of `join` that follow; the block of its scales. Where the scales change within a chain, its running sum
    # is multiplied by float32(s_before / s_now) and truncated to `keep` bits, s being scale_a * scale_b. ``PUSH`` makes
    # fma(s, chain, +0) a sum on the stack, ``PROMOTE`` replaces the last sum by fma(s, chain, sum).
    plan: Any
    word: Any  # constants of the operations' rounding
    onto: int  # 1: the first sum on the stack is the contents of the result; 0: +0
    use_c: int  # 1: the first chain starts from C; 0: from +0
    first: int  # column of the result for B's first column
    columns: int  # number of columns in B


class Place(NamedTuple):
    """The part of the problem for one sweep."""

    row: int
    end: int  # end of the rows
    column: int  # column of B
    panel: int  # columns of the running sums
    width: int  # those of them that are used; the others are padding
    group: int
    stop: int  # end of the groups


# Placeholders that `make_gemm` replaces: columns in a panel, rows in a batch, the allocator of the running sums, the
# sweep, whether it requires the thread's rounding mode toward zero, and the ends of a chain for such panels.
panel, batch, sums_of, sweep, toward_zero, begin, push = 64, 256, None, None, False, None, None
JOINED = 128  # rows in a batch if the stack has several sums


def _gemm(a, b, sums, chains, scale_a, scale_b, factors, c, out):
    """Compute columns ``first .. first + columns`` of ``D = A @ B.T`` [M, N] on an emulated tensor core.

    `a` and `b` have the sweep's layout. All other arrays are float32: `scale_a` [blocks, M] and `scale_b` [blocks, at
    least N], `factors`, `c` and `out` [M, N]; `factors` is empty if they are 1. Outputs are undefined if they are not
    finite, or if operands or C exceed the limits of the sweep.
    """
    m, levels = out.shape[0], chains.plan[:, 1].max()
    most = batch if levels == 1 else JOINED
    room = (min(most, m) + 3) // 4 * 4 * panel
    state = sums_of(room)  # results of the chains so far, truncated; zeros for padding rows and columns
    stack = aligned_f32(room * (levels + 1 if factors.size else levels))
    for r0 in range(0, m, most):
        r1 = min(r0 + most, m)
        for j0 in range(0, chains.columns, panel):
            left, width, g1, size = chains.first + j0, min(panel, chains.columns - j0), 0, (r1 - r0) * panel
            above = begin_stack(stack, levels, size, chains.onto, factors, r0, r1, left, width, panel, out)
            for index in range(chains.plan.shape[0]):
                g0 = g1
                g1 = chains.plan[index, 0]
                place = Place(r0, r1, j0, panel, width, g0, g1)
                begin(state, index, place, sums.keep, chains, (scale_a, scale_b), c)
                if toward_zero:
                    set_rounding(TOWARD_ZERO)
                sweep(a, b, state, place, sums, chains.groups)
                if toward_zero:
                    set_rounding(TO_NEAREST)
                if chains.plan[index, 2] != CONTINUE:
                    top, operations = push(state, index, place, chains, (scale_a, scale_b), stack)
                    join(stack, size, top, operations, chains.word, above)
            store_tile(stack, panel, r0, r1, left, width, out)


def _begin(state, index, place, keep, chains, scales, c):
    """Initialize the running sums of a chain: +0, C, or their previous values in units of the new scale."""
    scale_a, scale_b = scales
    left = chains.first + place.column
    if index == 0 or chains.plan[index - 1, 2] != CONTINUE:
        state[: (place.end - place.row + 3) // 4 * 4 * panel] = 0
        if index == 0 and chains.use_c:
            for i in range(place.row, place.end):
                d, row = state[(i - place.row) * panel : (i - place.row + 1) * panel], c[i, left : left + place.width]
                for j in range(place.width):
                    d[j] = row[j] + np.float32(0)  # -0 becomes +0
    else:
        clear, before, now = U(U(0xFFFFFFFF) << U(23 - keep)), chains.plan[index - 1, 4], chains.plan[index, 4]
        s_before, s_now = scale_b[before], scale_b[now]
        for i in range(place.row, place.end):
            a_before, a_now = scale_a[before, i], scale_a[now, i]
            d = state[(i - place.row) * panel : (i - place.row + 1) * panel]
            for j in range(place.width):
                ratio = np.float32(a_before * s_before[left + j]) / np.float32(a_now * s_now[left + j])
                bits = bits32(np.float32(np.float32(d[j]) * ratio))
                d[j] = float32_from_bits(U(bits & clear)) + np.float32(0)


def _push(state, index, place, chains, scales, stack):
    """Put the scaled sums of a chain on the stack; return its number of sums, and the operations not yet applied.

    The first operations are applied in the same pass if they are an addition, a rounding or both. Loops process whole
    vectors of the stack, which is nearby in memory.
    """
    left, rows, padded = chains.first + place.column, place.end - place.row, (place.width + 15) // 16 * 16
    top, kind, operations, block = (
        chains.plan[index, 1], chains.plan[index, 2], chains.plan[index, 3], chains.plan[index, 4]
    )  # fmt: skip
    scale_a, scale_b = scales[0][block], scales[1][block]
    s_b = np.zeros(panel, np.float32)
    s_b[: place.width] = scale_b[left : left + place.width]
    size, first, second, short = rows * panel, operations & 7, (operations >> BITS) & 7, is_short(chains.word)
    w = (
        chains.word[0], chains.word[1], chains.word[2], chains.word[3], chains.word[4], chains.word[5],
        chains.word[6], chains.word[7], chains.word[8], chains.word[9], chains.word[10]
    )  # fmt: skip
    both = kind != PROMOTE and short and first == ROUND and second == ADD | ROUND
    adds = kind != PROMOTE and (first == ADD or (short and first == ADD | ROUND))
    rounds = kind != PROMOTE and short and first == ROUND
    if both or adds:
        top -= 1
    if both:
        operations >>= BITS
    if both or adds or rounds:
        operations >>= BITS
    for i in range(rows):
        s_a, chain = scale_a[place.row + i], state[i * panel : i * panel + padded]
        at = (top - 1) * size + i * panel
        sums = stack[at : at + padded]
        if kind == PROMOTE:
            for j in range(padded):
                sums[j] = fma32(np.float32(s_a * s_b[j]), np.float32(chain[j]), sums[j])
        elif both:
            for j in range(padded):
                x = fma32(np.float32(s_a * s_b[j]), np.float32(chain[j]), np.float32(0))
                sums[j] = round_number(sums[j] + round_short(x, w), w)
        elif first == ADD:
            for j in range(padded):
                sums[j] = sums[j] + fma32(np.float32(s_a * s_b[j]), np.float32(chain[j]), np.float32(0))
        elif adds:
            for j in range(padded):
                x = fma32(np.float32(s_a * s_b[j]), np.float32(chain[j]), np.float32(0))
                sums[j] = round_short(sums[j] + x, w)
        elif rounds:
            for j in range(padded):
                x = fma32(np.float32(s_a * s_b[j]), np.float32(chain[j]), np.float32(0))
                sums[j] = round_short(x, w)
        else:
            for j in range(padded):
                sums[j] = fma32(np.float32(s_a * s_b[j]), np.float32(chain[j]), np.float32(0))
    return top, operations


def make_gemm(
    name: str, sweep: Any, panel: int, batch: int, sums_of: Any, toward_zero: bool, inline: bool = False
) -> Any:
    """Return the loop around a sweep.

    Parameters
    ----------
    name : str
        Name of the kernel in the cache; must be unique.
    sweep : kernel
        Kernel ``sweep(a, b, state, place, sums, groups)``: adds groups of products to `state` [batch][panel].
    panel, batch : int
        Columns per panel of B, and rows per batch, which use a panel while it stays in a near cache.
    sums_of : kernel
        Kernel that allocates n float32 or float64.
    toward_zero : bool
        Whether the sweep requires the thread to round toward zero.
    inline : bool
        Whether the loop is inlined into one other kernel.
    """
    begin, push = (variant(part, f"{name}{part.__name__}", panel=panel) for part in (_begin, _push))
    names = {"sweep": sweep, "panel": panel, "batch": batch, "sums_of": sums_of, "toward_zero": toward_zero}
    return variant(_gemm, name, begin=begin, push=push, inline=inline, **names)
