"""Selection of experts, sorting of tokens by expert, and sums over a token's experts; forward and backward.

T = B * S tokens, E experts, K experts per token ("slots", best first), R = T * K rows, one per use of an expert. Rows
are sorted by expert, and within an expert by token, so that each expert processes a contiguous range. Kernels with
``start, stop`` process these tokens (or rows) and may be split over threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.elementary import exp64
from lowprec.kernels.model.nn import dot


@kernel
def _best(values: Any, free: Any) -> int:
    """Return the index of the highest free value, the first in a tie; the index is valid even among NaNs."""
    best = -1
    for i in range(values.size):
        if free[i] and (best < 0 or values[i] > values[best]):
            best = i
    return best


@kernel
def route(
    logits: Any, bias: Any, groups: int, kept: int, route_scale: float, scores: Any, chosen: Any, gates: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Write scores [T, E] = sigmoid(logits), chosen [T, K] experts and their gates [T, K].

    Experts are selected by score + bias: first the `kept` groups with the highest sums of their best K / kept experts,
    then the best K experts in these groups. Gates are scores without bias, divided by the sum over the slots.
    """
    experts = logits.shape[1]
    top_k = chosen.shape[1]
    size = experts // groups
    biased = np.empty(experts)
    free = np.empty(experts, dtype=np.bool_)
    group_sums = np.empty(groups)
    group_free = np.empty(groups, dtype=np.bool_)
    for t in range(start, stop):
        for e in range(experts):
            scores[t, e] = 1.0 / (1.0 + exp64(-np.float64(logits[t, e])))
            biased[e] = np.float64(scores[t, e]) + np.float64(bias[e])
            free[e] = True
        for g in range(groups):
            total = 0.0
            for _ in range(top_k // kept):
                e = g * size + _best(biased[g * size : (g + 1) * size], free[g * size : (g + 1) * size])
                total += biased[e]
                free[e] = False
            group_sums[g] = total
            group_free[g] = True
        free[:] = False
        for _ in range(kept):
            g = _best(group_sums, group_free)
            group_free[g] = False
            free[g * size : (g + 1) * size] = True
        total = 1e-20
        for slot in range(top_k):
            e = _best(biased, free)
            free[e] = False
            chosen[t, slot] = e
            total += scores[t, e]
        for slot in range(top_k):
            gates[t, slot] = scores[t, chosen[t, slot]] / total * route_scale


@kernel
def route_backward(
    d_gates: Any, scores: Any, chosen: Any, route_scale: float, d_logits: Any, start: int, stop: int
) -> None:
    """Backpropagate d_gates [T, K] float64 to the logits: add to d_logits [T, E]."""
    top_k = chosen.shape[1]
    for t in range(start, stop):
        total = 1e-20
        for slot in range(top_k):
            total += scores[t, chosen[t, slot]]
        # The gates of a token sum to a constant, so their gradient loses its mean under the gates.
        mean = 0.0
        for slot in range(top_k):
            mean += d_gates[t, slot] * scores[t, chosen[t, slot]]
        mean /= total
        for slot in range(top_k):
            s = np.float64(scores[t, chosen[t, slot]])
            d_logits[t, chosen[t, slot]] += (d_gates[t, slot] - mean) * route_scale / total * s * (1.0 - s)


@kernel
def balance(
    scores: Any, sequence: int, top_k: int, alpha: float, losses: Any, d_logits: Any, start: int, stop: int
) -> None:
    """Write the balance loss of each sequence start <= b < stop to losses [B], and the gradient of their mean.

    With f_i = E / (K S) * (uses of expert i in the sequence if each token took its K highest scores) and P_i the mean
    over tokens of score_i / sum of scores, a sequence's loss is alpha * sum f_i P_i (report, equations 17 to 20). Uses
    are counted without bias and groups; no gradient flows through them. d_logits [T, E] is overwritten.
    """
    experts = scores.shape[1]
    tokens = scores.shape[0]
    share = np.empty(experts)
    free = np.empty(experts, dtype=np.bool_)
    for b in range(start, stop):
        share[:] = 0.0
        for t in range(b * sequence, (b + 1) * sequence):
            free[:] = True
            for _ in range(top_k):
                e = _best(scores[t], free)
                free[e] = False
                share[e] += 1.0
        for e in range(experts):
            share[e] *= experts / (top_k * sequence)
        summed = 0.0
        for t in range(b * sequence, (b + 1) * sequence):
            total = 0.0
            along = 0.0
            for e in range(experts):
                total += scores[t, e]
                along += share[e] * scores[t, e]
            along /= total
            summed += along
            for e in range(experts):
                s = np.float64(scores[t, e])
                d_logits[t, e] = alpha * (share[e] - along) / total / tokens * s * (1.0 - s)
        losses[b] = alpha * summed / sequence


@kernel
def order_by_expert(chosen: Any, loads: Any, token_of_row: Any, row_of_slot: Any) -> None:
    """Sort the slots by expert: write loads [E], token_of_row [R] and row_of_slot [T, K]."""
    loads[:] = 0
    for t in range(chosen.shape[0]):
        for slot in range(chosen.shape[1]):
            loads[chosen[t, slot]] += 1
    following = np.empty(loads.size, dtype=np.int64)
    row = 0
    for e in range(loads.size):
        following[e] = row
        row += loads[e]
    for t in range(chosen.shape[0]):
        for slot in range(chosen.shape[1]):
            row = following[chosen[t, slot]]
            following[chosen[t, slot]] = row + 1
            token_of_row[row] = t
            row_of_slot[t, slot] = row


@kernel
def gather_rows(x: Any, token_of_row: Any, out: Any, start: int, stop: int) -> None:
    """Copy the token of each row: x [T, C] -> out [R, C]."""
    for row in range(start, stop):
        for c in range(x.shape[1]):
            out[row, c] = x[token_of_row[row], c]


@kernel
def weight_rows(rows: Any, gates: Any, row_of_slot: Any, start: int, stop: int) -> None:
    """Multiply the rows [R, C] of these tokens by their gates [T, K], in place."""
    for t in range(start, stop):
        for slot in range(gates.shape[1]):
            row = row_of_slot[t, slot]
            for c in range(rows.shape[1]):
                rows[row, c] *= gates[t, slot]


@kernel
def combine(rows: Any, gates: Any, row_of_slot: Any, out: Any, start: int, stop: int) -> None:
    """Add a token's rows [R, C] times their gates to out [T, C], in order of the slots, in the arrays' type."""
    for t in range(start, stop):
        for slot in range(gates.shape[1]):
            row = row_of_slot[t, slot]
            gate = gates[t, slot]
            for c in range(rows.shape[1]):
                out[t, c] += gate * rows[row, c]


@kernel
def sum_rows(rows: Any, row_of_slot: Any, out: Any, start: int, stop: int) -> None:
    """Add a token's rows [R, C] to out [T, C], in order of the slots, in the arrays' type."""
    for t in range(start, stop):
        for slot in range(row_of_slot.shape[1]):
            row = row_of_slot[t, slot]
            for c in range(rows.shape[1]):
                out[t, c] += rows[row, c]


@kernel
def gate_gradients(d_out: Any, rows: Any, row_of_slot: Any, d_gates: Any, start: int, stop: int) -> None:
    """Write d_gates [T, K] float64: the dot product of d_out [T, C] with the row of each gate."""
    for t in range(start, stop):
        for slot in range(row_of_slot.shape[1]):
            d_gates[t, slot] = dot(d_out[t], rows[row_of_slot[t, slot]])
