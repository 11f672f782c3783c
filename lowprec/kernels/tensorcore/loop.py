"""The loop of every fused GEMM: rows in batches, columns in panels, K in blocks with constant scales.

Lanes and layouts determine the sweep, which adds a block's products to the running sums of a batch of rows and a panel
of columns; `make_gemm` takes it as an argument. C and scales are handled in the same way for all sweeps.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import bits32, bits64, float32_from_bits, float64_from_bits, fma32, kernel, set_rounding, variant

from ..vectors import aligned_f32
from .epilogue import ADD, BITS, canonical, join

U, L = np.uint32, np.uint64
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
    block: int  # groups per block of constant scales
    # 0: One chain over all K, in units of the current block's scale. When the scales change, the running sum is
    #    multiplied by float32(s_before / s_now) and truncated to `keep` bits; s multiplies the end result.
    # 1: Each block's chain starts from +0, and ``total = fma(s, chain, total)`` in float32, s = scale_a * scale_b.
    # 2: As 1, and each of these sums is rounded to float16.
    # 3: The chains of `plan`, each from +0 and times s, are joined by `epilogue.join`.
    promote: int
    onto: int  # 1: promoted chains are added to the contents of the result; 0: to +0
    use_c: int  # 1: the first chain starts from C; 0: from +0
    first: int  # column of the result for B's first column
    columns: int  # number of columns in B
    # For each chain: its end in groups, the number of sums on the stack with it, and the operations that follow it.
    plan: Any
    word: Any  # constants of the operations' rounding


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
# sweep, whether it requires the thread's rounding mode toward zero, and the ends of a block for such panels.
panel, batch, sums_of, sweep, toward_zero, begin, finish, push = 64, 256, None, None, False, None, None, None
JOINED = 64  # rows in a batch if partial sums are joined


def _gemm(a, b, sums, chains, scale_a, scale_b, c, out):
    """Compute columns ``first .. first + columns`` of ``D = A @ B.T`` [M, N] on an emulated tensor core.

    `a` and `b` have the sweep's layout. All other arrays are float32: `scale_a` [blocks, M] and `scale_b` [blocks, at
    least N], `c` and `out` [M, N]. Outputs are undefined if they are not finite, or if operands or C exceed the limits
    of the sweep.
    """
    joined = chains.promote == 3
    m, blocks, levels, most = out.shape[0], scale_a.shape[0], 1, batch
    if joined:
        blocks, levels, most = chains.plan.shape[0], chains.plan[:, 1].max(), JOINED
    room = (min(most, m) + 3) // 4 * 4 * panel
    state = sums_of(room)  # results of the chains so far, truncated; zeros for padding rows and columns
    total = aligned_f32(room * levels)  # sum of promoted chains, or a stack of such sums
    for r0 in range(0, m, most):
        r1 = min(r0 + most, m)
        for j0 in range(0, chains.columns, panel):
            width, g1 = min(panel, chains.columns - j0), 0
            for index in range(blocks):
                g0 = g1
                g1 = chains.plan[index, 0] if joined else min(g0 + chains.block, chains.groups)
                place = Place(r0, r1, j0, panel, width, g0, g1)
                begin(state, index, place, sums.keep, chains, (scale_a, scale_b), c)
                if toward_zero:
                    set_rounding(TOWARD_ZERO)
                sweep(a, b, state, place, sums, chains.groups)
                if toward_zero:
                    set_rounding(TO_NEAREST)
                if joined:
                    push(state, index, place, chains, (scale_a, scale_b), total, out)
                elif chains.promote or index == blocks - 1:
                    finish(state, index, place, chains, (scale_a, scale_b), total, out)


def _begin(state, index, place, keep, chains, scales, c):
    """Initialize the running sums of a block: +0, C, or their previous values in units of the new scale."""
    scale_a, scale_b = scales
    left = chains.first + place.column
    if chains.promote or index == 0:
        state[: (place.end - place.row + 3) // 4 * 4 * panel] = 0
    if index == 0 and chains.use_c:
        for i in range(place.row, place.end):
            d, row = state[(i - place.row) * panel : (i - place.row + 1) * panel], c[i, left : left + place.width]
            for j in range(place.width):
                d[j] = row[j] + np.float32(0)  # -0 becomes +0
    if index > 0 and not chains.promote:
        clear = U(U(0xFFFFFFFF) << U(23 - keep))
        s_before, s_now = scale_b[index - 1], scale_b[index]
        for i in range(place.row, place.end):
            before, now = scale_a[index - 1, i], scale_a[index, i]
            d = state[(i - place.row) * panel : (i - place.row + 1) * panel]
            for j in range(place.width):
                ratio = np.float32(before * s_before[left + j]) / np.float32(now * s_now[left + j])
                bits = bits32(np.float32(np.float32(d[j]) * ratio))
                d[j] = float32_from_bits(U(bits & clear)) + np.float32(0)


def _finish(state, index, place, chains, scales, total, out):
    """Scale the running sums at the end of a block and add them to the total; at the last block, store the result.

    Without promotion they are added to +0. Loops process whole vectors of the total, which is nearby in memory, and
    access the result once.
    """
    scale_a, scale_b = scales
    left, rows, padded = chains.first + place.column, place.end - place.row, (place.width + 15) // 16 * 16
    s_b = np.zeros(panel, np.float32)
    s_b[: place.width] = scale_b[index, left : left + place.width]
    if index == 0 or not chains.promote:
        total[: rows * panel] = np.float32(0)
        if chains.onto:
            for i in range(rows):
                total[i * panel : i * panel + place.width] = out[place.row + i, left : left + place.width]
    for i in range(rows):
        s_a, at = scale_a[index, place.row + i], i * panel
        if chains.promote:
            for j in range(padded):
                total[at + j] = fma32(np.float32(s_a * s_b[j]), np.float32(state[at + j]), total[at + j])
            if chains.promote == 2:
                for j in range(padded):
                    total[at + j] = _to_float16(total[at + j])
        else:
            for j in range(padded):
                total[at + j] = fma32(np.float32(s_a * s_b[j]), np.float32(state[at + j]), np.float32(0))
    if index == scale_a.shape[0] - 1:
        for i in range(rows):
            row, into = total[i * panel : (i + 1) * panel], out[place.row + i, left : left + place.width]
            for j in range(place.width):
                into[j] = canonical(row[j])


def _push(state, index, place, chains, scales, total, out):
    """Put the scaled sums of a chain on the stack and join it; at the last chain, store the result."""
    scale_a, scale_b = scales
    left, rows, padded = chains.first + place.column, place.end - place.row, (place.width + 15) // 16 * 16
    s_b = np.zeros(panel, np.float32)
    s_b[: place.width] = scale_b[0, left : left + place.width]
    size, top, operations = rows * panel, chains.plan[index, 1], chains.plan[index, 2]
    if operations & 7 == ADD:  # in the same pass
        top, operations = top - 1, operations >> BITS
        for i in range(rows):
            s_a, at, onto = scale_a[0, place.row + i], i * panel, (top - 1) * size + i * panel
            for j in range(padded):
                scaled = fma32(np.float32(s_a * s_b[j]), np.float32(state[at + j]), np.float32(0))
                total[onto + j] = total[onto + j] + scaled
    else:
        for i in range(rows):
            s_a, at, above = scale_a[0, place.row + i], i * panel, (top - 1) * size + i * panel
            for j in range(padded):
                total[above + j] = fma32(np.float32(s_a * s_b[j]), np.float32(state[at + j]), np.float32(0))
    join(total, size, top, operations, chains.word)
    if index == chains.plan.shape[0] - 1:
        for i in range(rows):
            row, into = total[i * panel : (i + 1) * panel], out[place.row + i, left : left + place.width]
            for j in range(place.width):
                into[j] = canonical(row[j])


@kernel
def _to_float16(x):
    """Round float32 to float16's values, to nearest even; NaN beyond its range."""
    v = np.float64(x)
    binade = float64_from_bits(L(bits64(v) & L(0x7FF << 52)))
    magic = max(binade, 2.0**-14) * (1.5 * 2.0**42)
    d = (v + magic) - magic
    return np.float32(d if abs(d) < 2.0**16 else np.nan)


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
    begin, finish, push = (variant(part, f"{name}{part.__name__}", panel=panel) for part in (_begin, _finish, _push))
    names = {"sweep": sweep, "panel": panel, "batch": batch, "sums_of": sums_of, "toward_zero": toward_zero}
    return variant(_gemm, name, begin=begin, finish=finish, push=push, inline=inline, **names)
