"""A recipe as a table, in the form of a precision map: the precision and storage of every part of a training step."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lowprec.scaling.spec import TensorSpec

from .binding import BoundRecipe
from .description import SAVED_ACTIVATIONS, RecipeFields
from .linears import OPERANDS
from .names import DEPTH, LINEARS

_MIDDLE = DEPTH // 2  # a middle block, which no pattern selects by number
_FLOAT32 = TensorSpec.parse("float32")

_WIRES = {
    "dispatch": "tokens to their experts",
    "combine": "experts' outputs back",
    "combine_grad": "gradients to the experts",
    "dispatch_grad": "gradients of their inputs back",
}


@dataclass(frozen=True)
class PrecisionRow:
    """One line of the table.

    Attributes
    ----------
    part : str
        Part of the training step; linear layers by their names.
    what : str
        Multiplication, operand or tensor.
    precision : str
        Precision, as words.
    """

    part: str
    what: str
    precision: str


def precision_rows(recipe: RecipeFields) -> list[PrecisionRow]:
    """Return the table: multiplications of linear layers, stored tensors, codecs, optimizer state.

    Layers with the same precision share a line; names without a number represent all middle blocks.

    Examples
    --------
    >>> import lowprec as lp
    >>> for row in precision_rows(lp.recipes["bf16"])[-8:-5]:
    ...     print(row.part, "|", row.what, "|", row.precision)
    wire | dispatch: tokens to their experts | bf16
    wire | combine: experts' outputs back | bf16
    wire | combine_grad: gradients to the experts | bf16
    """
    bound = BoundRecipe(recipe, layers=DEPTH)
    table = [*_linears(bound), *_special_blocks(bound)]
    store = "BF16" if recipe.activations == "bfloat16" else recipe.activations
    table.append(PrecisionRow("activations", "residual stream, norms, attention", store))
    if bound.attention is not None:
        backward = "without the kernel" if bound.attention.plain_gradient else "straight through"
        table.append(PrecisionRow("attention", f"forward; backward {backward}", str(bound.attention)))
    plain = recipe.activations == "float64"  # all storage is float64
    table += [PrecisionRow(rule.pattern, "kept as", store if plain else rule.codec.name) for rule in recipe.storage]
    for name, about in _WIRES.items():
        codec = getattr(recipe, name).name if bound.changes(name) else f"as it is, {store}"
        table.append(PrecisionRow("wire", f"{name}: {about}", codec))
    for role in SAVED_ACTIVATIONS:
        kept = f"saved_{role}"
        codec = getattr(recipe, kept).name if bound.cache(role) is not None else f"as it is, {store}"
        table.append(PrecisionRow("kept for backward", role.replace("_", " "), codec))
    if recipe.activations == "bfloat16" and any(rule.linear.quantized for rule in recipe.rules):
        source = "their BF16 copy" if recipe.weight_source == "bfloat16" else "the master weights, float32"
        table.append(PrecisionRow("weights", "quantized from", source))
    table.append(PrecisionRow("optimizer", "moments m, v", f"{recipe.moment_m}, {recipe.moment_v}"))
    table.append(PrecisionRow("optimizer", "master weights, gradients", f"{_master(recipe)}, {bound.dtype}"))
    if recipe.all_reduce is not None:
        table.append(PrecisionRow("data parallel", "gradients of ranks", str(recipe.all_reduce)))
    return table


def _master(recipe: RecipeFields) -> str:
    """Return the storage of master weights: the recipe's format or, without one, the dtype of AdamW's arithmetic."""
    whole = "float64" if recipe.moment_m == "float64" else "float32"
    return whole if recipe.master_weights in ("float64", _FLOAT32) else str(recipe.master_weights)


def _linears(bound: BoundRecipe) -> list[PrecisionRow]:
    """Return the multiplications of a middle block's layers and of the head, as the bound recipe computes them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in LINEARS:
        middle = name.replace("layers.0.", f"layers.{_MIDDLE}.").replace("experts.0.", f"experts.{_MIDDLE}.")
        ops = bound.linear(middle)
        short = name.replace("layers.0.", "").replace("experts.0.", "experts.")
        groups.setdefault(tuple(ops.words(gemm) for gemm in OPERANDS), []).append(short)
    return [
        PrecisionRow(_joined(names), gemm.capitalize(), text)
        for words, names in groups.items()
        for gemm, text in zip(OPERANDS, words, strict=True)
    ]


def _special_blocks(bound: BoundRecipe) -> list[PrecisionRow]:
    """Return a line for each rule that names blocks or experts by number."""
    if bound.recipe.activations == "float64":
        return []
    counted = [rule for rule in bound.recipe.rules if re.search(r"(layers|experts)\.-?\d", rule.pattern)]
    return [PrecisionRow(rule.pattern, "all three", str(rule.linear)) for rule in counted]


def _joined(names: list[str]) -> str:
    """Return names with their common prefix written once: attn.wq_a, wq_b."""
    out: list[str] = []
    last = ""
    for name in names:
        prefix, _, leaf = name.rpartition(".")
        out.append(f"{', ' if prefix == last else '; '}{leaf if prefix == last and prefix else name}")
        last = prefix
    return "".join(out)[2:]


def to_markdown(recipe: RecipeFields) -> str:
    """Return the table as Markdown."""
    lines = ["| part | what | precision |", "|---|---|---|"]
    lines += [f"| {row.part} | {row.what} | {row.precision} |" for row in precision_rows(recipe)]
    return "\n".join(lines)
