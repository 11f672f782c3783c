"""`scaled_dot_product_attention` in converted models, replaced by a kernel of `lowprec.attentions` in their modules."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import CodeType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.attn.kernel import AttentionKernel

from .attention import attention, register_attention

_NAME = "scaled_dot_product_attention"
_running: ContextVar[tuple[AttentionKernel, ...]] = ContextVar("_running", default=())
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
    """Return the names of the modules with methods that call ``torch.nn.functional.scaled_dot_product_attention``.

    A module that imports the function itself, not `torch.nn.functional`, keeps its reference and is omitted.
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
    """Make a model's modules use a kernel instead of torch's function, or restore that function; return their names.

    The kernel is used while one of these modules runs in this thread, including recomputation by checkpoints.
    """
    for module in model.modules():
        held = module.__dict__.pop("_lowprec_forward", None)
        if held is not None:
            held.remove(module)
    if kernel is None:
        return []
    found = callers(model)
    for name in found:
        _AttentionForward(model.get_submodule(name), kernel)
    return found


class WrappedForward:
    """Forward pass of a module, which runs in a context.

    Hooks are not sufficient: torch does not call them after KeyboardInterrupt and SystemExit.

    Parameters
    ----------
    module : nn.Module
        Module.
    key : str
        Attribute of the module that holds this object.
    """

    def __init__(self, module: nn.Module, key: str) -> None:
        self.module, self.own, self.is_active = module, module.__dict__.get("forward"), True
        module.__dict__[key] = module.__dict__["forward"] = self

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = MethodType(type(self.module).forward, self.module)
        return function if self.own is None else self.own

    def remove(self, module: nn.Module) -> None:
        """Restore the module's forward pass; if other code has wrapped this one, make it call only the original."""
        self.is_active = False
        if module.__dict__.get("forward") is self:
            del module.__dict__["forward"]
            if self.own is not None:
                module.__dict__["forward"] = self.own

    def context(self, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
        """Return the context of a call with the given arguments."""
        raise NotImplementedError

    @torch.compiler.disable(recursive=False)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass in the context."""
        with self.context(args, kwargs) if self.is_active else nullcontext():
            return self._function()(*args, **kwargs)


class _AttentionForward(WrappedForward):
    """Forward pass of a module with the attention of a kernel."""

    def __init__(self, module: nn.Module, kernel: AttentionKernel) -> None:
        super().__init__(module, "_lowprec_forward")
        self.kernel = kernel

    def context(self, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
        """Return a context in which the kernel replaces torch's function."""
        if isinstance(self.module, nn.MultiheadAttention) and kwargs.get("need_weights", len(args) < 5 or args[4]):
            warnings.warn(
                f"lowprec.torch.convert: nn.MultiheadAttention with need_weights=True computes attention in torch, not "
                f"by {self.kernel}",
                stacklevel=3,
            )
        return _replaced(self.kernel)


@contextmanager
def _replaced(kernel: AttentionKernel) -> Iterator[None]:
    """Context manager that replaces torch's function by a kernel, in this thread."""
    global _original, _users
    before = _running.get()
    with _lock:
        if not _users:
            _original = getattr(F, _NAME)
            setattr(F, _NAME, _attend)
        _users += 1
    try:
        _running.set((*before, kernel))
        yield
    finally:
        _running.set(before)
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
    kernel = running[-1]
    if dropout_p:
        raise ValueError(f"lowprec.torch.attention: {kernel} must have no dropout, got dropout_p={dropout_p:g}")
    if not 2 <= query.dim() <= 4 or {key.dim(), value.dim()} != {query.dim()}:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"lowprec.torch.attention: query, key and value must have the same 2 to 4 axes, got {shapes}")
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (query, key, value))
    if query.dim() > 2 and not query.shape[0] == key.shape[0] == value.shape[0]:
        sizes = ", ".join(str(len(x)) for x in (query, key, value))
        raise ValueError(f"lowprec.torch.attention: query, key and value must have the same batch size, got {sizes}")
    if not enable_gqa and query.dim() == 4 and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"lowprec.torch.attention: query and key must have the same number of heads without enable_gqa, got "
            f"{query.shape[1]} and {key.shape[1]}"
        )
    four = {2: (None, None), 3: (slice(None), None), 4: ()}[query.dim()]
    q, k, v = (x[four] for x in (query, key, value))
    m, n = q.shape[2], k.shape[2]
    mask = None if attn_mask is None else _visible(attn_mask.expand(*query.shape[:-1], n)[four])
    if is_causal and (m != n or mask is not None):  # torch's causal mask is aligned to the first key
        causal = torch.ones(m, n, dtype=torch.bool).tril()[None, None]
        mask, is_causal = causal if mask is None else mask & causal, False
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
