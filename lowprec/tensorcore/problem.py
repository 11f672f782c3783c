"""One matrix product for an accumulator: codes of both operands, C, and scales inside and outside the instruction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.catalogue import Format
from ..kernels.tensorcore import epilogue

Float32Matrix = NDArray[np.float32]
Matrix = NDArray[Any]
Places = NDArray[np.intp]


class Joins(NamedTuple):
    """Joins of the chains of a product whose K is split, as `kernels.tensorcore.epilogue.join` executes them.

    Attributes
    ----------
    plan : ndarray of int64, shape (chains, 3)
        End of each chain along K, number of sums on the stack with it, operations that follow it.
    word : ndarray of uint32, shape (11,)
        Constants of the rounding of partial sums.
    keeps_inf : bool
        Whether a result is not finite if a partial sum is not.
    """

    plan: NDArray[np.int64]
    word: NDArray[np.uint32]
    keeps_inf: bool

    def in_groups(self, group: int) -> NDArray[np.int64]:
        """Return the plan with ends in groups of products."""
        return np.concatenate([-(-self.plan[:, :1] // group), self.plan[:, 1:]], axis=1)


NO_JOINS = Joins(np.empty((0, 3), np.int64), np.zeros(11, np.uint32), True)


class GemmProblem(NamedTuple):
    """Matrix product ``D = A @ B.T`` on one accumulator.

    Without `scale_a` it is one chain over all of K that starts from `c`, and D has the accumulator's dtype. With
    `scale_a`, block i spans ``k[i * length : (i + 1) * length]``, chains start from +0, and D is their scaled sum in
    float32. If `promote`, each block is a separate chain: ``D = fma(scale_a * scale_b, chain, D)``; else one chain runs
    through all blocks and is rescaled where scales change. With `joins`, scales are constant along K, and the scaled
    chains of its plan are joined.
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
    length: int = 0
    promote: bool = False
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
            scale_a=_some(self.scale_a, (slice(None), rows)),
        )  # fmt: skip

    def columns(self, columns: Places) -> GemmProblem:
        """Return the problem for a selection of the result's columns."""
        every = slice(None), columns
        return self._replace(
            b=self.b[columns], c=_some(self.c, every), inside_b=_some(self.inside_b, columns),
            scale_b=_some(self.scale_b, every),
        )  # fmt: skip

    def chain(self, start: int, stop: int, c: Matrix, block: int = 0) -> GemmProblem:
        """Return the chain over a range of k, starting from `c`; `block` codes share a scale inside the instruction."""
        a, b = (np.ascontiguousarray(codes[:, start:stop]) for codes in (self.a, self.b))
        if self.inside_a is None or self.inside_b is None:
            return GemmProblem(a, b, self.fa, self.fb, c)
        some = slice(start // block, stop // block)
        return GemmProblem(a, b, self.fa, self.fb, c, self.inside_a[:, some], self.inside_b[:, some])


def _some(x: Matrix | None, at: Any) -> Matrix | None:
    return None if x is None else np.ascontiguousarray(x[at])


def canonical_nan(d: Matrix) -> Matrix:
    """Replace every NaN in float16 or float32 results [M, N] by the tensor cores' NaN in place; return the results."""
    if d.dtype == np.float16:
        d.view(np.uint16)[np.isnan(d)] = 0x7FFF
    else:
        epilogue.canonical_nan(d)
    return d
