"""Dataclasses from plain data, with clear errors for unknown or missing keys."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lowprec.registry import Registry, suggest

T = TypeVar("T")


def label(kind: str, name: Any) -> str:
    """Return the kind and name of an object, as messages print them.

    Raises
    ------
    ValueError
        If the name is not a nonempty string.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"{kind}: name must be a non-empty string, got {name!r}")
    return f"{kind} {name!r}"


def from_mapping(kind: type[T], data: Any, owner: str) -> T:
    """Make a dataclass from a mapping.

    Parameters
    ----------
    kind : type
        Dataclass to make.
    data : mapping
        Fields of the dataclass.
    owner : str
        Description of the object, for messages.

    Returns
    -------
    T
        Object of the dataclass.

    Raises
    ------
    ValueError
        If a key is unknown or a field without default is missing.
    TypeError
        If `data` is not a mapping.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{owner}: data must be a mapping of fields, got {data!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise ValueError(f"{owner}: unknown key {key!r}: {suggest(str(key), fields)}")
    needed = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and name not in data
    ]
    if needed:
        raise ValueError(
            f"{owner}: data must have {', '.join(map(repr, needed))}, got {', '.join(map(str, data)) or 'no field'}"
        )
    return kind(**data)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    ValueError
        If it is not TOML.
    OSError
        If it cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None


def load(path: str | Path, read: Callable[[Mapping[str, Any]], T]) -> T:
    """Return the result of `read` for a TOML file; the default name is that of the file.

    Raises
    ------
    ValueError
        If it is not TOML, or `read` refuses it.
    OSError
        If it cannot be read.
    """
    try:
        return read({"name": Path(path).stem, **read_toml(path)})
    except (TypeError, ValueError) as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def resolve(given: str | T | Mapping[str, Any], catalogue: Registry[T], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Return an object of a catalogue from its name, a TOML file's path (``*.toml``), a mapping, or itself.

    Raises
    ------
    UnknownNameError
        If the catalogue has no entry of that name.
    ValueError, OSError
        See `load`.
    """
    if isinstance(given, Mapping):
        return read(given)
    if isinstance(given, str) and given.endswith(".toml"):
        return load(given, read)
    return catalogue.get(given)
