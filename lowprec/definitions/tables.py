"""Writer and reader of a file's table of definitions."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..registry import Registry
from .objects import BESIDE, DefinitionError, canonical, iter_differences, origin_of, short_hash, to_mapping

#: Version of the table's layout.
VERSION = 1

Catalogues = Mapping[str, Registry[Any]]


class Names:
    """Objects of one kind, by the words that a file uses for them."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._find(word) is not None

    def __getitem__(self, word: str) -> Any:
        return self._find(word)


class Writer:
    """Writer of objects as names, with a table of their definitions.

    Parameters
    ----------
    catalogues : mapping of str to Registry
        Catalogues by kind.
    full : bool
        Whether entries of catalogues are written with their fields, not as a hash.
    reserved : callable, optional
        Function of a kind and a word that returns whether the file uses the word with another meaning.

    Attributes
    ----------
    table : dict
        Definitions by kind and word.
    names : dict of str to Names
        Objects by kind and word, as `Reader.find` returns them.
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
        """Return the word for an object: its name in the catalogue, or a word without blanks for this file.

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
            entry = {"name": own, **to_mapping(value)}
        self._words[kind, value], self._objects[kind, word] = word, value
        self.table.setdefault(kind, {})[word] = entry
        return word

    def _entry(self, value: Any) -> dict[str, Any] | str:
        """Return the definition of a catalogue entry: its hash, or its fields if `full`.

        The fields do not include ``name``, which marks the definition of an object outside the catalogues.
        """
        if not self.full:
            return short_hash(value)
        return {field: content for field, content in to_mapping(value).items() if field != "name"}

    def _taken(self, kind: str, word: str) -> bool:
        return self._reserved(kind, word) or any(
            word in self.table.get(other, ()) or self.catalogues[other].find(word) is not None
            for other in self.catalogues
        )

    def _find(self, kind: str, word: str) -> Any:
        found = self._objects.get((kind, word))
        return self.catalogues[kind].find(word) if found is None else found


class Reader:
    """Reader that finds the objects for the words in a file, and checks catalogue entries against its definitions.

    Parameters
    ----------
    catalogues : mapping of str to Registry
        Catalogues by kind; what the file does not define is looked up there.
    classes : mapping of str to type
        Classes of defined objects, by name.
    table : mapping
        Definitions by kind and word.
    where : str
        Description of the file, for messages.
    check : bool
        Whether catalogue entries must have the file's definitions. If not, objects are made from these, and a
        catalogue is used only for definitions that are hashes.

    Attributes
    ----------
    names : dict of str to Names
        Objects by kind and word.

    Raises
    ------
    DefinitionError
        If the table is malformed.
    """

    def __init__(
        self, catalogues: Catalogues, classes: Mapping[str, type], table: Any, where: str, *, check: bool = True
    ) -> None:
        tables = {} if not isinstance(table, Mapping) else {k: t for k, t in table.items() if k != "version"}
        if not isinstance(table, Mapping) or not all(isinstance(t, Mapping) for t in tables.values()):
            raise DefinitionError(f"{where}: definitions must be tables by kind and name, got {table!r}"[:300])
        if (version := table.get("version", VERSION)) != VERSION:
            raise DefinitionError(f"{where}: version of the definitions must be {VERSION}, got {version!r}")
        if odd := sorted(tables.keys() - catalogues.keys()):
            raise DefinitionError(f"{where}: definitions must be of {', '.join(catalogues)}, got {odd[0]!r}")
        self.catalogues, self.classes, self.table, self.where, self.check = catalogues, classes, tables, where, check
        self.names = {kind: Names(functools.partial(self._get, kind)) for kind in catalogues}
        self._made: dict[tuple[str, str], Any] = {}
        for kind, words in tables.items():
            for word in words:
                self.find(kind, word)  # checks words that no row uses, too

    def find(self, kind: str, word: str) -> Any:
        """Return the object for a word in the file.

        Raises
        ------
        DefinitionError
            If the catalogue's entry differs from the definition in the file, if the definition is a hash and the
            catalogue has no entry, or if the definition is malformed; the message describes the difference.
        UnknownNameError
            If neither the file nor the catalogue has the word.
        """
        if (kind, word) not in self._made:
            definition = self.table.get(kind, {}).get(word)
            found = self.catalogues[kind][word] if definition is None else self._defined(kind, word, definition)
            if not isinstance(found, self.catalogues[kind].type):
                raise DefinitionError(f"{self.where}: {kind} {word!r} must not be defined as a {type(found).__name__}")
            self._made[kind, word] = found
        return self._made[kind, word]

    def found(self) -> list[tuple[str, str]]:
        """Return the kinds and words of all lookups and definitions so far."""
        return list(self._made)

    def _get(self, kind: str, word: str) -> Any:
        known = word in self.table.get(kind, {}) or self.catalogues[kind].find(word) is not None
        return self.find(kind, word) if known else None

    def _defined(self, kind: str, word: str, definition: Any) -> Any:
        here = self.catalogues[kind].find(word)
        what = f"{self.where}: {kind} {word!r}"
        if isinstance(definition, str):
            if here is None:
                raise DefinitionError(f"{what} is not registered; load the file that registers it first")
            if definition != short_hash(here):
                now = json.dumps(canonical(here))
                raise DefinitionError(
                    f"{what} has changed since the file was written: its hash was {definition}, is {short_hash(here)}: "
                    f"{now}"
                )
            return here
        if not isinstance(definition, Mapping):
            raise DefinitionError(f"{what} must be defined by a hash or by fields, got {definition!r}"[:300])
        if here is not None and "name" not in definition and self.check:
            if lines := [
                f"{path} was {then}, is {now}" for path, then, now in iter_differences(definition, to_mapping(here))
            ]:
                raise DefinitionError(f"{what} has changed since the file was written: {'; '.join(lines)}")
            return here
        return self.made({"name": word, **definition})

    def made(self, definition: Mapping[str, Any]) -> Any:
        """Return the object that a mapping of `to_mapping` describes, or an equal catalogue entry of its name.

        Raises
        ------
        DefinitionError
            If the data does not describe an object, or its class or source does not exist here.
        """
        kind, origin = definition.get("is"), definition.get("from")
        if kind == "float":
            return float(str(definition.get("value")))
        if kind == "function":
            return self._source(definition.get("qualname"), origin)
        cls = self._source(kind, origin) if origin is not None else self.classes.get(str(kind))
        if cls is None:
            raise DefinitionError(f"{self.where}: unknown class {kind!r}: expected one of {', '.join(self.classes)}")
        known = [f.name for f in dataclasses.fields(cls) if f.init]
        fields = {field: self._value(value) for field, value in definition.items() if field not in ("is", "from")}
        fields = {field: value for field, value in fields.items() if field in known or field not in BESIDE}
        if odd := sorted(fields.keys() - set(known)):
            raise DefinitionError(
                f"{self.where}: unknown field {odd[0]!r} of {kind}: expected one of {', '.join(known)}"
            )
        if "name" in known:
            fields.setdefault("name", "unnamed")
        try:
            made = cls(**fields)
        except (TypeError, ValueError, OverflowError) as error:
            raise DefinitionError(f"{self.where}: {definition.get('name', kind)!r} cannot be made: {error}") from None
        name = getattr(made, "name", "")
        named = (catalogue.find(name) for catalogue in self.catalogues.values())
        equals = (entry for entry in named if type(entry) is cls and short_hash(entry) == short_hash(made))
        return next(equals, made)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.made(value) if value else None  # TOML has no null: an empty table
        return tuple(map(self._value, value)) if isinstance(value, list) else value

    def _source(self, name: Any, origin: Any) -> Any:
        """Return a function, or a class outside the package, of a loaded module.

        The function's file is never executed.
        """
        origin = origin if isinstance(origin, Mapping) else {}
        module = str(origin.get("module"))
        ours = module.startswith("lowprec.")
        try:
            found: Any = getattr(importlib.import_module(module) if ours else sys.modules[module], str(name))
        except (ImportError, KeyError, AttributeError):
            place = origin.get("file") or module
            raise DefinitionError(f"{self.where}: {name!r} of {place} is not loaded; import it first") from None
        if not ours and (now := origin_of(found, full=False)["from"]["code"]) != origin.get("code"):
            then = origin.get("code")
            raise DefinitionError(
                f"{self.where}: {name!r} of {origin.get('file')} has changed since the file was written: its hash "
                f"was {then}, is {now}"
            )
        return found
