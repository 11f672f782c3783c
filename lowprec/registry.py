"""Named catalogues: register an object under a name, find it, and suggest names for unknown ones."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ._values import Value, alike, parse_label, split_name

T = TypeVar("T")
R = TypeVar("R")
PUBLIC = (
    "formats", "quantizers", "accumulators", "gemm_libraries", "attentions", "recipes", "codecs", "configs", "policies",
    "roundings", "orders", "norms", "collectives", "stacks",
)  # fmt: skip
_caches: list[functools._lru_cache_wrapper[Any]] = []


def registry_cache(maxsize: int | None) -> Callable[[Callable[..., R]], functools._lru_cache_wrapper[R]]:
    """Return a decorator that caches lookups of names; replacing or removing an entry clears the cache."""

    def wrap(function: Callable[..., R]) -> functools._lru_cache_wrapper[R]:
        kept = functools.lru_cache(maxsize)(function)
        _caches.append(kept)
        return kept

    return wrap


def _forget() -> None:
    for kept in _caches:
        kept.cache_clear()


def suggest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the end of a message about an unknown name: similar known names, or else all of them.

    Names that differ only in case come first, then names that begin with `name`, then names with similar letters.

    Examples
    --------
    >>> suggest("Hopper", ["ada_fp8", "hopper_fp8"]), suggest("x", ["teal", "plum"])
    ("did you mean 'hopper_fp8'?", 'expected one of teal, plum')
    """
    known = list(known)
    close = _close(name, known, cutoff)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"expected one of {', '.join(known)}"


def _close(name: str, known: Sequence[str], cutoff: float = 0.5) -> list[str]:
    low = name.lower()
    begin = [other for other in known if len(low) > 2 and other.lower().startswith(low)]
    similar = difflib.get_close_matches(low, known, n=3, cutoff=cutoff)
    return list(dict.fromkeys([*sorted(begin, key=lambda other: other.lower() != low), *similar]))[:3]


class UnknownNameError(KeyError, ValueError):
    """A name that a catalogue does not have; the message quotes it and lists similar ones."""

    def __str__(self) -> str:
        return str(self.args[0])


class Registry(Generic[T]):
    """A catalogue of named objects of one kind.

    Parameters
    ----------
    kind : str
        Singular noun for the objects, used in messages.
    type_ : type
        Class of the objects; `get` passes such objects through.
    make : callable, optional
        Function that returns the object of an unregistered name, for families too large to list, or None if there is
        none.
    spoken : mapping from str to str, optional
        Hints, by colloquial name of an entry.

    Examples
    --------
    >>> colours = Registry("colour", str)
    >>> colours.register("teal", "#008080", aliases=["blue-green"])
    '#008080'
    >>> colours["blue-green"], colours.names()
    ('#008080', ['teal'])
    >>> colours["tael"]
    Traceback (most recent call last):
    lowprec.registry.UnknownNameError: unknown colour 'tael': did you mean 'teal'?
    >>> with colours.scoped(teal="#007f7f", plum="#8e4585"):
    ...     colours["teal"], colours.names()
    ('#007f7f', ['teal', 'plum'])
    >>> colours["teal"], colours.names()
    ('#008080', ['teal'])

    The name of a changed entry can be used as it is printed, if the changed fields are numbers, None, bools, names or
    tuples of these. ``name in catalogue`` is True for entries and aliases alone:

    >>> import lowprec as lp
    >>> changed = lp.accumulators["hopper_fp8(fraction_bits=20)"]
    >>> changed == lp.accumulators["hopper_fp8"].with_(fraction_bits=20), changed.name
    (True, 'hopper_fp8(fraction_bits=20)')
    """

    def __init__(
        self,
        kind: str,
        type_: type[T],
        make: Callable[[str], T | None] | None = None,
        spoken: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.spoken = dict(spoken or {})
        self._make = make
        self.type = type_
        self._objects: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._shipped: dict[str, T] = {}

    def register(self, name: str, obj: T, aliases: Iterable[str] = (), *, replace: bool = False) -> T:
        """Add an object under a unique name. An equal object may be added again, so that a cell can be run twice.

        Parameters
        ----------
        name : str
            Name in the catalogue.
        obj : T
            Object to add.
        aliases : iterable of str
            Further names of the object.
        replace : bool
            Whether to replace the entry, and any aliases, of these names. Objects made from the old one before, such as
            a recipe bound to a run, are unchanged.

        Returns
        -------
        T
            The object itself.

        Raises
        ------
        ValueError
            If a name belongs to a different object.
        TypeError
            If the object is of another kind.
        """
        aliases = list(aliases)
        if not isinstance(obj, self.type):
            raise TypeError(f"{self.kind} {name!r} must be {_a(self.type.__name__)}, got {obj!r}")
        again = name in self._objects and bool(self._objects[name] == obj)
        if not replace:
            self.check_new(name, obj, aliases)
        for alias in aliases:
            if alias in self._objects:
                raise ValueError(
                    f"register: an alias must not be the name of an entry, got {alias!r} for {self.kind} {name!r}"
                )
        known = any(new in self for new in [name, *aliases])
        self._aliases.pop(name, None)
        self._objects[name] = obj
        self._aliases.update(dict.fromkeys(aliases, name))
        if known and not again:
            _forget()
        return obj

    def check_new(self, name: str, obj: T, aliases: Iterable[str] = ()) -> None:
        """Raise ValueError if a name of an object belongs to a different one."""
        again = name in self._objects and bool(self._objects[name] == obj)
        for new in [name, *aliases]:
            if new in self and not (again and self.listed(new) == name):
                raise ValueError(
                    f"register: name must be new, or replace=True, got {self.kind} {new!r}, which is registered with "
                    "other fields"
                )

    @contextmanager
    def scoped(self, entries: Mapping[str, T] | None = None, **more: T) -> Iterator[None]:
        """Context manager that registers entries temporarily, overriding entries of the same name.

        On exit, also after an error, the catalogue is as before: entries registered inside the block are removed too.
        Blocks may be nested. The catalogue is shared by all threads: they see the entries while the block is active,
        and two threads must not use `scoped` on one catalogue at the same time. Worker processes do not see the
        entries.

        Parameters
        ----------
        entries : mapping from str to T, optional
            Objects by name.
        **more
            Objects whose names are identifiers.

        Examples
        --------
        >>> import lowprec as lp
        >>> with lp.formats.scoped(e3m3=lp.Format("e3m3", exponent_bits=3, mantissa_bits=3)):
        ...     lp.round_to([1.3], "e3m3").tolist()
        [1.25]
        >>> "e3m3" in lp.formats
        False
        """
        objects, aliases = dict(self._objects), dict(self._aliases)
        try:
            for name, obj in {**(entries or {}), **more}.items():
                self.register(name, obj, replace=True)
            yield
        finally:
            gone = any(objects.get(name) is not obj for name, obj in self._objects.items())
            self._objects, self._aliases = objects, aliases
            if gone:
                _forget()

    def __getitem__(self, name: str) -> T:
        found = self.find(name) or self._changed(name) if isinstance(name, str) else None
        if found is not None:
            return found
        hint = self.hint(name) if isinstance(name, str) else "expected a string"
        raise UnknownNameError(f"unknown {self.kind} {name!r}: {hint}")

    def _changed(self, name: str) -> T | None:
        """Return an entry with the changes that its name states, as `Value.with_` writes them; None for other names.

        Raises
        ------
        ValueError
            If a field is unknown, does not take the value, or is not a number, None, a bool, a name or a tuple of them.
        """
        base, changes = split_name(name)
        entry = self.find(base) if changes else None
        if not isinstance(entry, Value):
            return None
        cls: Any = type(entry)
        known = [f.name for f in dataclasses.fields(cls) if f.init and f.compare]
        for field in changes:
            if field not in known:
                raise UnknownNameError(f"unknown field {field!r} in {self.kind} {name!r}: {suggest(field, known)}")
        error = ValueError(
            f"{self.kind}: fields in a name must hold numbers, None, bools, names or tuples of these, got {name!r}; "
            "with_() takes any value"
        )
        try:
            found = entry.with_(**{field: parse_label(cls, field, text) for field, text in changes.items()})
        except (TypeError, AttributeError) as cause:
            raise error from cause
        if not all(alike(getattr(found, field), getattr(entry, field)) for field in changes):
            raise error
        return found

    def hint(self, name: str) -> str:
        """Return a hint for an unknown name: what it means, which catalogue has it, or similar names."""
        if found := self.meaning(name) or elsewhere(name):
            return found
        others = {place: other for place, other in _public().items() if other is not self}
        own = [*self._objects, *self._aliases]
        if not (close := _close(name, own)) or not close[0].lower().startswith(name.lower()):
            for place, other in others.items():
                if longer := [known for known in other if len(name) > 3 and known.startswith(name.lower())]:
                    return f"lowprec.{place} has {' and '.join(map(repr, longer[:3]))}"
        return suggest(name, own if close else self._objects)

    def meaning(self, name: str) -> str | None:
        """Return the hint for a colloquial name, or None.

        If the colloquial name is also an entry, its hint applies to every name that ends with it: that of "e4m3" to
        "fp8_e4m3".
        """
        low = name.lower().strip()
        ends = (word for word in self.spoken if low == word or (word in self and low.endswith(word)))
        return self.spoken.get(next(ends, ""))

    def find(self, name: str) -> T | None:
        """Return the object of a name, or None. Unlike `get`, do not search for similar names."""
        key = self._aliases.get(name, name)
        if key in self._objects:
            return self._objects[key]
        return None if self._make is None else self._make(name)

    def seal(self) -> None:
        """Mark the current entries as shipped, that is, as present under these names in every process."""
        self._shipped = dict(self._objects)

    def is_shipped(self, name: str) -> bool:
        """Return whether a name refers to an entry of the package, not to a user's."""
        key = self._aliases.get(name, name)
        if key in self._objects:
            return self._objects[key] is self._shipped.get(key)
        return self._make is not None and self._make(name) is not None

    def get(self, name_or_object: str | T) -> T:
        """Return the object of a name, or an object unchanged.

        Raises
        ------
        UnknownNameError
            If the name is unknown.
        TypeError
            If it is neither a name nor an object of this kind.
        """
        if isinstance(name_or_object, str):  # first: an isinstance check of strings with a Protocol takes microseconds
            return self[name_or_object]
        if isinstance(name_or_object, self.type):
            return name_or_object
        if isinstance(name_or_object, type) or hasattr(name_or_object, "itemsize"):  # a dtype of NumPy or ml_dtypes
            name = getattr(name_or_object, "__name__", None) or getattr(name_or_object, "name", None)
            if isinstance(name, str) and name in self:
                return self[name]
        raise TypeError(f"{self.kind} must be a name or {_a(self.type.__name__)}, got {name_or_object!r}")

    def listed(self, name: str) -> str | None:
        """Return the main name of the entry with the given name or alias, or None."""
        key = self._aliases.get(name, name)
        return key if key in self._objects else None

    def names(self) -> list[str]:
        """Return the names in the order of registration, without aliases."""
        return list(self._objects)

    def aliases(self, name: str) -> list[str]:
        """Return the aliases of an object."""
        return [alias for alias, target in self._aliases.items() if target == name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, name: object) -> bool:
        return name in self._objects or name in self._aliases

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind}s: {', '.join(self._objects)}>"


def _public() -> dict[str, Registry[Any]]:
    """Return the catalogues among the package's public names, for error messages; loading them may take a second."""
    package = importlib.import_module(__package__)
    return {name: getattr(package, name) for name in PUBLIC}


def elsewhere(name: str) -> str:
    """Return the kinds of public objects with a name, and their catalogues, as a hint; empty if there are none."""
    found = [f"{_a(other.kind)} (lowprec.{place})" for place, other in _public().items() if other.find(name)]
    return f"it is {', '.join(found)}" if found else ""


def _a(noun: str) -> str:
    """Return a noun with its article."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
