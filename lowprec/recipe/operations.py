"""The three multiplications of a linear layer, computed as a recipe specifies them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lowprec.cast.casts import round_to
from lowprec.codec.wire import Codec
from lowprec.format.catalogue import Format, formats
from lowprec.scaling.quantize import Quantized
from lowprec.tensorcore.gemm import gemm
from lowprec.tensorcore.matmul import matmul_f32
from lowprec.tensorcore.packed import prepack_b
from lowprec.tensorcore.problem import canonical_nan

from .linears import OPERANDS, GemmSpec, LinearSpec
from .operands import NoState, TensorOperand, TensorState, WeightOperand, as_quantized, bf16_copy, master_copy

Array = NDArray[Any]
Operand = Array | Quantized
_FLOAT32 = formats["float32"]


class SavedInput(NamedTuple):
    """Input of a linear layer, saved for the backward pass.

    Attributes
    ----------
    row : Quantized or array [T, K]
        Operand of Fprop.
    kept : Quantized or array
        Source of Wgrad's operand: `row` itself, x encoded by a cache, or x quantized along the tokens [K, T].
    """

    row: Operand
    kept: Any

    @property
    def nbytes(self) -> int:
        """Number of bytes saved for the backward pass; a plain array counts as BF16."""
        return 2 * self.kept.size if isinstance(self.kept, np.ndarray) else int(self.kept.nbytes)


class SavedLinear(NamedTuple):
    """Data saved for the backward multiplications: the input, and the weight [N, K] that Dgrad transposes."""

    x: Any
    w: Any


class LinearOps(Protocol):
    """The three multiplications of one linear layer; arrays are float32, or float64 if activations are float64."""

    @property
    def input_spec(self) -> Hashable:
        """Key of a shared quantized input: layers with equal keys have equal `input(x)`; None if it is not shared."""

    def input(self, x: Array) -> Any:
        """Return the operand that `fprop` computes from x [T, K] and saves."""

    def fprop(self, x: Array, w: Array, cached: Any = None) -> tuple[Array, SavedLinear]:
        """Return y [T, N] for x [T, K] and the master weight w [N, K], and the data for the backward multiplications.

        `cached` is `input(x)` if it exists already, of this layer or of one with the same `input_spec`.
        """

    def dgrad(self, dy: Array, saved: SavedLinear) -> Array:
        """Return dx [T, K] for dy [T, N]."""

    def wgrad(self, dy: Array, saved: SavedLinear) -> Array:
        """Return dW [N, K], not rounded, for dy [T, N]."""

    def cached_input(self, saved: SavedLinear) -> Array:
        """Return x [T, K], decoded from the cache of a layer that has one."""

    def weight(self, w: Array) -> Any:
        """Return Fprop's operand of w [N, K], prepacked for many calls of `product`."""

    def product(self, x: Array, w: Any, bias: Array | None = None) -> Array:
        """Return y [T, N] without saving anything for a backward pass; w is an array or a result of `weight`.

        A bias [N] is added to the float32 product, and the sum rounded once, as in a GEMM's epilogue.
        """

    def gradients(
        self, dy: Array, x: Array, w: Array, need: tuple[bool, bool] = (True, True)
    ) -> tuple[Array | None, Array | None]:
        """Return dx [T, K] and dW [N, K] with the bits of `dgrad` and `wgrad`; None for one that `need` excludes."""

    def words(self, gemm: str) -> str:
        """Describe ``"fprop"``, ``"dgrad"`` or ``"wgrad"`` for tables."""


class _Linear:
    """Multiplications of operands quantized by their specifications, with the bits of the given accumulators.

    Wgrad sums over tokens: dy is requantized along that axis, and x either comes from Fprop's saved operand,
    dequantized, transposed and requantized, or was quantized from its source in both directions. Where a block is its
    own transpose, codes are transposed instead.
    """

    def __init__(
        self, spec: LinearSpec, activations: str, cache: Codec | None, state: TensorState, weights: str
    ) -> None:
        self.spec = spec
        stored = formats[activations]
        self.out = stored if spec.out_format is None else spec.out_format
        self.cache = cache
        self.state = state
        source = master_copy if "float32" in (activations, weights) else bf16_copy
        tensors = {
            f"{gemm}.{role}": tensor
            for gemm, roles in OPERANDS.items()
            for role, tensor in zip(roles, spec.tensors(gemm), strict=True)
        }
        self.fprop_w, self.dgrad_w = (
            WeightOperand(tensors[name], stored, name, state, source) for name in ("fprop.w", "dgrad.w")
        )
        self.fprop_x, self.dgrad_dy, self.wgrad_dy, self.wgrad_x = (
            TensorOperand(tensors[name], stored, name, state) for name in ("fprop.x", "dgrad.dy", "wgrad.dy", "wgrad.x")
        )
        self.same_weight = spec.dgrad.b == spec.fprop.b.T and not self.dgrad_w.hadamard
        self.keeps_row = self.same_weight or spec.dgrad_weight == "dequantized"
        self.same_input = spec.wgrad.b == spec.fprop.a.T and not self.wgrad_x.hadamard and cache is None

    @property
    def input_spec(self) -> Hashable:
        if self.spec.fprop.a.random or self.spec.wgrad.b.random:
            return None
        wgrad = self.spec.wgrad.b if self.spec.wgrad_input == "high_precision" else None
        return self.spec.fprop.a, wgrad, id(self.cache)  # the object itself: codecs of one name may differ

    def input(self, x: Array) -> SavedInput:
        row = self.fprop_x.rows(x)
        return SavedInput(row, self._kept(x, row))

    def _kept(self, x: Array, row: Operand | None = None) -> Any:
        """Return the source of Wgrad's operand for x; `row` is Fprop's operand, if already computed."""
        if self.cache is not None:
            return self.cache.encode(x)
        if self.spec.wgrad_input == "dequantized" or self.same_input:
            return self.fprop_x.rows(x) if row is None else row
        return x if self.spec.wgrad.b.plain else self.wgrad_x.columns(x)

    def fprop(self, x: Array, w: Array, cached: SavedInput | None = None) -> tuple[Array, SavedLinear]:
        kept = self.input(x) if cached is None else cached
        row = self.fprop_w.rows(w)
        y = self._product("fprop", kept.row, row, self.out)
        return y, SavedLinear(kept, row if self.keeps_row else w)

    def dgrad(self, dy: Array, saved: SavedLinear) -> Array:
        if self.same_weight:
            turned = saved.w.T
        else:
            turned = self.dgrad_w.again(saved.w) if self.keeps_row else self.dgrad_w.columns(saved.w)
        return self._product("dgrad", self.dgrad_dy.rows(dy), turned, self.out)

    def wgrad(self, dy: Array, saved: SavedLinear) -> Array:
        return self._product("wgrad", self.wgrad_dy.columns(dy), self._wgrad_input(saved.x.kept), _FLOAT32)

    def cached_input(self, saved: SavedLinear) -> Array:
        assert self.cache is not None
        return self.cache.decode(saved.x.kept)

    def weight(self, w: Array) -> Any:
        row, fprop = self.fprop_w.rows(w), self.spec.fprop
        if isinstance(row, np.ndarray) or fprop.a.plain:
            return row
        return prepack_b(row, fprop.accumulator, fprop.a.format)

    def product(self, x: Array, w: Any, bias: Array | None = None) -> Array:
        row = self.fprop_w.rows(w) if isinstance(w, np.ndarray) else w
        return self._product("fprop", self.fprop_x.rows(x), row, self.out, bias)

    def gradients(
        self, dy: Array, x: Array, w: Array, need: tuple[bool, bool] = (True, True)
    ) -> tuple[Array | None, Array | None]:
        dx = dw = None
        if need[0]:
            dx = self.dgrad(dy, SavedLinear(None, self.fprop_w.rows(w) if self.keeps_row else w))
        if need[1]:
            dw = self._product("wgrad", self.wgrad_dy.columns(dy), self._wgrad_input(self._kept(x)), _FLOAT32)
        return dx, dw

    def words(self, gemm: str) -> str:
        more = {"fprop": self.spec.describe_outputs("y"), "dgrad": self.spec.describe_outputs("dx"), "wgrad": ""}
        if self.spec.quantized and self.spec.wgrad_input == "high_precision" and self.cache is None:
            more["wgrad"] = ", x from its source"
        if self.spec.dgrad_weight == "dequantized":
            more["dgrad"] += ", w as Fprop had it"
        return f"{getattr(self.spec, gemm)}{more[gemm]}"

    def _wgrad_input(self, kept: Any) -> Any:
        """Return x^T [K, T] from the saved x."""
        if self.cache is not None:
            return self.wgrad_x.columns(self.cache.decode(kept))
        if isinstance(kept, np.ndarray):
            return self.wgrad_x.columns(kept)
        if self.same_input:
            return kept.T
        return kept if self.spec.wgrad_input == "high_precision" else self.wgrad_x.columns(kept.dequantize())

    def _product(self, name: str, a: Operand, b: Operand, out: Format, bias: Array | None = None) -> Array:
        """Return a [M, K] times b [N, K] transposed plus bias [N], rounded to the format `out`."""
        spec: GemmSpec = getattr(self.spec, name)
        error = spec.injected_error
        if error is None:
            return _multiply(spec, a, b, out, bias)
        result = error.apply(_multiply(spec, a, b, _FLOAT32), self.state.seed(f"{name}.product", error.frozen))
        return _finished(result, out, bias)


def _multiply(spec: GemmSpec, a: Operand, b: Operand, out: Format, bias: Array | None = None) -> Array:
    """Return a product plus bias as `spec` specifies it."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if spec.promote_every is None and spec.accumulator.multiplies_values:
            values = [v if isinstance(v, np.ndarray) else v.dequantize() for v in (a, b)]
            return matmul_f32(*values, out_format=out) if bias is None else _finished(matmul_f32(*values), out, bias)
        a = as_quantized(a, spec.a.format) if isinstance(a, np.ndarray) else a
        b = as_quantized(b, spec.b.format) if isinstance(b, np.ndarray) else b
    c = None if bias is None else np.broadcast_to(bias, (a.shape[0], bias.size))
    return gemm(
        a, b, c, accumulator=spec.accumulator, promote_every=spec.promote_every, library=spec.library, out_format=out
    )


def _finished(result: Array, out: Format, bias: Array | None) -> Array:
    """Add a bias to a float32 product, in place, and round it, as the epilogue of `lowprec.gemm` does."""
    if bias is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            result += bias
        canonical_nan(result)
    return result if out == _FLOAT32 else round_to(result, out, out=result)


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

    def cached_input(self, saved: SavedLinear) -> Array:
        return np.asarray(saved.x.kept)

    def weight(self, w: Array) -> Any:
        return w

    def product(self, x: Array, w: Any, bias: Array | None = None) -> Array:
        return np.asarray(x @ w.T if bias is None else x @ w.T + bias)

    def gradients(
        self, dy: Array, x: Array, w: Array, need: tuple[bool, bool] = (True, True)
    ) -> tuple[Array | None, Array | None]:
        return dy @ w if need[0] else None, dy.T @ x if need[1] else None

    def words(self, gemm: str) -> str:
        return "float64 x float64 in NumPy"


def linear_ops(
    spec: LinearSpec,
    activations: str,
    cache: Codec | None = None,
    state: TensorState | None = None,
    weights: str = "bfloat16",
) -> LinearOps:
    """Return the multiplications of a layer with the given precision.

    Parameters
    ----------
    spec : LinearSpec
        Precision of the layer.
    activations : str
        Storage format of the run's activations.
    cache : Codec, optional
        Codec of the input that is saved for Wgrad.
    state : TensorState, optional
        Seeds, and scales from earlier steps.
    weights : {"bfloat16", "float32"}
        Source of quantized weights: the BF16 copy of the master weight, or the master weight itself.
    """
    return (
        _Float64Linear() if activations == "float64" else _Linear(spec, activations, cache, state or NoState(), weights)
    )
