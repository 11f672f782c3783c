"""One matrix product for an accumulator: codes of both operands, C, and scales inside and outside the instruction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.dispatch import nearest_constants
from ..format.catalogue import Format
from ..kernels.tensorcore import epilogue

Float32Matrix = NDArray[np.float32]
Matrix = NDArray[Any]
Places = NDArray[np.intp]


_FLOAT32_INF = 0x7F800000
_NO_FACTORS = np.empty((0, 0), np.float32)


class Joins(NamedTuple):
    """Chains of a product, and how `kernels.tensorcore.epilogue.join` makes one result of their sums.

    Attributes
    ----------
    plan : ndarray of int64, shape (chains, 5)
        Fields of `kernels.tensorcore.loop.Chains`, with ends in products.
    target : Format, optional
        Format of the partial sums that are rounded; None: none is.
    word : ndarray of uint32, shape (11,)
        Constants of that rounding; zeros without a target.
    fits_kernels : bool
        Whether chains begin at multiples of an instruction's products, and the rounding has constants by which a sum
        that is not finite remains so; otherwise, every chain is computed as a separate product.
    rescales : bool
        Whether scales change within a chain.
    grouped : (int, ndarray of int64)
        Size of an instruction's group, and the plan with ends in such groups.
    factors : ndarray of float32, shape (M, N)
        Factors of the epilogue of each part of K; empty if they are 1.
    addend : ndarray of float32, shape (M, N), optional
        First sum on the stack; None: +0.
    scales_one_by_one : bool
        Whether A's scale multiplies a chain before B's does; then, every chain is computed as a separate product.
    """

    plan: NDArray[np.int64]
    target: Format | None = None
    word: NDArray[np.uint32] = np.zeros(11, np.uint32)
    fits_kernels: bool = True
    rescales: bool = False
    grouped: tuple[int, NDArray[np.int64]] = (0, np.empty((0, 5), np.int64))
    factors: Float32Matrix = _NO_FACTORS
    addend: Float32Matrix | None = None
    scales_one_by_one: bool = False

    def rounded_to(self, target: Format) -> Joins:
        """Return the joins with partial sums that are rounded to a format."""
        constants = nearest_constants(target)
        word = self.word if constants is None else np.array(constants, np.uint32)
        keeps = constants is not None and bool(word[7] >= _FLOAT32_INF)
        return self._replace(target=target, word=word, fits_kernels=self.fits_kernels and keeps)

    def in_groups(self, group: int) -> NDArray[np.int64]:
        """Return the plan with ends in groups of products."""
        if group == self.grouped[0]:
            return self.grouped[1]
        return np.concatenate([-(-self.plan[:, :1] // group), self.plan[:, 1:]], axis=1)

    def result(self, m: int, n: int) -> Float32Matrix:
        """Return the array for the result [m, n], with the addend if there is one."""
        return np.empty((m, n), np.float32) if self.addend is None else self.addend.copy()

    def take(self, at: Any) -> Joins:
        """Return the joins for a selection of the result."""
        factors = np.ascontiguousarray(self.factors[at]) if self.factors.size else self.factors
        return self._replace(factors=factors, addend=_some(self.addend, at))


def one_chain(k: int) -> Joins:
    """Return the joins of a single chain of k products."""
    return Joins(np.array([[k, 1, epilogue.PUSH, 0, 0]]))


def promoted_chains(k: int, length: int, operations: int = 0) -> NDArray[np.int64]:
    """Return the plan of chains of `length` products with scales of 1, each added to the first sum on the stack."""
    ends = np.minimum(np.arange(length, k + length, length), k)
    plan = np.zeros((len(ends), 5), np.int64)
    plan[:, 0], plan[:, 1], plan[:, 2], plan[:, 3] = ends, 1, epilogue.PROMOTE, operations
    return plan


class GemmProblem(NamedTuple):
    """Matrix product ``D = A @ B.T`` on one accumulator.

    Without `joins` it is one chain over all of K that starts from `c`, and D has the accumulator's dtype. With `joins`,
    chains start from +0, and D is the result of their scaled sums in float32; their scales are 1 without `scale_a`.
    """

    a: Matrix  # [M, K], codes of `fa`
    b: Matrix  # [N, K], codes of `fb`
    fa: Format
    fb: Format
    c: Matrix | None = None  # [M, N] in the accumulator's dtype
    inside_a: Matrix | None = None  # [M, K / block], codes of scales inside the instruction
    inside_b: Matrix | None = None  # [N, K / block]
    scale_a: Float32Matrix | None = None  # [blocks, M]
    scale_b: Float32Matrix | None = None  # [blocks, N]
    joins: Joins | None = None

    @property
    def start(self) -> Matrix:
        """Matrix C, from which a chain starts."""
        assert self.c is not None, "a scaled sum of chains has no C"
        return self.c

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    def rows(self, rows: Places) -> GemmProblem:
        """Return the problem for a selection of the result's rows."""
        return self._replace(
            a=self.a[rows], c=_some(self.c, rows), inside_a=_some(self.inside_a, rows),
            scale_a=_some(self.scale_a, (slice(None), rows)), joins=self.joins and self.joins.take(rows),
        )  # fmt: skip

    def columns(self, columns: Places) -> GemmProblem:
        """Return the problem for a selection of the result's columns."""
        every = slice(None), columns
        return self._replace(
            b=self.b[columns], c=_some(self.c, every), inside_b=_some(self.inside_b, columns),
            scale_b=_some(self.scale_b, every), joins=self.joins and self.joins.take(every),
        )  # fmt: skip

    def chain(self, start: int, stop: int, c: Matrix, block: int = 0) -> GemmProblem:
        """Return the chain over a range of k, starting from `c`; `block` codes share a scale inside the instruction."""
        a, b = (np.ascontiguousarray(codes[:, start:stop]) for codes in (self.a, self.b))
        if self.inside_a is None or self.inside_b is None:
            return GemmProblem(a, b, self.fa, self.fb, c)
        some = slice(start // block, stop // block)
        return GemmProblem(a, b, self.fa, self.fb, c, self.inside_a[:, some], self.inside_b[:, some])


def times(total: Float32Matrix, scale: Float32Matrix) -> Float32Matrix:
    """Return float32 sums times scales, each product rounded; NaN may have any bits."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return total * scale


def _some(x: Matrix | None, at: Any) -> Matrix | None:
    return None if x is None else np.ascontiguousarray(x[at])


def canonical_nan(d: Matrix) -> Matrix:
    """Replace every NaN in float16 or float32 results [M, N] by the tensor cores' NaN in place; return the results."""
    if d.dtype == np.float16:
        d.view(np.uint16)[np.isnan(d)] = 0x7FFF
    else:
        epilogue.canonical_nan(d)
    return d
