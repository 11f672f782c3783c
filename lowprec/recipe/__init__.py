"""Training recipes: a run's whole precision as data, and that data bound to a run.

`Recipe` is the data, `BoundRecipe` (binding) is what the layers of one run hold, and `recipes` (catalogue) has the
published recipes.
"""

from lowprec.scaling.spec import TensorSpec

from .binding import BoundRecipe
from .catalogue import recipes
from .description import LayerRule, StorageRule
from .linears import AS_ACTIVATIONS, BF16_LINEAR, GemmSpec, LinearSpec
from .operands import NoState, TensorState
from .operations import LinearOps, SavedInput, SavedLinear, linear_ops
from .precision import LayerPrecision
from .recipe import Recipe, load_recipe
from .state import LayerState, derive_seed, rounding_seed

__all__ = [
    "AS_ACTIVATIONS",
    "BF16_LINEAR",
    "BoundRecipe",
    "GemmSpec",
    "LayerPrecision",
    "LayerRule",
    "LayerState",
    "LinearOps",
    "LinearSpec",
    "NoState",
    "Recipe",
    "SavedInput",
    "SavedLinear",
    "StorageRule",
    "TensorSpec",
    "TensorState",
    "derive_seed",
    "linear_ops",
    "load_recipe",
    "recipes",
    "rounding_seed",
]  # fmt: skip
