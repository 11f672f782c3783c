"""Recipes and the environment of a study, for its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .document import Details


def recipe_details(recipes: Mapping[str, Any]) -> list[Details]:
    """Return one folded part for each different recipe, named by its arms."""
    arms: dict[str, list[str]] = {}
    for arm, recipe in recipes.items():
        arms.setdefault(_text(recipe), []).append(arm)
    return [Details(f"Recipe of {', '.join(names)}", text) for text, names in arms.items()]


def _text(recipe: Any) -> str:
    """Return a recipe as a few lines of JSON, a line for each rule."""
    if not isinstance(recipe, dict):
        return str(recipe)
    lines = []
    for key, value in recipe.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{key}:", *(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)]
        else:
            lines.append(f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def environment(record: Mapping[str, Any]) -> Details:
    """Return code, versions, data and machine of a run as a folded part."""
    fingerprint, machine = record["fingerprint"], record.get("machine", {})
    lines = [f"code: {fingerprint.get('code')}", f"data sha256: {fingerprint.get('data')}"]
    versions = fingerprint.get("versions")
    lines += [f"{name}: {value}" for name, value in versions.items()] if isinstance(versions, dict) else []
    lines += [
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in machine.items()
        if name != "executable"
    ]
    return Details("Environment of the first run", "\n".join(lines))
