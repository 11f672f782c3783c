"""Recipes as TOML, complete or as changes of a recipe of the catalogue.

A complete one has the fields of `Recipe`, a table ``[[linear]]`` for each rule and ``[[storage]]`` for each stored
tensor::

    name = "mine"
    dispatch = "fp8_1x128_ue8m0"

    [[linear]]
    layers = "layers.*.attn.w*"
    fprop = { a = "e4m3fn 1x128", b = "e4m3fn 128x128", accumulator = "hopper_fp8", promote_every = 128 }
    dgrad = { a = "e5m2 1x128", b = "e4m3fn 128x128", accumulator = "hopper_fp8", promote_every = 128 }
    wgrad = { a = "e5m2 1x128", b = "e4m3fn 1x128", accumulator = "hopper_fp8", promote_every = 128 }

and one with changes has a base and the changes that `Recipe.with_` takes::

    base = "dsv3"
    name = "mine"
    dy = "e5m2 1x128"
    promote_every = "never"

    [layers."layers.*.ffn.gate"]
    out_format = "float32"

`to_toml` writes tables that define every name, and a reader refuses the file if a name has another definition there; a
file without them is read with the names of the catalogues. A custom format is defined by its fields::

    [definitions.format]
    e4m3fn = "12 digits of a hash"
    mine = { is = "Format", exponent_bits = 3, mantissa_bits = 4, bias = 3 }
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from lowprec.definitions import VERSION, Reader
from lowprec.registry import Registry

from . import data
from .description import LayerRule, RecipeFields, StorageRule
from .linears import NEVER, OPERANDS, GemmSpec

D = TypeVar("D", bound=RecipeFields)


# --- writing ---------------------------------------------------------------------------------------------------------


def to_toml(recipe: RecipeFields) -> str:
    """Return a recipe as TOML.

    Raises
    ------
    ValueError
        If `from_toml` could not read it back: a name that is not a string, or a string with a lone surrogate.
    """
    w = data.writer(full=False)
    rows = data.rows(recipe, w)
    tables = {"linear": rows.pop("linear"), "storage": rows.pop("storage")}
    plain = {f.name: rows.get(f.name, getattr(recipe, f.name)) for f in dataclasses.fields(recipe) if f.name != "rules"}
    plain.pop("storage")
    _check(plain, f"recipe {recipe.name!r}")
    _check({word: word for words in w.table.values() for word in words}, f"recipe {recipe.name!r}: a name in it")
    lines = [f"{key} = {toml_value(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        for row in table:
            lines += ["", f"[[{name}]]", *(f"{key} = {toml_value(value)}" for key, value in row.items())]
    lines += ["", "[definitions]", f"version = {VERSION}"]
    for kind, words in w.table.items():
        lines += ["", f"[definitions.{kind}]"]
        lines += [f"{toml_key(word)} = {toml_value(definition)}" for word, definition in words.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Return a value as inline TOML; None as an empty table."""
    if value is None:
        return "{}"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the control character that JSON allows


def toml_key(key: str) -> str:
    """Return a key of a table as TOML, in quotation marks where TOML requires them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


# --- reading ---------------------------------------------------------------------------------------------------------


def from_toml(text: str, kind: type[D], bases: Registry[D]) -> D:
    """Read a recipe from TOML.

    Parameters
    ----------
    text : str
        Recipe as TOML.
    kind : type
        Class of the recipe.
    bases : Registry
        Recipes that `base` may name.

    Raises
    ------
    ValueError
        If it is not TOML, or has a field that a recipe does not have.
    TypeError
        If it is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"recipe: TOML must be a string, got {text!r}")
    try:
        content = tomllib.loads(text.removeprefix("\ufeff"))  # a byte order mark, which some editors write
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"recipe is not TOML: {error}") from None
    try:
        r = data.reader(content.pop("definitions", {}), "recipe")
        return _changed(content, bases[content.pop("base")], r) if _has_base(content) else _whole(content, kind, r)
    except TypeError as error:
        raise ValueError(f"recipe: {error}") from None


def _has_base(content: dict[str, Any]) -> bool:
    _check({key: content[key] for key in ("base",) if key in content}, "recipe")
    return "base" in content


def _whole(content: dict[str, Any], kind: type[D], r: Reader) -> D:
    known = {f.name for f in dataclasses.fields(RecipeFields)} - {"rules"} | {"linear"}
    _only(content, known, "recipe")
    if "name" not in content:
        raise ValueError(
            "recipe must have a 'name', or a 'base' from which it differs, got "
            f"{', '.join(map(repr, content)) or 'no key'}"
        )
    rules = tuple(_rule(row, r) for row in _rows(content.pop("linear", []), "linear"))
    storage = tuple(_storage(row, r) for row in _rows(content.pop("storage", []), "storage"))
    _check(content, "recipe")
    return kind(**{"description": "", **data.objects(content, r), "rules": rules, "storage": storage})


def _changed(content: dict[str, Any], base: D, r: Reader) -> D:
    """Return the base with changes."""
    _only(content, {*RecipeFields.changes(), "linear"} - {"rules"}, "recipe")
    more: dict[str, Any] = {}
    if "storage" in content:
        more["storage"] = (*(_storage(row, r) for row in _rows(content.pop("storage"), "storage")), *base.storage)
    if "linear" in content:
        more["rules"] = (*(_rule(row, r) for row in _rows(content.pop("linear"), "linear")), *base.rules)
    _check(content, "recipe", "layers", *OPERANDS)
    layers = content.get("layers", {})
    _check(layers, "layers", *layers)
    changes = [("recipe", content), *((f"layers.{pattern!r}", change) for pattern, change in layers.items())]
    for where, change in changes:
        _check({key: value for key, value in change.items() if key != "layers"}, where, *OPERANDS)
        for name in OPERANDS:
            _check_gemm(change.get(name, {}), f"{where} {name}")
    return base.with_(**data.objects(content, r), **more)


def _rule(row: dict[str, Any], r: Reader) -> LayerRule:
    _only(row, {"layers", *OPERANDS, "wgrad_input", "dgrad_weight", "out_format"}, "[[linear]]")
    if "layers" not in row:
        raise ValueError(f"[[linear]] must have 'layers', a pattern of names, got {row!r}")
    _check(row, "[[linear]]", *OPERANDS)
    for name in OPERANDS:
        _check_gemm(row.get(name, {}), f"[[linear]] {name}")
    return data.rule_of(row, r)


def _storage(row: dict[str, Any], r: Reader) -> StorageRule:
    _only(row, {"tensors", "codec"}, "[[storage]]")
    if len(row) < 2:
        raise ValueError(f"[[storage]] must have 'tensors' and 'codec', got {row!r}")
    _check(row, "[[storage]]")
    return data.storage_of(row, r)


def _rows(value: Any, name: str) -> Iterable[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"recipe: {name} must be tables [[{name}]], got {repr(value)[:200]}")
    return value


def _check_gemm(row: dict[str, Any], where: str) -> None:
    _only(row, {f.name for f in dataclasses.fields(GemmSpec)}, where)
    _check(row, where)


def _check(row: Mapping[str, Any], where: str, *tables: str) -> None:
    """Raise a ValueError unless every value is a string, except the values of `tables` and of a few other keys."""
    for key, value in row.items():
        takes, needed = _TAKES.get(key, (_is_text, "a string"))
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


#: Keys with values other than strings: the check of a value, and its description in messages.
_TAKES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "promote_every": (_is_interval, f"an integer or {NEVER!r}"),
    "protect": (_is_texts, "a list of strings"),
    "quantize": (_is_texts, "a list of strings"),
}


def _only(row: Mapping[str, Any], known: set[str], where: str) -> None:
    names: Registry[str] = Registry(f"entry of {where}", str)
    for key in sorted(known):
        names.register(key, key)
    for key in row:
        names[key]
