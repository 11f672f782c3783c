"""Emulation of PyTorch's forward passes: a stack computes every operation that rounds, and outputs are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lowprec.parity.catalogue import stacks
from lowprec.parity.operations import Bounded, Rule
from lowprec.parity.stack import Stack, load_stack

from .comparison import Count, Emulation, differing
from .mode import StackMode


@contextmanager
def emulate(stack: str | Stack = "torch_cpu") -> Iterator[Emulation]:
    """Context manager in which a stack computes every operation that rounds, in forward passes on a CPU.

    Parameters
    ----------
    stack : str or Stack
        Name in `lowprec.stacks`, path of a ``.toml`` file, or a stack.

    Yields
    ------
    Emulation
        Number of outputs of each operation that differ from PyTorch's; the model receives the outputs of the stack.

    Raises
    ------
    UnknownNameError
        If an operation has no rule in the stack.
    ValueError
        If PyTorch runs with another CPU capability than the stack's, or a rule does not apply to an operation's
        arguments, such as a shape whose order cannot be found.

    Examples
    --------
    >>> import torch, lowprec.torch as lpt
    >>> x = torch.linspace(-9, 9, 50)
    >>> with torch.no_grad(), lpt.emulate() as run:
    ...     y = torch.nn.functional.silu(x)
    >>> print(run)
    0 of 50 outputs of 1 operations differ from torch_cpu
    """
    found = Emulation(load_stack(stack, stacks))
    with EmulationMode(found):
        yield found


class EmulationMode(StackMode):
    """Dispatch mode that also computes operations by PyTorch, and counts different outputs."""

    def __init__(self, run: Emulation) -> None:
        super().__init__(run.stack)
        self.run = run
        self.reference: Stack | None = None  # compared until a call's outputs differ, up to which its inputs are equal
        self.parted = ""

    def start(self, run: Emulation, reference: Stack | None) -> None:
        """Use another stack, with the orders that were found so far."""
        self.run, self.stack, self.reference = run, run.stack, reference

    def empty(self, operation: str, args: Any) -> None:
        """Return None: PyTorch computes every operation."""

    def compute(self, name: str, operation: str, rule: Rule, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        """Compute an operation by its rule, and compare the result with PyTorch's and with the reference's."""
        own = self.own(name, rule, args, kwargs, out)
        self.count(name, out, None if isinstance(rule, Bounded) else own)
        if self.reference is not None and not self.parted and (other := self.reference.rule(operation)) != rule:
            count = differing(own, self.own(name, other, args, kwargs, out))
            if count:
                call = f"call {self.run.counts[name].calls}"
                self.parted = f"{name} {list(out.shape)}, {call}: {count} of {out.numel()} outputs"
        out.copy_(own)

    def count(self, name: str, theirs: torch.Tensor, own: torch.Tensor | None) -> None:
        """Count an operation's outputs; `own` is None where PyTorch's are kept."""
        count = self.run.counts.setdefault(name, Count())
        count.calls += 1
        count.outputs += theirs.numel()
        if own is None:
            count.kept += theirs.numel()
            return
        wrong = differing(own, theirs)
        if wrong and not self.run.first:
            self.run.first = f"{name} {list(theirs.shape)}, call {count.calls}: {wrong} of {theirs.numel()}"
        count.differing += wrong
