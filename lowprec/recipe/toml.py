"""Recipes as TOML, whole or as what differs from a recipe of the catalogue.

A whole one has the fields of `Recipe`, a table ``[[linear]]`` for each rule and ``[[storage]]`` for each kept tensor::

    name = "mine"
    dispatch = "fp8_1x128_ue8m0"

    [[linear]]
    layers = "layers.*.attn.w*"
    fprop = { a = "e4m3fn 1x128", b = "e4m3fn 128x128", accumulator = "hopper_fp8", promote_every = 128 }
    dgrad = { a = "e5m2 1x128", b = "e4m3fn 128x128", accumulator = "hopper_fp8", promote_every = 128 }
    wgrad = { a = "e5m2 1x128", b = "e4m3fn 1x128", accumulator = "hopper_fp8", promote_every = 128 }

and one that differs has a base and what `Recipe.with_` takes::

    base = "dsv3"
    name = "mine"
    dy = "e5m2 1x128"
    promote_every = "never"

    [layers."layers.*.ffn.gate"]
    out = "float32"
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from lowprec.registry import Registry

from .description import Description, Rule, Storage
from .linears import NEVER, OPERANDS, GemmSpec, LinearSpec

D = TypeVar("D", bound=Description)


def as_dict(recipe: Description) -> dict[str, Any]:
    """Return a recipe as plain data of TOML's types."""
    plain = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
    plain["linear"] = [{"layers": rule.pattern, **rule.linear.as_dict()} for rule in plain.pop("rules")]
    plain["storage"] = [{"tensors": rule.pattern, "codec": rule.codec} for rule in recipe.storage]
    return plain


def to_toml(recipe: Description) -> str:
    """Return a recipe as TOML."""
    plain = as_dict(recipe)
    tables = {"linear": plain.pop("linear"), "storage": plain.pop("storage")}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for name, rows in tables.items():
        for row in rows:
            lines += ["", f"[[{name}]]", *(f"{key} = {_value(value)}" for key, value in row.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def from_toml(text: str, kind: type[D], bases: Registry[D]) -> D:
    """Read a recipe from TOML.

    Parameters
    ----------
    text : str
        The TOML.
    kind : type
        What to make of it.
    bases : Registry
        Where the recipes are that one may differ from.

    Raises
    ------
    ValueError
        If it is no TOML, or says something that a recipe does not have.
    TypeError
        If it is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"recipe: TOML is a text, not {text!r}")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"recipe: this is no TOML: {error}") from None
    if "base" in data:
        return _changed(data, bases[data.pop("base")])
    known = {f.name for f in dataclasses.fields(Description)} - {"rules"} | {"linear"}
    _only(data, known, "recipe")
    if "name" not in data:
        raise ValueError("recipe: 'name' is missing (or 'base', the recipe that it differs from)")
    rules = tuple(_rule(row) for row in _rows(data.pop("linear", []), "linear"))
    storage = tuple(_storage(row) for row in _rows(data.pop("storage", []), "storage"))
    for key, value in data.items():
        if not isinstance(value, str):
            raise ValueError(f"recipe: {key} = {value!r}: a text is needed")
    return kind(**{"description": "", **data, "rules": rules, "storage": storage})


def _changed(data: dict[str, Any], base: D) -> D:
    """Return the base with changes."""
    if "storage" in data:
        data["storage"] = (*(_storage(row) for row in _rows(data["storage"], "storage")), *base.storage)
    if "linear" in data:
        data["rules"] = (*(_rule(row) for row in _rows(data.pop("linear"), "linear")), *base.rules)
    _only(data, set(Description.changes()), "recipe")
    _never_to_none(data)
    return base.with_(**data)


def _never_to_none(table: dict[str, Any]) -> None:
    """Put None, which TOML lacks, for the word that stands for it, in tables within the table too."""
    for key, value in table.items():
        if isinstance(value, dict):
            _never_to_none(value)
        elif key == "promote_every" and value == NEVER:
            table[key] = None


def _rule(row: dict[str, Any]) -> Rule:
    _only(row, {"layers", *OPERANDS, "wgrad_input", "dgrad_weight", "out"}, "[[linear]]")
    if "layers" not in row:
        raise ValueError(f"[[linear]]: 'layers', the pattern of names, is missing in {row!r}")
    pattern, gemms = row.pop("layers"), dict[str, Any]()
    for name in OPERANDS:
        given = row.pop(name, {})
        if not isinstance(given, dict):
            raise ValueError(f"[[linear]] {name} = {given!r}: a table is needed, such as {{ a = 'e4m3fn 1x128', ... }}")
        _only(given, {f.name for f in dataclasses.fields(GemmSpec)}, f"[[linear]] {name}")
        gemms[name] = GemmSpec.from_dict(given)
    return Rule(pattern, LinearSpec(**gemms, **row))


def _storage(row: dict[str, Any]) -> Storage:
    _only(row, {"tensors", "codec"}, "[[storage]]")
    if len(row) < 2:
        raise ValueError(f"[[storage]]: 'tensors' and 'codec' are needed, there is {row!r}")
    return Storage(row["tensors"], row["codec"])


def _rows(value: Any, name: str) -> Iterable[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"recipe: {name} is written as tables [[{name}]]")
    return value


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    names: Registry[str] = Registry(f"entry of {where}", str)
    for key in sorted(known):
        names.register(key, key)
    for key in data:
        names[key]
