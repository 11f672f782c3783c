"""What runs how in a converted model, and what its recipe could not reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from lowprec.codec.catalogue import codecs
from lowprec.recipe import Recipe, TensorSpec
from lowprec.recipe.description import DIRECTIONS, STATES

from .linear import Converted

if TYPE_CHECKING:
    import pandas as pd

#: Parts of a recipe that are no linear layer's: what they are in a plain model, and what puts them into one.
_ELSEWHERE: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(DIRECTIONS, (codecs["bf16"], "lowprec.torch.wire")),
    "cache_swiglu_input": (codecs["bf16"], "lowprec.torch.cached"),
    **dict.fromkeys(STATES, (TensorSpec.parse("float32"), "lowprec.torch.AdamW or StateFormats")),
}


@dataclass(frozen=True)
class Row:
    """One product, or one module that has none.

    Attributes
    ----------
    name : str
        Of the module, and of the product if it has several.
    role : str
        Which layer of the recipe it is; empty if it is not converted.
    precision : str
        What runs, or why nothing of the recipe does.
    """

    name: str
    role: str
    precision: str


@dataclass(frozen=True)
class Report:
    """What `lowprec.torch.report` tells.

    Attributes
    ----------
    recipe : str
        The recipe's name.
    rows : tuple of Row
        A row a product.
    unreached : tuple of str
        Weights that no converted module multiplies, and parts of the recipe that have no place in the model.
    notes : tuple of str
        What else one should know.
    """

    recipe: str
    rows: tuple[Row, ...]
    unreached: tuple[str, ...]
    notes: tuple[str, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __str__(self) -> str:
        groups: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            groups.setdefault((_pattern(row.role), row.precision), []).append(row.name)
        lines = [f"recipe {self.recipe}: {len(self.rows)} products"]
        for (role, precision), names in groups.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  {names[0]}{more} as {role}: {precision}")
        if self.unreached:
            lines += ["not reached by the recipe:", *(f"  {what}" for what in self.unreached)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _pattern(role: str) -> str:
    """Return a role with its numbers left out, so that blocks and experts of one precision share a line."""
    return ".".join("*" if part.isdigit() else part for part in role.split("."))


def describe(model: nn.Module, recipe: Recipe, notes: list[str]) -> Report:
    """Return the report of a converted model."""
    rows, owned, fused = [], set[int](), False
    for name, module in model.named_modules():
        if isinstance(module, Converted):
            owned |= {id(weight) for weight in module.parameters(recurse=False)}
            for part, layer, spec in zip(module.parts_of(), module.layers, module.specs, strict=True):
                rows.append(Row(f"{name}{part}", layer, str(spec)))
            fused |= any(layer.endswith("w1") for layer in module.layers) and len(module.layers) > 1
    unreached = [
        f"{name} {tuple(weight.shape)} of {type(owner).__name__}: {_why(owner)}"
        for name, weight in model.named_parameters()
        if weight.dim() >= 2 and id(weight) not in owned and not isinstance(owner := _owner(model, name), nn.Embedding)
    ]
    for field, (plain, where) in _ELSEWHERE.items():
        if (value := getattr(recipe, field)) != plain:
            unreached.append(f"{field} = {getattr(value, 'name', value)}: {where} puts it into a model")
    unreached += [
        f"storage of {rule.pattern} = {rule.codec.name}: no place in a torch model" for rule in recipe.storage
    ]
    more = (
        ["fused gate and up projections are one product: a block of its weights may hold rows of both"] if fused else []
    )
    return Report(recipe.name, tuple(rows), tuple(unreached), (*notes, *more))


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _why(owner: nn.Module) -> str:
    if isinstance(owner, nn.Linear) and type(owner) is not nn.Linear:
        return "a subclass of nn.Linear, whose forward pass may be another or never run"
    if type(owner) is nn.Linear:
        return "skipped"
    return "multiplied by the module itself, in torch"
