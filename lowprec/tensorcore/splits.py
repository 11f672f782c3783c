"""Splits of K as programs: which products form a chain, and how the sums of chains are joined.

`kernels.tensorcore.epilogue.join` executes a program on a stack of sums, within the kernels of products.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.dispatch import nearest_constants
from ..format.catalogue import Format
from ..kernels.tensorcore.epilogue import ADD, ADD_AND_ROUND, BITS, FROM_ZERO, ROUND, gather_runs
from .library import GemmLibrary
from .problem import NO_JOINS, Joins

Parts = tuple[tuple[int, int], ...]
_FLOAT32_INF = 0x7F800000


class Split(NamedTuple):
    """Chains of a product whose K is split.

    Attributes
    ----------
    runs : ndarray of int64, shape (runs, 3), optional
        Origin, destination and length of consecutive products, in the order of the chains; None: that of K.
    length : int
        Number of products with the zeros between chains.
    plan : ndarray of int64, shape (chains, 3)
        See `Joins`.
    rounds : bool
        Whether partial sums are rounded.
    """

    runs: NDArray[np.int64] | None
    length: int
    plan: NDArray[np.int64]
    rounds: bool

    @property
    def longest(self) -> int:
        """Number of products of the longest chain, with the zeros that follow it."""
        return int(np.diff(self.plan[:, 0], prepend=0).max())

    def joins(self, target: Format) -> Joins | None:
        """Return the joins with partial sums in a format, or None if that is a table of values."""
        if not self.rounds:
            return Joins(self.plan, NO_JOINS.word, True)
        constants = nearest_constants(target)
        if constants is None:
            return None
        *_, over, _, _, _ = word = np.array(constants, np.uint32)
        return Joins(self.plan, word, bool(over >= _FLOAT32_INF))

    def gather(self, codes: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """Return codes [R, K] in the order of the chains, with code 0 between them."""
        codes = np.ascontiguousarray(codes)
        if self.runs is None:
            return codes
        out = np.zeros((len(codes), self.length), codes.dtype)
        multiple = np.gcd.reduce([codes.shape[1], self.length, *self.runs.flat]) * codes.itemsize
        size = next(size for size in (8, 4, 2, 1) if multiple % size == 0)
        word, runs = f"u{size}", self.runs * codes.itemsize // size
        gather_runs(codes.view(word), runs, out.view(word))
        return out


@functools.lru_cache(maxsize=256)
def split_of(library: GemmLibrary, parts: Parts, reduction: str, step: int, from_zero: bool = False) -> Split:
    """Return the chains of parts of K, which begin at multiples of `step` products, and the joins of a reduction.

    With `from_zero`, the epilogue of each part adds it to +0 unless it adds it to the previous result.
    """
    runs: list[tuple[int, int, int]] = []
    plan, top, length, rounds = [], 0, 0, False
    joins = _joins(reduction, len(parts), parts[-1][1], library.split_tile, [FROM_ZERO] if from_zero else [])
    for (start, stop), after in zip(parts, joins, strict=True):
        across = library.slices * library.slice_length
        origins = range(start, min(start + across, stop), library.slice_length)
        for s, origin in enumerate(origins):
            length = -(-length // step) * step
            for at in range(origin, stop, across if len(origins) > 1 else stop - start):
                count = min(library.slice_length if len(origins) > 1 else stop - start, stop - at)
                if runs and runs[-1][0] + runs[-1][2] == at and runs[-1][1] + runs[-1][2] == length:
                    runs[-1] = *runs[-1][:2], runs[-1][2] + count
                else:
                    runs.append((at, length, count))
                length += count
            operations = ([ADD] if s else []) + (after if s == len(origins) - 1 else [])
            top += 1
            plan.append((-(-length // step) * step, top, sum(op << BITS * i for i, op in enumerate(operations))))
            top -= sum(op in (ADD, ADD_AND_ROUND) for op in operations)
            rounds |= any(op in (ROUND, ADD_AND_ROUND) for op in operations)
    plan[-1] = length, *plan[-1][1:]
    return Split(None if len(runs) == 1 else np.array(runs), length, np.array(plan), rounds)


def _joins(reduction: str, count: int, k: int, tile: int, finish: list[int]) -> list[list[int]]:
    """Return the operations after each part."""
    if reduction == "tree":
        return [[ROUND, *[ADD_AND_ROUND] * sums] for sums in _sums_of_halves(k, tile)]
    first, later = {
        "float32": ([], [ADD]),
        "out": ([*finish, ROUND], [*finish, ROUND, ADD_AND_ROUND]),
        "serial": ([*finish, ROUND], [ADD_AND_ROUND]),
        "workspace": ([ROUND, FROM_ZERO], [ROUND, ADD]),
    }[reduction]
    return [first, *itertools.repeat(later, count - 1)]


def _sums_of_halves(k: int, tile: int) -> list[int]:
    """Return the number of sums that each leaf completes, if K is halved until leaves are not longer than a tile."""
    if k <= tile:
        return [0]
    counts = _sums_of_halves(k // 2, tile) + _sums_of_halves(k - k // 2, tile)
    counts[-1] += 1
    return counts
