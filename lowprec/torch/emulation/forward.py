"""A model's forward pass computed by a stack."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from lowprec.parity.stack import Stack

from ..sdpa import WrappedForward
from .mode import StackMode

KEY = "_lowprec_stack"


class StackForward(WrappedForward):
    """Forward pass of a model, of which a stack computes every operation.

    Parameters
    ----------
    module : nn.Module
        Model.
    stack : Stack
        The stack.
    strict : bool
        Whether an operation that the stack does not compute is an error.
    """

    def __init__(self, module: nn.Module, stack: Stack, *, strict: bool) -> None:
        self.mode = StackMode(stack, strict=strict)
        super().__init__(module, KEY)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which finds the orders of products again."""
        return {**self.__dict__, "mode": (self.mode.stack, self.mode.strict)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stack, strict = state.pop("mode")
        self.__dict__.update(state, mode=StackMode(stack, strict=strict))

    def context(self, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
        """Return the mode that computes operations by the stack."""
        return self.mode

    @torch.compiler.disable
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass; graphs of torch.compile would go past the mode."""
        return super().__call__(*args, **kwargs)


def use_stack(model: nn.Module, stack: Stack | None, *, strict: bool = False) -> None:
    """Make a stack compute a model's forward pass; None restores PyTorch's."""
    held = model.__dict__.pop(KEY, None)
    if held is not None:
        held.remove(model)
    if stack is not None:
        StackForward(model, stack, strict=strict)


def describe_stack(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the operations that PyTorch computed in place of a model's stack, and remarks."""
    held = model.__dict__.get(KEY)
    if held is None:
        return [], []
    unreached = [f"{name}, computed by PyTorch: {reason}" for name, reason in held.mode.unreached.items()]
    return unreached, [f"stack {held.mode.stack.name}: operations of the forward pass; PyTorch's backward pass"]
