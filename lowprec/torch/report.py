"""Report of a converted model: the precision of each linear layer, and the parts that the recipe does not reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from lowprec.codec.catalogue import codecs
from lowprec.recipe import Recipe, TensorSpec
from lowprec.recipe.description import DIRECTIONS, STATES

from .emulation.forward import describe_stack
from .linear import Converted

if TYPE_CHECKING:
    import pandas as pd

#: Parts of a recipe other than linear layers: their counterpart in a plain model, and how to apply them to it.
_ELSEWHERE: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(DIRECTIONS, (codecs["bf16"], "lowprec.torch.apply_codec")),
    "saved_swiglu_input": (codecs["bf16"], "lowprec.torch.checkpoint_with_codec"),
    **dict.fromkeys(STATES, (TensorSpec.parse("float32"), "lowprec.torch.AdamW or RoundedOptimizerState")),
}


@dataclass(frozen=True)
class ModuleRow:
    """One linear layer: a module, or a part of a module with several layers.

    Attributes
    ----------
    name : str
        Name of the module, followed by that of the layer if the module has several.
    role : str
        Layer of the recipe; empty if the module is not converted.
    precision : str
        Precision of the layer, or the reason why the recipe does not apply.
    guess : str
        Reason why the role is a guess; empty if it was given or follows from the structure of the model.
    """

    name: str
    role: str
    precision: str
    guess: str = ""


@dataclass(frozen=True)
class Report:
    """Result of `lowprec.torch.report`.

    Attributes
    ----------
    recipe : str
        Name of the recipe; "none" if the model has a stack alone.
    rows : tuple of ModuleRow
        One row per linear layer.
    unreached : tuple of str
        Weights that no converted module multiplies, parts of the recipe without a counterpart in the model, and
        operations of past forward passes that PyTorch computed in place of the stack.
    notes : tuple of str
        Further remarks.
    idle : str
        Possible reason why the recipe quantizes no layer of the model; empty if it quantizes some.
    """

    recipe: str
    rows: tuple[ModuleRow, ...]
    unreached: tuple[str, ...]
    notes: tuple[str, ...]
    idle: str = ""

    @property
    def guesses(self) -> tuple[ModuleRow, ...]:
        """Rows with a guessed role."""
        return tuple(row for row in self.rows if row.guess)

    def problems(self) -> list[str]:
        """Return the reasons why `convert` with `strict=True` refuses the model."""
        guesses = [f"{row.name} is {row.role} by a guess ({row.guess})" for row in self.guesses]
        found = [("", [self.idle] if self.idle else []), ("roles to set by roles=", guesses)]
        found.append(("not covered", list(self.unreached)))
        return [f"{words}: {', '.join(listed)}".removeprefix(": ") for words, listed in found if listed]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __str__(self) -> str:
        groups: dict[tuple[str, str, str], list[str]] = {}
        for row in self.rows:
            groups.setdefault((pattern_of(row.role), row.precision, row.guess), []).append(row.name)
        count = len(self.rows)
        lines = [f"recipe {self.recipe}: {count} linear layer{'' if count == 1 else 's'}"]
        for (role, precision, guess), names in groups.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  {names[0]}{more}, role {role}{f' (a guess: {guess})' if guess else ''}: {precision}")
        if self.guesses:
            lines.append(f"guessed roles: {len(self.guesses)}; set them by roles={{{self.guesses[0].name!r}: ROLE}}")
        if self.unreached:
            lines += ["not covered by the conversion:", *(f"  {part}" for part in self.unreached)]
        return "\n".join([*lines, *(f"note: {note}" for note in (*filter(None, [self.idle]), *self.notes))])


def pattern_of(role: str) -> str:
    """Return a role without its numbers, so that blocks and experts of equal precision share a line."""
    return ".".join("*" if part.isdigit() else part for part in role.split("."))


def describe(model: nn.Module, recipe: Recipe | None, notes: list[str]) -> Report:
    """Return the report of a converted model."""
    of_stack, more = describe_stack(model)
    if recipe is None:
        return Report("none", (), tuple(of_stack), tuple(more))
    notes = [*notes, *more]
    rows, owned, fused, quantized = [], set[int](), False, False
    for name, module in model.named_modules():
        if isinstance(module, Converted):
            owned |= {id(weight) for weight in module.parameters(recurse=False)}
            rows += [
                ModuleRow(f"{name}{part}", layer, str(spec), guess)
                for part, layer, spec, guess in zip(
                    module.parts_of(), module.layers, module.specs, module.guesses, strict=True
                )
            ]
            quantized |= any(spec.quantized for spec in module.specs)
            fused |= any(layer.endswith("w1") for layer in module.layers) and len(module.layers) > 1
    unreached = of_stack + [
        f"{name} {tuple(weight.shape)} of {type(owner).__name__}: {_why(owner)}"
        for name, weight in model.named_parameters()
        if weight.dim() >= 2 and id(weight) not in owned and not isinstance(owner := _owner(model, name), nn.Embedding)
    ]
    for field, (plain, where) in _ELSEWHERE.items():
        if (value := getattr(recipe, field)) != plain:
            unreached.append(f"{field} = {getattr(value, 'name', value)}: apply it by {where}")
    unreached += [
        f"storage of {rule.pattern} = {rule.codec.name}: a torch model does not have this tensor"
        for rule in recipe.storage
    ]
    attention = recipe.attention
    if attention is not None and "_lowprec_attention" not in model.__dict__:
        unreached.append(f"attention = {attention}: apply it by lowprec.torch.attention")
    elif attention is not None:
        held = model.__dict__["_lowprec_attention"]
        where = "" if isinstance(held, str) else f" in scaled_dot_product_attention of {_first(held)}"
        notes = [*notes, f"attention: forward pass of {attention}{where}, straight-through backward pass"]
    more = (
        ["fused gate and up projections are one layer: a block of its weights may contain rows of both"]
        if fused
        else []
    )
    idle = "" if quantized or not any(rule.linear.quantized for rule in recipe.rules) else _idle(recipe, rows)
    return Report(recipe.name, tuple(rows), tuple(unreached), (*notes, *more), idle)


def _first(names: Sequence[str]) -> str:
    return f"{names[0] or 'the model'}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


def _idle(recipe: Recipe, rows: list[ModuleRow]) -> str:
    layers, precisions = (dict.fromkeys(words) for words in zip(*((r.role, r.precision) for r in rows), strict=True))
    return (
        f"recipe {recipe.name} quantizes nothing in this model: {len(rows)} of {len(rows)} linear layers are "
        f"{', '.join(precisions)}, which its rules keep for {', '.join(list(layers)[:4])}"
    )


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _why(owner: nn.Module) -> str:
    if isinstance(owner, nn.Linear) and type(owner) is not nn.Linear:
        return "a subclass of nn.Linear with a forward pass that may differ or never run"
    if type(owner) is nn.Linear:
        return "skipped"
    return "multiplied by the module itself, in torch"
