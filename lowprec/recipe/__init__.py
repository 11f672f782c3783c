"""Training recipes: a run's whole precision as data, and that data bound to a run.

`Recipe` (description) says what, `BoundRecipe` (binding) is what the layers of one run hold, `recipes` (catalogue)
has the published ones.
"""

from .binding import BoundRecipe
from .catalogue import recipes
from .description import Recipe, Rule, Storage
from .linears import BF16_LINEAR, GemmSpec, LinearSpec
from .operations import LinearOps, SavedInput, SavedLinear
from .tensors import TensorSpec
from .toml import load_recipe

__all__ = [
    "BF16_LINEAR", "BoundRecipe", "GemmSpec", "LinearOps", "LinearSpec", "Recipe", "Rule", "SavedInput", "SavedLinear",
    "Storage", "TensorSpec", "load_recipe", "recipes",
]  # fmt: skip
