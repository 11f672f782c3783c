"""What an encoding is, and what several of them share: a file's name, a header as comment lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from .vectors import VectorSet


@dataclass(frozen=True)
class Encoding:
    """A way to write a set.

    Attributes
    ----------
    name : str
        What it is called.
    suffix : str
        How its files end.
    about : str
        Who reads it.
    write : callable
        Returns the bytes of a set; ValueError if it is none for this set.
    """

    name: str
    suffix: str
    about: str
    write: Callable[[VectorSet], bytes]


def stem(s: VectorSet) -> str:
    """Return a set's name as that of a file, or of a C object."""
    level = "" if s.level == 1 else f"_level{s.level}"
    seed = f"_seed{s.seed}" if s.seed else ""
    return "".join(x if x.isalnum() else "_" for x in s.name) + level + seed


def comments(s: VectorSet, mark: str) -> str:
    """Return the header as comment lines."""
    lines = json.dumps(s.header(), indent=1, ensure_ascii=True).splitlines()
    return "".join(f"{mark} {line}".rstrip() + "\n" for line in lines)


def labels(s: VectorSet) -> tuple[list[str], list[int]]:
    """Return the labels of a set, each once, and the index among them of every vector's label."""
    kinds = sorted(set(s.labels))
    number = {label: i for i, label in enumerate(kinds)}
    return kinds, [number[label] for label in s.labels]
