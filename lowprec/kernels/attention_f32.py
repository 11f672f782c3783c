"""The matrix products of attention in float32, on the tile of `gemm_f32`: several times as fast as `attention`'s own.

Each output is a chain of fused multiply-adds in order of the inner index. Where the operands hold BF16 values, as in
training, products are exact and the chain has the bits of products and sums one by one. Positions that the causal mask
hides are multiplied, too: they add zeros, which change no sum, for none is ever -0 (it starts from +0).

The arguments are those of the kernels of the same names in `attention`, arrays float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.attention import causal_softmax, causal_softmax_gradient, copy_head
from lowprec.kernels.buffers import aligned_f32
from lowprec.kernels.f32_tile import COLUMNS
from lowprec.kernels.gemm_f32 import (
    gemm_packed,
    pack_panels,
    pack_panels_transposed,
    pack_quads,
    pack_quads_transposed,
)


@kernel
def _quads_for(rows: int, depth: int) -> Any:
    return aligned_f32((rows + 3) // 4 * 4 * depth)


@kernel
def _panels_for(columns: int, depth: int) -> Any:
    return aligned_f32((columns + COLUMNS - 1) // COLUMNS * COLUMNS * depth)


@kernel
def probabilities(q: Any, k: Any, scale: float, probs: Any, start: int, stop: int) -> None:
    """Write probs [., S, S] = softmax(scale * q k^T) over the positions up to the query's own; zero after it."""
    sequence, width = q.shape[1], q.shape[2]
    quads, panels = _quads_for(sequence, width), _panels_for(sequence, width)
    weights = np.empty(sequence)
    for head in range(start, stop):
        pack_quads(q[head], quads)
        pack_panels(k[head], panels)
        probs[head] = np.float32(0)
        gemm_packed(quads, panels, width, probs[head], 0, sequence)
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
        attended[:] = np.float32(0)
        gemm_packed(quads, panels, sequence, attended, 0, sequence)
        first, column = head // heads * sequence, head % heads * values
        for s in range(sequence):
            row, into = attended[s], out[first + s, column : column + values]
            for c in range(values):
                into[c] = row[c]


@kernel
def score_gradients(d_out: Any, probs: Any, v: Any, scale: float, d_scores: Any, start: int, stop: int) -> None:
    """Write d_scores [., S, S], the gradient of q k^T (with the scale in it), from d_out [T, H * v]."""
    sequence, values = v.shape[1], v.shape[2]
    quads, panels = _quads_for(sequence, values), _panels_for(sequence, values)
    d_o = np.empty((sequence, values), np.float32)
    for head in range(start, stop):
        copy_head(d_out, head, d_o)
        pack_quads(d_o, quads)
        pack_panels(v[head], panels)
        d_scores[head] = np.float32(0)
        gemm_packed(quads, panels, values, d_scores[head], 0, sequence)
        causal_softmax_gradient(probs[head], scale, d_scores[head])


@kernel
def operand_gradients(
    d_out: Any, d_scores: Any, probs: Any, q: Any, k: Any, d_q: Any, d_k: Any, d_v: Any, start: int, stop: int
) -> None:
    """Write d_q = d_scores k, d_k = d_scores^T q and d_v = probs^T d_out, each head's own."""
    sequence, width = q.shape[1], q.shape[2]
    values = d_v.shape[2]
    quads = _quads_for(sequence, sequence)
    panels = _panels_for(max(width, values), sequence)
    d_o = np.empty((sequence, values), np.float32)
    for head in range(start, stop):
        copy_head(d_out, head, d_o)
        d_q[head] = np.float32(0)
        d_k[head] = np.float32(0)
        d_v[head] = np.float32(0)
        pack_quads(d_scores[head], quads)
        pack_panels_transposed(k[head], panels)
        gemm_packed(quads, panels, sequence, d_q[head], 0, sequence)
        pack_quads_transposed(d_scores[head], quads)
        pack_panels_transposed(q[head], panels)
        gemm_packed(quads, panels, sequence, d_k[head], 0, sequence)
        pack_quads_transposed(probs[head], quads)
        pack_panels_transposed(d_o, panels)
        gemm_packed(quads, panels, sequence, d_v[head], 0, sequence)
