"""Training recipes: a run's whole precision as data, and that data bound to a run.

`Recipe` (description) says what, `BoundRecipe` (binding) is what the layers of one run hold, `recipes` (catalogue)
has the published ones.
"""

from .binding import BoundRecipe
from .catalogue import recipes
from .description import BF16_LINEAR, LinearSpec, Recipe, Rule, TensorSpec
from .linear import LinearOps

__all__ = ["BF16_LINEAR", "BoundRecipe", "LinearOps", "LinearSpec", "Recipe", "Rule", "TensorSpec", "recipes"]
