"""What every family of vector sets has: the sets that it lists, how it makes one, and the rules that are not the set's.

A family answers by the oracle. `Rule` is such an answer under a name: the set's own, those of the catalogue beside it,
and wrong ones; `lowprec.vectors.explain` looks among them for what another implementation does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .vectors import Answer, Field, Vector, VectorSet, Words

VERSION = 1
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
class Made:
    """A set before its answers: the fields, what decides a bit, labelled inputs, and the right rule."""

    definition: dict[str, Any]
    inputs: tuple[Field, ...]
    results: tuple[Field, ...]
    points: Iterable[tuple[Words, str]]
    answer: Answer
    nan: str = "payload"


class Family(ABC):
    """A kind of operation of which there are vector sets.

    Attributes
    ----------
    name : str
        First part of its sets' names.
    pattern : str
        How a name goes on, what is left out in brackets.
    about : str
        One sentence.
    """

    name: str
    pattern: str
    about: str

    @abstractmethod
    def listed(self) -> list[str]:
        """Return the full names of its sets, without those that only their parameters make."""

    @abstractmethod
    def full(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return all parts of a name, those that were left out filled in; ValueError for what cannot be."""

    @abstractmethod
    def prepare(self, parts: Sequence[str], level: int, seed: int) -> Made:
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


def checked(who: str, parts: Sequence[str], most: int, pattern: str) -> None:
    """Refuse a name of too many or too few parts."""
    if not 1 <= len(parts) <= most or not all(parts):
        raise ValueError(f"{'/'.join((who, *parts))}: a set of this family is called {who}/{pattern}")
