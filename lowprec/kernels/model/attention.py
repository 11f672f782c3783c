"""Causal multi-head attention with decoupled rotary positions, forward and backward, head by head.

B sequences of S tokens, T = B * S; H heads; the query and key of a head have n channels without and r channels with
position, its value has v channels. The arrays of a head are [B * H, S, ...]; kernels process the heads
``start <= head < stop`` of these B * H, and write to disjoint memory.

All matrix products add in order of the inner index, one product at a time, in the type of the arrays. In training their
operands hold BF16 values, so that float32 products are exact and product-then-sum equals a fused multiply-add bit for
bit. Blocks of terms that the causal mask makes zero are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.elementary import exp64

# Rows of a product that advance together, and the multiple to which a causal limit is rounded up: whole vectors.
_ROWS = 4
_COLUMNS = 16


@kernel
def _add_product(a: Any, b: Any, out: Any, row: int, inner_from: int, inner_to: int, columns: int) -> None:
    """Add a[i, k] * b[k, :columns] to out[i, :columns] for a group of rows and k from inner_from to inner_to.

    The group is the _ROWS rows i from `row`. Each output adds one product after another; the loops are blocked, four
    rows by four steps of k, so that b is loaded once for four rows and an output once for four products. All three
    arrays are contiguous.
    """
    grouped = inner_from
    if row + 4 <= out.shape[0]:
        grouped = inner_to - (inner_to - inner_from) % 4
        out0, out1, out2, out3 = out[row], out[row + 1], out[row + 2], out[row + 3]
        for k in range(inner_from, grouped, 4):
            a00, a01, a02, a03 = a[row, k], a[row, k + 1], a[row, k + 2], a[row, k + 3]
            a10, a11, a12, a13 = a[row + 1, k], a[row + 1, k + 1], a[row + 1, k + 2], a[row + 1, k + 3]
            a20, a21, a22, a23 = a[row + 2, k], a[row + 2, k + 1], a[row + 2, k + 2], a[row + 2, k + 3]
            a30, a31, a32, a33 = a[row + 3, k], a[row + 3, k + 1], a[row + 3, k + 2], a[row + 3, k + 3]
            for j in range(columns):
                b0, b1, b2, b3 = b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j]
                out0[j] = (((out0[j] + a00 * b0) + a01 * b1) + a02 * b2) + a03 * b3
                out1[j] = (((out1[j] + a10 * b0) + a11 * b1) + a12 * b2) + a13 * b3
                out2[j] = (((out2[j] + a20 * b0) + a21 * b1) + a22 * b2) + a23 * b3
                out3[j] = (((out3[j] + a30 * b0) + a31 * b1) + a32 * b2) + a33 * b3
    for i in range(row, min(row + _ROWS, out.shape[0])):
        for k in range(grouped, inner_to):
            a0 = a[i, k]
            for j in range(columns):
                out[i, j] += a0 * b[k, j]


@kernel
def _causal_columns(row: int, sequence: int) -> int:
    """Return the number of columns, rounded up to whole vectors, that a product needs for the rows from `row`."""
    return min((row + _ROWS + _COLUMNS - 1) // _COLUMNS * _COLUMNS, sequence)


@kernel
def _transpose(a: Any, out: Any) -> None:
    # Four rows at once: consecutive writes go to the same cache line.
    whole = a.shape[0] - a.shape[0] % 4
    for i in range(0, whole, 4):
        row0, row1, row2, row3 = a[i], a[i + 1], a[i + 2], a[i + 3]
        for j in range(a.shape[1]):
            out[j, i] = row0[j]
            out[j, i + 1] = row1[j]
            out[j, i + 2] = row2[j]
            out[j, i + 3] = row3[j]
    for i in range(whole, a.shape[0]):
        for j in range(a.shape[1]):
            out[j, i] = a[i, j]


@kernel
def _turn(x: Any, cosine: Any, sine: Any, out: Any) -> None:
    """Rotate channel pairs (2i, 2i+1) of x by the angles with these cosines and sines."""
    for pair in range(cosine.size):
        x0, x1 = x[2 * pair], x[2 * pair + 1]
        out[2 * pair] = x0 * cosine[pair] - x1 * sine[pair]
        out[2 * pair + 1] = x0 * sine[pair] + x1 * cosine[pair]


@kernel
def _turn_back(x: Any, cosine: Any, sine: Any, out: Any) -> None:
    """Rotate back: the inverse of `_turn`."""
    for pair in range(cosine.size):
        x0, x1 = x[2 * pair], x[2 * pair + 1]
        out[2 * pair] = x0 * cosine[pair] + x1 * sine[pair]
        out[2 * pair + 1] = x1 * cosine[pair] - x0 * sine[pair]


@kernel
def split_heads(
    q_flat: Any, k_rope: Any, kv_flat: Any, cosine: Any, sine: Any, q: Any, k: Any, v: Any, start: int, stop: int
) -> None:
    """Split and rotate the heads: q_flat [T, H * (n+r)], k_rope [T, r], kv_flat [T, H * (n+v)] -> q, k, v.

    Channel pairs (2i, 2i+1) of the last r channels are rotated by the angle with the given cosine and sine [S, r/2];
    the rotated key channels are shared by all heads of a token.
    """
    heads = q_flat.shape[1] // q.shape[2]
    sequence, width = q.shape[1], q.shape[2]
    rope = k_rope.shape[1]
    nope = width - rope
    values = v.shape[2]
    for head in range(start, stop):
        first_token = head // heads * sequence
        q_from = head % heads * width
        kv_from = head % heads * (nope + values)
        for s in range(sequence):
            t = first_token + s
            q_row, kv_row, rope_row = q_flat[t, q_from : q_from + width], kv_flat[t, kv_from:], k_rope[t]
            q_out, k_out, v_out = q[head, s], k[head, s], v[head, s]
            for c in range(nope):
                q_out[c] = q_row[c]
            for c in range(nope):
                k_out[c] = kv_row[c]
            for c in range(values):
                v_out[c] = kv_row[nope + c]
            _turn(q_row[nope:], cosine[s], sine[s], q_out[nope:])
            _turn(rope_row, cosine[s], sine[s], k_out[nope:])


@kernel
def merge_head_gradients(
    d_q: Any, d_k: Any, d_v: Any, cosine: Any, sine: Any, d_q_flat: Any, d_k_rope: Any, d_kv_flat: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Invert `split_heads` for gradients of the sequences start <= b < stop: rotate back, sum d_k_rope over heads."""
    heads = d_q_flat.shape[1] // d_q.shape[2]
    sequence, width = d_q.shape[1], d_q.shape[2]
    rope = d_k_rope.shape[1]
    nope = width - rope
    values = d_v.shape[2]
    summed = np.empty(rope, dtype=d_k.dtype)
    for b in range(start, stop):
        for s in range(sequence):
            t = b * sequence + s
            summed[:] = 0.0
            for h in range(heads):
                head = b * heads + h
                q_out = d_q_flat[t, h * width : (h + 1) * width]
                kv_out = d_kv_flat[t, h * (nope + values) : (h + 1) * (nope + values)]
                q_row, k_row, v_row = d_q[head, s], d_k[head, s], d_v[head, s]
                for c in range(nope):
                    q_out[c] = q_row[c]
                for c in range(nope):
                    kv_out[c] = k_row[c]
                for c in range(values):
                    kv_out[nope + c] = v_row[c]
                _turn_back(q_row[nope:], cosine[s], sine[s], q_out[nope:])
                for c in range(rope):
                    summed[c] += k_row[nope + c]
            _turn_back(summed, cosine[s], sine[s], d_k_rope[t])


@kernel
def causal_softmax(p: Any, scale: float, weights: Any) -> None:
    """Convert scores p [S, S] to softmax(scale * p) over the positions up to a row's own, zero after it, in place."""
    sequence = p.shape[0]
    for i in range(sequence):
        row = p[i]
        highest = row[0]
        for j in range(1, i + 1):
            highest = max(highest, row[j])
        for j in range(i + 1):
            weights[j] = exp64(scale * (np.float64(row[j]) - np.float64(highest)))
        total = 0.0
        for j in range(i + 1):
            total += weights[j]
        for j in range(i + 1):
            row[j] = weights[j] / total
        for j in range(i + 1, sequence):
            row[j] = 0.0


@kernel
def output_means(d_o: Any, o: Any, means: Any) -> None:
    """Write means [S], the sum of d_o * o over the channels of a head's output and its gradient [S, v]."""
    for s in range(o.shape[0]):
        total = 0.0
        for c in range(o.shape[1]):
            total += np.float64(d_o[s, c]) * np.float64(o[s, c])
        means[s] = total


@kernel
def causal_softmax_gradient(p: Any, means: Any, scale: float, d: Any) -> None:
    """Convert the gradient d [S, S] of the probabilities p to that of the scores, in place.

    The probabilities of a row sum to one, so their gradient is reduced by its mean under p, `means` [S]. That is the
    sum of p * d over the row; because d = d_o v^T and o = p v, it is also the sum of d_o * o, which `output_means`
    computes from the saved output, as fused kernels do (arXiv 2205.14135, appendix B), because d need not be complete
    at that point.
    """
    for i in range(p.shape[0]):
        mean = means[i]
        for j in range(i + 1):
            d[i, j] = scale * (p[i, j] * (d[i, j] - mean))
        for j in range(i + 1, p.shape[0]):
            d[i, j] = 0.0


@kernel
def probabilities(q: Any, k: Any, scale: float, probs: Any, start: int, stop: int) -> None:
    """Write probs [., S, S] = softmax(scale * q k^T) over the positions up to the query's own; zero after it."""
    sequence, width = q.shape[1], q.shape[2]
    k_by_channel = np.empty((width, sequence), dtype=k.dtype)
    weights = np.empty(sequence)
    for head in range(start, stop):
        _transpose(k[head], k_by_channel)
        p = probs[head]
        p[:] = 0.0
        for i in range(0, sequence, _ROWS):
            _add_product(q[head], k_by_channel, p, i, 0, width, _causal_columns(i, sequence))
        causal_softmax(p, scale, weights)


@kernel
def attend(probs: Any, v: Any, out: Any, start: int, stop: int) -> None:
    """Write each head's columns of out [T, H * v] = probs v."""
    sequence, values = v.shape[1], v.shape[2]
    heads = out.shape[1] // values
    attended = np.empty((sequence, values), dtype=v.dtype)
    for head in range(start, stop):
        attended[:] = 0.0
        for i in range(0, sequence, _ROWS):
            _add_product(probs[head], v[head], attended, i, 0, min(i + _ROWS, sequence), values)
        for s in range(sequence):
            for c in range(values):
                out[head // heads * sequence + s, head % heads * values + c] = attended[s, c]


@kernel
def copy_head(flat: Any, head: int, out: Any) -> None:
    """Copy a head's columns of flat [T, H * v] to out [S, v]."""
    sequence, values = out.shape
    heads = flat.shape[1] // values
    for s in range(sequence):
        for c in range(values):
            out[s, c] = flat[head // heads * sequence + s, head % heads * values + c]


@kernel
def score_gradients(
    d_out: Any, out: Any, probs: Any, v: Any, scale: float, d_scores: Any, start: int, stop: int
) -> None:
    """Write d_scores [., S, S], the gradient of q k^T (including the scale), from out and d_out [T, H * v]."""
    sequence, values = v.shape[1], v.shape[2]
    d_o = np.empty((sequence, values), dtype=d_out.dtype)
    o = np.empty((sequence, values), dtype=d_out.dtype)
    means = np.empty(sequence)
    v_by_channel = np.empty((values, sequence), dtype=v.dtype)
    for head in range(start, stop):
        copy_head(d_out, head, d_o)
        copy_head(out, head, o)
        output_means(d_o, o, means)
        _transpose(v[head], v_by_channel)
        d = d_scores[head]
        d[:] = 0.0
        for i in range(0, sequence, _ROWS):
            _add_product(d_o, v_by_channel, d, i, 0, values, _causal_columns(i, sequence))
        causal_softmax_gradient(probs[head], means, scale, d)


@kernel
def operand_gradients(
    d_out: Any, d_scores: Any, probs: Any, q: Any, k: Any, d_q: Any, d_k: Any, d_v: Any, start: int, stop: int
) -> None:
    """Write d_q = d_scores k, d_k = d_scores^T q and d_v = probs^T d_out, per head."""
    sequence, width = q.shape[1], q.shape[2]
    values = d_v.shape[2]
    d_o = np.empty((sequence, values), dtype=d_out.dtype)
    transposed = np.empty((sequence, sequence), dtype=probs.dtype)
    for head in range(start, stop):
        copy_head(d_out, head, d_o)
        d_q[head] = 0.0
        d_k[head] = 0.0
        d_v[head] = 0.0
        # A query attends to keys at earlier positions and at its position, so later queries read a key.
        for i in range(0, sequence, _ROWS):
            _add_product(d_scores[head], k[head], d_q[head], i, 0, min(i + _ROWS, sequence), width)
        _transpose(d_scores[head], transposed)
        for j in range(0, sequence, _ROWS):
            _add_product(transposed, q[head], d_k[head], j, j, sequence, width)
        _transpose(probs[head], transposed)
        for j in range(0, sequence, _ROWS):
            _add_product(transposed, d_o, d_v[head], j, j, sequence, values)
