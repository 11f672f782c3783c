"""Opaque torch operators for the products of a linear layer and of its backward pass, single or grouped by expert.

Opaque operators can be compiled, exported, checkpointed and sharded like any operator of torch. The forward pass saves
only x and w as tensors; the backward pass quantizes them again, to the same bits.

The *key* of a layer is a string that determines its precision: layers with equal keys compile to one graph, and a graph
has the same meaning in another process. State that affects bits is in a *slot*, which a tensor refers to by number; a
number in the graph itself would require one graph per layer. The slot lives as long as that tensor, to which graphs
refer, because a backward pass may outlive its module.

Derivatives are also registered for the transforms of torch: gradients under ``torch.func`` equal those of a backward
pass, ``vmap`` computes examples one by one, and forward mode, which no recipe defines, raises an error.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from lowprec._fpenv import has_default_fpenv
from lowprec.format.catalogue import formats
from lowprec.recipe import LayerPrecision, LayerState, LinearOps
from lowprec.tensorcore.matmul import matmul_f32

from .arrays import tensor, values

Array = NDArray[Any]
NO_FORWARD_MODE = (
    "lowprec.torch: a recipe defines gradients, not forward mode (jvp, jacfwd, hessian): use vjp, grad or jacrev"
)
_BF16, _FLOAT32 = formats["bfloat16"], formats["float32"]


def input_dtype(key: str) -> torch.dtype:
    """Return the required dtype of x; torch's compiler can trace this function."""
    return torch.bfloat16 if key.startswith("bfloat16 ") else torch.float32


def output_dtype(key: str) -> torch.dtype:
    """Return the dtype of y and of dy: float32 if dy must not be rounded between layers."""
    spec = LayerPrecision.from_key(key).spec
    exact_dy = _FLOAT32 in (spec.dgrad.a.format, spec.wgrad.a.format)
    return input_dtype(key) if spec.out_format in (None, _BF16) and not exact_dy else torch.float32


@functools.lru_cache(4096)
def _stateless(key: str) -> LinearOps:
    return LayerPrecision.from_key(key).ops()


class ModuleState:
    """State of a module's products; *part* is the index of a product in the module, from 0.

    Attributes
    ----------
    states : list of LayerState
        State of each part; empty if bits do not depend on the step.
    weights : list
        Prepared weights of each part; empty if none are prepared.
    versions : list of int
        torch's version counters of the weights when they were prepared.
    """

    def __init__(self, states: list[LayerState]) -> None:
        self.states = states
        self.weights: list[Any] = []
        self.versions: list[int] = []
        self._ops: dict[tuple[str, int], LinearOps] = {}

    def ops(self, key: str, part: int) -> LinearOps:
        """Return the multiplications for a key, with the state of a part."""
        if (key, part) not in self._ops:
            self._ops[key, part] = (
                LayerPrecision.from_key(key).ops(self.states[part]) if self.states else _stateless(key)
            )
        return self._ops[key, part]

    def __deepcopy__(self, memo: Any) -> ModuleState:
        """Return a slot with copies of the states and without prepared weights."""
        return ModuleState(copy.deepcopy(self.states, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return ModuleState, (self.states,)


_slots: WeakValueDictionary[int, ModuleState] = WeakValueDictionary()
_numbers = itertools.count(1)


def add_slot(slot: ModuleState) -> Tensor:
    """Register a slot and return its number in a tensor, which keeps the slot alive."""
    tensor: Any = torch.tensor(next(_numbers))
    _slots[int(tensor)] = tensor.kept_slot = slot
    return tensor


def get_slot(tensor: Tensor) -> ModuleState:
    """Return the slot with the given number.

    Raises
    ------
    RuntimeError
        If the slot was freed with its layer, and hooks on saved tensors kept only a copy of its number.
    """
    slot = _slots.get(int(tensor))
    if slot is None:
        raise RuntimeError(
            "lowprec.torch: the state of this layer has been freed; keep the model until its backward pass"
        )
    return slot


def _found(slot: Tensor | None) -> ModuleState:
    return _NONE if slot is None else get_slot(slot)


_NONE = ModuleState([])


def _rows(t: Tensor) -> Array:
    return values(t).reshape(-1, t.shape[-1])


def _check_mode() -> None:
    if not has_default_fpenv():
        raise RuntimeError(
            "lowprec.torch: this thread flushes subnormals to zero (torch.set_flush_denormal(True), or a library built "
            "with -ffast-math), so torch's own casts lose them: call torch.set_flush_denormal(False)"
        )


def _product(
    x: Tensor, w: Tensor, bias: Tensor | None, slot: Tensor | None, part: int, key: str, training: bool
) -> Tensor:
    """Return y [..., N] for x [..., K], w [N, K] and a bias [N]."""
    _check_mode()
    found = _found(slot)
    if found.states:
        # a forward pass within a backward pass is a recomputation
        found.states[part].begin_forward(training, again=torch._C._current_graph_task_id() != -1)
    weight: Any
    if found.weights:
        if w._version != found.versions[part]:
            raise RuntimeError("lowprec.torch: a weight was changed within frozen(model), which keeps it quantized")
        weight = found.weights[part]
    else:
        weight = values(w)
    y = found.ops(key, part).product(_rows(x), weight, None if bias is None else values(bias))
    return tensor(y, output_dtype(key)).reshape(*x.shape[:-1], w.shape[0])


def _fake_product(
    x: Tensor, w: Tensor, bias: Tensor | None, slot: Tensor | None, part: int, key: str, training: bool
) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]), dtype=output_dtype(key))


def _gradients(
    dy: Tensor, x: Tensor, w: Tensor, slot: Tensor | None, part: int, key: str,
    need_x: bool, need_w: bool, need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx, dW in float32, and the gradient of the bias; gradients that are not required are empty tensors."""
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


def _fake_gradients(
    dy: Tensor, x: Tensor, w: Tensor, slot: Tensor | None, part: int, key: str,
    need_x: bool, need_w: bool, need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else x.new_empty(0),
        w.new_empty(w.shape if need_w else (0,), dtype=torch.float32),
        w.new_empty(w.shape[:1] if need_bias else (0,), dtype=torch.float32),
    )


class _Derivative(torch.autograd.Function):
    """Base class of the autograd rules of an operator."""

    operator: Callable[..., Any]

    @classmethod
    def below(cls, *args: Any) -> Any:
        """Call the operator so that outer levels of autograd under ``torch.func`` see it."""
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
            return cls.operator(*args)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise RuntimeError(NO_FORWARD_MODE)


class _Product(_Derivative):
    @staticmethod
    def forward(*args: Any) -> Any:
        return _Product.below(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, w, _, slot, ctx.part, ctx.key, _ = inputs
        ctx.save_for_backward(x, w, slot)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, w, slot = ctx.saved_tensors
        need = ctx.needs_input_grad[:3]
        found = gradients(dy, x, w, slot, ctx.part, ctx.key, *need)
        return *(g if needed else None for g, needed in zip(found, need, strict=True)), None, None, None, None


class _Gradients(_Derivative):
    @staticmethod
    def forward(*args: Any) -> Any:
        return _Gradients.below(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise RuntimeError("lowprec.torch: products have no second derivative")


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``vmap`` rule that calls a function on one example at a time."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        rows = [
            function(*(a if dim is None else a.select(dim, i) for a, dim in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(rows[0], Tensor):
            return torch.stack(rows), 0
        return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * len(rows[0])

    return rule


_library = torch.library.Library("lowprec", "DEF")


def _operator(name: str, kernel: Any, fake: Any, derivative: type[_Derivative]) -> Any:
    """Define a torch operator for the CPU, and its behaviour under compilers and transforms."""

    def differentiable(*args: Any) -> Any:
        with enable_single_level_autograd_function():  # under torch.func: treat it as a built-in operator
            return super(torch.autograd.Function, derivative).apply(*args)

    schema = torch.library.infer_schema(kernel, mutates_args=())
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, kernel, "CPU")
    _library.impl(name, differentiable, "Autograd")
    derivative.operator = operator = getattr(torch.ops.lowprec, name).default
    torch.library.register_fake(f"lowprec::{name}", fake, lib=_library)
    torch.library.register_vmap(f"lowprec::{name}", one_by_one(operator), lib=_library)
    return operator


product = _operator("linear", _product, _fake_product, _Product)
gradients = _operator("linear_backward", _gradients, _fake_gradients, _Gradients)
