"""Train-rollout mismatch: the KL divergence between two precisions of one model, and the contribution of each part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lowprec.format.catalogue import formats
from lowprec.recipe import LayerPrecision, LinearSpec, Recipe, load_recipe
from lowprec.tensorcore.catalogue import accumulators

from .convert import convert
from .roles import block_of
from .switching import (
    Keys,
    divergence,
    get_precisions,
    log_probabilities,
    preserve_model,
    set_precisions,
    standard_error,
)

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
GroupBy = Literal["layer", "part", "kind", "ingredient"]
#: Accumulators that sum the same products in another order, which gives the noise floor.
_BF16 = formats["bfloat16"]
_OTHER_ORDER = {accumulators["float32"]: accumulators["hopper_bf16"]}


class PartContribution(NamedTuple):
    """Contribution of one part of the model to the KL divergence.

    Attributes
    ----------
    name : str
        Name of the part.
    kl_alone, kl_alone_error : float
        KL per token with only this part in the rollout's precision, and its standard error.
    kl_reduction, kl_reduction_error : float
        Decrease of the total KL if this part keeps the trainer's precision, and its standard error; NaN where that
        combination is not possible.
    """

    name: str
    kl_alone: float
    kl_alone_error: float
    kl_reduction: float
    kl_reduction_error: float

    @property
    def is_significant(self) -> bool:
        """Whether keeping this part in the trainer's precision lowers the KL by more than two standard errors."""
        return self.kl_reduction > 2 * self.kl_reduction_error


@dataclass(frozen=True)
class Mismatch:
    """Result of `lowprec.torch.mismatch`; KL in nats per token.

    Attributes
    ----------
    train, rollout : str
        Names of the recipes.
    kl : ndarray of float64, shape (tokens,)
        KL(train || rollout) of the next-token distributions.
    log_ratio : ndarray of float64, shape (tokens,)
        ``log p_rollout - log p_train`` of the observed tokens: the logarithm of an importance ratio.
    flips : float
        Fraction of tokens for which the most likely next token differs.
    noise_floor : float
        KL divergence between the trainer's precision with sums in its order and in another order; NaN if the
        accumulator has only one order.
    group_by : str
        Kind of the groups: "layer", "part", "kind", "ingredient", or "None".
    parts : tuple of PartContribution
        Contributions, in the order of the model.
    """

    train: str
    rollout: str
    kl: Floats = field(repr=False)
    log_ratio: Floats = field(repr=False)
    flips: float
    noise_floor: float
    group_by: str
    parts: tuple[PartContribution, ...]

    @property
    def mean(self) -> float:
        """Mean KL over tokens."""
        return float(self.kl.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean KL, with tokens taken as independent."""
        return standard_error(self.kl)

    def to_pandas(self) -> pd.DataFrame:
        """Return the groups as a table."""
        import pandas as pd

        return pd.DataFrame(self.parts, columns=PartContribution._fields)

    def __str__(self) -> str:
        low, high = np.quantile(self.log_ratio, (0.01, 0.99))
        lines = [
            f"{self.train} (train) against {self.rollout} (rollout), {self.kl.size} tokens",
            f"KL            {self.mean:.3e} +- {self.error:.1e} nats per token, largest {self.kl.max():.3e}",
            f"log ratio     SD {self.log_ratio.std():.3e}, 1 to 99 %: {low:+.3e} to {high:+.3e}",
            f"flips         {self.flips:.3%} of the likeliest tokens differ",
            f"floor         {self.noise_floor:.3e}: the same precision, sums in another order",
        ]
        if self.parts:
            lines += ["", *self._table()]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        whole = self.mean or math.nan
        lines = [f"{self.group_by:32s} {'KL alone':>10s} {'share':>7s} {'KL reduction':>17s}"]
        rows = [(g.name, g.kl_alone, g.kl_reduction, " *" if g.is_significant else "") for g in self.parts]
        alone, saved = (
            float(np.nansum(column))
            for column in ([g.kl_alone for g in self.parts], [g.kl_reduction for g in self.parts])
        )
        rows.append(("sum (not additive)", alone, saved, ""))
        for name, alone, saved, mark in rows:
            first = f"{'no such accumulator':>18s}" if math.isnan(alone) else f"{alone:10.2e} {alone / whole:7.0%}"
            second = f"{'no such accumulator':>17s}{'':3s}" if math.isnan(saved) else f"{saved / whole:+17.0%}"
            lines.append(f"{name:32s} {first} {second}{mark}".rstrip())
        return [*lines, "* larger than two standard errors"]


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
            one = None if alone is None else divergence(reference, passes.log_probabilities(alone))
            rest = None if spared is None else kl - divergence(reference, passes.log_probabilities(spared))
            groups.append(PartContribution(name, *_with_error(one), *_with_error(rest)))
        other = _reordered(a)
        floor = math.nan if other is None else float(divergence(reference, passes.log_probabilities(other)).mean())
    targets = tokens[:, 1:].reshape(-1, 1)
    ratio = (whole.gather(1, targets) - reference.gather(1, targets))[:, 0].numpy()
    flips = float((whole.argmax(1) != reference.argmax(1)).double().mean())
    return Mismatch(train.name, rollout.name, kl, ratio, flips, floor, str(group_by), tuple(groups))


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


def _with_error(x: Floats | None) -> tuple[float, float]:
    return (math.nan, math.nan) if x is None else (float(x.mean()), standard_error(x))


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


_INGREDIENTS: Mapping[str, Callable[[LinearSpec, LinearSpec], LinearSpec]] = {
    "operands (formats, scales)": lambda a, b: _with_gemms(a, b, ("a", "b")),
    "accumulator": lambda a, b: _with_gemms(a, b, ("accumulator", "promote_every", "library")),
    "rounding of the result": lambda a, b: a.with_(out_format=b.out_format),
}


def _with_gemms(to: LinearSpec, of: LinearSpec, fields: tuple[str, ...]) -> LinearSpec:
    """Return a copy of a LinearSpec in which some fields of the forward product are those of another."""
    return to.with_(fprop=to.fprop.with_(**{name: getattr(of.fprop, name) for name in fields}))


def _ingredients(a: Keys, b: Keys) -> dict[str, tuple[Keys | None, Keys | None]]:
    """Return precisions with only one ingredient changed, and with all others; None where an accumulator refuses."""
    return {name: (_mixed(a, b, change), _mixed(b, a, change)) for name, change in _INGREDIENTS.items()}


def _mixed(a: Keys, b: Keys, change: Callable[[LinearSpec, LinearSpec], LinearSpec]) -> Keys | None:
    def one(mine: str, other: str) -> str:
        precision = LayerPrecision.from_key(mine)
        return precision._replace(spec=change(precision.spec, LayerPrecision.from_key(other).spec)).key

    try:
        return {name: tuple(map(one, a[name], b[name])) for name in a}
    except ValueError:
        return None


def _reordered(a: Keys) -> Keys | None:
    """Return the precisions with sums in another order, or None if no layer's accumulator has one."""
    found = dict(a)
    for name, keys in a.items():
        precisions = [LayerPrecision.from_key(key) for key in keys]
        if all(s.spec.fprop.accumulator in _OTHER_ORDER and s.spec.fprop.a.format == _BF16 for s in precisions):
            found[name] = tuple(
                s._replace(spec=s.spec.with_(fprop={"accumulator": _OTHER_ORDER[s.spec.fprop.accumulator]})).key
                for s in precisions
            )
    return found if found != a else None
