"""Evaluation of recipes on text: perplexity, KL divergence from a reference, flips, and errors by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lowprec.parity.mismatch import standard_error
from lowprec.recipe import Recipe, load_recipe

from .classes import Experts
from .convert import convert
from .roles import block_of
from .sdpa import use_attention
from .switching import divergence, get_precisions, log_probabilities, preserve_model, set_precisions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating one recipe. Standard errors treat windows as independent.

    Attributes
    ----------
    recipe : str
        Name of the recipe.
    loss : ndarray of float64, shape (windows,)
        Mean cross-entropy of the next token, in nats.
    reference_loss : ndarray of float64, shape (windows,)
        Mean cross-entropy under the reference recipe.
    kl : ndarray of float64, shape (windows,)
        Mean KL(reference || recipe), in nats per token.
    flips : ndarray of float64, shape (windows,)
        Fraction of tokens for which the most likely next token differs.
    hidden : ndarray of float64, shape (layers,)
        Relative error of each block's output: rms(h - h_ref) / rms(h_ref).
    routing : ndarray of float64, shape (layers,)
        Fraction of tokens routed to a different set of experts; NaN for blocks without experts.
    """

    recipe: str
    loss: Floats = field(repr=False)
    reference_loss: Floats = field(repr=False)
    kl: Floats = field(repr=False)
    flips: Floats = field(repr=False)
    hidden: Floats = field(repr=False)
    routing: Floats = field(repr=False)

    @property
    def perplexity(self) -> float:
        """Perplexity: exp of the mean loss."""
        return math.exp(self.loss.mean())

    @property
    def ratio(self) -> float:
        """Perplexity divided by the perplexity of the reference."""
        return math.exp((self.loss - self.reference_loss).mean())

    @property
    def ratio_error(self) -> float:
        """Standard error of the perplexity ratio over windows, or NaN for one window."""
        return self.ratio * standard_error(self.loss - self.reference_loss)


@dataclass
class _Sums:
    """Sums over windows for one recipe."""

    loss: list[float]
    kl: list[float]
    flips: list[float]
    off: Floats
    moved: Floats


class _Trace:
    """Outputs of a model's blocks in one pass, and the experts of their tokens."""

    def __init__(self, model: nn.Module) -> None:
        self.hidden: dict[int, Tensor] = {}
        self.experts: dict[int, Tensor] = {}
        self.blocks = {
            block: module
            for name, module in model.named_modules()
            if (block := block_of(name)) is not None and name.endswith(f".{block}")
            and block_of(name.rpartition(".")[0]) is None
        }  # fmt: skip
        self.layers = max(self.blocks, default=-1) + 1
        self._handles = [m.register_forward_hook(self._keep(b)) for b, m in self.blocks.items()]
        for name, module in model.named_modules():
            if isinstance(module, Experts):
                self._handles.append(module.register_forward_pre_hook(self._route(block_of(name) or 0)))

    def _keep(self, block: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.hidden[block] = (output[0] if isinstance(output, tuple) else output).double()

        return hook

    def _route(self, block: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self.experts[block] = args[1].sort(-1).values

        return hook

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


@contextmanager
def _tracing(model: nn.Module) -> Iterator[_Trace]:
    trace = _Trace(model)
    try:
        yield trace
    finally:
        trace.remove()


def evaluate(
    model: nn.Module,
    windows: Tensor,
    recipes: Sequence[str | Recipe],
    reference: str | Recipe = "bf16",
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> list[Evaluation]:
    """Evaluate a model under several recipes and compare each with a reference.

    Parameters
    ----------
    model : nn.Module
        Model that maps tokens to logits, or to an object with ``.logits``. It is unchanged afterwards.
    windows : Tensor of int, shape (windows, length)
        Tokens; windows are predicted independently.
    recipes : sequence of str or Recipe
        Recipes to evaluate.
    reference : str or Recipe
        Recipe to compare the others with.
    progress : callable, optional
        Function called with the number of finished passes and the total.
    **options
        `skip`, `roles`, `overrides` of `lowprec.torch.convert`.

    Returns
    -------
    list of Evaluation
        Results, the reference first; its KL and flips are 0.

    Raises
    ------
    ValueError
        If `windows` does not have two axes.
    """
    if windows.dim() != 2 or windows.shape[1] < 2 or len(windows) < 1:
        raise ValueError(
            f"lowprec.torch.evaluate: windows must have shape [windows, length >= 2], got {tuple(windows.shape)}"
        )
    chosen = [load_recipe(reference), *(load_recipe(recipe) for recipe in recipes)]
    with preserve_model(model):
        keys = [get_precisions(convert(model, recipe, **options)) for recipe in chosen]
        with _tracing(model) as trace:
            norms, layers = np.zeros(trace.layers), trace.layers
            sums = [_Sums([], [], [], np.zeros(layers), np.full(layers, np.nan)) for _ in chosen]
            for number, window in enumerate(windows):
                targets = window[1:, None]
                first: tuple[Tensor, dict[int, Tensor], dict[int, Tensor]] | None = None
                for i, (precision, sum_) in enumerate(zip(keys, sums, strict=True)):
                    set_precisions(model, precision)
                    use_attention(model, chosen[i].attention)
                    p = log_probabilities(model(window[None]))
                    here = p, dict(trace.hidden), dict(trace.experts)
                    first = here if first is None else first
                    sum_.loss.append(-float(p.gather(1, targets).mean()))
                    sum_.kl.append(float(divergence(first[0], p).mean()))
                    sum_.flips.append(float((p.argmax(1) != first[0].argmax(1)).double().mean()))
                    _add_layers(sum_, here, first)
                    if progress is not None:
                        progress(number * len(chosen) + i + 1, len(windows) * len(chosen))
                assert first is not None
                for block, h in first[1].items():
                    norms[block] += float((h * h).sum())
    losses = np.array(sums[0].loss)
    return [
        Evaluation(
            recipe.name, np.array(s.loss), losses, np.array(s.kl), np.array(s.flips),
            np.sqrt(s.off / np.where(norms > 0, norms, np.nan)), s.moved / len(windows),
        )
        for recipe, s in zip(chosen, sums, strict=True)
    ]  # fmt: skip


def _add_layers(sum_: _Sums, here: Any, reference: Any) -> None:
    """Add the errors of block outputs, and of expert choices, relative to the reference."""
    for block, h in here[1].items():
        sum_.off[block] += float(((h - reference[1][block]) ** 2).sum())
    for block, chosen in here[2].items():
        moved = float((chosen != reference[2][block]).any(-1).double().mean())
        sum_.moved[block] = moved + np.nan_to_num(sum_.moved[block])


def plot_evaluation(found: Sequence[Evaluation]) -> Figure:
    """Plot perplexity ratios with two standard errors, and the errors of the blocks.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'lowprec[plot]'") from None
    drawing = Figure(figsize=(10, 4), layout="constrained")
    left, right = drawing.subplots(1, 2)
    reference, rest = found[0], found[1:]
    for row, e in enumerate(rest):
        error = 0.0 if math.isnan(e.ratio_error) else 200 * e.ratio_error
        left.errorbar(100 * (e.ratio - 1), row, xerr=error, fmt="o", capsize=3, color=f"C{row}")
        layers = np.arange(len(e.hidden))
        right.plot(layers, 100 * e.hidden, "o-", color=f"C{row}", label=e.recipe)
        if np.isfinite(e.routing).any():
            right.plot(layers, 100 * e.routing, "s:", color=f"C{row}", label=f"{e.recipe}, tokens routed otherwise")
    left.axvline(0, color="0.6", linewidth=1)
    left.set_yticks(range(len(rest)), [e.recipe for e in rest])
    left.set_ylim(len(rest) - 0.5, -0.5)
    left.set_xlabel(f"perplexity over {reference.recipe}'s, % more (bars: two standard errors of windows)")
    left.set_title(f"Increase of perplexity: {reference.recipe} is at {reference.perplexity:.4g}")
    right.set(xlabel="block", ylabel="%", title="Error of the output of each block")
    right.set_yscale("log")
    right.legend()
    return drawing
