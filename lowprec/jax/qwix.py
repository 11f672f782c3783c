"""Provider of a recipe's products for the package qwix."""

from __future__ import annotations

import functools
from typing import Any

from ..recipe import Recipe, load_recipe
from .products import dot_general


class QwixProvider:
    """Provider of `dot_general` for qwix: ``qwix.quantize_model(model, lowprec.jax.QwixProvider("dsv3"))``.

    The recipe computes all calls of ``jax.lax.dot_general``, including those between two activations.

    Parameters
    ----------
    recipe : str or Recipe
        Recipe of the multiplications.
    **options
        See `dot_general`.

    Raises
    ------
    ImportError
        If qwix is missing.
    """

    def __new__(cls, recipe: str | Recipe = "dsv3", **options: Any) -> Any:
        """Return an instance of a subclass of qwix's provider."""
        try:
            from qwix import QuantizationProvider
        except ImportError:
            raise ImportError("lowprec.jax.QwixProvider needs qwix: pip install qwix") from None
        ours = functools.partial(dot_general, recipe=load_recipe(recipe), **options)

        class Provider(QuantizationProvider):  # type: ignore[misc, unused-ignore]
            def get_intercept_map(self) -> dict[str, Any]:
                return {**super().get_intercept_map(), "jax.lax.dot_general": ours}

        return Provider([])
