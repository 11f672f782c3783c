"""definitions.json: the hash of every catalogue entry that files name, and the defaults that hashes leave out.

Recipes, checkpoints and studies are checked against these hashes when they are read. An entry that changes is refused
there, so a changed line here is a decision. A default that changes would change entries without a changed hash.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

from lowprec.definitions import deciding_fields, short_hash, to_mapping
from lowprec.recipe import LinearSpec, Recipe, TensorSpec, recipes
from lowprec.recipe.data import CATALOGUES, CLASSES


def entries() -> dict[tuple[str, ...], Callable[[], object]]:
    """Return how to compute a hash, by kind and name, and a default, by class and field."""
    catalogues = {**CATALOGUES, "recipe": recipes}
    classes = [*CLASSES.values(), TensorSpec, type(LinearSpec().fprop), LinearSpec, Recipe]
    hashes = {
        ("hashes", kind, name): partial(short_hash, known[name]) for kind, known in catalogues.items() for name in known
    }
    return hashes | {
        ("defaults", cls.__name__, field.name): partial(_plain, field.default)
        for cls in classes
        for field in deciding_fields(cls)
        if field.default is not dataclasses.MISSING
    }


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return f"{getattr(value, 'name', '') or to_mapping(value)['is']} {short_hash(value)}"
    return list(map(_plain, value)) if isinstance(value, tuple) else value
