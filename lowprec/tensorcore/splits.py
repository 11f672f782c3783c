"""Splits of K as programs: which products form a chain, and how the sums of chains are joined.

`kernels.tensorcore.epilogue.join` executes a program on a stack of sums, within the kernels of products.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.catalogue import Format
from ..kernels.tensorcore.epilogue import (
    ADD,
    BITS,
    CONTINUE,
    FMA,
    PROMOTE,
    PUSH,
    ROUND,
    SCALE,
    gather_runs,
)  # fmt: skip
from .problem import Float32Matrix, Joins, Matrix

Parts = tuple[tuple[int, int], ...]


class Cut(NamedTuple):
    """How a part of K becomes chains.

    Attributes
    ----------
    slices, slice_length, split_tile : int
        Fields of `GemmLibrary`.
    fuses : bool
        Whether a promoted chain is multiplied by its scales and added with one rounding.
    every : int, optional
        Length of promoted chains; None: chains end where parts and slices do.
    spans : tuple of int
        Length in k over which the scales of A and of B are constant.
    step, align, block : int
        Number of products per instruction, the number of which chains begin at a multiple, and the number of products
        with one scale inside the instruction, or 1.
    """

    slices: int
    slice_length: int
    split_tile: int
    fuses: bool
    every: int | None
    spans: tuple[int, int]
    step: int
    align: int
    block: int


class Split(NamedTuple):
    """Chains of a product whose K is split.

    Attributes
    ----------
    runs : ndarray of int64, shape (runs, 3), optional
        Origin, destination and length of consecutive products, in the order of the chains; None: that of K.
    length : int
        Number of products with the zeros between chains.
    starts : ndarray of int64, optional
        First k of each block of scales; None: scales are constant.
    each : int
        Distance of all these k, or 0.
    joins : Joins
        Joins without rounding, factors and addend.
    rounds : bool
        Whether partial sums are rounded.
    """

    runs: NDArray[np.int64] | None
    length: int
    starts: NDArray[np.int64] | None
    each: int
    joins: Joins
    rounds: bool

    def joins_to(self, target: Format, factors: Float32Matrix | None, addend: Float32Matrix | None) -> Joins:
        """Return the joins with partial sums in a format, and the epilogue's factors and addend."""
        joins = self.joins.rounded_to(target) if self.rounds else self.joins
        return joins._replace(factors=joins.factors if factors is None else factors, addend=addend)

    def gather(self, codes: Matrix) -> Matrix:
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

    def gather_blocks(self, scales: Matrix | None, block: int) -> Matrix | None:
        """Return codes of scales [R, K / block] in the order of the chains; zeros between them take any scale."""
        if self.runs is None or scales is None:
            return scales
        at = np.arange(0, self.length, block)
        origin, destination, count = self.runs[np.searchsorted(self.runs[:, 1], at, "right") - 1].T
        return np.ascontiguousarray(scales[:, (origin + np.minimum(at - destination, count - 1)) // block])


@functools.lru_cache(maxsize=256)
def split_of(parts: Parts, reduction: str, cut: Cut, has_epilogue: bool = False, has_factors: bool = False) -> Split:
    """Return the chains of parts of K, and the joins of a reduction.

    If `has_epilogue`, each part has an epilogue before it is rounded, and the first one adds the addend.
    """
    runs: list[tuple[int, int, int]] = []
    plan: list[tuple[int, ...]] = []
    starts: list[int] = []
    length, is_constant = 0, min(cut.spans) >= parts[-1][1]
    after_parts = _joins(reduction, len(parts), parts[-1][1], cut.split_tile, has_epilogue, FMA if has_factors else ADD)
    top = int(reduction == "workspace" or has_epilogue)  # the first sum on the stack is the addend or +0
    for (start, stop), after in zip(parts, after_parts, strict=True):
        whole = max(stop - start, 1)
        piece = cut.slice_length if cut.slices > 1 else whole
        origins = range(start, start + min(cut.slices * piece, whole), piece)
        for origin in origins:
            length = first = -(-length // cut.align) * cut.align
            for k in range(origin, stop, cut.slices * piece):
                count = min(piece, stop - k)
                if runs and runs[-1][0] + runs[-1][2] == k and runs[-1][1] + runs[-1][2] == length:
                    runs[-1] = *runs[-1][:2], runs[-1][2] + count
                else:
                    runs.append((k, length, count))
                length += count
            for begin, end, is_last in _chains(first, length, cut):
                is_promoted = cut.every is not None and begin > first
                kind = CONTINUE if cut.every is None and not is_last else PUSH
                kind = PROMOTE if is_promoted and cut.fuses else kind
                operations = [ADD] if is_promoted and not cut.fuses else []
                if is_last:
                    operations += ([ADD] if origin > start else []) + (after if origin == origins[-1] else [])
                top += kind == PUSH
                plan.append((end, top, kind, _packed(operations), 0 if is_constant else len(starts)))
                starts.append(start + begin - first)
                top -= sum(operation & ADD for operation in operations) // ADD
    length = -(-length // cut.block) * cut.block
    program = np.array(plan)
    program[-1, 0] = length
    each = starts[1] if len(starts) > 1 else 0
    joins = Joins(
        program, fits_kernels=not (program[:-1, 0] % cut.step).any(), rescales=bool((program[:, 2] == CONTINUE).any())
    )
    return Split(
        None if len(runs) <= 1 else np.array(runs), length, None if is_constant else np.array(starts),
        each if starts == list(range(0, len(starts) * each, each or 1)) else 0,
        joins._replace(grouped=(cut.step, joins.in_groups(cut.step))),
        any(operation & ROUND for after in after_parts for operation in after),
    )  # fmt: skip


def _chains(first: int, stop: int, cut: Cut) -> Iterator[tuple[int, int, bool]]:
    """Yield the begin and the end of each chain, or of its range with constant scales, and whether it is the last."""
    count = max(stop - first, 1)
    length = min(*cut.spans, count) if cut.every is None else cut.every
    for begin in range(first, first + count, length):
        end = min(begin + length, stop)
        yield begin, end if end < stop else -(-end // cut.align) * cut.align, end >= stop


def _packed(operations: list[int]) -> int:
    return sum(operation << BITS * i for i, operation in enumerate(operations))


def _joins(reduction: str, count: int, k: int, tile: int, has_epilogue: bool, onto: int) -> list[list[int]]:
    """Return the operations after each part; `onto` adds the epilogue's product to the previous sum."""
    if reduction == "tree":
        return [[ROUND, *[ADD | ROUND] * sums] for sums in _sums_of_halves(k, tile)]
    each = [SCALE | ROUND] if has_epilogue else [ROUND]
    first, later = {
        "float32": ([], [ADD]),
        "out": (each, [*each, ADD | ROUND]),
        "serial": (each, [onto | ROUND]),
        "workspace": ([ROUND, ADD], [ROUND, ADD]),
    }[reduction]
    return [[onto | ROUND] if has_epilogue else first, *itertools.repeat(later, count - 1)]


def _sums_of_halves(k: int, tile: int) -> list[int]:
    """Return the number of sums that each leaf completes, if K is halved until leaves are not longer than a tile."""
    if k <= tile:
        return [0]
    counts = _sums_of_halves(k // 2, tile) + _sums_of_halves(k - k // 2, tile)
    counts[-1] += 1
    return counts
