"""The page of recipes, from the catalogue."""

from __future__ import annotations

from lowprec.recipe import recipes
from lowprec.recipe.table import as_text

_HEAD = """# All recipes as tables

Generated from the catalogue by `python docs/refresh.py`. `lowprec recipes NAME` prints one table, `lowprec recipes NAME
--toml` a file to edit, and `lowprec train --recipe FILE.toml` trains with it.

An operand is described as in `lowprec.scaling.spec`: element format, block that shares a scale (the axis of the sum is
the column axis) and scale format, or the name of a quantizer of `lowprec.quantizers`. Every product is bit-exact on the
accumulator that it names. Layers without a row run in BF16 on `float32`, one fixed-order FMA chain.
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
