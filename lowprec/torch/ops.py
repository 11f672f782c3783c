"""Two opaque operators of torch, the products of a linear layer and of its backward pass; the same for experts.

They are opaque so that compiling, exporting, checkpointing and sharding a model treat them as any operator of torch.
Forward keeps x and w as tensors and nothing else; backward quantizes again, to the same bits.

A layer's precision is a text, its *key*, which holds all that decides bits: equal layers compile as one graph, and a
graph means the same in another process. What its bits depend on beside values lies
in a *slot*, whose number is a tensor: as a number in the graph it would make a graph of every layer.
"""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lowprec._ieee import is_standard
from lowprec.format.catalogue import formats
from lowprec.recipe import LayerState, LinearOps, Precision
from lowprec.tensorcore.gemm import matmul_f32

from .arrays import tensor, values

Array = NDArray[Any]
_BF16, _FLOAT32 = formats["bfloat16"], formats["float32"]


def stored_type(key: str) -> torch.dtype:
    """Return the type in which x comes; simple enough for a compiler of torch to look into."""
    return torch.bfloat16 if key.startswith("bfloat16 ") else torch.float32


def leaving_type(key: str) -> torch.dtype:
    """Return the type in which y leaves, and so dy comes: float32 where a gradient must not be rounded on its way."""
    spec = Precision.from_key(key).spec
    exact_dy = _FLOAT32 in (spec.dgrad.a.format, spec.wgrad.a.format)
    return stored_type(key) if spec.out in (None, _BF16) and not exact_dy else torch.float32


@functools.lru_cache(4096)
def _stateless(key: str) -> LinearOps:
    return Precision.from_key(key).ops()


class Slot:
    """What a module's products depend on beside their operands' values; *part* counts its products, from 0.

    Attributes
    ----------
    states : list of LayerState
        One for each part, or none where bits do not depend on the step.
    weights : list
        Prepared weights, one for each part, if there are any, and
    versions : list of int
        torch's count of changes when they were prepared.
    """

    def __init__(self, states: list[LayerState]) -> None:
        self.states = states
        self.weights: list[Any] = []
        self.versions: list[int] = []
        self._ops: dict[tuple[str, int], LinearOps] = {}

    def ops(self, key: str, part: int) -> LinearOps:
        """Return the multiplications of a key with this state."""
        if (key, part) not in self._ops:
            self._ops[key, part] = Precision.from_key(key).ops(self.states[part]) if self.states else _stateless(key)
        return self._ops[key, part]

    def __deepcopy__(self, memo: Any) -> Slot:
        """Return a slot whose states go their own way; weights are prepared anew."""
        return Slot(copy.deepcopy(self.states, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, (self.states,)


slots: dict[int, Slot] = {}
_numbers = itertools.count(1)


def add_slot(slot: Slot) -> Tensor:
    """Return a number for a slot, as a tensor."""
    number = next(_numbers)
    slots[number] = slot
    return torch.tensor(number)


def _found(slot: Tensor | None) -> Slot:
    return _NONE if slot is None else slots[int(slot)]


_NONE = Slot([])


def _rows(t: Tensor) -> Array:
    return values(t).reshape(-1, t.shape[-1])


def _check_mode() -> None:
    if not is_standard():
        raise RuntimeError(
            "lowprec.torch: this thread flushes subnormals to zero (torch.set_flush_denormal(True), or a library built "
            "with -ffast-math), so torch's own casts lose them: call torch.set_flush_denormal(False)"
        )


@torch.library.custom_op("lowprec::linear", mutates_args=(), device_types="cpu")
def product(
    x: Tensor, w: Tensor, bias: Tensor | None, slot: Tensor | None, part: int, key: str, training: bool
) -> Tensor:
    """Return y [..., N] for x [..., K], w [N, K] and a bias [N]."""
    _check_mode()
    found = _found(slot)
    if found.states:
        # within a backward pass, a forward pass is one that is made again
        found.states[part].begin_forward(training, again=torch._C._current_graph_task_id() != -1)
    weight: Any
    if found.weights:
        if w._version != found.versions[part]:
            raise RuntimeError("lowprec.torch: a weight was changed within frozen(model), which keeps it quantized")
        weight = found.weights[part]
    else:
        weight = values(w)
    y = found.ops(key, part).product(_rows(x), weight, None if bias is None else values(bias))
    return tensor(y, leaving_type(key)).reshape(*x.shape[:-1], w.shape[0])


@product.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, slot: Tensor | None, part: int, key: str, training: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]), dtype=leaving_type(key))


@torch.library.custom_op("lowprec::linear_backward", mutates_args=(), device_types="cpu")
def gradients(
    dy: Tensor, x: Tensor, w: Tensor, slot: Tensor | None, part: int, key: str,
    need_x: bool, need_w: bool, need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx, dW in float32 and the bias's gradient; empty tensors for those that are not needed."""
    _check_mode()
    found = _found(slot)
    if found.states:
        found.states[part].begin_backward()
    d_y = _rows(dy)
    d_x, d_w = found.ops(key, part).gradients(d_y, _rows(x), values(w), (need_x, need_w))
    d_bias = matmul_f32(np.ones((1, len(d_y)), np.float32), d_y.T)[0] if need_bias else None
    found_x = x.new_empty(0) if d_x is None else tensor(d_x, x.dtype).reshape(x.shape)
    return found_x, *(_optional(g) for g in (d_w, d_bias))


def _optional(gradient: Array | None) -> Tensor:
    return torch.empty(0) if gradient is None else tensor(gradient, torch.float32)


@gradients.register_fake
def _(
    dy: Tensor, x: Tensor, w: Tensor, slot: Tensor | None, part: int, key: str,
    need_x: bool, need_w: bool, need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else x.new_empty(0),
        w.new_empty(w.shape if need_w else (0,), dtype=torch.float32),
        w.new_empty(w.shape[:1] if need_bias else (0,), dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, _, slot, ctx.part, ctx.key, _ = inputs
    ctx.save_for_backward(x, w, slot)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w, slot = ctx.saved_tensors
    need = ctx.needs_input_grad[:3]
    found = gradients(dy, x, w, slot, ctx.part, ctx.key, *need)
    return *(g if needed else None for g, needed in zip(found, need, strict=True)), None, None, None, None


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    raise RuntimeError("lowprec.torch: products have no second derivative")


product.register_autograd(_backward, setup_context=_keep)
gradients.register_autograd(_no_second_derivative)
