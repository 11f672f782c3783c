"""A recipe as a table, in the form of a precision map: what every part of a training step is computed and kept in."""

from __future__ import annotations

from dataclasses import dataclass

from .description import CACHES, Description
from .linears import OPERANDS
from .names import LINEARS

_WIRES = {
    "dispatch": "tokens to their experts",
    "combine": "experts' outputs back",
    "combine_grad": "gradients to the experts",
    "dispatch_grad": "gradients of their inputs back",
}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    part : str
        What it is about, linear layers by their names.
    what : str
        Multiplication, operand or tensor.
    precision : str
        In words.
    """

    part: str
    what: str
    precision: str


def rows(recipe: Description) -> list[Row]:
    """Return the table: multiplications of linear layers, what is kept, what is sent, what the optimizer holds.

    Layers that share a precision share lines; names without a number stand for every middle block.

    Examples
    --------
    >>> import lowprec as lp
    >>> for row in rows(lp.recipes["bf16"])[-8:-5]:
    ...     print(row.part, "|", row.what, "|", row.precision)
    wire | dispatch: tokens to their experts | bf16
    wire | combine: experts' outputs back | bf16
    wire | combine_grad: gradients to the experts | bf16
    """
    table = [*_linears(recipe), *_special_blocks(recipe)]
    store = {"bfloat16": "BF16", "float32": "float32", "float64": "float64"}[recipe.activations]
    table.append(Row("activations", "residual stream, norms, attention", store))
    table += [Row(rule.pattern, "kept as", rule.codec) for rule in recipe.storage]
    table += [Row("wire", f"{name}: {about}", getattr(recipe, name)) for name, about in _WIRES.items()]
    table += [Row("kept for backward", role.replace("_", " "), getattr(recipe, f"cache_{role}")) for role in CACHES]
    table.append(Row("optimizer", "moments m, v", f"{recipe.moment_m}, {recipe.moment_v}"))
    table.append(Row("optimizer", "master weights, gradients", f"{recipe.master}, float32"))
    return table


def _linears(recipe: Description) -> list[Row]:
    """Return the multiplications of a middle block's layers and of the head."""
    groups: dict[object, list[str]] = {}
    for name in LINEARS:
        spec = recipe.spec(name, layers=3)
        groups.setdefault(spec, []).append(name.replace("layers.0.", "").replace("experts.0.", "experts."))
    table = []
    for names in groups.values():
        spec = recipe.spec(_full(names[0]), layers=3)
        part = _joined(names)
        more = {"fprop": spec.leaves("y"), "dgrad": spec.leaves("dx"), "wgrad": ""}
        if spec.quantized and spec.wgrad_input == "source":
            more["wgrad"] = ", x from its source"
        for gemm in OPERANDS:
            table.append(Row(part, gemm.capitalize(), f"{getattr(spec, gemm)}{more[gemm]}"))
    return table


def _special_blocks(recipe: Description) -> list[Row]:
    """Return a line for each block that differs."""
    counted = [rule for rule in recipe.rules if rule.pattern.startswith("layers.") and rule.pattern[7] in "-0123456789"]
    return [Row(rule.pattern, "all three", str(rule.linear)) for rule in counted]


def _full(name: str) -> str:
    return name if name == "head" else f"layers.0.{name}".replace("experts.", "experts.0.")


def _joined(names: list[str]) -> str:
    """Return names with what they share said once: attn.wq_a, wq_b."""
    out: list[str] = []
    last = ""
    for name in names:
        prefix, _, leaf = name.rpartition(".")
        out.append(f"{', ' if prefix == last else '; '}{leaf if prefix == last and prefix else name}")
        last = prefix
    return "".join(out)[2:]


def as_text(recipe: Description) -> str:
    """Return the table as Markdown."""
    lines = ["| part | what | precision |", "|---|---|---|"]
    lines += [f"| {row.part} | {row.what} | {row.precision} |" for row in rows(recipe)]
    return "\n".join(lines)
