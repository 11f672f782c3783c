"""Matrix products of attention in float32, on the tile of `chain.tile`: several times as fast as in `attention`.

Each output is a chain of fused multiply-adds in order of the inner index. If the operands hold BF16 values, as in
training, products are exact and the chain has the bits of separate products and sums. Positions that the causal mask
hides are skipped by groups of rows; those that remain add zeros, which change no sum, because no sum is -0.

Arguments are those of the kernels of the same names in `attention`, with float32 arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.model.attention import causal_softmax, causal_softmax_gradient, copy_head, output_means
from lowprec.kernels.tensorcore.chain.gemm import (
    BATCH,
    DEPTH,
    gemm_packed,
    pack_panels,
    pack_panels_transposed,
    pack_quads,
    pack_quads_transposed,
    tile,
)
from lowprec.kernels.tensorcore.chain.tile import COLUMNS
from lowprec.kernels.vectors import aligned_f32

LATER_COLUMNS, LATER_TERMS, EARLIER_TERMS = 0, 1, 2  # parts that `_product` skips


@kernel
def _quads_for(rows: int, depth: int) -> Any:
    return aligned_f32((rows + 3) // 4 * 4 * depth)


@kernel
def _panels_for(columns: int, depth: int) -> Any:
    return aligned_f32((columns + COLUMNS - 1) // COLUMNS * COLUMNS * depth)


@kernel
def _product(quads: Any, panels: Any, depth: int, skip: int, out: Any) -> None:
    """Write out [S, N] = A B^T, four rows at a time, skipping parts that the causal mask makes zero.

    `skip` selects them: columns after a row's own (these outputs are then undefined), or terms after it, or terms
    before it.
    """
    rows, columns = out.shape
    if rows % 4 or depth % 4:
        out[:] = np.float32(0)
        gemm_packed(quads, panels, depth, out, 0, rows)
        return
    state = aligned_f32(BATCH * COLUMNS)
    a_at, b_at, state_at = quads.ctypes.data, panels.ctypes.data, state.ctypes.data
    for j0 in range(0, columns, COLUMNS):
        width = min(COLUMNS, columns - j0)
        for r0 in range(j0 if skip == LATER_COLUMNS else 0, rows, BATCH):
            r1 = min(r0 + BATCH, rows)
            state[:] = np.float32(0)
            for p0 in range(0, depth, DEPTH):
                p1 = min(p0 + DEPTH, depth)
                for i0 in range(r0, r1, 4):
                    first = max(p0, i0) if skip == EARLIER_TERMS else p0
                    last = min(p1, i0 + 4) if skip == LATER_TERMS else p1
                    if first < last:
                        tile(
                            a_at + (i0 * depth + first * 4) * 4,
                            b_at + (j0 * depth + first * COLUMNS) * 4,
                            state_at + (i0 - r0) * COLUMNS * 4,
                            last - first,
                        )
            for i in range(r0, r1):
                row, sums = out[i, j0 : j0 + width], state[(i - r0) * COLUMNS : (i - r0) * COLUMNS + width]
                for j in range(width):
                    row[j] = sums[j]


@kernel
def probabilities(q: Any, k: Any, scale: float, probs: Any, start: int, stop: int) -> None:
    """Write probs [., S, S] = softmax(scale * q k^T) over the positions up to the query's own; zero after it."""
    sequence, width = q.shape[1], q.shape[2]
    quads, panels = _quads_for(sequence, width), _panels_for(sequence, width)
    weights = np.empty(sequence)
    for head in range(start, stop):
        pack_quads(q[head], quads)
        pack_panels(k[head], panels)
        _product(quads, panels, width, LATER_COLUMNS, probs[head])
        causal_softmax(probs[head], scale, weights)


@kernel
def attend(probs: Any, v: Any, out: Any, start: int, stop: int) -> None:
    """Write each head's columns of out [T, H * v] = probs v."""
    sequence, values = v.shape[1], v.shape[2]
    heads = out.shape[1] // values
    quads, panels = _quads_for(sequence, sequence), _panels_for(values, sequence)
    attended = np.empty((sequence, values), np.float32)
    for head in range(start, stop):
        pack_quads(probs[head], quads)
        pack_panels_transposed(v[head], panels)
        _product(quads, panels, sequence, LATER_TERMS, attended)
        first, column = head // heads * sequence, head % heads * values
        for s in range(sequence):
            row, into = attended[s], out[first + s, column : column + values]
            for c in range(values):
                into[c] = row[c]


@kernel
def score_gradients(
    d_out: Any, out: Any, probs: Any, v: Any, scale: float, d_scores: Any, start: int, stop: int
) -> None:
    """Write d_scores [., S, S], the gradient of q k^T (including the scale), from out and d_out [T, H * v]."""
    sequence, values = v.shape[1], v.shape[2]
    quads, panels = _quads_for(sequence, values), _panels_for(sequence, values)
    d_o, o = np.empty((sequence, values), np.float32), np.empty((sequence, values), np.float32)
    means = np.empty(sequence)
    for head in range(start, stop):
        copy_head(d_out, head, d_o)
        copy_head(out, head, o)
        output_means(d_o, o, means)
        pack_quads(d_o, quads)
        pack_panels(v[head], panels)
        _product(quads, panels, values, LATER_COLUMNS, d_scores[head])
        causal_softmax_gradient(probs[head], means, scale, d_scores[head])


@kernel
def operand_gradients(
    d_out: Any, d_scores: Any, probs: Any, q: Any, k: Any, d_q: Any, d_k: Any, d_v: Any, start: int, stop: int
) -> None:
    """Write d_q = d_scores k, d_k = d_scores^T q and d_v = probs^T d_out, per head."""
    sequence, width = q.shape[1], q.shape[2]
    values = d_v.shape[2]
    quads = _quads_for(sequence, sequence)
    panels = _panels_for(max(width, values), sequence)
    d_o = np.empty((sequence, values), np.float32)
    for head in range(start, stop):
        copy_head(d_out, head, d_o)
        pack_quads(d_scores[head], quads)
        pack_panels_transposed(k[head], panels)
        _product(quads, panels, sequence, LATER_TERMS, d_q[head])
        pack_quads_transposed(d_scores[head], 0, sequence, quads)
        pack_panels_transposed(q[head], panels)
        _product(quads, panels, sequence, EARLIER_TERMS, d_k[head])
        pack_quads_transposed(probs[head], 0, sequence, quads)
        pack_panels_transposed(d_o, panels)
        _product(quads, panels, sequence, EARLIER_TERMS, d_v[head])
