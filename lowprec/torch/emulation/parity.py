"""Whether two stacks give a model's outputs the same bits, and the rules that make the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowprec._values import compared_fields
from lowprec.parity.catalogue import stacks
from lowprec.parity.stack import Stack, load_stack

from ..switching import divergence
from .comparison import WORDS, Emulation
from .emulate import EmulationMode


@dataclass(frozen=True)
class Parity:
    """Result of `parity`.

    Attributes
    ----------
    a, b : Stack
        The stacks.
    outputs, differing : int
        Number of outputs, and of those whose bits differ.
    mended : dict
        By operation of the model whose rules differ, the share of the differing outputs that become equal if B gets A's
        rule for this operation alone; 0 if no output differs.
    fixes : tuple of tuple of str
        Operations for which B must get A's rules, so that all outputs are equal: every single operation that suffices.
        If none does, one set of operations, none of which can be left out.
    kept : tuple of str
        Operations whose bits are PyTorch's own, so that they do not differ.
    first : str
        First call of an operation whose outputs differ, and how many of them; empty if none do.
    kl : float or None
        Mean over positions of KL(A || B) of the next-token distributions, in nats; None if the model returns no
        ``.logits``.
    """

    a: Stack
    b: Stack
    outputs: int
    differing: int
    mended: dict[str, float]
    fixes: tuple[tuple[str, ...], ...]
    kept: tuple[str, ...]
    first: str = ""
    kl: float | None = None

    def __str__(self) -> str:
        names = f"{self.a.name!r} (A) and {self.b.name!r} (B)"
        if self.fixes:
            lines = [f"{self.differing} of {self.outputs} outputs differ between {names}"]
            lines += [] if self.kl is None else [f"KL of the logits: {self.kl:.3g} nats per position"]
            lines += [f"the first operation with other outputs is {self.first}"]
            if len(self.fixes[0]) == 1:
                lines += [
                    f"one change of B makes them equal: A's rule for {', or for '.join(f[0] for f in self.fixes)}"
                ]
            else:
                lines += ["no single rule of A makes them equal; A's rules for these do, and none can be left out: "
                          f"{', '.join(self.fixes[0])}"]  # fmt: skip
        else:
            lines = [f"all {self.outputs} outputs of {names} are equal"]
            lines += ["rules that differ without effect on these outputs:"] * bool(self.mended)
        for operation, share in self.mended.items():
            effect = f"mends {100 * share:.3g} % of the differing outputs; " * bool(self.fixes)
            lines += [f"  {operation}: {effect}{_difference(operation, self.a, self.b)}"]
        lines += [f"not compared: {', '.join(self.kept)}, whose bits are PyTorch's own"] * bool(self.kept)
        return "\n".join(lines)


def parity(
    model: Callable[[Any], Any], inputs: Any, a: str | Stack, b: str | Stack, *,
    progress: Callable[[int, int], None] | None = None,
) -> Parity:  # fmt: skip
    """Compare a model's outputs under two stacks, and find the rules that make the difference.

    The model runs on a CPU as in `emulate`: once under each stack, once for each operation whose rules differ, with A's
    rule of this operation in B, and up to as often again if no single one makes the outputs equal.

    Parameters
    ----------
    model : callable
        Model that maps the inputs to a tensor in float32 or bfloat16, or to an object with ``.logits``.
    inputs : object
        Argument of the model, such as tokens.
    a, b : str or Stack
        Names in `lowprec.stacks`, paths of ``.toml`` files, or stacks.
    progress : callable, optional
        Called with the number of finished runs and that of all that are planned so far.

    Returns
    -------
    Parity
        Differing outputs, what each rule of A mends, and the rules that make B equal to A.

    Raises
    ------
    UnknownNameError
        If an operation of the model has no rule in a stack.
    ValueError
        If a rule does not hold for an operation's arguments, or the outputs are not the same in every run.

    Examples
    --------
    >>> import torch, lowprec as lp, lowprec.torch as lpt
    >>> cpu = lp.stacks["torch_cpu"]
    >>> other = cpu.with_rules("other", {"mean": cpu.rule("mean").with_(mean="reciprocal")})
    >>> print(lpt.parity(lambda x: x.mean(-1), torch.arange(700.0).reshape(100, 7), cpu, other))
    51 of 100 outputs differ between 'torch_cpu' (A) and 'other' (B)
    the first operation with other outputs is mean [100], call 1: 51 of 100 outputs
    one change of B makes them equal: A's rule for mean
      mean: mends 100 % of the differing outputs; mean (A: division; B: reciprocal)
    """
    first, second = (load_stack(stack, stacks) for stack in (a, b))
    mode = EmulationMode(Emulation(first))  # one for all runs, which share the orders of products and sums
    used, kept = dict[str, None](), dict[str, None]()
    done, runs = 0, 2
    logits: Any = None

    def run(stack: Stack) -> torch.Tensor:
        nonlocal done, logits
        mode.start(Emulation(stack), first if done == 1 else None)
        with torch.no_grad(), mode:
            out = model(inputs)
        for name, count in mode.run.counts.items():
            for names in (used, kept) if count.kept else (used,):
                names[name.removesuffix("_")] = None
        done += 1
        if progress is not None:
            progress(done, runs)
        logits = getattr(out, "logits", None)
        if isinstance(logits, torch.Tensor) and not logits.dim():
            raise ValueError("parity: .logits must have shape [..., vocabulary], got ()")
        return _bits(out)

    expected = run(first)
    of_first = logits

    def differing(operations: Sequence[str]) -> torch.Tensor:
        """Return where outputs differ from A's if B has A's rules for some operations."""
        out = run(second.with_rules(second.name, {name: first.rule(name) for name in operations}))
        if out.shape != expected.shape:
            raise ValueError(
                f"parity: model must return one shape in every run, got {tuple(expected.shape)}, {tuple(out.shape)}"
            )
        return out != expected

    wrong = differing(())
    kl = None if logits is None else float(divergence(*map(_log_softmax, (of_first, logits))).mean())
    of_a, of_b = dict(first.rules), dict(second.rules)
    changed = [name for name in used if name in of_a and of_a[name] != of_b.get(name)]
    mended, fixes = dict.fromkeys(changed, 0.0), list[tuple[str, ...]]()
    if wrong.any():
        runs += len(changed)
        for name in changed:
            still = differing([name])
            mended[name] = 1 - float(still[wrong].double().mean())
            fixes += [] if still.any() else [(name,)]
    if wrong.any() and not fixes:
        runs += len(changed) + 1
        needed = sorted(changed, key=mended.__getitem__)
        if differing(needed).any():
            raise ValueError("parity: model must return the same outputs in every run, got others under the same rules")
        for name in tuple(needed):
            rest = [other for other in needed if other != name]
            if len(rest) > 1 and not differing(rest).any():
                needed = rest
        fixes = [tuple(name for name in changed if name in needed)]
    return Parity(first, second, wrong.numel(), int(wrong.sum()), mended, tuple(fixes), tuple(kept), mode.parted, kl)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.double().reshape(-1, logits.shape[-1]), 1)


def _bits(out: Any) -> torch.Tensor:
    """Return a model's outputs as integers, in which all NaNs are equal."""
    out = getattr(out, "logits", out)
    if not (isinstance(out, torch.Tensor) and out.dtype in WORDS and out.numel()):
        kind = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise TypeError(f"parity: model must return numbers in float32 or bfloat16, as a tensor or .logits, got {kind}")
    return torch.where(out.isnan(), torch.nan, out).view(WORDS[out.dtype])


def _difference(operation: str, a: Stack, b: Stack) -> str:
    """Return the fields in which the rules of an operation differ."""
    x, y = a.rule(operation), dict(b.rules).get(operation)
    if type(x) is not type(y):
        return f"A: {type(x).__name__}; B: {'no rule' if y is None else type(y).__name__}"
    names = [name for name in compared_fields(type(x)) if getattr(x, name) != getattr(y, name)]  # type: ignore[arg-type]
    if len(names) > 1 and "mark" in names:
        names.remove("mark")  # custom rules have another mark in any case
    pairs = [(name, getattr(x, name), getattr(y, name)) for name in names]
    shown = [(name, repr(u), repr(v)) if _text(u) == _text(v) else (name, _text(u), _text(v)) for name, u, v in pairs]
    return ", ".join(f"{name} (A: {u}; B: {v})" for name, u, v in shown)


def _text(field: Any) -> str:
    """Return a field of a rule; entries of catalogues by name."""
    return ", ".join(map(_text, field)) or "none" if isinstance(field, tuple) else str(field)
