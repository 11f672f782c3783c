"""Base class of families of vector sets: the sets that it lists, how it makes one, and rules other than the set's.

All answers come from the oracle. A `Rule` is a function that answers, with a name: the set's rule, other rules of the
catalogue, and wrong ones. `lowprec.vectors.compare` searches them for the one that an implementation follows. Random
choices are words of (seed, counter), so they do not depend on the versions of Python and NumPy.
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
    """A stream of random choices, determined by a seed and a name."""

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
        """Return a random integer in [0, n - 1]."""
        return self.bits(n.bit_length() + 32) % n

    def between(self, low: int, high: int) -> int:
        """Return a random integer in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self.bits(32) < share * 2**32

    def pick(self, items: Sequence[T]) -> T:
        """Return a random item."""
        return items[self.below(len(items))]


"""Version of all definitions. It changes when an existing definition gives different bits."""


@dataclass(frozen=True)
class Rule:
    """A rule that an implementation may follow in place of the set's.

    Attributes
    ----------
    words : str
        Description of the rule as a clause: "round toward zero".
    answer : callable
        Takes a vector's input words, returns its result words.
    mutant : bool
        Whether it is a known wrong rule, which the set must distinguish from the correct one.
    changes : int
        Number of changes from the set's rule. Of several rules that explain the same answers, the one with the fewest
        changes is reported.
    """

    words: str
    answer: Answer
    mutant: bool = False
    changes: int = 1


@dataclass(frozen=True)
class SetSpec:
    """A set without its answers: definition, fields, labelled inputs, and the correct rule."""

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
        Name of the part in the family's pattern.
    find : callable
        Takes the part as given and the parts before it. Returns the part as the full name has it, or raises a
        ValueError.
    default : callable or str, optional
        Value if the part is omitted; a callable computes it from the parts before it.
    hidden : bool
        Whether the full name omits the part if it equals the default.
    """

    word: str
    find: Callable[[str, tuple[str, ...]], str]
    default: Callable[[tuple[str, ...]], str] | str | None = None
    hidden: bool = False

    def usual(self, before: tuple[str, ...]) -> str:
        """Return the default, given the parts before it."""
        return self.default(before) if callable(self.default) else self.default or ""


def one_of(names: Iterable[str], lacks: str) -> Callable[[str, tuple[str, ...]], str]:
    """Return a `Choice.find` that accepts the given names; `lacks` begins the message for others."""
    known = tuple(names)

    def find(part: str, before: tuple[str, ...]) -> str:
        if part not in known:
            raise ValueError(f"{part}: {lacks} {', '.join(known)}")
        return part

    return find


def number(least: int, most: int) -> Callable[[str, tuple[str, ...]], str]:
    """Return a `Choice.find` that accepts integers from `least` to `most`."""

    def find(part: str, before: tuple[str, ...]) -> str:
        if not part.isdecimal() or not least <= int(part) <= most:
            raise ValueError(f"number must be an integer from {least} to {most}, got {part!r}")
        return str(int(part))

    return find


class Family(ABC):
    """A family of vector sets: one kind of operation.

    Attributes
    ----------
    name : str
        First part of the names of its sets.
    choices : tuple of Choice
        The other parts of the names.
    about : str
        Description of the operation, one sentence.
    sets : iterable of str
        Names of the listed sets, without the family's name.
    """

    name: ClassVar[str]
    choices: ClassVar[tuple[Choice, ...]]
    about: ClassVar[str]
    sets: ClassVar[Iterable[str]] = ()

    @property
    def pattern(self) -> str:
        """Parts of a name after the first, with optional ones in brackets."""
        words = [choice.word if choice.default is None else f"[/{choice.word}" for choice in self.choices]
        return "".join(words) + "]" * sum(choice.default is not None for choice in self.choices)

    def listed(self) -> list[str]:
        """Return the full names of its listed sets; sets that differ from them only in a parameter are left out."""
        return [f"{self.name}/{rest}" for rest in self.sets]

    def full(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Complete the parts of a name with defaults; ValueError for an invalid name."""
        given = "/".join((self.name, *parts))
        if not 1 <= len(parts) <= len(self.choices) or not all(parts):
            raise ValueError(f"set must be named {self.name}/{self.pattern}, got {given!r}")
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
        """Return the fields, inputs and rule of the set with the given full name, without its answers."""

    @abstractmethod
    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield rules other than the set's, fewest changes first; `theirs` maps inputs to the answers to explain."""

    def make(self, parts: Sequence[str], level: int, seed: int) -> VectorSet:
        """Make the set with the given name."""
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
