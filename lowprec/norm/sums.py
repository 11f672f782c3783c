"""Statistics and sums in norms that are not sums along one row: Welford's algorithm, and sums over rows."""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice, check_int
from .._values import Value, normalize_fields
from ..order.exact import fma
from ..order.order import FormatName
from ..order.rules import Chain, OrderRule, TorchCascade

Floats = NDArray[np.float32]
IN_TURN = Chain("rows", from_zero=True, fma=True)


@dataclass(frozen=True)
class _Part:
    """Partial result: count, mean and sum of squared deviations of some elements of each row."""

    count: int
    mean: Floats
    squares: Floats

    def join(self, other: _Part, *, is_scalar: bool = False) -> _Part:
        """Combine two partial results; in scalar code, the compiler chooses which multiply-adds are fused."""
        count = self.count + other.count
        share = np.float32(other.count) / np.float32(count) if count else np.float32(0)
        delta, before = other.mean - self.mean, np.float32(self.count)
        if is_scalar:
            added = fma(delta * delta * share, before, other.squares)
            return _Part(count, fma(share, delta, self.mean), self.squares + added)
        moved = share * delta
        return _Part(count, self.mean + moved, fma(delta * before, moved, self.squares + other.squares))


class Moments(Value):
    """Rule of the mean and the variance of a row."""

    @abstractmethod
    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the variance [rows, 1] of x [rows, n]."""


@dataclass(frozen=True, eq=False, repr=False)
class Welford(Moments):
    """Mean and variance by Welford's algorithm in each lane of vectors, as PyTorch computes them on CPUs.

    Each vector of a chunk gives one partial result: a mean and a sum of squares. Partial results of 2, 4, 8, ...
    consecutive chunks are joined, as carries propagate in a binary counter. Elements beyond the last whole group of
    `vectors` vectors give one more partial result, to which the lanes are joined one by one.

    Parameters
    ----------
    lanes : int
        Number of lanes per vector.
    vectors : int
        Number of vectors read per step; each has its own partial result in every chunk.
    chunk : int
        Number of steps per chunk.
    fuses_rest : bool
        Whether the squares of the elements beyond the last whole group are added by fused multiply-adds.
    """

    lanes: int = 8
    vectors: int = 1
    chunk: int = 16
    fuses_rest: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        for field in ("lanes", "vectors", "chunk"):
            check_int("Welford", field, getattr(self, field), 1)

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the variance [rows, 1] of x [rows, n]."""
        rows, n = x.shape
        whole = n // (self.lanes * self.vectors)
        steps = x[:, : whole * self.lanes * self.vectors].reshape(rows, whole, self.vectors, self.lanes)
        empty = _Part(0, *np.zeros((2, rows, self.lanes), np.float32))
        chunks = -(-whole // self.chunk)
        levels = [empty] * max(1, (chunks - 1).bit_length())
        for number in range(1, chunks + 1):
            part = steps[:, (number - 1) * self.chunk : number * self.chunk]
            for vector in range(self.vectors):
                levels[0] = levels[0].join(self._chunk(part[:, :, vector]))
            for level in range(1, len(levels)):
                if number % (1 << level):
                    break
                levels[level], levels[level - 1] = levels[level].join(levels[level - 1]), empty
        lanes = functools.reduce(_Part.join, levels[1:], levels[0])
        total = self._rest(x[:, whole * self.lanes * self.vectors :])
        for mean, squares in zip(lanes.mean.T, lanes.squares.T, strict=True):
            total = total.join(_Part(whole * self.vectors, mean, squares), is_scalar=True)
        return total.mean[:, None], (total.squares / np.float32(n))[:, None]

    def _chunk(self, x: Floats) -> _Part:
        """Return the partial result of a chunk [rows, steps, lanes]."""
        mean = squares = np.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            delta = x[:, step] - mean
            mean = fma(np.float32(1) / np.float32(step + 1), delta, mean)
            squares = fma(delta, x[:, step] - mean, squares)
        return _Part(x.shape[1], mean, squares)

    def _rest(self, x: Floats) -> _Part:
        """Return the partial result of elements [rows, count], which are added one by one."""
        mean = squares = np.zeros(len(x), np.float32)
        for i in range(x.shape[1]):
            delta = x[:, i] - mean
            mean = mean + delta / np.float32(i + 1)
            after = x[:, i] - mean
            squares = fma(delta, after, squares) if self.fuses_rest else squares + delta * after
        return _Part(x.shape[1], mean, squares)


@dataclass(frozen=True, eq=False, repr=False)
class ThreadsWelford(Moments):
    """Mean and variance by Welford's algorithm in each thread of a block, as PyTorch computes them on CUDA.

    A thread takes vectors of consecutive elements. Shuffles by 16, 8, 4, 2 and 1 join the lanes of a warp, and the
    second half of the warps is joined to the first until one is left.

    Parameters
    ----------
    threads : int
        Number of threads: 32, 64, ..., 1024.
    vector : int
        Number of consecutive elements of a thread; the length of a row must be a multiple of it.
    """

    threads: int = 128
    vector: int = 4

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice("ThreadsWelford", "threads", self.threads, (32, 64, 128, 256, 512, 1024))
        check_int("ThreadsWelford", "vector", self.vector, 1)

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the variance [rows, 1] of x [rows, n]."""
        rows, n = x.shape
        if n % self.vector:
            raise ValueError(f"{type(self).__name__}: n must be a multiple of {self.vector}, got {n}")
        count, mean, squares = np.zeros((3, rows, self.threads), np.float32)
        vectors = x.reshape(rows, -1, self.vector)
        for start in range(0, vectors.shape[1], self.threads):
            step = vectors[:, start : start + self.threads]
            own = np.s_[:, : step.shape[1]]
            for element in np.moveaxis(step, 2, 0):
                count[own] += 1
                delta = element - mean[own]
                mean[own] = self._moved(mean[own], delta, count[own])
                squares[own] = fma(delta, element - mean[own], squares[own])
        parts = np.stack([count, mean, squares]).reshape(3, rows, -1, 32)
        for _ in range(5):
            parts = self._join(*np.split(parts, 2, axis=-1))
        while parts.shape[2] > 1:
            parts = self._join(*np.split(parts, 2, axis=2))
        return parts[1, :, 0], parts[2, :, 0] / np.float32(n)

    @staticmethod
    def _moved(mean: Floats, delta: Floats, count: Floats) -> Floats:
        """Return the mean with one element more, as cuWelfordOnlineSum does."""
        return fma(delta, 1 / count, mean)

    @staticmethod
    def _join(own: Floats, other: Floats) -> Floats:
        """Combine counts, means and sums of squares [3, ...] of two threads as cuWelfordCombine does."""
        count = own[0] + other[0]
        reciprocal = 1 / np.maximum(count, 1)
        share, others = own[0] * reciprocal, other[0] * reciprocal
        delta = own[1] - other[1]
        mean = fma(others, other[1], share * own[1])
        return np.stack([count, mean, fma(delta * delta * other[0], share, own[2] + other[2])])


@dataclass(frozen=True, eq=False, repr=False)
class DividingWelford(ThreadsWelford):
    """Mean and variance as in `ThreadsWelford`, but by divisions, as in PyTorch's kernel for any length of a row.

    Threads without an element are not joined.
    """

    threads: int = 512
    vector: int = 1

    @staticmethod
    def _moved(mean: Floats, delta: Floats, count: Floats) -> Floats:
        """Return the mean with one element more, as WelfordOps::reduce does."""
        return mean + delta / count

    @staticmethod
    def _join(own: Floats, other: Floats) -> Floats:
        """Combine counts, means and sums of squares [3, ...] of two threads as WelfordOps::combine does."""
        count, delta = own[0] + other[0], other[1] - own[1]
        share = other[0] / np.maximum(count, 1)
        joined = [count, fma(delta, share, own[1]), fma(delta * delta * own[0], share, own[2] + other[2])]
        return np.where(own[0] == 0, other, np.where(other[0] == 0, own, np.stack(joined)))


@dataclass(frozen=True, eq=False, repr=False)
class ColumnSum(Value):
    """Sums over rows, which the gradients of weights require.

    Parameters
    ----------
    order : OrderRule
        Order in which a column is summed.
    rounds : bool
        Whether every partial sum is rounded to the dtype of the rows. Otherwise sums are float32, and only the final
        one is rounded.
    """

    order: OrderRule = IN_TURN
    rounds: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)

    def rules(self, columns: int) -> list[tuple[OrderRule, int]]:
        """Return orders, each with the number of consecutive columns that are summed in it."""
        return [(self.order, columns)]

    def __call__(self, dtype: FormatName, *x: Floats) -> Floats:
        """Return the sums [1, columns] of x [rows, columns], or of the products of two such arrays."""
        terms: list[Any] = np.broadcast_arrays(*x)  # type: ignore[assignment]
        found, start = [], 0
        for rule, count in self.rules(terms[0].shape[1]):
            order = rule(len(terms[0]), sum_format=dtype if self.rounds else "float32", out_format="float32")
            part = [term[:, start : start + count] for term in terms]
            found.append(order.sum(part[0], axis=0) if len(part) == 1 else order.dot(part[0], part[1], axis=0))
            start += count
        return np.concatenate(found)[None]


@dataclass(frozen=True, eq=False, repr=False)
class TorchColumnSum(ColumnSum):
    """Sums over float32 rows, as PyTorch computes them on CPUs: the order depends on the position of the column.

    Columns in whole groups of 32 (of 4 if there are fewer than 8 columns) have one running sum each, the other columns
    four. A single column is summed like a row.
    """

    def rules(self, columns: int) -> list[tuple[OrderRule, int]]:
        """Return orders, each with the number of consecutive columns that are summed in it."""
        if columns == 1:
            return [(TorchCascade("row", from_zero=True), 1)]
        rest = columns % (32 if columns >= 8 else 4)
        found = [(TorchCascade("column", vector_bytes=4, sums=sums, from_zero=True), count)
                 for sums, count in ((1, columns - rest), (4, rest))]  # fmt: skip
        return [(rule, count) for rule, count in found if count]
