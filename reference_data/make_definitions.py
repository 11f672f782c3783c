"""Write definitions.json: the hash of every catalogue entry that files name, and the defaults that hashes leave out.

    PYTHONPATH=. python reference_data/make_definitions.py        (and its hash into README.md)

Recipes, checkpoints and studies are checked against these hashes when they are read. An entry that changes is refused
there, so a changed line here is a decision. A default that changes would change entries without a changed hash.
"""

import dataclasses
import json
from pathlib import Path

from lowprec.definitions import deciding_fields, described, short_hash
from lowprec.recipe import LinearSpec, Recipe, TensorSpec, recipes
from lowprec.recipe.data import CATALOGUES, CLASSES

FILE = Path(__file__).with_name("definitions.json")


def definitions() -> dict[str, dict[str, dict[str, object]]]:
    """Return the hashes by kind and name, and the defaults by class and field."""
    catalogues = {**CATALOGUES, "recipe": recipes}
    hashes = {kind: {name: short_hash(entries[name]) for name in entries} for kind, entries in catalogues.items()}
    classes = [*CLASSES.values(), TensorSpec, type(LinearSpec().fprop), LinearSpec, Recipe]
    return {"hashes": hashes, "defaults": {cls.__name__: _defaults(cls) for cls in classes}}


def _defaults(cls: type) -> dict[str, object]:
    fields = (field for field in deciding_fields(cls) if field.default is not dataclasses.MISSING)
    return {field.name: _plain(field.default) for field in fields}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return f"{getattr(value, 'name', '') or described(value)['is']} {short_hash(value)}"
    return list(map(_plain, value)) if isinstance(value, tuple) else value


if __name__ == "__main__":
    from digest import record

    FILE.write_text(json.dumps(definitions(), indent=1) + "\n")
    record(FILE)
