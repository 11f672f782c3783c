"""`Side`: the arithmetic of one side of a train-rollout comparison, and sides with single parts of another."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .._values import Value
from ..format.catalogue import formats
from ..format.format import Format
from ..moe.model.config import MoEConfig
from ..norm.catalogue import norms
from ..norm.norm import Norm
from ..recipe import LayerRule, LinearSpec, Recipe, load_recipe
from ..recipe.description import StorageRule
from ..recipe.names import TENSORS, matches
from .mismatch import INGREDIENTS, reordered

_ATTENTION = ("q", "k", "v", "probs", "output")
#: Parts in which two sides may differ, in the order of the table, after the ingredients of linear layers.
PARTS = (
    *INGREDIENTS, "attention", "KV cache", "norms", "router", "dispatch, combine", "stored activations", "head",
    "log-softmax",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Side(Value):
    """The arithmetic of one side: a recipe, norms, and the format of the log-softmax.

    Parameters
    ----------
    name : str
        Name in tables.
    recipe : Recipe
        Precision of linear layers, attention, stored activations and transfers to experts.
    norm : Norm, optional
        Formulas of RMSNorm; None: float64 formulas, rounded once. With a norm, gains are rounded to its dtype.
    log_softmax : Format, optional
        Format of the log-sum-exp of the logits, and of log-probabilities; None: float64.

    Examples
    --------
    >>> side = Side.of("dsv3", kv="fp8_1x128", head="float32")
    >>> side.name, str(side.recipe.spec("head").out_format)
    ('dsv3 kv=fp8_1x128 head=float32', 'float32')
    """

    name: str = dataclasses.field(compare=False)
    recipe: Recipe
    norm: Norm | None = None
    log_softmax: Format | None = None

    @property
    def logits(self) -> Format:
        """Format of the logits."""
        return self.recipe.spec("head").out_format or formats[self.recipe.activations]

    @classmethod
    def of(cls, recipe: str | Recipe, **parts: Any) -> Side:
        """Return a recipe as one side, with changed parts.

        Parameters
        ----------
        recipe : str or Recipe
            Recipe.
        **parts
            `kv`, codec of the KV cache; `combine`, codec of experts' outputs; `attention`, kernel of attention;
            `router`, format of the gate's operands and logits; `head`, format of the logits; `norm`, RMSNorm;
            `log_softmax`. Each is a name, an object, or None for no change.

        Raises
        ------
        TypeError
            If a part is unknown.
        ValueError
            If a name is not in its catalogue.
        """
        if odd := [key for key in parts if key not in OPTIONS]:
            raise TypeError(f"Side.of: unknown part {odd[0]!r}: expected one of {', '.join(OPTIONS)}")
        parts = {key: value for key, value in parts.items() if value is not None}
        base, changes = load_recipe(recipe), dict[str, Any]()
        for key in ("attention", "combine"):
            changes |= {key: parts[key]} if key in parts else {}
        if "kv" in parts:
            changes["storage"] = {"layers.*.attn.kv_norm": parts["kv"]}
        layers = dict[str, Any]()
        if "router" in parts:
            fmt = formats.get(parts["router"])
            layers["layers.*.ffn.gate"] = {"x": str(fmt), "w": str(fmt), "out_format": fmt}
        if "head" in parts:
            layers["head"] = {"out_format": formats.get(parts["head"])}
        changes |= {"layers": layers} if layers else {}
        name = " ".join((base.name, *(f"{key}={value}" for key, value in parts.items())))
        norm, rounding = parts.get("norm"), parts.get("log_softmax")
        return cls(
            name,
            base.with_(**changes) if changes else base,
            None if norm is None else norms.get(norm),
            None if rounding is None else formats.get(rounding),
        )


#: Parts that `Side.of` changes.
OPTIONS = ("kv", "head", "router", "attention", "combine", "norm", "log_softmax")


def explicit(side: Side, config: MoEConfig) -> Side:
    """Return one side whose recipe has a rule for each linear layer and each stored tensor of a model, by name."""
    recipe = side.recipe
    linears = [name for name, shape in config.parameter_shapes().items() if len(shape) == 2 and name != "embed"]
    specs = {name: recipe.spec(name, config.layers) for name in linears}
    specs["head"] = specs["head"].with_(out_format=side.logits)
    rules = tuple(LayerRule(name, spec) for name, spec in specs.items())
    stored = dict.fromkeys(name.replace("layers.0.", f"layers.{i}.") for i in range(config.layers) for name in TENSORS)
    storage = [
        StorageRule(name, rule.codec)
        for name in stored
        if (rule := next((r for r in recipe.storage if matches(name, r.pattern, config.layers)), None))
    ]
    return dataclasses.replace(side, recipe=dataclasses.replace(recipe, rules=rules, storage=tuple(storage)))


def mixed(to: Side, of: Side, part: str) -> Side | None:
    """Return one side with one part of another; None if an accumulator does not take the operands."""
    try:
        rules = [
            LayerRule(x.pattern, _mixed_linear(x.pattern, x.linear, y.linear, part))
            for x, y in zip(to.recipe.rules, of.recipe.rules, strict=True)
        ]
    except ValueError:
        return None
    names = {rule.pattern: rule for rule in (*to.recipe.storage, *of.recipe.storage)}
    storage = [rule for side in (to, of) for rule in side.recipe.storage
               if (_part_of_tensor(rule.pattern) == part) == (side is of)]  # fmt: skip
    fields = {
        "operands (formats, scales)": ("weight_source",), "attention": ("attention",),
        "dispatch, combine": ("dispatch", "combine"), "stored activations": ("activations",),
    }.get(part, ())  # fmt: skip
    recipe = dataclasses.replace(
        to.recipe, rules=tuple(rules), storage=tuple(sorted(storage, key=lambda r: [*names].index(r.pattern))),
        **{name: getattr(of.recipe, name) for name in fields},
    )  # fmt: skip
    norm = of.norm if part == "norms" else to.norm
    log_softmax = of.log_softmax if part == "log-softmax" else to.log_softmax
    return dataclasses.replace(to, recipe=recipe, norm=norm, log_softmax=log_softmax)


def _mixed_linear(name: str, to: LinearSpec, of: LinearSpec, part: str) -> LinearSpec:
    """Return a linear layer with one part of another side; the gate and the head are separate parts."""
    own = "router" if name.endswith(".gate") else name
    if own in ("router", "head"):
        return of if part == own else to
    return INGREDIENTS[part](to, of) if part in INGREDIENTS else to


def _part_of_tensor(name: str) -> str:
    last = name.rpartition(".")[2]
    if last == "kv_norm":
        return "KV cache"
    if last.endswith("norm"):
        return "norms"
    return "attention" if last in _ATTENTION else "stored activations"


def with_other_order(side: Side) -> Side | None:
    """Return one side with sums in another order, or None unless every layer's accumulator has one."""
    linears = [(rule.pattern, reordered(rule.linear)) for rule in side.recipe.rules]
    rules = tuple(LayerRule(pattern, linear) for pattern, linear in linears if linear is not None)
    if len(rules) < len(linears):
        return None
    return dataclasses.replace(side, recipe=dataclasses.replace(side.recipe, rules=rules))
