"""Objects as data: the fields that decide them, their hash, and where two descriptions differ."""

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

#: What stands beside the fields of an object and does not decide bits.
BESIDE = ("name", "file")


class DefinitionError(ValueError):
    """A name of a file that means something else here, or that nothing here has."""


def canonical(value: Any) -> dict[str, Any]:
    """Return what decides an object, as JSON's types: its class and the fields that differ from their defaults.

    A class outside the package is given by its name and the hash of its source.

    Examples
    --------
    >>> import lowprec as lp
    >>> canonical(lp.formats["e5m2"])
    {'is': 'Format', 'exponent_bits': 5, 'mantissa_bits': 2, 'bias': 15}
    """
    return _data(value, full=False)


def described(value: Any) -> dict[str, Any]:
    """Return an object as JSON's types with all its fields, and its name beside them.

    Examples
    --------
    >>> import lowprec as lp
    >>> list(described(lp.formats["e5m2"]))
    ['is', 'name', 'exponent_bits', 'mantissa_bits', 'bias', 'signed', 'specials', 'has_zero']
    """
    return _data(value, full=True)


def short_hash(value: Any) -> str:
    """Return twelve hexadecimal digits of what decides an object: equal for equal objects, whatever they are called.

    As fields at their defaults do not count, a class may get a new field whose default is what it did before.

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
        if isinstance(value, Value):  # which leaves it out of pickles
            value.__dict__["_short_hash"] = found
    return found


@functools.cache
def deciding_fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a dataclass that decide bits and that it is made of, in order."""
    return tuple(f for f in dataclasses.fields(cls) if f.init and f.compare and f.name not in ABOUT)


def _data(value: Any, full: bool) -> dict[str, Any]:
    cls = type(value)
    if not dataclasses.is_dataclass(cls):
        raise DefinitionError(f"{value!r} cannot be written into a file: a frozen dataclass is needed")
    found: dict[str, Any] = {"is": cls.__qualname__, **origin_of(cls, full)}
    if full:
        found |= {about: text for about in ("name", "file") if (text := getattr(value, about, ""))}
    for field in deciding_fields(cls):
        item = getattr(value, field.name)
        if isinstance(item, float | int) and str(field.type).startswith("float"):
            item = float(item) + 0.0  # equal numbers are written alike: 1 as 1.0, -0 as 0
        if full or type(item) is not type(field.default) or item != field.default:
            found[field.name] = _plain(item, full)
    return found


def origin_of(source: Any, full: bool) -> dict[str, dict[str, str]]:
    """Return where a class or function outside the package is defined, and the hash of that."""
    if "." in source.__qualname__ or "<" in source.__qualname__:
        raise DefinitionError(f"{source!r} cannot be written into a file: it must stand at the top of one")
    if source.__module__.partition(".")[0] == "lowprec":
        return {}
    try:
        file = inspect.getfile(source)
        code = hash_of_source(file, source.__qualname__)
    except (TypeError, OSError):  # typed into an interpreter
        raise DefinitionError(f"{source!r} cannot be written into a file: no source defines it") from None
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
    raise DefinitionError(f"{value!r} cannot be written into a file: numbers, texts and dataclasses can be")


def differing(then: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every place where two nests of JSON's types differ, as its path and both values; what is absent is None.

    Where two mappings have a ``hash``, it alone decides whether they differ. Names of objects, which stand under
    ``about`` or beside an ``is``, are not compared.

    Examples
    --------
    >>> list(differing({"a": [1, 2], "about": "x"}, {"a": [1, 3], "about": "y"}))
    [('a[1]', 2, 3)]
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        yield from _differing_fields(then, now, path)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, pair in enumerate(zip(then, now, strict=True)):
            yield from differing(*pair, f"{path}[{i}]")
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
            for place in differing(then.get(key), now.get(key), f"{path}.{key}" if path else str(key)):
                found = True
                yield place
    if hashed and not found:
        yield (f"{path}.hash".lstrip("."), *hashes)


def _by_code(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a described object whose source is what it says, wherever it lies."""
    origin = said.get("from")
    return {**said, "from": origin.get("code", origin)} if isinstance(origin, Mapping) else dict(said)
