"""Generate the page of recipes from the catalogue."""

from __future__ import annotations

from lowprec.recipe import Recipe, recipes
from lowprec.recipe.table import to_markdown

_HEAD = """# All recipes as tables

Generated from the catalogue by `python docs/refresh.py`. `lowprec recipes NAME` prints one table, `lowprec recipes NAME
--toml` a file to edit, and `lowprec train --recipe FILE.toml` trains with it.

An operand is described as in `lowprec.scaling.spec`: element format, block that shares a scale (the axis of the sum is
the column axis) and scale format, or the name of a quantizer of `lowprec.quantizers`. Every product is bit-exact on the
accumulator that it names. Layers without a row run in BF16 on `float32`, one fixed-order FMA chain.
"""


def introduction(recipe: Recipe) -> str:
    """Return the description of a recipe as sentences, with its source; names of other recipes stay in lower case."""
    first, _, rest = recipe.description.partition(" ")
    first = f"`{first}`" if first in recipes else first[0].upper() + first[1:]
    return f"{first} {rest}." + (f"\n\nSource: {recipe.source}." if recipe.source else "")


def page() -> str:
    """Return docs/recipes.md."""
    parts = [_HEAD]
    parts += [f"## {name}\n\n{introduction(recipes[name])}\n\n{to_markdown(recipes[name])}\n" for name in recipes]
    return "\n".join(parts)
