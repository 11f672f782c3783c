"""Recipes: a description of a run's precision that can be bound to a run, written and read; and their catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from lowprec.registry import Registry

from . import data, toml
from .binding import BoundRecipe
from .description import Description
from .picture import precision_map


class Recipe(Description):
    """The precision of everything in a training run.

    Its parameters are those of `lowprec.recipe.description.Description`; `with_` gives one that differs.

    Examples
    --------
    >>> import lowprec as lp
    >>> print(lp.recipes["dsv3"].spec("layers.1.attn.wq_a"))
    x e4m3fn 1x128, w e4m3fn 128x128, dy e4m3fn 1x128 on hopper_fp8, promoted every 128
    >>> Recipe.from_toml(lp.recipes["dsv3"].to_toml()) == lp.recipes["dsv3"]
    True
    """

    def bind(self, seed: int = 0, layers: int | None = None) -> BoundRecipe:
        """Return the precision of one run: what layers hold, with the state that some of it needs.

        Parameters
        ----------
        seed : int
            The run's seed: with step, layer and tensor it decides the bits of everything stochastic.
        layers : int, optional
            How many blocks the model has; needed if a rule counts from the last one.

        Raises
        ------
        ValueError
            If it is needed and missing, or a rule names a block that the model lacks.
        """
        return BoundRecipe(self, seed, layers)

    def __repr__(self) -> str:
        return f"<Recipe {self.name}: {shorten(self.description, 90, placeholder=' ...')}>"

    def _repr_html_(self) -> str:
        return precision_map(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON's types, as results keep it: in words, and with what every name stands for."""
        return data.as_dict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "recipe", *, check: bool = True) -> Recipe:
        """Return the recipe that `as_dict` wrote.

        Parameters
        ----------
        content : mapping
            The data.
        where : str
            What is read, for messages.
        check : bool
            Whether a catalogue's entry must still be what it was; otherwise the recipe holds what it was then.

        Raises
        ------
        DefinitionError
            If a name stands for something else here; the message says which fields differ.
        ValueError
            If the data is no recipe's.
        """
        return data.from_dict(content, cls, where, check=check)

    def to_toml(self) -> str:
        """Return the recipe as TOML that `from_toml` reads."""
        return toml.to_toml(self)

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """Read a recipe from TOML, whole or as what differs from one of the catalogue.

        Raises
        ------
        ValueError
            If it is no TOML, or names what does not exist; the message quotes it.
        """
        return toml.from_toml(text, cls, recipes)


recipes: Registry[Recipe] = Registry("recipe", Recipe)
"""The catalogue of training recipes; `lowprec.recipe.catalogue` fills it."""


def load_recipe(recipe: Recipe | str) -> Recipe:
    """Return a recipe: itself, one by its name, or one in a file whose name ends in ``.toml``.

    Raises
    ------
    ValueError, OSError
        As for `Recipe.from_toml`, or if the file cannot be read.
    UnknownNameError
        If there is none of that name.

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
