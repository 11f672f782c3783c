"""Named catalogues: register an object under a name, look it up, and help when the name is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class UnknownNameError(KeyError, ValueError):
    """A name that a catalogue does not hold; the message quotes it and lists the close ones."""

    def __str__(self) -> str:
        return str(self.args[0])


class Registry(Generic[T]):
    """A catalogue of named objects of one kind.

    Parameters
    ----------
    kind : str
        What the objects are, in the singular; used in messages.
    type_ : type
        Their class; `get` passes such objects through.
    make : callable, optional
        Makes the object of a name that was not registered, for families too large to list; None if it is none of them.

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
    """

    def __init__(self, kind: str, type_: type[T], make: Callable[[str], T | None] | None = None) -> None:
        self.kind = kind
        self._make = make
        self.type = type_
        self._objects: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, obj: T, aliases: Iterable[str] = ()) -> T:
        """Add an object; names are unique.

        Parameters
        ----------
        name : str
            The name it is listed under.
        obj : T
            The object.
        aliases : iterable of str
            Further names that find it.

        Returns
        -------
        T
            The object itself.

        Raises
        ------
        ValueError
            If a name is taken.
        TypeError
            If the object is of another kind.
        """
        aliases = list(aliases)
        if not isinstance(obj, self.type):
            raise TypeError(f"{self.kind} {name!r}: {_a(self.type.__name__)} is needed, not {obj!r}")
        for new in [name, *aliases]:
            if new in self._objects or new in self._aliases:
                raise ValueError(f"{self.kind} {new!r} is registered already; choose another name")
        self._objects[name] = obj
        self._aliases.update(dict.fromkeys(aliases, name))
        return obj

    def __getitem__(self, name: str) -> T:
        key = self._aliases.get(name, name)
        if key in self._objects:
            return self._objects[key]
        made = self._make(name) if self._make is not None and isinstance(name, str) else None
        if made is not None:
            return made
        known = [*self._objects, *self._aliases]
        close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
        if close:
            hint = "did you mean " + " or ".join(repr(match) for match in close) + "?"
        else:
            hint = f"known: {', '.join(self._objects)}"
        raise UnknownNameError(f"unknown {self.kind} {name!r}: {hint}")

    def get(self, name_or_object: str | T) -> T:
        """Return the object of a name, or the object itself if one was given.

        Raises
        ------
        UnknownNameError
            If the name is not known.
        TypeError
            If it is neither a name nor an object of this kind.
        """
        if isinstance(name_or_object, self.type):
            if not isinstance(name_or_object, str):
                return name_or_object
            return self[name_or_object]
        if isinstance(name_or_object, str):
            return self[name_or_object]
        raise TypeError(f"{_a(self.kind)} is a name or {_a(self.type.__name__)}, not {name_or_object!r}")

    def names(self) -> list[str]:
        """Return the names in the order of registration, aliases left out."""
        return list(self._objects)

    def aliases(self, name: str) -> list[str]:
        """Return the other names of an object."""
        return [alias for alias, target in self._aliases.items() if target == name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, name: object) -> bool:
        return name in self._objects or name in self._aliases

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind}s: {', '.join(self._objects)}>"


def _a(noun: str) -> str:
    """Return a noun with its article."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
