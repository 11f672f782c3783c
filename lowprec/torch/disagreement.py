"""Train-rollout mismatch: the KL divergence between two precisions of one model, and the contribution of each part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from lowprec.parity.mismatch import INGREDIENTS, Mismatch, contribution, reordered
from lowprec.recipe import LayerPrecision, LinearSpec, Recipe, load_recipe

from .convert import convert
from .roles import block_of
from .switching import Keys, divergence, get_precisions, log_probabilities, preserve_model, set_precisions

GroupBy = Literal["layer", "part", "kind", "ingredient"]


def mismatch(
    model: nn.Module,
    tokens: Tensor,
    train: str | Recipe = "bf16",
    rollout: str | Recipe = "dsv3",
    *,
    group_by: GroupBy | None = "part",
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Mismatch:
    """Compare a model's next-token distributions under two recipes, with equal weights and tokens.

    Parameters
    ----------
    model : nn.Module
        Model that maps tokens to logits, or to an object with ``.logits``. It is unchanged afterwards.
    tokens : Tensor of int, shape (batch, sequence)
        Tokens to predict. The last one of each sequence is a target only.
    train, rollout : str or Recipe
        Recipes of the trainer and of the rollout.
    group_by : {"layer", "part", "kind", "ingredient"} or None
        Groups for which contributions are measured. ``layer``: blocks; ``part``: parents of linear layers; ``kind``:
        linear layers with the same name; ``ingredient``: ingredients of the precision (quantization of operands,
        accumulator, rounding of results). None: no groups.
    progress : callable, optional
        Function called with the number of finished passes and the total.
    **options
        `skip`, `roles`, `overrides` of `lowprec.torch.convert`.

    Returns
    -------
    Mismatch

    Raises
    ------
    ValueError
        If `tokens` does not have two axes, or `group_by` is unknown.

    Notes
    -----
    The measurement takes two forward passes, and two more for each group, in ``eval`` mode without gradients. Equal
    recipes give exactly 0. Contributions of groups do not add up to the total, because errors interact.
    """
    if tokens.dim() != 2 or tokens.shape[1] < 2:
        raise ValueError(
            f"lowprec.torch.mismatch: tokens must have shape [batch, sequence >= 2], got {tuple(tokens.shape)}"
        )
    if group_by not in (None, "layer", "part", "kind", "ingredient"):
        raise ValueError(
            "lowprec.torch.mismatch: group_by must be one of 'layer', 'part', 'kind', 'ingredient', None, "
            f"got {group_by!r}"
        )
    train, rollout = load_recipe(train), load_recipe(rollout)
    if train.attention != rollout.attention:
        raise ValueError(
            "lowprec.torch.mismatch: train and rollout must have the same attention, as layers change one by one, got "
            f"{train.attention} and {rollout.attention}"
        )
    with preserve_model(model):
        a, b = (get_precisions(convert(model, recipe, **options)) for recipe in (train, rollout))
        passes = _Passes(model, tokens, progress)
        variants = _variants(a, b, group_by)
        passes.total = 3 + 2 * len(variants)
        reference = passes.log_probabilities(a)
        whole = passes.log_probabilities(b)
        kl = divergence(reference, whole)
        groups = []
        for name, (alone, spared) in variants.items():
            one, rest = (
                None if keys is None else divergence(reference, passes.log_probabilities(keys))
                for keys in (alone, spared)
            )
            groups.append(contribution(name, kl, one, rest))
        other = _reordered(a)
        floor = math.nan if other is None else float(divergence(reference, passes.log_probabilities(other)).mean())
    targets = tokens[:, 1:].reshape(-1, 1)
    ratio = (whole.gather(1, targets) - reference.gather(1, targets))[:, 0].numpy()
    flips = float((whole.argmax(1) != reference.argmax(1)).double().mean())
    return Mismatch(train.name, rollout.name, kl, ratio, flips, floor, str(group_by), tuple(groups), len(tokens))


class _Passes:
    """Forward passes of a model with given precisions of its layers."""

    def __init__(self, model: nn.Module, tokens: Tensor, progress: Callable[[int, int], None] | None) -> None:
        self.model, self.tokens, self.progress = model, tokens, progress
        self.done = self.total = 0

    def log_probabilities(self, keys: Keys) -> Tensor:
        """Return log p of every next token, in float64, shape [tokens, vocabulary]."""
        set_precisions(self.model, keys)
        found = log_probabilities(self.model(self.tokens))
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)
        return found


def _variants(a: Keys, b: Keys, group_by: GroupBy | None) -> Mapping[str, tuple[Keys | None, Keys | None]]:
    if group_by is None:
        return {}
    return _ingredients(a, b) if group_by == "ingredient" else _parts(a, b, group_by)


def _parts(a: Keys, b: Keys, group_by: str) -> dict[str, tuple[Keys, Keys]]:
    """Return for each part the precisions with only this part changed, and with everything but this part changed."""
    groups: dict[str, list[str]] = {}
    for name in a:
        parent, _, leaf = name.rpartition(".")
        block = block_of(name)
        layer = name if block is None else name[: name.index(f"{block}") + len(str(block))]
        groups.setdefault({"layer": layer, "part": parent or leaf, "kind": leaf}[group_by], []).append(name)
    return {
        group: ({**a, **{name: b[name] for name in names}}, {**b, **{name: a[name] for name in names}})
        for group, names in groups.items()
    }


def _ingredients(a: Keys, b: Keys) -> dict[str, tuple[Keys | None, Keys | None]]:
    """Return precisions with only one ingredient changed, and with all others; None where an accumulator refuses."""
    return {name: (_mixed(a, b, change), _mixed(b, a, change)) for name, change in INGREDIENTS.items()}


def _mixed(a: Keys, b: Keys, change: Callable[[LinearSpec, LinearSpec], LinearSpec]) -> Keys | None:
    def one(mine: str, other: str) -> str:
        precision = LayerPrecision.from_key(mine)
        return precision._replace(spec=change(precision.spec, LayerPrecision.from_key(other).spec)).key

    try:
        return {name: tuple(map(one, a[name], b[name])) for name in a}
    except ValueError:
        return None


def _reordered(a: Keys) -> Keys | None:
    """Return the precisions with sums in another order, or None unless every layer's accumulator has one."""
    found: Keys = {}
    for name, keys in a.items():
        precisions = [LayerPrecision.from_key(key) for key in keys]
        others = [p._replace(spec=spec).key for p in precisions if (spec := reordered(p.spec)) is not None]
        if len(others) < len(keys):
            return None
        found[name] = tuple(others)
    return found or None
