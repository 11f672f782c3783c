"""Recipes: the whole of a training run's precision as one description.

A `Recipe` says for every linear layer (by the first rule whose pattern matches its name) how the operands of its
three GEMMs are quantized and on which machine they are multiplied, in which format activations and moments are
kept, and which codecs tensors go through on their way to the experts and back. A layer never asks: it holds the
`LinearOps` that `Recipe.linear` bound for it and calls ``fprop``, ``dgrad`` and ``wgrad``.

For ``y = x W^T`` with x [T, K] and W [N, K] the GEMMs and the axes they sum over are::

    fprop   y  [T, N] = x  [T, K] @ W  [N, K]^T       over K
    dgrad   dx [T, K] = dy [T, N] @ W^T [K, N]^T      over N    the same quantized W, transposed
    wgrad   dW [N, K] = dy^T [N, T] @ x^T [K, T]^T    over T    both quantized along the tokens
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .accumulate import accumulators
from .cast import round_to
from .codecs import Codec, codecs
from .formats import formats
from .gemm import gemm, matmul_f32
from .registry import Registry
from .scaling import Granularity, Quantized, ScaleKind, quantize

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """How one kind of tensor is quantized.

    Parameters
    ----------
    format : str
        Element format.
    granularity : str
        Block that shares a scale, seen with the GEMM's K as columns: ``"1x128"`` for tiles along K.
    scale : {"fp32", "ue8m0"}
        Kind of scale.
    amax_floor : float
        Lower bound on a block's amax; released kernels have 1e-4, which would flush gradients, so 0 here.
    """

    format: str = "e4m3fn"
    granularity: str = "1x128"
    scale: ScaleKind = "fp32"
    amax_floor: float = 0.0

    def __post_init__(self) -> None:
        formats[self.format]
        Granularity.parse(self.granularity)

    def quantize(self, x: Array) -> Quantized:
        """Quantize a matrix [rows, K]."""
        return quantize(x, self.format, self.granularity, scale=self.scale, amax_floor=self.amax_floor)

    def quantize_transposed(self, x: Array) -> Quantized:
        """Quantize ``x.T`` for x [K, columns]: the block is turned, and so are codes and scales afterwards."""
        turned = Granularity.parse(self.granularity).T
        return quantize(x, self.format, turned, scale=self.scale, amax_floor=self.amax_floor).T

    def __str__(self) -> str:
        return f"{self.format} {self.granularity}" + (" pow2" if self.scale == "ue8m0" else "")


@dataclass(frozen=True)
class LinearSpec:
    """How a linear layer's three GEMMs are computed.

    Parameters
    ----------
    x, w, dy : TensorSpec or None
        Input, weight and output gradient; None leaves them all in BF16.
    accumulator : str
        Machine that multiplies.
    promote_every : int or None
        Chain length on it, see `lowprec.gemm`.
    """

    x: TensorSpec | None = None
    w: TensorSpec | None = None
    dy: TensorSpec | None = None
    accumulator: str = "float32"
    promote_every: int | None = None

    def __post_init__(self) -> None:
        accumulators[self.accumulator]
        given = [spec is not None for spec in (self.x, self.w, self.dy)]
        if any(given) and not all(given):
            raise ValueError("LinearSpec: x, w and dy are quantized all or none (a GEMM has two operands)")

    def bind(self) -> LinearOps:
        """Return the three callables of a layer with this precision."""
        return _BF16Linear() if self.x is None else _QuantizedLinear(self)

    def __str__(self) -> str:
        if self.x is None:
            return f"bf16 on {self.accumulator}"
        chain = "never promoted" if self.promote_every is None else f"promoted every {self.promote_every}"
        return f"x {self.x}, w {self.w}, dy {self.dy} on {self.accumulator}, {chain}"


class LinearOps(Protocol):
    """The three GEMMs of one linear layer; arrays are float32 (float64 under the recipe of that name)."""

    def fprop(self, x: Array, w: Array) -> tuple[Array, Any]:
        """Return y [T, N] for x [T, K] and the master weight w [N, K], and what the backward GEMMs need."""

    def dgrad(self, dy: Array, saved: Any) -> Array:
        """Return dx [T, K] for dy [T, N]."""

    def wgrad(self, dy: Array, saved: Any) -> Array:
        """Return dW [N, K], not rounded, for dy [T, N]."""


class _BF16Linear:
    """Operands in BF16, products added in float32 in fixed order, results stored in BF16 (dW in float32)."""

    def fprop(self, x: Array, w: Array) -> tuple[Array, Any]:
        stored = round_to(w, "bfloat16")
        y = matmul_f32(x, stored)
        return round_to(y, "bfloat16", out=y), (x, stored)

    def dgrad(self, dy: Array, saved: Any) -> Array:
        dx = matmul_f32(dy, saved[1].T)
        return round_to(dx, "bfloat16", out=dx)

    def wgrad(self, dy: Array, saved: Any) -> Array:
        return matmul_f32(dy.T, saved[0].T)


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

    def fprop(self, x: Array, w: Array) -> tuple[Array, Any]:
        qx, qw = self.x.quantize(x), self.w.quantize(round_to(w, "bfloat16"))
        return gemm(qx, qw, out="bfloat16", **self.options), (qx, qw)

    def dgrad(self, dy: Array, saved: Any) -> Array:
        return gemm(self.dy.quantize(dy), saved[1].T, out="bfloat16", **self.options)

    def wgrad(self, dy: Array, saved: Any) -> Array:
        qx = self.x.quantize_transposed(saved[0].dequantize())
        return gemm(self.dy.quantize_transposed(dy), qx, **self.options)


class _Float64Linear:
    """NumPy's float64 product, for checks of gradients against finite differences; not reproducible bit for bit."""

    def fprop(self, x: Array, w: Array) -> tuple[Array, Any]:
        return x @ w.T, (x, w)

    def dgrad(self, dy: Array, saved: Any) -> Array:
        return np.asarray(dy @ saved[1])

    def wgrad(self, dy: Array, saved: Any) -> Array:
        return np.asarray(dy.T @ saved[0])


@dataclass(frozen=True)
class Rule:
    """Linear layers whose names match a pattern (as in a shell, ``*`` for anything) and their precision."""

    pattern: str
    linear: LinearSpec


BF16_LINEAR = LinearSpec()


@dataclass(frozen=True)
class Recipe:
    """The precision of everything in a training run.

    Parameters
    ----------
    name : str
        How it is called in tables and results.
    description : str
        One line on what it is and where it comes from.
    rules : tuple of Rule
        The first whose pattern matches a linear layer's name decides; layers that none matches run in BF16.
    activations : {"bfloat16", "float64"}
        Storage format of activations and of the residual stream; float64 is for gradient checks.
    moments : str
        Storage format of AdamW's moments; master weights are float32.
    dispatch, combine : str
        Codecs of tokens on their way to the experts, and of the experts' outputs on their way back.
    dispatch_grad, combine_grad : str
        Codecs of the two backward directions: `combine_grad` carries output gradients to the experts, and
        `dispatch_grad` the gradients of their inputs back.

    Examples
    --------
    >>> import lowprec as lp
    >>> print(lp.recipes["dsv3"].spec("layers.1.attn.wq_a"))
    x e4m3fn 1x128, w e4m3fn 128x128, dy e4m3fn 1x128 on hopper_fp8, promoted every 128
    >>> print(lp.recipes["dsv3"].spec("head"))
    bf16 on float32
    """

    name: str
    description: str
    rules: tuple[Rule, ...] = ()
    activations: str = "bfloat16"
    moments: str = "bfloat16"
    dispatch: str = "bf16"
    combine: str = "bf16"
    dispatch_grad: str = "bf16"
    combine_grad: str = "bf16"

    def __post_init__(self) -> None:
        if self.activations not in ("bfloat16", "float64"):
            raise ValueError(f"Recipe {self.name}: activations={self.activations!r}: 'bfloat16' or 'float64'")
        formats.get(self.moments) if self.moments != "float64" else None
        for direction in _DIRECTIONS:
            codecs.get(getattr(self, direction))

    def spec(self, layer: str) -> LinearSpec:
        """Return what the rules say of a linear layer."""
        return next((rule.linear for rule in self.rules if fnmatchcase(layer, rule.pattern)), BF16_LINEAR)

    def linear(self, layer: str) -> LinearOps:
        """Return the three GEMMs of a linear layer, bound to its precision."""
        return _Float64Linear() if self.activations == "float64" else self.spec(layer).bind()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the arrays that hold activations."""
        return np.dtype(np.float64 if self.activations == "float64" else np.float32)

    @property
    def store(self) -> Callable[[Array], Array]:
        """Function that rounds an array in place to the activations' storage format."""
        return _keep if self.activations == "float64" else _round_bf16

    def codec(self, direction: str) -> Codec:
        """Return the codec of ``"dispatch"``, ``"combine"``, ``"dispatch_grad"`` or ``"combine_grad"``."""
        if direction not in _DIRECTIONS:
            raise ValueError(f"direction {direction!r}: one of {', '.join(_DIRECTIONS)}")
        return _LOSSLESS if self.activations == "float64" else codecs[getattr(self, direction)]

    def with_(self, **changes: Any) -> Recipe:
        """Return a recipe that differs in the given fields."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, as results keep it."""
        return dataclasses.asdict(self)


_DIRECTIONS = ("dispatch", "combine", "dispatch_grad", "combine_grad")


def _keep(x: Array) -> Array:
    return x


def _round_bf16(x: Array) -> Array:
    return round_to(x, "bfloat16", out=x)


class _Lossless:
    """The codec that changes nothing, whatever the type."""

    def round_trip(self, x: Array) -> Array:
        return x


_LOSSLESS: Any = _Lossless()

recipes: Registry[Recipe] = Registry("recipe", Recipe)
"""The catalogue of training recipes."""

_BF16 = recipes.register("bf16", Recipe("bf16", "BF16 operands and storage, float32 accumulation: the reference"))
recipes.register(
    "float64", Recipe("float64", "no rounding anywhere: for gradient checks", activations="float64", moments="float64")
)


def _fp8(x: TensorSpec, w: TensorSpec, dy: TensorSpec, promote_every: int | None) -> LinearSpec:
    return LinearSpec(x, w, dy, accumulator="hopper_fp8", promote_every=promote_every)


def _every_block_linear(spec: LinearSpec, **experts: LinearSpec) -> tuple[Rule, ...]:
    """Return rules for all linears of attention, feed-forward and experts: not the gate, the head, the embedding."""
    first = tuple(Rule(f"layers.*.ffn.experts.*.{name}", linear) for name, linear in experts.items())
    gate = Rule("layers.*.ffn.gate", BF16_LINEAR)
    return (*first, gate, Rule("layers.*.attn.w*", spec), Rule("layers.*.ffn.*", spec))


_TILE, _BLOCK = TensorSpec(), TensorSpec(granularity="128x128")
_TILE_POW2 = TensorSpec(scale="ue8m0")


def _dsv3(name: str, description: str, promote_every: int | None) -> Recipe:
    linear = _fp8(_TILE, _BLOCK, _TILE, promote_every)
    # Experts consume what dispatch delivered: tiles with power-of-two scales, in both directions.
    up = _fp8(_TILE_POW2, _BLOCK, _TILE, promote_every)
    down = _fp8(_TILE, _BLOCK, _TILE_POW2, promote_every)
    return Recipe(
        name,
        description,
        _every_block_linear(linear, w1=up, w3=up, w2=down),
        dispatch="fp8_1x128_ue8m0",
        combine_grad="fp8_1x128_ue8m0",
    )


_DSV3 = recipes.register(
    "dsv3", _dsv3("dsv3", "DeepSeek-V3 report 3.3: E4M3 tiles and blocks, Hopper's FP22 promoted every 128", 128)
)
recipes.register(
    "dsv3_no_promotion",
    _dsv3("dsv3_no_promotion", "dsv3 with sums that never leave the tensor core's FP22 registers", None),
)
recipes.register(
    "fp4_naive",
    Recipe(
        "fp4_naive",
        "E2M1 in tiles of 16 with float32 scales and none of the known remedies: the positive control",
        _every_block_linear(
            LinearSpec(TensorSpec("e2m1fn", "1x16"), TensorSpec("e2m1fn", "16x16"), TensorSpec("e2m1fn", "1x16")),
        ),
    ),
)
for _bits in (8, 10):
    recipes.register(
        f"combine_logfmt{_bits}",
        _BF16.with_(
            name=f"combine_logfmt{_bits}",
            description=f"bf16 with expert outputs combined in LogFMT-{_bits} (ISCA 2025, section 3.2)",
            combine=f"logfmt{_bits}",
        ),
    )
