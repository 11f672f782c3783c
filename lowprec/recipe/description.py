"""Recipes: the whole of a training run's precision as one description.

A `Recipe` says for every linear layer (by the first rule whose pattern matches its name) how the operands of its
three GEMMs are quantized and on which machine they are multiplied, in which format activations and moments are
kept, and which codecs tensors go through on their way to the experts and back. A layer never asks: it holds the
`LinearOps` that its bound recipe gave it and calls ``fprop``, ``dgrad`` and ``wgrad``.

For ``y = x W^T`` with x [T, K] and W [N, K] the GEMMs and the axes they sum over are::

    fprop   y  [T, N] = x  [T, K] @ W  [N, K]^T       over K
    dgrad   dx [T, K] = dy [T, N] @ W^T [K, N]^T      over N    the same quantized W, transposed
    wgrad   dW [N, K] = dy^T [N, T] @ x^T [K, T]^T    over T    both quantized along the tokens
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from lowprec.accumulate import accumulators
from lowprec.codecs import codecs
from lowprec.formats import formats
from lowprec.scaling import Granularity, Quantized, ScaleKind, quantize

if TYPE_CHECKING:
    from .binding import BoundRecipe

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

    def __str__(self) -> str:
        if self.x is None:
            return f"bf16 on {self.accumulator}"
        chain = "never promoted" if self.promote_every is None else f"promoted every {self.promote_every}"
        return f"x {self.x}, w {self.w}, dy {self.dy} on {self.accumulator}, {chain}"


@dataclass(frozen=True)
class Rule:
    """Linear layers whose names match a pattern (as in a shell, ``*`` for anything) and their precision."""

    pattern: str
    linear: LinearSpec


BF16_LINEAR = LinearSpec()
#: The ways between tokens and experts, and the activations kept for the backward pass, that have a codec.
DIRECTIONS = ("dispatch", "combine", "dispatch_grad", "combine_grad")
CACHES = ("attention_output", "swiglu_input")


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
    cache_attention_output, cache_swiglu_input : str
        Codecs of two activations kept for the backward pass: the input of the linear layer after attention, and the
        inputs of SwiGLU.

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
    cache_attention_output: str = "bf16"
    cache_swiglu_input: str = "bf16"

    def __post_init__(self) -> None:
        if self.activations not in ("bfloat16", "float64"):
            raise ValueError(f"Recipe {self.name}: activations={self.activations!r}: 'bfloat16' or 'float64'")
        formats.get(self.moments) if self.moments != "float64" else None
        for wire in (*DIRECTIONS, *(f"cache_{role}" for role in CACHES)):
            codecs.get(getattr(self, wire))

    def spec(self, layer: str) -> LinearSpec:
        """Return what the rules say of a linear layer."""
        return next((rule.linear for rule in self.rules if fnmatchcase(layer, rule.pattern)), BF16_LINEAR)

    def bind(self, seed: int = 0) -> BoundRecipe:
        """Return the precision of one run: what layers hold, with the state that some of it needs.

        Parameters
        ----------
        seed : int
            The run's seed: with step, layer and tensor it decides the bits of everything stochastic.
        """
        from .binding import BoundRecipe

        return BoundRecipe(self, seed)

    def with_(self, **changes: Any) -> Recipe:
        """Return a recipe that differs in the given fields."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, as results keep it."""
        return dataclasses.asdict(self)
