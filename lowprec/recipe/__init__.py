"""Training recipes: a run's whole precision as data, and that data bound to a run.

`Recipe` says what, `BoundRecipe` (binding) is what the layers of one run hold, `recipes` (catalogue)
has the published ones.
"""

from .binding import BoundRecipe
from .catalogue import recipes
from .description import Rule, Storage
from .linears import BF16_LINEAR, GemmSpec, LinearSpec
from .operations import LinearOps, SavedInput, SavedLinear
from .recipe import Recipe, load_recipe
from .tensors import TensorSpec

__all__ = [
    "BF16_LINEAR", "BoundRecipe", "GemmSpec", "LinearOps", "LinearSpec", "Recipe", "Rule", "SavedInput", "SavedLinear",
    "Storage", "TensorSpec", "load_recipe", "recipes",
]  # fmt: skip
