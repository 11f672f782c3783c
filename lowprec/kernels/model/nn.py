"""Token-wise layers of the trainer, forward and backward: RMSNorm, SwiGLU, embedding and cross-entropy.

T = tokens, C = channels. Every kernel processes the rows ``start <= t < stop``, so that callers can split the rows over
threads. Sums over tokens have one partial sum per block of `BLOCK` rows; these are then added in order of the blocks:
the order of additions depends on neither the split nor the number of threads.

The kernels compute in float64 and round once, to the type of the output array: float32 in training, float64 for
gradient checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.elementary import exp64, log64

#: Rows that share one partial sum. Splits of the rows over threads must be multiples of it.
BLOCK = 64


@kernel
def dot(a: Any, b: Any) -> float:
    """Return the float64 scalar product of two vectors, summed in four interleaved chains."""
    # Four chains hide the latency of the additions; products of float32 are exact in float64.
    n = a.size - a.size % 4
    s0 = 0.0
    s1 = 0.0
    s2 = 0.0
    s3 = 0.0
    for c in range(0, n, 4):
        s0 += np.float64(a[c]) * np.float64(b[c])
        s1 += np.float64(a[c + 1]) * np.float64(b[c + 1])
        s2 += np.float64(a[c + 2]) * np.float64(b[c + 2])
        s3 += np.float64(a[c + 3]) * np.float64(b[c + 3])
    for c in range(n, a.size):
        s0 += np.float64(a[c]) * np.float64(b[c])
    return (s0 + s1) + (s2 + s3)


@kernel
def sum_blocks(partial: Any, out: Any) -> None:
    """Sum the partial sums [blocks, C] in order of the blocks into out [C]."""
    total = np.zeros(out.size)
    for block in range(partial.shape[0]):
        for c in range(out.size):
            total[c] += partial[block, c]
    for c in range(out.size):
        out[c] = total[c]


# --- RMSNorm: y = gain * x / rms(x), rms(x) = sqrt(mean(x**2) + eps) ------------------------------------------------


@kernel
def rms_norm_forward(x: Any, gain: Any, eps: float, out: Any, inverse_rms: Any, start: int, stop: int) -> None:
    """Write out [T, C] and, for the backward pass, inverse_rms [T] float64. gain is [C]."""
    channels = x.shape[1]
    for t in range(start, stop):
        inverse = 1.0 / np.sqrt(dot(x[t], x[t]) / channels + eps)
        inverse_rms[t] = inverse
        for c in range(channels):
            out[t, c] = x[t, c] * inverse * gain[c]


@kernel
def rms_norm_backward(
    d_out: Any, x: Any, gain: Any, inverse_rms: Any, d_x: Any, gain_partial: Any, start: int, stop: int
) -> None:
    """Add the input's gradient to d_x [T, C], and the gain's to gain_partial [blocks, C] float64, initially zero."""
    channels = x.shape[1]
    scaled = np.empty(channels)  # gradient of the normalized x
    for t in range(start, stop):
        inverse = inverse_rms[t]
        block = t // BLOCK
        for c in range(channels):
            gain_partial[block, c] += np.float64(d_out[t, c]) * x[t, c] * inverse
            scaled[c] = np.float64(d_out[t, c]) * gain[c]
        # The mean square depends on every x: the gradient loses its component along x.
        along = dot(scaled, x[t]) * inverse * inverse / channels
        for c in range(channels):
            d_x[t, c] = d_x[t, c] + inverse * (scaled[c] - x[t, c] * along)


# --- SwiGLU: y = silu(a) * b, silu(a) = a * sigmoid(a) --------------------------------------------------------------


@kernel
def swiglu_forward(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    """Write out = silu(a) * b; all arrays are [T, C]."""
    for t in range(start, stop):
        for c in range(a.shape[1]):
            x = np.float64(a[t, c])
            out[t, c] = x / (1.0 + exp64(-x)) * b[t, c]


@kernel
def swiglu_backward(d_out: Any, a: Any, b: Any, d_a: Any, d_b: Any, start: int, stop: int) -> None:
    """Write d_a and d_b; all arrays are [T, C]."""
    for t in range(start, stop):
        for c in range(a.shape[1]):
            x = np.float64(a[t, c])
            sigmoid = 1.0 / (1.0 + exp64(-x))
            d_a[t, c] = d_out[t, c] * sigmoid * (1.0 + x * (1.0 - sigmoid)) * b[t, c]
            d_b[t, c] = d_out[t, c] * sigmoid * x


# --- Embedding and loss ---------------------------------------------------------------------------------------------


@kernel
def embed_forward(tokens: Any, table: Any, out: Any, start: int, stop: int) -> None:
    """Copy rows of table [V, C] by tokens [T] into out [T, C]."""
    for t in range(start, stop):
        for c in range(table.shape[1]):
            out[t, c] = table[tokens[t], c]


@kernel
def embed_backward(d_out: Any, tokens: Any, d_table: Any) -> None:
    """Write d_table [V, C]: the gradients of each token's occurrences, added in order."""
    total = np.zeros(d_table.shape)
    for t in range(tokens.size):
        row = tokens[t]
        for c in range(d_table.shape[1]):
            total[row, c] += d_out[t, c]
    for v in range(d_table.shape[0]):
        for c in range(d_table.shape[1]):
            d_table[v, c] = total[v, c]


@kernel
def cross_entropy(logits: Any, targets: Any, losses: Any, d_logits: Any, start: int, stop: int) -> None:
    """Write losses [T] float64 in nats and d_logits [T, V], the gradient of their mean over all T.

    Rows with a negative target [T] have loss and gradient 0.
    """
    tokens, vocabulary = logits.shape
    weights = np.empty(vocabulary)
    for t in range(start, stop):
        if targets[t] < 0:
            losses[t] = 0.0
            d_logits[t] = 0.0
            continue
        highest = logits[t, 0]
        for v in range(1, vocabulary):
            highest = max(highest, logits[t, v])
        for v in range(vocabulary):
            weights[v] = exp64(np.float64(logits[t, v]) - np.float64(highest))
        total = 0.0
        for v in range(vocabulary):
            total += weights[v]
        losses[t] = log64(total) - (np.float64(logits[t, targets[t]]) - np.float64(highest))
        for v in range(vocabulary):
            d_logits[t, v] = weights[v] / total / tokens
        d_logits[t, targets[t]] = (weights[targets[t]] / total - 1.0) / tokens


@kernel
def mean(values: Any) -> float:
    """Return the mean of a float64 vector, summed in order."""
    total = 0.0
    for i in range(values.size):
        total += values[i]
    return total / values.size
