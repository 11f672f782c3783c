"""Modules and functions on tensors with the precision of a recipe: linear layers, codecs of transfers and caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lowprec.codec.catalogue import codecs
from lowprec.codec.wire import Codec
from lowprec.recipe import LayerPrecision, LayerState, LinearSpec, Recipe, load_recipe

from .arrays import check, tensor, values
from .ops import NO_FORWARD_MODE, ModuleState, add_slot, get_slot, input_dtype, one_by_one, product


def linear_forward(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: str,
    slot: Tensor | None = None,
    part: int = 0,
    training: bool = False,
) -> Tensor:
    """Return x W^T + bias in x's dtype, in the precision of a key; see `lowprec.torch.ops`."""
    check("x", x)
    check("the weight", w)
    y: Tensor = product(x.to(input_dtype(key)), w, bias, slot, part, key, training)
    return y.to(x.dtype)


@torch.compiler.assume_constant_result
def _key(spec: LinearSpec | None, recipe: str | Recipe | None, layer: str) -> str:
    if (spec is None) == (recipe is None):
        raise TypeError(
            f"lowprec.torch.linear: one of spec and recipe must be given, got {'none' if spec is None else 'both'}"
        )
    precision = LayerPrecision(spec) if spec is not None else LayerPrecision.of(load_recipe(recipe or ""), layer, 1000)
    if precision.spec.stateful:
        raise ValueError(
            f"lowprec.torch.linear: spec must not depend on the step, got {precision.spec}; use lowprec.torch.Linear"
        )
    return precision.key


def linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    spec: LinearSpec | None = None,
    recipe: str | Recipe | None = None,
    layer: str = "layers.1.attn.wq_a",
) -> Tensor:
    """Return x W^T + bias in a given precision, which also applies to the gradients.

    Parameters
    ----------
    x : Tensor, shape (..., K)
        Input, float32 or bfloat16; rounded to the recipe's storage format of activations.
    w : Tensor, shape (N, K)
        Weight, float32 or bfloat16. Its gradient is computed in float32, then converted to the weight's dtype.
    bias : Tensor, shape (N,), optional
        Bias, added in float32 before the product is rounded.
    spec : LinearSpec, optional
        Precision of the products; activations are bfloat16.
    recipe : str or Recipe, optional
        Recipe to take the precision from, in place of `spec`.
    layer : str
        Name of the layer in the recipe.

    Raises
    ------
    TypeError
        If x or w has another dtype, or neither `spec` nor `recipe` is given.
    ValueError
        If the precision depends on the step.
    RuntimeError
        If a tensor is not on the CPU, or the thread flushes subnormals to zero.
    """
    return linear_forward(x, w, bias, _key(spec, recipe, layer))


class Converted(nn.Module):
    """Mixin with the attributes that conversion adds to a module.

    Attributes
    ----------
    layers : tuple of str
        Layer of the recipe for each product, such as ``("layers.3.attn.wo",)``.
    guesses : tuple of str
        For each layer, the reason why it is a guess; empty if it is not.
    keys : tuple of str
        Precision of each product, see `lowprec.torch.ops`.
    slot : Tensor or None
        Number of the module's state, if bits depend on the step. It is not a buffer, because it must not be saved or
        sent.
    """

    layers: tuple[str, ...]
    guesses: tuple[str, ...]
    keys: tuple[str, ...]
    slot: Tensor | None

    def parts_of(self) -> list[str]:
        """Return the names of the module's products, which are appended to the module's name."""
        return [""]

    def matrices(self) -> list[Tensor]:
        """Return the weights [N, K] of its products."""
        raise NotImplementedError

    @property
    def specs(self) -> list[LinearSpec]:
        """Return the recipe's LinearSpec of each product."""
        return [LayerPrecision.from_key(key).spec for key in self.keys]

    def set_precision(self, precisions: list[LayerPrecision], seed: int) -> None:
        """Set the precision of each product."""
        self.keys = tuple(p.key for p in precisions)
        stateful = any(p.spec.stateful for p in precisions)
        self.set_slot(ModuleState([LayerState(layer, seed) for layer in self.layers]) if stateful else None)

    def set_slot(self, slot: ModuleState | None) -> None:
        """Set the slot, which is freed with the module and all graphs that use it."""
        self.slot = None if slot is None else add_slot(slot)

    def get_slot(self) -> ModuleState | None:
        """Return the slot."""
        return None if self.slot is None else get_slot(self.slot)

    def extra_repr(self) -> str:
        """Return the description that `print` shows for the module."""
        specs = dict.fromkeys(f"{layer}: {spec}" for layer, spec in zip(self.layers, self.specs, strict=True))
        return ", ".join(filter(None, (super().extra_repr(), *list(specs)[:2])))

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for a copy of the module, with a copy of its state."""
        return {**self.__dict__, "slot": self.get_slot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the content in a copy of the module."""
        slot = state.pop("slot")
        super().__setstate__(state)
        self.set_slot(slot)


class Linear(Converted, nn.Linear):
    """Linear layer that multiplies in the precision of a recipe; created by `lowprec.torch.convert`."""

    @property
    def layer(self) -> str:
        """Layer of the recipe, such as ``"layers.3.attn.wo"``."""
        return self.layers[0]

    @property
    def key(self) -> str:
        """Precision of the layer as a string, see `lowprec.torch.ops`."""
        return self.keys[0]

    @property
    def spec(self) -> LinearSpec:
        """Precision of the layer in the recipe."""
        return self.specs[0]

    def matrices(self) -> list[Tensor]:
        """Return the weight."""
        return [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + bias."""
        return linear_forward(x, self.weight, self.bias, self.keys[0], self.slot, 0, self.training)


def grouped_linear(x: Tensor, w: Tensor, counts: Tensor, **precision: Any) -> Tensor:
    """Multiply the rows of each expert by its matrix, with the bits of one `linear` call per expert.

    Parameters
    ----------
    x : Tensor, shape (T, K)
        Rows, grouped by expert.
    w : Tensor, shape (E, N, K)
        Weights of the experts. The gradient is zero for an expert without rows.
    counts : Tensor of int, shape (E,)
        Number of rows of each expert.
    **precision
        `spec`, or `recipe` and `layer`, as in `linear`.

    Raises
    ------
    ValueError
        If shapes do not match, or the sum of counts is not T.
    """
    runs = [int(n) for n in counts]
    if x.dim() != 2 or w.dim() != 3 or len(runs) != len(w) or min(runs, default=0) < 0 or sum(runs) != len(x):
        raise ValueError(
            "lowprec.torch.grouped_linear: x, w and counts must be [T, K], [E, N, K] and [E] of sum T, got "
            f"{tuple(x.shape)}, {tuple(w.shape)} and {runs}"
        )
    parts = x.split(runs)
    return torch.cat([linear(rows, matrix, **precision) for rows, matrix in zip(parts, w, strict=True)])


class _Wire(torch.autograd.Function):
    """Autograd function that applies one codec to x and another one to its gradient."""

    @staticmethod
    def forward(x: Tensor, forward: Codec, backward: Codec) -> Tensor:
        return _encode_decode(x, forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.codecs = inputs[1:]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        forward, backward = ctx.codecs
        return _Wire.apply(dy, backward, forward), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return one_by_one(_Wire.apply)(info, in_dims, *args)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise RuntimeError(NO_FORWARD_MODE)


def _encode_decode(x: Tensor, codec: Codec) -> Tensor:
    return tensor(codec.round_trip(values(x)), x.dtype).reshape(x.shape)


def apply_codec(x: Tensor, forward: str | Codec, backward: str | Codec = "bf16") -> Tensor:
    """Encode and decode x, and its gradient in the backward pass, to emulate dispatch or combine.

    Parameters
    ----------
    x : Tensor, shape (T, C)
        Tensor to send.
    forward, backward : str or Codec
        Codecs of x and of its gradient, or their names in `lowprec.codecs`.

    Raises
    ------
    UnknownNameError
        If the codec does not exist.
    """
    check("x", x)
    y: Tensor = _Wire.apply(x, codecs.get(forward), codecs.get(backward))
    return y


class _Cached(torch.autograd.Function):
    """Autograd function that saves encoded inputs, and recomputes its function on the decoded ones."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], codec: Codec, *inputs: Tensor) -> Tensor:
        ctx.fn, ctx.codec = fn, codec
        ctx.kept = [(ctx.codec.encode(values(x)), x.dtype, x.shape, x.requires_grad) for x in inputs]
        with torch.no_grad():
            return fn(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [
            tensor(ctx.codec.decode(coded), dtype).reshape(shape).requires_grad_(needed)
            for coded, dtype, shape, needed in ctx.kept
        ]
        with torch.enable_grad():
            y = ctx.fn(*inputs)
        y.backward(dy)
        return None, None, *(x.grad for x in inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise RuntimeError(NO_FORWARD_MODE)


def checkpoint_with_codec(fn: Callable[..., Tensor], *inputs: Tensor, codec: str | Codec) -> Tensor:
    """Return ``fn(*inputs)``, saving the inputs encoded; the backward pass recomputes fn on the decoded inputs.

    Parameters
    ----------
    fn : callable
        Function, such as ``lambda a, b: w2(silu(a) * b)``, which saves SwiGLU's inputs as DeepSeek-V3 does. Parameters
        used in it receive gradients.
    *inputs : Tensor
        Inputs of the function, saved encoded.
    codec : str or Codec
        Codec, or its name in `lowprec.codecs`. A lossless codec does not change the gradients.

    Raises
    ------
    UnknownNameError
        If the codec does not exist.
    RuntimeError
        If it is called under a transform of torch.func.
    """
    kept = codecs.get(codec)
    for x in inputs:
        check("an input", x)
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError("lowprec.torch: cached keeps its inputs for backward(): it cannot run under torch.func")
    y: Tensor = _Cached.apply(fn, kept, *inputs)
    return y
