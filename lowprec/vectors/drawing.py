"""Random choices that are the same with any Python and any NumPy: words of (seed, counter), nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from ..oracle.random_bits import random_word

T = TypeVar("T")


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
