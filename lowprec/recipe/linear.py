"""The three GEMMs of a linear layer in each precision that a recipe can ask for."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowprec.cast import round_to
from lowprec.gemm import gemm, matmul_f32

from .description import LinearSpec

Array = NDArray[Any]


class LinearOps(Protocol):
    """The three GEMMs of one linear layer; arrays are float32 (float64 under the recipe of that name)."""

    def fprop(self, x: Array, w: Array, *, keep_input: bool = True) -> tuple[Array, Any]:
        """Return y [T, N] for x [T, K] and the master weight w [N, K], and what the backward GEMMs need.

        With ``keep_input=False`` the input is left out of that: a layer that recomputes it gives it to `wgrad`.
        """

    def dgrad(self, dy: Array, saved: Any) -> Array:
        """Return dx [T, K] for dy [T, N]."""

    def wgrad(self, dy: Array, saved: Any, x: Array | None = None) -> Array:
        """Return dW [N, K], not rounded, for dy [T, N] and the kept input, or the recomputed `x` [T, K]."""


class _BF16Linear:
    """Operands in BF16, products added in float32 in fixed order, results stored in BF16 (dW in float32)."""

    def fprop(self, x: Array, w: Array, *, keep_input: bool = True) -> tuple[Array, Any]:
        stored = round_to(w, "bfloat16")
        y = matmul_f32(x, stored)
        return round_to(y, "bfloat16", out=y), (x if keep_input else None, stored)

    def dgrad(self, dy: Array, saved: Any) -> Array:
        dx = matmul_f32(dy, saved[1].T)
        return round_to(dx, "bfloat16", out=dx)

    def wgrad(self, dy: Array, saved: Any, x: Array | None = None) -> Array:
        return matmul_f32(dy.T, (saved[0] if x is None else x).T)


class _QuantizedLinear:
    """Operands quantized as their specs say. Backward reads the cached codes of x and W, never the originals.

    Wgrad's operands lie along the tokens: dy is quantized anew in columns, and the cached x is dequantized,
    transposed and quantized again (the DeepSeek-V3 report, 3.5.2).
    """

    def __init__(self, spec: LinearSpec) -> None:
        assert spec.x is not None
        assert spec.w is not None
        assert spec.dy is not None
        self.x, self.w, self.dy = spec.x, spec.w, spec.dy
        self.options: dict[str, Any] = {"accumulator": spec.accumulator, "promote_every": spec.promote_every}

    def fprop(self, x: Array, w: Array, *, keep_input: bool = True) -> tuple[Array, Any]:
        qx, qw = self.x.quantize(x), self.w.quantize(round_to(w, "bfloat16"))
        return gemm(qx, qw, out="bfloat16", **self.options), (qx if keep_input else None, qw)

    def dgrad(self, dy: Array, saved: Any) -> Array:
        return gemm(self.dy.quantize(dy), saved[1].T, out="bfloat16", **self.options)

    def wgrad(self, dy: Array, saved: Any, x: Array | None = None) -> Array:
        qx = self.x.quantize_transposed(saved[0].dequantize() if x is None else x)
        return gemm(self.dy.quantize_transposed(dy), qx, **self.options)


class _Float64Linear:
    """NumPy's float64 product, for checks of gradients against finite differences; not reproducible bit for bit."""

    def fprop(self, x: Array, w: Array, *, keep_input: bool = True) -> tuple[Array, Any]:
        return x @ w.T, (x if keep_input else None, w)

    def dgrad(self, dy: Array, saved: Any) -> Array:
        return np.asarray(dy @ saved[1])

    def wgrad(self, dy: Array, saved: Any, x: Array | None = None) -> Array:
        return np.asarray(dy.T @ (saved[0] if x is None else x))


def linear_ops(spec: LinearSpec, activations: str) -> LinearOps:
    """Return the GEMMs of a layer with this precision, in a run that keeps its activations in that format."""
    if activations == "float64":
        return _Float64Linear()
    return _BF16Linear() if spec.x is None else _QuantizedLinear(spec)
