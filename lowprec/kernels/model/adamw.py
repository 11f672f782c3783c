"""AdamW on one tensor in one pass, and the sum of squares for gradient clipping.

Only + - * / and square roots of IEEE arithmetic, in the precision of the arrays and without contraction, so the bits
are the same on every machine. Moments may be stored as bfloat16 codes; the step itself uses the updated moments before
they are rounded for storage.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowprec._jit import bits32, float32_from_bits, kernel

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@kernel
def sum_of_squares(x: Floats) -> float:
    """Sum the squares of a flat array in float64: eight running sums, their tree sum, then the remaining elements."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = x.size - x.size % 8
    for i in range(0, whole, 8):
        a, b, c, d = np.float64(x[i]), np.float64(x[i + 1]), np.float64(x[i + 2]), np.float64(x[i + 3])
        e, f, g, h = np.float64(x[i + 4]), np.float64(x[i + 5]), np.float64(x[i + 6]), np.float64(x[i + 7])
        s0 += a * a
        s1 += b * b
        s2 += c * c
        s3 += d * d
        s4 += e * e
        s5 += f * f
        s6 += g * g
        s7 += h * h
    total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    for i in range(whole, x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


class Coefficients(NamedTuple):
    """Coefficients of one step, in the float type of the weights.

    Attributes
    ----------
    scale : float
        Factor of the gradients (clipping), applied first.
    beta1, rest1, beta2, rest2 : float
        Coefficients of m = beta1 m + rest1 g and v = beta2 v + rest2 g^2.
    rate : float
        Learning rate divided by 1 - beta1^t.
    root : float
        1 / sqrt(1 - beta2^t).
    epsilon : float
        Addend of the corrected root of v.
    decay : float
        Learning rate times weight decay; 0 for vectors.
    """

    scale: Any
    beta1: Any
    rest1: Any
    beta2: Any
    rest2: Any
    rate: Any
    root: Any
    epsilon: Any
    decay: Any


@kernel
def _step(weight: Any, gradient: Any, m: Any, v: Any, c: Coefficients) -> Any:
    g = c.scale * gradient
    m = c.beta1 * m + c.rest1 * g
    v = c.beta2 * v + c.rest2 * (g * g)
    weight = (weight - c.decay * weight) - c.rate * (m / (math.sqrt(v) * c.root + c.epsilon))
    return weight, m, v


@kernel
def adamw(weight: Floats, gradient: Floats, m: Floats, v: Floats, c: Coefficients) -> None:
    """Perform one step on a flat tensor, in place; all arrays have the same float type."""
    for i in range(weight.size):
        weight[i], m[i], v[i] = _step(weight[i], gradient[i], m[i], v[i], c)


@kernel
def _from_bf16(code: Any) -> Any:
    return float32_from_bits(np.uint32(np.uint32(code) << np.uint32(16)))


@kernel
def _to_bf16(value: Any) -> Any:
    # To nearest even by carry. Moments are finite: callers reject non-finite gradients.
    u = bits32(value)
    half = np.uint32(np.uint32(0x7FFF) + np.uint32(np.uint32(u >> np.uint32(16)) & np.uint32(1)))
    return np.uint16(np.uint32(u + half) >> np.uint32(16))


@kernel
def adamw_bf16(
    weight: Floats, gradient: Floats, m: npt.NDArray[np.uint16], v: npt.NDArray[np.uint16], c: Coefficients
) -> None:
    """Perform one step on float32 weights, with m and v stored as bfloat16 codes, rounded to nearest even."""
    for i in range(weight.size):
        weight[i], fresh_m, fresh_v = _step(weight[i], gradient[i], _from_bf16(m[i]), _from_bf16(v[i]), c)
        m[i] = _to_bf16(fresh_m)
        v[i] = _to_bf16(fresh_v)
