"""The page of recipes, from the catalogue."""

from __future__ import annotations

from lowprec.recipe import recipes
from lowprec.recipe.table import as_text

_HEAD = """# All recipes as tables

Made from the catalogue by `python docs/refresh.py`; `lowprec recipes NAME` prints one table,
`lowprec recipes NAME --toml` a file to change and to train with, `lowprec train --recipe FILE.toml`.

Operands are described as `lowprec.scaling.spec` says: element format, block that shares a scale (seen with the sum's
axis as columns), kind of scale, or the name of a quantizer of `lowprec.quantizers`. Every product is exact on the
accumulator that it names. Layers that no line names run in BF16 on `float32`, one fixed-order FMA chain.
"""


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name in recipes:
        recipe = recipes[name]
        source = f"\n\nSource: {recipe.source}." if recipe.source else ""
        parts.append(
            f"## {name}\n\n{recipe.description[0].upper()}{recipe.description[1:]}.{source}\n\n{as_text(recipe)}\n"
        )
    return "\n".join(parts)
