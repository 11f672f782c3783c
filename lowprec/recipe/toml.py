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
from collections.abc import Callable, Iterable, Mapping
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
    """Return a recipe as TOML.

    Raises
    ------
    ValueError
        If `from_toml` could not read it back: a name that is not a string, or a string with a lone surrogate.
    """
    plain = as_dict(recipe)
    tables = {"linear": plain.pop("linear"), "storage": plain.pop("storage")}
    _check(plain, f"recipe {recipe.name!r}")
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for name, rows in tables.items():
        for row in rows:
            lines += ["", f"[[{name}]]", *(f"{key} = {_value(value)}" for key, value in row.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the control character that JSON allows


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
        data = tomllib.loads(text.removeprefix("\ufeff"))  # a mark of the byte order, which some editors write
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"recipe: this is no TOML: {error}") from None
    try:
        return _read(data, kind, bases)
    except TypeError as error:
        raise ValueError(f"recipe: {error}") from None


def _read(data: dict[str, Any], kind: type[D], bases: Registry[D]) -> D:
    if "base" in data:
        _check({"base": data["base"]}, "recipe")
        return _changed(data, bases[data.pop("base")])
    known = {f.name for f in dataclasses.fields(Description)} - {"rules"} | {"linear"}
    _only(data, known, "recipe")
    if "name" not in data:
        raise ValueError("recipe: 'name' is missing (or 'base', the recipe that it differs from)")
    rules = tuple(_rule(row) for row in _rows(data.pop("linear", []), "linear"))
    storage = tuple(_storage(row) for row in _rows(data.pop("storage", []), "storage"))
    _check(data, "recipe")
    return kind(**{"description": "", **data, "rules": rules, "storage": storage})


def _changed(data: dict[str, Any], base: D) -> D:
    """Return the base with changes."""
    _only(data, {*Description.changes(), "linear"} - {"rules"}, "recipe")
    more: dict[str, Any] = {}
    if "storage" in data:
        more["storage"] = (*(_storage(row) for row in _rows(data.pop("storage"), "storage")), *base.storage)
    if "linear" in data:
        more["rules"] = (*(_rule(row) for row in _rows(data.pop("linear"), "linear")), *base.rules)
    _check(data, "recipe", "layers", *OPERANDS)
    layers = data.get("layers", {})
    _check(layers, "layers", *layers)
    for where, change in (("recipe", data), *((f"layers.{pattern!r}", change) for pattern, change in layers.items())):
        _check({key: value for key, value in change.items() if key != "layers"}, where, *OPERANDS)
        for name in OPERANDS:
            _check_gemm(change.get(name, {}), f"{where} {name}")
    _never_to_none(data)
    return base.with_(**data, **more)


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
    _check(row, "[[linear]]", *OPERANDS)
    pattern, gemms = row.pop("layers"), dict[str, Any]()
    for name in OPERANDS:
        given = row.pop(name, {})
        _check_gemm(given, f"[[linear]] {name}")
        gemms[name] = GemmSpec.from_dict(given)
    return Rule(pattern, LinearSpec(**gemms, **row))


def _storage(row: dict[str, Any]) -> Storage:
    _only(row, {"tensors", "codec"}, "[[storage]]")
    if len(row) < 2:
        raise ValueError(f"[[storage]]: 'tensors' and 'codec' are needed, there is {row!r}")
    _check(row, "[[storage]]")
    return Storage(row["tensors"], row["codec"])


def _rows(value: Any, name: str) -> Iterable[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"recipe: {name} is written as tables [[{name}]]")
    return value


def _check_gemm(data: dict[str, Any], where: str) -> None:
    _only(data, {f.name for f in dataclasses.fields(GemmSpec)}, where)
    _check(data, where)


def _check(data: Mapping[str, Any], where: str, *tables: str) -> None:
    """Raise a ValueError unless every value is what its key takes: a text but for a few keys, and for `tables`."""
    for key, value in data.items():
        takes, needed = _TAKES.get(key, (_is_text, "a text"))
        if key in tables:
            takes, needed = _is_table, "a table, such as { a = 'e4m3fn 1x128' }"
        if not takes(value):
            raise ValueError(f"{where}: {key} must be {needed}, got {repr(value)[:200]}")


def _is_text(value: Any) -> bool:
    """Return whether a value is a string that UTF-8 can encode: lone surrogates cannot be."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_texts(value: Any) -> bool:
    return all(map(_is_text, value)) if isinstance(value, list) else _is_text(value)


def _is_interval(value: Any) -> bool:
    return value == NEVER or (isinstance(value, int) and not isinstance(value, bool))


#: Keys whose values are not strings: the check of a value, and its description in messages.
_TAKES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "promote_every": (_is_interval, f"a whole number or {NEVER!r}"),
    "protect": (_is_texts, "a list of texts"),
    "quantize": (_is_texts, "a list of texts"),
}


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    names: Registry[str] = Registry(f"entry of {where}", str)
    for key in sorted(known):
        names.register(key, key)
    for key in data:
        names[key]
