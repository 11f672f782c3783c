"""The three multiplications of a linear layer, as a recipe's data asks for them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lowprec.cast import round_to
from lowprec.codecs import Codec
from lowprec.gemm import gemm, matmul_f32
from lowprec.scaling import Quantized

from .linears import GemmSpec, LinearSpec
from .tensors import TensorSpec, as_quantized

Array = NDArray[Any]
Operand = Array | Quantized


class SavedInput(NamedTuple):
    """A linear layer's input.

    Attributes
    ----------
    row : Quantized or array [T, K]
        As Fprop multiplies it.
    kept : Quantized or array
        What Wgrad reads: the same, or what a cache kept, or the source quantized along the tokens [K, T].
    """

    row: Operand
    kept: Any

    @property
    def nbytes(self) -> int:
        """Bytes that are kept for the backward pass; a plain array counts as BF16."""
        return 2 * self.kept.size if isinstance(self.kept, np.ndarray) else int(self.kept.nbytes)


class SavedLinear(NamedTuple):
    """What the backward multiplications need: the input, and the weight [N, K] that Dgrad turns."""

    x: Any
    w: Any


class LinearOps(Protocol):
    """The three multiplications of one linear layer; arrays are float32, or float64 under the recipe of that name."""

    @property
    def input_spec(self) -> Hashable:
        """Equal for two layers whose `input` of the same x is the same; None if it must not be shared."""

    def input(self, x: Array) -> Any:
        """Return what `fprop` makes and keeps of x [T, K]."""

    def fprop(self, x: Array, w: Array, cached: Any = None) -> tuple[Array, SavedLinear]:
        """Return y [T, N] for x [T, K] and the master weight w [N, K], and what the backward multiplications need.

        `cached` is `input(x)` if there is one already, of this layer or of one with the same `input_spec`.
        """

    def dgrad(self, dy: Array, saved: SavedLinear) -> Array:
        """Return dx [T, K] for dy [T, N]."""

    def wgrad(self, dy: Array, saved: SavedLinear) -> Array:
        """Return dW [N, K], not rounded, for dy [T, N]."""


class _Linear:
    """Operands go through what their specs say; the products are exact on the machines that they name.

    Wgrad's operands lie along the tokens: dy is quantized anew in columns, and x either comes from what was kept of
    Fprop's, dequantized, transposed and quantized again, or was quantized from its source in both directions.
    """

    def __init__(self, spec: LinearSpec, activations: str, cache: Codec | None) -> None:
        self.spec = spec
        self.out = spec.out if activations == "bfloat16" else "float32"
        self.stored = activations
        self.cache = cache
        self.same_weight = spec.dgrad.b == spec.fprop.b.T

    @property
    def input_spec(self) -> Hashable:
        wgrad = self.spec.wgrad.b if self.spec.wgrad_input == "source" else None
        return self.spec.fprop.a, wgrad, self.cache and self.cache.name

    def input(self, x: Array) -> SavedInput:
        row = self._rows(self.spec.fprop.a, x)
        if self.cache is not None:
            return SavedInput(row, self.cache.encode(x))
        if self.spec.wgrad_input == "source" and not self.spec.wgrad.b.plain:
            return SavedInput(row, self._columns(self.spec.wgrad.b, x))
        return SavedInput(row, x if self.spec.wgrad_input == "source" else row)

    def fprop(self, x: Array, w: Array, cached: SavedInput | None = None) -> tuple[Array, SavedLinear]:
        kept = self.input(x) if cached is None else cached
        row = self._weight(self.spec.fprop.b, w)
        y = self._product(self.spec.fprop, kept.row, row, self.out)
        return y, SavedLinear(kept, row if self.same_weight else w)

    def dgrad(self, dy: Array, saved: SavedLinear) -> Array:
        turned = saved.w.T if self.same_weight else self._weight(self.spec.dgrad.b.T, saved.w).T
        return self._product(self.spec.dgrad, self._rows(self.spec.dgrad.a, dy), turned, self.out)

    def wgrad(self, dy: Array, saved: SavedLinear) -> Array:
        kept = saved.x.kept
        if self.cache is not None:
            x = self._columns(self.spec.wgrad.b, self.cache.decode(kept))
        elif isinstance(kept, np.ndarray):
            x = self._columns(self.spec.wgrad.b, kept)
        elif self.spec.wgrad_input == "source":
            x = kept
        else:
            x = self._columns(self.spec.wgrad.b, kept.dequantize())
        return self._product(self.spec.wgrad, self._columns(self.spec.wgrad.a, dy), x, "float32")

    def _weight(self, tensor: TensorSpec, w: Array) -> Operand:
        """Return the master weight w [N, K] as an operand; scales are those of its BF16 values."""
        if tensor.plain:
            return w if tensor.format == "float32" else round_to(w, tensor.format)
        return tensor.quantize(w if self.stored == "float32" else round_to(w, "bfloat16"))

    def _rows(self, tensor: TensorSpec, x: Array) -> Operand:
        """Return x [rows, K] as the operand of a multiplication."""
        if not tensor.plain:
            return tensor.quantize(x)
        # What layers hand over is stored already, so that the storage format changes nothing.
        return x if tensor.format in ("float32", self.stored) else round_to(x, tensor.format)

    def _columns(self, tensor: TensorSpec, x: Array) -> Operand:
        """Return x^T [K, columns] of x [columns, K] as the operand of a multiplication over the rows of x."""
        if not tensor.plain:
            return tensor.quantize_transposed(x)
        return self._rows(tensor, x).T

    def _product(self, spec: GemmSpec, a: Operand, b: Operand, out: str) -> Array:
        """Return a [M, K] times b [N, K] transposed, rounded to the format `out`."""
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            if spec.machine.kind == "sequential" and spec.promote_every is None:
                y = matmul_f32(*(v if isinstance(v, np.ndarray) else v.dequantize() for v in (a, b)))
                return y if out == "float32" else round_to(y, out, out=y)
            if isinstance(a, np.ndarray):
                a = as_quantized(a, spec.a.format)
            if isinstance(b, np.ndarray):
                b = as_quantized(b, spec.b.format)
        return gemm(a, b, accumulator=spec.machine, promote_every=spec.promote_every, out=out)


class _Float64Linear:
    """NumPy's float64 product, for checks of gradients against finite differences; not reproducible bit for bit."""

    input_spec = "float64"

    def input(self, x: Array) -> SavedInput:
        return SavedInput(x, x)

    def fprop(self, x: Array, w: Array, cached: SavedInput | None = None) -> tuple[Array, SavedLinear]:
        return x @ w.T, SavedLinear(SavedInput(x, x), w)

    def dgrad(self, dy: Array, saved: SavedLinear) -> Array:
        return np.asarray(dy @ saved.w)

    def wgrad(self, dy: Array, saved: SavedLinear) -> Array:
        return np.asarray(dy.T @ saved.x.kept)


def linear_ops(spec: LinearSpec, activations: str, cache: Codec | None = None) -> LinearOps:
    """Return the multiplications of a layer with this precision.

    Parameters
    ----------
    spec : LinearSpec
        The precision.
    activations : str
        Format in which the run keeps its activations.
    cache : Codec, optional
        What the input goes through until Wgrad reads it.
    """
    return _Float64Linear() if activations == "float64" else _Linear(spec, activations, cache)
