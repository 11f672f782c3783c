"""`scaled_dot_product_attention` in converted models, replaced by a kernel of `lowprec.attentions` in their modules."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.attn.kernel import AttentionKernel

from .attention import attention, register_attention

_NAME = "scaled_dot_product_attention"
_running: ContextVar[tuple[tuple[int, AttentionKernel], ...]] = ContextVar("_running", default=())
_lock, _original, _users = threading.Lock(), getattr(F, _NAME), 0


def use_attention(model: nn.Module, kernel: AttentionKernel | None) -> None:
    """Set the attention kernel of a model; None restores the model's own attention.

    In a transformers model that selects attention by transformers' interface, the kernel becomes the attention
    implementation; in other models it replaces ``scaled_dot_product_attention``. `report` lists a model that has
    neither.
    """
    held: Any = model
    own = held.__dict__.pop("_lowprec_attention", None)
    if isinstance(own, str):
        held.set_attn_implementation(own)
    replace_attention(model, None)
    if kernel is None:
        return
    can_set = getattr(held, "_can_set_attn_implementation", None)
    if can_set is not None and can_set():
        held.__dict__["_lowprec_attention"] = held.config._attn_implementation
        held.set_attn_implementation(register_attention(kernel))
    elif found := replace_attention(model, kernel):
        held.__dict__["_lowprec_attention"] = tuple(found)


def callers(model: nn.Module) -> list[str]:
    """Return the names of the modules whose methods call ``torch.nn.functional.scaled_dot_product_attention``.

    A module that imports the function by name, instead of `torch.nn.functional`, keeps its reference and is left out.
    """
    return [name for name, module in model.named_modules() if _calls(type(module))]


def _calls(cls: type[nn.Module]) -> bool:
    if issubclass(cls, nn.MultiheadAttention):
        return True
    own = (parent for parent in cls.__mro__ if not parent.__module__.startswith("torch.nn."))
    functions = (f for parent in own for f in vars(parent).values() if inspect.isfunction(f))
    return any(_names(f.__code__) and _NAME not in f.__globals__ for f in functions)


def _names(code: CodeType) -> bool:
    """Return whether a function, or a function inside it, uses the name."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return _NAME in code.co_names or any(map(_names, inner))


def replace_attention(model: nn.Module, kernel: AttentionKernel | None) -> list[str]:
    """Make a model's modules use a kernel in place of the function, or torch's own again; return their names.

    The kernel is used while one of these modules runs, in this thread, also when a checkpoint recomputes it.
    """
    for module in model.modules():
        for handle in module.__dict__.pop("_lowprec_handles", ()):
            handle.remove()
    if kernel is None:
        return []
    found = callers(model)
    for name in found:
        module = model.get_submodule(name)
        module.__dict__["_lowprec_handles"] = (
            module.register_forward_pre_hook(_Enter(kernel), prepend=True, with_kwargs=True),
            module.register_forward_hook(_leave, always_call=True),
        )
    return found


class _Enter:
    """Hook that sets the attention before a module's forward pass."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.kernel = kernel

    @torch.compiler.disable
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        global _original, _users
        if isinstance(module, nn.MultiheadAttention) and kwargs.get("need_weights", len(args) < 5 or args[4]):
            warnings.warn(
                f"lowprec.torch.convert: nn.MultiheadAttention with need_weights=True computes attention in torch, not "
                f"by {self.kernel}",
                stacklevel=2,
            )
        with _lock:
            if not _users:
                _original = getattr(F, _NAME)
                setattr(F, _NAME, _attend)
            _users += 1
        _running.set((*_running.get(), (id(module), self.kernel)))


@torch.compiler.disable
def _leave(module: nn.Module, *_: Any) -> None:
    """Restore the attention after a module's forward pass, or an exception in it."""
    global _users
    *before, (owner, _kernel) = _running.get() or ((0, None),)
    if owner != id(module):  # another hook raised before the kernel was set
        return
    _running.set(tuple(before))
    with _lock:
        _users -= 1
        if not _users and getattr(F, _NAME) is _attend:
            setattr(F, _NAME, _original)


@torch.compiler.disable
def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Compute attention by the kernel of the running module, or by torch if no such module runs."""
    if not (running := _running.get()):
        function: Callable[..., Tensor] = _original
        return function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    kernel = running[-1][1]
    if dropout_p:
        raise ValueError(f"lowprec.torch.attention: {kernel} must have no dropout, got dropout_p={dropout_p:g}")
    if not 2 <= query.dim() <= 4 or {key.dim(), value.dim()} != {query.dim()}:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"lowprec.torch.attention: query, key and value must have the same 2 to 4 axes, got {shapes}")
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (query, key, value))
    heads = (query.shape[:-2], key.shape[:-2])
    if not enable_gqa and heads[0] != heads[1]:
        raise ValueError(
            f"lowprec.torch.attention: query and key must have the same heads without enable_gqa, got {heads[0]} and "
            f"{heads[1]}"
        )
    four = {2: (None, None), 3: (slice(None), None), 4: ()}[query.dim()]
    q, k, v = (x[four] for x in (query, key, value))
    m, n = q.shape[2], k.shape[2]
    mask = None if attn_mask is None else _visible(attn_mask.expand(*query.shape[:-1], n)[four])
    if is_causal and m != n:  # torch's causal mask is aligned to the first key
        mask, is_causal = torch.ones(m, n, dtype=torch.bool).tril()[None, None], False
    out = attention(q, k, v, kernel, causal=is_causal, mask=mask, scale=scale)
    return out.reshape(*query.shape[:-1], v.shape[-1])


def _visible(mask: Tensor) -> Tensor:
    """Return a mask as bool [B, 1, M, N], equal for all heads."""
    if mask.dtype != torch.bool:
        seen = mask == 0
        if not (seen | (mask == -torch.inf)).all():
            raise ValueError("lowprec.torch.attention: attn_mask must be bool, or 0 and -inf, got other numbers")
        mask = seen
    if not (mask == mask[:, :1]).all():
        raise ValueError("lowprec.torch.attention: attn_mask must be one for all heads, got others")
    return mask[:, :1]
