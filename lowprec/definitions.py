"""Definitions: what the names in a file stand for.

A file speaks of formats, quantizers and accumulators by name, and a name may come to mean something else. So a file has
one table of definitions, by kind and name. An entry of a catalogue is written as the hash of its fields, or as the
fields themselves where a reader is to say which of them changed; any other object is written with its name and all
fields. `Writer` makes such a table and `Reader` finds objects by it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._code import hash_of_source
from ._values import ABOUT, Value
from .registry import Registry

#: Of a table of definitions; one that is written in another way has another number.
VERSION = 1
#: What stands beside the fields of an object and does not decide bits.
BESIDE = ("name", "file")

Catalogues = Mapping[str, Registry[Any]]


class DefinitionError(ValueError):
    """A name of a file that means something else here, or that nothing here has."""


# --- an object as data -----------------------------------------------------------------------------------------------


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
    found: dict[str, Any] = {"is": cls.__qualname__, **_origin(cls, full)}
    if full:
        found |= {about: text for about in ("name", "file") if (text := getattr(value, about, ""))}
    for field in deciding_fields(cls):
        item = getattr(value, field.name)
        if isinstance(item, float | int) and str(field.type).startswith("float"):
            item = float(item) + 0.0  # equal numbers are written alike: 1 as 1.0, -0 as 0
        if full or type(item) is not type(field.default) or item != field.default:
            found[field.name] = _plain(item, full)
    return found


def _origin(source: Any, full: bool) -> dict[str, dict[str, str]]:
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
        origin = _origin(value, full) or {"from": {"module": value.__module__}}
        return {"is": "function", "qualname": value.__qualname__, **origin}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DefinitionError(f"{value!r} cannot be written into a file: numbers, texts and dataclasses can be")


# --- the table of a file ---------------------------------------------------------------------------------------------


class Names:
    """Objects of one kind by the words of a file."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._find(word) is not None

    def __getitem__(self, word: str) -> Any:
        return self._find(word)


class Writer:
    """Gives the objects of a file names, and keeps what these stand for.

    Parameters
    ----------
    catalogues : mapping of str to Registry
        Catalogues by kind.
    full : bool
        Whether entries of catalogues are written with their fields, not as a hash.
    reserved : callable, optional
        Tells of a kind and a word whether the file means something else by it.

    Attributes
    ----------
    table : dict
        Definitions by kind and word.
    names : dict of str to Names
        Objects by kind and word, as a reader of the file finds them.
    """

    def __init__(
        self, catalogues: Catalogues, *, full: bool, reserved: Callable[[str, str], bool] | None = None
    ) -> None:
        self.catalogues, self.full = catalogues, full
        self._reserved = reserved or (lambda kind, word: False)
        self.table: dict[str, dict[str, Any]] = {}
        self.names = {kind: Names(functools.partial(self._find, kind)) for kind in catalogues}
        self._words: dict[tuple[str, Any], str] = {}
        self._objects: dict[tuple[str, str], Any] = {}

    def name(self, kind: str, value: Any) -> str:
        """Return the word for an object: its name in the catalogue, or a word of the file's own without blanks.

        Examples
        --------
        >>> import lowprec as lp
        >>> w = Writer({"format": lp.formats}, full=False)
        >>> w.name("format", lp.formats["e5m2"]), w.name("format", lp.formats["e5m2"].with_(bias=14))
        ('e5m2', 'e5m2(bias=14)')
        """
        if (kind, value) in self._words:
            return self._words[kind, value]
        own = getattr(value, "name", "")
        here = self.catalogues[kind].find(own)
        if here is not None and here == value and not self._reserved(kind, own):
            word, entry = own, self._entry(value)
        else:
            word = base = "".join(own.split()) or kind
            count = 1
            while self._taken(kind, word):
                count += 1
                word = f"{base}#{count}"
            entry = {"name": own, **described(value)}
        self._words[kind, value], self._objects[kind, word] = word, value
        self.table.setdefault(kind, {})[word] = entry
        return word

    def _entry(self, value: Any) -> dict[str, Any] | str:
        """Return what is written of a catalogue's entry: no name, which objects that are in none have."""
        if not self.full:
            return short_hash(value)
        return {field: said for field, said in described(value).items() if field != "name"}

    def _taken(self, kind: str, word: str) -> bool:
        return self._reserved(kind, word) or any(
            word in self.table.get(other, ()) or self.catalogues[other].find(word) is not None
            for other in self.catalogues
        )

    def _find(self, kind: str, word: str) -> Any:
        found = self._objects.get((kind, word))
        return self.catalogues[kind].find(word) if found is None else found


class Reader:
    """Finds objects by the words of a file, and compares those of catalogues with what the file says of them.

    Parameters
    ----------
    catalogues : mapping of str to Registry
        Catalogues by kind; what the file does not define is looked up there.
    classes : mapping of str to type
        Classes by name, of what a definition makes.
    table : mapping
        The definitions by kind and word.
    where : str
        What is read, for messages.
    check : bool
        Whether an entry of a catalogue must still be what it was. Otherwise objects are what the file says, and a
        catalogue is asked only for what is written as a hash.

    Attributes
    ----------
    names : dict of str to Names
        Objects by kind and word.

    Raises
    ------
    DefinitionError
        If the table is none.
    """

    def __init__(
        self, catalogues: Catalogues, classes: Mapping[str, type], table: Any, where: str, *, check: bool = True
    ) -> None:
        tables = {} if not isinstance(table, Mapping) else {k: t for k, t in table.items() if k != "version"}
        if not isinstance(table, Mapping) or not all(isinstance(t, Mapping) for t in tables.values()):
            raise DefinitionError(f"{where}: definitions must be tables by kind and name, got {table!r}"[:300])
        if (version := table.get("version", VERSION)) != VERSION:
            raise DefinitionError(f"{where}: definitions of version {version!r}; this lowprec reads version {VERSION}")
        if odd := sorted(tables.keys() - catalogues.keys()):
            raise DefinitionError(f"{where}: definitions of {odd[0]!r}; known are {', '.join(catalogues)}")
        self.catalogues, self.classes, self.table, self.where, self.check = catalogues, classes, tables, where, check
        self.names = {kind: Names(functools.partial(self._get, kind)) for kind in catalogues}
        self._made: dict[tuple[str, str], Any] = {}
        for kind, words in tables.items():
            for word in words:
                self.find(kind, word)  # also what no row names by itself

    def find(self, kind: str, word: str) -> Any:
        """Return the object that a word of the file stands for.

        Raises
        ------
        DefinitionError
            If it is a catalogue's and that has another one, or none; the message says which fields differ.
        UnknownNameError
            If neither the file nor the catalogue has it.
        """
        if (kind, word) not in self._made:
            said = self.table.get(kind, {}).get(word)
            found = self.catalogues[kind][word] if said is None else self._defined(kind, word, said)
            if not isinstance(found, self.catalogues[kind].type):
                raise DefinitionError(f"{self.where}: {kind} {word!r} is defined as a {type(found).__name__}")
            self._made[kind, word] = found
        return self._made[kind, word]

    def found(self) -> list[tuple[str, str]]:
        """Return the kinds and words that were looked up or defined so far."""
        return list(self._made)

    def _get(self, kind: str, word: str) -> Any:
        known = word in self.table.get(kind, {}) or self.catalogues[kind].find(word) is not None
        return self.find(kind, word) if known else None

    def _defined(self, kind: str, word: str, said: Any) -> Any:
        here = self.catalogues[kind].find(word)
        what = f"{self.where}: {kind} {word!r}"
        if isinstance(said, str):
            if here is None:
                raise DefinitionError(f"{what} is not registered here; load the file that registers it first")
            if said != short_hash(here):
                now = json.dumps(canonical(here))
                raise DefinitionError(f"{what} had hash {said} when this was written, now {short_hash(here)}: {now}")
            return here
        if not isinstance(said, Mapping):
            raise DefinitionError(f"{what} must be defined by a hash or by fields, got {said!r}"[:300])
        if here is not None and "name" not in said and self.check:
            if lines := [f"{path} was {then}, is {now}" for path, then, now in differing(said, described(here))]:
                raise DefinitionError(f"{what} is another one than when this was written: {'; '.join(lines)}")
            return here
        return self.made({"name": word, **said})

    def made(self, said: Mapping[str, Any]) -> Any:
        """Return the object that `described` wrote, the catalogue's where it has an equal one of that name.

        Raises
        ------
        DefinitionError
            If the data is no object's, or its class or source is not here.
        """
        kind, origin = said.get("is"), said.get("from")
        if kind == "float":
            return float(str(said.get("value")))
        if kind == "function":
            return self._source(said.get("qualname"), origin)
        cls = self._source(kind, origin) if origin is not None else self.classes.get(str(kind))
        if cls is None:
            raise DefinitionError(f"{self.where}: no class {kind!r}; known are {', '.join(self.classes)}")
        known = [f.name for f in dataclasses.fields(cls) if f.init]
        fields = {field: self._value(value) for field, value in said.items() if field not in ("is", "from")}
        fields = {field: value for field, value in fields.items() if field in known or field not in BESIDE}
        if odd := sorted(fields.keys() - set(known)):
            raise DefinitionError(f"{self.where}: {kind} has no field {odd[0]!r}; the fields are {', '.join(known)}")
        if "name" in known:
            fields.setdefault("name", "unnamed")
        try:
            made = cls(**fields)
        except (TypeError, ValueError, OverflowError) as error:
            raise DefinitionError(f"{self.where}: {said.get('name', kind)!r} cannot be made: {error}") from None
        name = getattr(made, "name", "")
        named = (catalogue.find(name) for catalogue in self.catalogues.values())
        alike = (entry for entry in named if type(entry) is cls and short_hash(entry) == short_hash(made))
        return next(alike, made)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.made(value) if value else None  # TOML has no null: an empty table
        return tuple(map(self._value, value)) if isinstance(value, list) else value

    def _source(self, name: Any, origin: Any) -> Any:
        """Return a function, or a class outside the package, of a module that is loaded.

        A file is not run because a file of data names it.
        """
        origin = origin if isinstance(origin, Mapping) else {}
        module = str(origin.get("module"))
        ours = module.startswith("lowprec.")
        try:
            found: Any = getattr(importlib.import_module(module) if ours else sys.modules[module], str(name))
        except (ImportError, KeyError, AttributeError):
            place = origin.get("file") or module
            raise DefinitionError(f"{self.where}: {name!r} of {place} is not here; import it first") from None
        if not ours and (now := _origin(found, full=False)["from"]["code"]) != origin.get("code"):
            then = origin.get("code")
            raise DefinitionError(
                f"{self.where}: {name!r} of {origin.get('file')} was {then} when this was written, is {now}"
            )
        return found


# --- how two descriptions differ -------------------------------------------------------------------------------------


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
