"""Recipes: a description of a run's precision that can be bound to a run, written and read; and their catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from lowprec.registry import Registry

from . import data, toml
from .binding import BoundRecipe
from .description import RecipeFields
from .picture import precision_map


class Recipe(RecipeFields):
    """The precision of everything in a training run.

    The parameters are those of `lowprec.recipe.description.RecipeFields`; `with_` returns a recipe with changes.

    Examples
    --------
    >>> import lowprec as lp
    >>> print(lp.recipes["dsv3"].spec("layers.1.attn.wq_a"))
    x e4m3fn 1x128, w e4m3fn 128x128, dy e4m3fn 1x128 on hopper_fp8, promoted every 128
    >>> Recipe.from_toml(lp.recipes["dsv3"].to_toml()) == lp.recipes["dsv3"]
    True
    """

    def bind(self, seed: int = 0, layers: int | None = None) -> BoundRecipe:
        """Return the precision of one run: the operations of its layers, with their state.

        Parameters
        ----------
        seed : int
            Seed of the run: with step, layer and tensor it determines all random bits.
        layers : int, optional
            Number of blocks of the model; required if a rule counts blocks from the last one.

        Raises
        ------
        ValueError
            If `layers` is required and missing, or a rule names a block that the model lacks.
        """
        return BoundRecipe(self, seed, layers)

    def __repr__(self) -> str:
        description = shorten(self.description, 90, placeholder=" ...")
        return f"<Recipe {self.name}: {description}>" if description else f"<Recipe {self.name}>"

    def _repr_html_(self) -> str:
        return precision_map(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON types, as it is stored with results: names, with the definition of every name."""
        return data.as_dict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "recipe", *, check: bool = True) -> Recipe:
        """Return the recipe that `as_dict` wrote.

        Parameters
        ----------
        content : mapping
            Data of the recipe.
        where : str
            Name of the source, for messages.
        check : bool
            Whether catalogue entries must have their recorded definitions; otherwise the recipe uses the recorded ones.

        Raises
        ------
        DefinitionError
            If a name has another definition here; the message lists the fields that differ.
        ValueError
            If the data is not that of a recipe.
        """
        return data.from_dict(content, cls, where, check=check)

    def to_toml(self) -> str:
        """Return the recipe as TOML that `from_toml` reads."""
        return toml.to_toml(self)

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """Read a recipe from TOML, complete or as changes of a recipe of the catalogue.

        Raises
        ------
        ValueError
            If it is not TOML, or has an unknown name; the message quotes it.
        """
        return toml.from_toml(text, cls, recipes)


recipes: Registry[Recipe] = Registry("recipe", Recipe)
"""The catalogue of training recipes; `lowprec.recipe.catalogue` fills it."""


def load_recipe(recipe: Recipe | str) -> Recipe:
    """Return a recipe, given as an object, by name, or as a ``.toml`` file.

    Raises
    ------
    ValueError, OSError
        See `Recipe.from_toml`; also if the file cannot be read.
    UnknownNameError
        If the catalogue has no recipe of that name.

    Examples
    --------
    >>> load_recipe("dsv3").dispatch.name
    'fp8_1x128_ue8m0'
    """
    if not (isinstance(recipe, str) and recipe.endswith(".toml")):
        return recipes.get(recipe)
    try:
        return Recipe.from_toml(Path(recipe).read_bytes().decode())
    except (ValueError, TypeError) as error:
        raise ValueError(f"{recipe!r}: {error}") from None
