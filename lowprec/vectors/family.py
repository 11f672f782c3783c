"""What every family of vector sets has: the sets that it lists, how it makes one, and the rules that are not the set's.

A family answers by the oracle. `Rule` is such an answer under a name: the set's own, those of the catalogue beside it,
and wrong ones; `lowprec.vectors.compare` looks among them for what another implementation does. Random choices are the
same with any Python and any NumPy: words of (seed, counter), nothing else.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ..oracle.random_bits import random_word
from ..registry import UnknownNameError
from .vectors import Answer, Field, Vector, VectorSet, Words

T = TypeVar("T")
VERSION = 1


class Stream:
    """A stream of random choices for a seed and a name."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        self._seed = int.from_bytes(digest[:8], "little")
        self._at = 0

    def bits(self, n: int) -> int:
        """Return n random bits."""
        value = 0
        for _ in range(-(-n // 32)):
            value = value << 32 | random_word(self._seed, self._at)
            self._at += 1
        return value & ((1 << n) - 1)

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1."""
        return self.bits(n.bit_length() + 32) % n

    def between(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, share: float) -> bool:
        """Return True for a share of the calls."""
        return self.bits(32) < share * 2**32

    def pick(self, items: Sequence[T]) -> T:
        """Return one of some items."""
        return items[self.below(len(items))]


"""Version of all definitions: it changes when the same words would mean other bits."""


@dataclass(frozen=True)
class Rule:
    """A rule that is not the set's.

    Attributes
    ----------
    words : str
        What it does, as a clause: "round toward zero".
    answer : callable
        Takes a vector's input words, returns its result words.
    mutant : bool
        Whether it is a known wrong rule, which the set must tell apart.
    changes : int
        In how many ways it is not the set's rule: of two that explain the same, the one with fewer is named.
    """

    words: str
    answer: Answer
    mutant: bool = False
    changes: int = 1


@dataclass(frozen=True)
class SetSpec:
    """A set before its answers: the fields, what decides a bit, labelled inputs, and the right rule."""

    definition: dict[str, Any]
    inputs: tuple[Field, ...]
    results: tuple[Field, ...]
    points: Iterable[tuple[Words, str]]
    answer: Answer
    nan: str = "payload"


@dataclass(frozen=True)
class Choice:
    """One part of a set's name.

    Attributes
    ----------
    word : str
        Its name in the family's pattern.
    find : callable
        Takes the part as given, and the parts before it; returns it as the full name has it, or raises a ValueError.
    default : callable or str, optional
        What an omitted part is; may depend on the parts before it.
    hidden : bool
        Whether the full name leaves it out where it is the default.
    """

    word: str
    find: Callable[[str, tuple[str, ...]], str]
    default: Callable[[tuple[str, ...]], str] | str | None = None
    hidden: bool = False

    def usual(self, before: tuple[str, ...]) -> str:
        """Return the default after some other parts."""
        return self.default(before) if callable(self.default) else self.default or ""


def one_of(names: Iterable[str], lacks: str) -> Callable[[str, tuple[str, ...]], str]:
    """Return a `Choice.find` of some names; `lacks` is the message for others."""
    known = tuple(names)

    def find(part: str, before: tuple[str, ...]) -> str:
        if part not in known:
            raise ValueError(f"{part}: {lacks} {', '.join(known)}")
        return part

    return find


def number(least: int, most: int) -> Callable[[str, tuple[str, ...]], str]:
    """Return a `Choice.find` of integers."""

    def find(part: str, before: tuple[str, ...]) -> str:
        if not part.isdecimal() or not least <= int(part) <= most:
            raise ValueError(f"{part!r} must be an integer from {least} to {most}")
        return str(int(part))

    return find


class Family(ABC):
    """A kind of operation of which there are vector sets.

    Attributes
    ----------
    name : str
        First part of its sets' names.
    choices : tuple of Choice
        The other parts of its sets' names.
    about : str
        One sentence.
    sets : iterable of str
        What follows the family's name in the full names of its sets.
    """

    name: ClassVar[str]
    choices: ClassVar[tuple[Choice, ...]]
    about: ClassVar[str]
    sets: ClassVar[Iterable[str]] = ()

    @property
    def pattern(self) -> str:
        """The parts of a name after the first, optional ones in brackets."""
        words = [choice.word if choice.default is None else f"[/{choice.word}" for choice in self.choices]
        return "".join(words) + "]" * sum(choice.default is not None for choice in self.choices)

    def listed(self) -> list[str]:
        """Return the full names of its sets, without those that only their parameters make."""
        return [f"{self.name}/{rest}" for rest in self.sets]

    def full(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return all parts of a name, those that were left out filled in; ValueError for what cannot be."""
        given = "/".join((self.name, *parts))
        if not 1 <= len(parts) <= len(self.choices) or not all(parts):
            raise ValueError(f"{given}: a set of this family is called {self.name}/{self.pattern}")
        found: tuple[str, ...] = ()
        for i, choice in enumerate(self.choices):
            try:
                found += (choice.find(parts[i] if i < len(parts) else choice.usual(found), found),)
            except UnknownNameError:
                raise
            except ValueError as error:
                raise ValueError(f"{given}: {error}") from None
        last = self.choices[-1]
        return found[:-1] if last.hidden and found[-1] == last.usual(found[:-1]) else found

    @abstractmethod
    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return a set of that full name before its answers."""

    @abstractmethod
    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Return rules that are not the set's, those with fewer changes first; `theirs` is to be explained by them."""

    def make(self, parts: Sequence[str], level: int, seed: int) -> VectorSet:
        """Make a set."""
        whole = self.full(parts)
        made = self.prepare(whole, level, seed)
        seen: dict[Words, Vector] = {}
        for words, label in made.points:
            if words not in seen:
                seen[words] = Vector(words, made.answer(words), label)
        definition = {"version": VERSION, "operation": self.about, **made.definition}
        name = "/".join((self.name, *whole))
        return VectorSet(
            name, level, seed, definition, made.inputs, made.results, tuple(seen.values()), made.nan
        )  # fmt: skip
