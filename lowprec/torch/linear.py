"""Layers and functions on tensors: `Linear`, `linear`, `grouped_linear`; what recipes do to tensors on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lowprec.codec.catalogue import codecs
from lowprec.codec.wire import Codec
from lowprec.recipe import LayerState, LinearSpec, Precision, Recipe, load_recipe

from .arrays import check, tensor, values
from .ops import NO_FORWARD_MODE, Slot, add_slot, get_slot, one_by_one, product, stored_type


def apply(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: str,
    slot: Tensor | None = None,
    part: int = 0,
    training: bool = False,
) -> Tensor:
    """Return x W^T + bias in x's type, by the precision of a key; see `lowprec.torch.ops`."""
    check("x", x)
    check("the weight", w)
    y: Tensor = product(x.to(stored_type(key)), w, bias, slot, part, key, training)
    return y.to(x.dtype)


@torch.compiler.assume_constant_result
def _key(spec: LinearSpec | None, recipe: str | Recipe | None, layer: str) -> str:
    if (spec is None) == (recipe is None):
        raise TypeError("lowprec.torch.linear: give spec=LinearSpec(...), or recipe= and layer=")
    said = Precision(spec) if spec is not None else Precision.of(load_recipe(recipe or ""), layer, 1000)
    if said.spec.stateful:
        raise ValueError(
            f"lowprec.torch.linear: {said.spec} depends on the step, and a function has none: use lowprec.torch.Linear"
        )
    return said.key


def linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    spec: LinearSpec | None = None,
    recipe: str | Recipe | None = None,
    layer: str = "layers.1.attn.wq_a",
) -> Tensor:
    """Return x W^T + bias, with the gradients of the same precision.

    Parameters
    ----------
    x : Tensor, shape (..., K)
        float32 or bfloat16; stored as the recipe stores activations.
    w : Tensor, shape (N, K)
        float32 or bfloat16. Its gradient is float32, and takes the weight's type last.
    bias : Tensor, shape (N,), optional
        Added in float32, before the product is rounded.
    spec : LinearSpec, optional
        The precision, with activations in bfloat16.
    recipe : str or Recipe, optional
        Or a recipe, and
    layer : str
        which of its layers this is.

    Raises
    ------
    TypeError
        For another type of x or w, or neither `spec` nor `recipe`.
    ValueError
        For a precision that depends on the step.
    RuntimeError
        For tensors that are not on the CPU, or in a thread that flushes subnormals to zero.
    """
    return apply(x, w, bias, _key(spec, recipe, layer))


class Converted(nn.Module):
    """What a module of a converted model has beside what it had.

    Attributes
    ----------
    layers : tuple of str
        What each of its products is to the recipe: ``("layers.3.attn.wo",)``.
    guesses : tuple of str
        For each of them why it is a guess; empty if it is not.
    keys : tuple of str
        Their precisions, see `lowprec.torch.ops`.
    slot : Tensor or None
        Number of its state, where bits depend on the step. No buffer: there is nothing in it to save or to send.
    """

    layers: tuple[str, ...]
    guesses: tuple[str, ...]
    keys: tuple[str, ...]
    slot: Tensor | None

    def parts_of(self) -> list[str]:
        """Return what its products are called, after the module's own name."""
        return [""]

    def matrices(self) -> list[Tensor]:
        """Return the weights [N, K] of its products."""
        raise NotImplementedError

    @property
    def specs(self) -> list[LinearSpec]:
        """What the recipe says of its products."""
        return [Precision.from_key(key).spec for key in self.keys]

    def set_precision(self, said: list[Precision], seed: int) -> None:
        """Take a precision for each product."""
        self.keys = tuple(p.key for p in said)
        stateful = any(p.spec.stateful for p in said)
        self.set_slot(Slot([LayerState(layer, seed) for layer in self.layers]) if stateful else None)

    def set_slot(self, slot: Slot | None) -> None:
        """Take a slot; it goes when the module and all graphs with it go."""
        self.slot = None if slot is None else add_slot(slot)

    def get_slot(self) -> Slot | None:
        """Return the slot."""
        return None if self.slot is None else get_slot(self.slot)

    def extra_repr(self) -> str:
        """Return what `print` shows of the module."""
        said = dict.fromkeys(f"{layer}: {spec}" for layer, spec in zip(self.layers, self.specs, strict=True))
        return ", ".join(filter(None, (super().extra_repr(), *list(said)[:2])))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: a state of its own goes with it."""
        return {**self.__dict__, "slot": self.get_slot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a copy's content."""
        slot = state.pop("slot")
        super().__setstate__(state)
        self.set_slot(slot)


class Linear(Converted, nn.Linear):
    """A linear layer whose multiplications run as a recipe says; made by `lowprec.torch.convert`."""

    @property
    def layer(self) -> str:
        """What it is to the recipe: ``"layers.3.attn.wo"``."""
        return self.layers[0]

    @property
    def key(self) -> str:
        """Its precision as a text, see `lowprec.torch.ops`."""
        return self.keys[0]

    @property
    def spec(self) -> LinearSpec:
        """What the recipe says of it."""
        return self.specs[0]

    def matrices(self) -> list[Tensor]:
        """Return the weight."""
        return [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + bias."""
        return apply(x, self.weight, self.bias, self.keys[0], self.slot, 0, self.training)


def grouped_linear(x: Tensor, w: Tensor, counts: Tensor, **precision: Any) -> Tensor:
    """Return the rows of each expert times its matrix: the bits of one `linear` an expert.

    Parameters
    ----------
    x : Tensor, shape (T, K)
        Experts' rows one run after the other.
    w : Tensor, shape (E, N, K)
        The experts' weights. One without rows gets a gradient of zeros.
    counts : Tensor of int, shape (E,)
        Rows of each expert.
    **precision
        As for `linear`.

    Raises
    ------
    ValueError
        If shapes do not fit together, or counts do not add up to T.
    """
    runs = [int(n) for n in counts]
    if x.dim() != 2 or w.dim() != 3 or len(runs) != len(w) or min(runs, default=0) < 0 or sum(runs) != len(x):
        raise ValueError(
            f"lowprec.torch.grouped_linear: x [T, K] is {tuple(x.shape)}, w [E, N, K] is {tuple(w.shape)}, counts are "
            f"{runs}: one for each expert, T together"
        )
    parts = x.split(runs)
    return torch.cat([linear(rows, matrix, **precision) for rows, matrix in zip(parts, w, strict=True)])


class _Wire(torch.autograd.Function):
    """A codec on x, another one on its gradient."""

    @staticmethod
    def forward(x: Tensor, forward: Codec, backward: Codec) -> Tensor:
        return _coded(x, forward)

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


def _coded(x: Tensor, codec: Codec) -> Tensor:
    return tensor(codec.round_trip(values(x)), x.dtype).reshape(x.shape)


def wire(x: Tensor, forward: str | Codec, backward: str | Codec = "bf16") -> Tensor:
    """Return what arrives of x through a codec, its gradient through another one: dispatch, or combine.

    Parameters
    ----------
    x : Tensor, shape (T, C)
        What is sent.
    forward, backward : str or Codec
        The codecs, or their names in `lowprec.codecs`.

    Raises
    ------
    UnknownNameError
        For a codec that is not there.
    """
    check("x", x)
    y: Tensor = _Wire.apply(x, codecs.get(forward), codecs.get(backward))
    return y


class _Cached(torch.autograd.Function):
    """Keeps coded inputs of a function, and runs it again on what is decoded."""

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


def cached(fn: Callable[..., Tensor], *inputs: Tensor, codec: str | Codec) -> Tensor:
    """Return ``fn(*inputs)``; its backward pass runs fn again on inputs that were kept coded.

    Parameters
    ----------
    fn : callable
        For example ``lambda a, b: w2(silu(a) * b)``, which keeps SwiGLU's inputs as DeepSeek-V3 keeps them. Parameters
        in it get their gradients.
    *inputs : Tensor
        What is kept.
    codec : str or Codec
        The codec, or its name in `lowprec.codecs`; a lossless one gives the same gradients bit for bit.

    Raises
    ------
    UnknownNameError
        For a codec that is not there.
    RuntimeError
        Under a transform of torch.func.
    """
    kept = codecs.get(codec)
    for x in inputs:
        check("an input", x)
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError("lowprec.torch: cached keeps its inputs for backward(): it cannot run under torch.func")
    y: Tensor = _Cached.apply(fn, kept, *inputs)
    return y
