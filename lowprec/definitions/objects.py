"""Objects as data: the fields that affect results, their hash, and the differences of two descriptions."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from .._values import ABOUT, Value
from .code import hash_of_source

#: Keys of an object's description that are not fields, and do not affect results.
BESIDE = ("name", "file")


class DefinitionError(ValueError):
    """Error for an object that a file cannot define, or a definition that is malformed, missing or different here."""


def canonical(value: Any) -> dict[str, Any]:
    """Return the fields that affect results as JSON types: the class, and fields that differ from their defaults.

    A class outside the package is represented by its name and the hash of its source.

    Examples
    --------
    >>> import lowprec as lp
    >>> canonical(lp.formats["e5m2"])
    {'is': 'Format', 'exponent_bits': 5, 'mantissa_bits': 2, 'bias': 15}
    """
    return _data(value, full=False)


def to_mapping(value: Any) -> dict[str, Any]:
    """Return an object as JSON types, with all its fields and its name.

    Examples
    --------
    >>> import lowprec as lp
    >>> list(to_mapping(lp.formats["e5m2"]))
    ['is', 'name', 'exponent_bits', 'mantissa_bits', 'bias', 'signed', 'specials', 'has_zero', 'subnormals']
    """
    return _data(value, full=True)


def short_hash(value: Any) -> str:
    """Return a hash, twelve hexadecimal digits, that is equal for equal objects, regardless of their names.

    Fields with default values are left out, so that a class may get a new field if its default keeps the old behaviour.

    Examples
    --------
    >>> import lowprec as lp
    >>> short_hash(lp.formats["e5m2"]) == short_hash(lp.formats["e5m2"].with_(name="mine"))
    True
    """
    found: str | None = value.__dict__.get("_short_hash")
    if found is None:
        text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"))
        found = hashlib.sha256(text.encode()).hexdigest()[:12]
        if isinstance(value, Value):  # `Value` leaves the hash out of pickles
            value.__dict__["_short_hash"] = found
    return found


@functools.cache
def deciding_fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a dataclass that affect results and are arguments of its constructor, in order."""
    return tuple(f for f in dataclasses.fields(cls) if f.init and f.compare and f.name not in ABOUT)


def _data(value: Any, full: bool) -> dict[str, Any]:
    cls = type(value)
    if not dataclasses.is_dataclass(cls):
        raise DefinitionError(f"{value!r} cannot be written to a file: it must be a frozen dataclass")
    found: dict[str, Any] = {"is": cls.__qualname__, **origin_of(cls, full)}
    if full:
        found |= {about: text for about in ("name", "file") if (text := getattr(value, about, ""))}
    for field in deciding_fields(cls):
        item = getattr(value, field.name)
        if isinstance(item, float | int) and str(field.type).startswith("float"):
            item = float(item) + 0.0  # equal numbers have one representation: 1 as 1.0, -0 as 0
        if full or type(item) is not type(field.default) or item != field.default:
            found[field.name] = _plain(item, full)
    return found


def origin_of(source: Any, full: bool) -> dict[str, dict[str, str]]:
    """Return the hash of the source of a class or function, and if `full`, its module and file.

    The result is empty for lowprec's own classes and functions.

    Raises
    ------
    DefinitionError
        If the class or function is not defined at module level, or its source cannot be found.
    """
    if "." in source.__qualname__ or "<" in source.__qualname__:
        raise DefinitionError(f"{source!r} cannot be written to a file: it must be defined at module level")
    if source.__module__.partition(".")[0] == "lowprec":
        return {}
    try:
        file = inspect.getfile(source)
        code = hash_of_source(file, source.__qualname__)
    except (TypeError, OSError):  # defined in an interactive session
        raise DefinitionError(f"{source!r} cannot be written to a file: its source cannot be found") from None
    return {"from": {"code": code, "module": source.__module__, "file": file} if full else {"code": code}}


def _plain(value: Any, full: bool) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _data(value, full)
    if isinstance(value, tuple | list):
        return [_plain(item, full) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"is": "float", "value": repr(value)}
    if inspect.isfunction(value):
        origin = origin_of(value, full) or {"from": {"module": value.__module__}}
        return {"is": "function", "qualname": value.__qualname__, **origin}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DefinitionError(f"{value!r} cannot be written to a file: it must be a number, a string or a dataclass")


def iter_differences(then: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every difference of two nested JSON values, as its path and both values; a missing value is None.

    If two mappings have a ``hash``, only the hashes are compared. Names of objects, under ``about`` or next to an
    ``is``, are not compared.

    Examples
    --------
    >>> list(iter_differences({"a": [1, 2], "about": "x"}, {"a": [1, 3], "about": "y"}))
    [('a[1]', 2, 3)]
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        yield from _differing_fields(then, now, path)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, pair in enumerate(zip(then, now, strict=True)):
            yield from iter_differences(*pair, f"{path}[{i}]")
    elif then != now:
        yield path, then, now


def _differing_fields(then: Mapping[str, Any], now: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    hashes = then.get("hash"), now.get("hash")
    hashed = None not in hashes
    if hashed and hashes[0] == hashes[1]:
        return
    skipped = ("about", "hash") if hashed else ("about",)
    if "is" in then and "is" in now:
        skipped = (*skipped, *BESIDE)
        then, now = _by_code(then), _by_code(now)
    found = False
    for key in dict.fromkeys([*then, *now]):
        if key not in skipped:
            for place in iter_differences(then.get(key), now.get(key), f"{path}.{key}" if path else str(key)):
                found = True
                yield place
    if hashed and not found:
        yield (f"{path}.hash".lstrip("."), *hashes)


def _by_code(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an object, in which the source is given only by its hash, without module and file."""
    origin = mapping.get("from")
    return {**mapping, "from": origin.get("code", origin)} if isinstance(origin, Mapping) else dict(mapping)
