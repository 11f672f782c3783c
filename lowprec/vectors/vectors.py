"""Sets of test vectors: input words, result words and a label each, and a header with everything that affects a bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..oracle.values import Exact, Fields, decode

Words: TypeAlias = tuple[int, ...]
Answer: TypeAlias = Callable[[Words], Words]
"""Function from a vector's input words to its result words."""


@dataclass(frozen=True)
class Field:
    """One argument or result: some words of every vector.

    Attributes
    ----------
    name : str
        Name of the argument or result.
    bits : int
        Width of a word.
    format : Fields, optional
        Format of the codes; None if a word is an integer.
    count : int
        Number of words in each vector.
    """

    name: str
    bits: int
    format: Fields | None = None
    count: int = 1

    @classmethod
    def of(cls, name: str, fmt: Fields, count: int = 1) -> Field:
        """Return a field that holds codes of a format."""
        return cls(name, fmt.width + fmt.signed, fmt, count)

    @property
    def digits(self) -> int:
        """Number of hexadecimal digits of a word."""
        return -(-self.bits // 4)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Unsigned integer type that holds a word."""
        return np.dtype(f"u{next(size for size in (1, 2, 4, 8) if 8 * size >= self.bits)}")

    def hex(self, word: int) -> str:
        """Return a word in hexadecimal, with leading zeros."""
        return f"{word:0{self.digits}x}"

    def value(self, word: int) -> Exact | None:
        """Return the value of a word; None if the field has no format."""
        return None if self.format is None else decode(word, self.format)

    def is_nan(self, word: int) -> bool:
        """Return whether a word is a NaN."""
        value = self.value(word)
        return value is not None and value != value

    def describe(self) -> dict[str, Any]:
        """Return the field as a dictionary for headers."""
        fields: dict[str, Any] = {"name": self.name, "bits": self.bits, "count": self.count}
        return fields if self.format is None else fields | {"format": describe(self.format)}


def describe(fmt: Fields) -> dict[str, Any]:
    """Return all fields of a format, which determine the meaning of every code."""
    found = {
        "exponent_bits": fmt.exponent_bits, "mantissa_bits": fmt.mantissa_bits, "bias": fmt.bias,
        "signed": fmt.signed, "specials": fmt.specials, "has_zero": fmt.has_zero,
    }  # fmt: skip
    return found if fmt.subnormals else {**found, "subnormals": False}


class Vector(NamedTuple):
    """One test vector: the words of all inputs, those of all results, and a label."""

    inputs: Words
    results: Words
    label: str


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Test vectors of one operation.

    Attributes
    ----------
    name : str
        Full name, with every choice spelled out.
    level, seed : int
        Level, 1 or 2, and the seed of the random inputs.
    definition : mapping
        Everything that affects a bit, and the version of the definitions.
    inputs, results : tuple of Field
        Arguments and results.
    vectors : tuple of Vector
        The vectors.
    nan : {"payload", "any"}
        Whether a NaN result must have the given payload.

    Examples
    --------
    >>> from lowprec.testing import vectors
    >>> s = vectors("cast/e2m1fn")
    >>> s.name, len(s), s.field_names
    ('cast/e2m1fn/nearest_even/ocp_sat', 190, ['x', 'y'])
    >>> s["x"].dtype, s["y"].dtype, s["y"].shape, s.labels[7]
    (dtype('uint32'), dtype('uint8'), (190,), '-zero, and half an ulp: a tie, even below')
    """

    name: str
    level: int
    seed: int
    definition: Mapping[str, Any]
    inputs: tuple[Field, ...]
    results: tuple[Field, ...]
    vectors: tuple[Vector, ...]
    nan: str = "payload"

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"VectorSet({self.name}, level {self.level}, {len(self)} vectors, sha256 {self.sha256[:12]})"

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the words of a field, [vectors] or [vectors, count]."""
        for fields, side in ((self.inputs, 0), (self.results, 1)):
            for at, field in enumerate(fields):
                if field.name == name:
                    sides = [vector.results if side else vector.inputs for vector in self.vectors]
                    rows = [split_words(words, fields)[at] for words in sides]
                    found = np.array(rows, field.dtype).reshape(len(rows), field.count)
                    return found[:, 0] if field.count == 1 else found
        raise KeyError(f"unknown field {name!r} of {self.name}: expected one of {', '.join(self.field_names)}")

    @property
    def field_names(self) -> list[str]:
        """Names of the inputs, then of the results."""
        return [field.name for field in (*self.inputs, *self.results)]

    @property
    def labels(self) -> list[str]:
        """Label of each vector: the case that it tests."""
        return [vector.label for vector in self.vectors]

    @cached_property
    def sha256(self) -> str:
        """Digest of words and labels; it does not depend on the encoding."""
        text = "".join(f"{line} {vector.label}\n" for line, vector in zip(self.lines(), self.vectors, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()

    def lines(self) -> Iterator[str]:
        """Yield the inputs and results of each vector as hexadecimal words."""
        fields = (*self.inputs, *self.results)
        for vector in self.vectors:
            yield hex_words(fields, vector.inputs + vector.results)

    def header(self) -> dict[str, Any]:
        """Return the header of a file: name, level, seed, definition and fields."""
        return {
            "set": self.name, "level": self.level, "seed": self.seed, "vectors": len(self), "sha256": self.sha256,
            "inputs": [field.describe() for field in self.inputs],
            "results": [field.describe() for field in self.results],
            "nan": self.nan, "definition": dict(self.definition),
        }  # fmt: skip

    @property
    def stem(self) -> str:
        """Name in a form valid for files and C identifiers."""
        level = "" if self.level == 1 else f"_level{self.level}"
        seed = f"_seed{self.seed}" if self.seed else ""
        return "".join(x if x.isalnum() else "_" for x in self.name) + level + seed

    def comments(self, mark: str) -> str:
        """Return the header as comment lines."""
        lines = json.dumps(self.header(), indent=1, ensure_ascii=True).splitlines()
        return "".join(f"{mark} {line}".rstrip() + "\n" for line in lines)

    def numbered_labels(self) -> tuple[list[str], list[int]]:
        """Return the distinct labels, and for every vector the index of its label."""
        kinds = sorted(set(self.labels))
        number = {label: i for i, label in enumerate(kinds)}
        return kinds, [number[label] for label in self.labels]

    def same(self, ours: Words, theirs: Words) -> bool:
        """Return whether two results agree, with NaNs compared as `nan` specifies."""
        if ours == theirs or self.nan == "payload":
            return ours == theirs
        pairs = zip(spread(self.results), ours, theirs, strict=True)
        return all(a == b or (field.is_nan(a) and field.is_nan(b)) for field, a, b in pairs)


def split_words(words: Words, fields: Sequence[Field]) -> list[Words]:
    """Return the words of each field."""
    found, start = [], 0
    for field in fields:
        found.append(words[start : start + field.count])
        start += field.count
    return found


def spread(fields: Sequence[Field]) -> list[Field]:
    """Repeat each field `count` times: one entry per word."""
    return [field for field in fields for _ in range(field.count)]


def hex_words(fields: Sequence[Field], words: Words) -> str:
    """Return words in hexadecimal, separated by spaces."""
    return " ".join(field.hex(word) for field, word in zip(spread(fields), words, strict=True))
