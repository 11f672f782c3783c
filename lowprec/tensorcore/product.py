"""What is multiplied: the codes of two operands, C, and the scales inside and outside the instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.catalogue import Format
from ..kernels.tensorcore import epilogue

Float32Matrix = NDArray[np.float32]
Matrix = NDArray[Any]


class BlockScales(NamedTuple):
    """Scales inside the instruction, as codes of the accumulator's scale format: [M, K / block] and [N, K / block]."""

    a: Matrix
    b: Matrix


@dataclass(frozen=True)
class Schedule:
    """Where chains end, and with which scales: block i of K spans ``k[i * length : (i + 1) * length]``.

    With `promote_every`, which is then the length, each block is a chain of its own and its result is added in
    float32; without, one chain runs through all blocks and is rescaled where scales change.
    """

    length: int
    scale_a: Float32Matrix  # [blocks, M]
    scale_b: Float32Matrix  # [blocks, N]
    promote_every: int | None

    @property
    def promote(self) -> bool:
        """Whether sums leave the accumulator after each block."""
        return self.promote_every is not None

    @classmethod
    def one_chain(cls, m: int, n: int, k: int, group: int) -> Schedule:
        """Return that of a single chain over all K, in whole groups, without scales."""
        return cls(-(-max(k, 1) // group) * group, np.ones((1, m), np.float32), np.ones((1, n), np.float32), None)

    def of_rows(self, rows: NDArray[np.intp] | slice) -> Schedule:
        """Return that of some rows of the result."""
        return Schedule(self.length, np.ascontiguousarray(self.scale_a[:, rows]), self.scale_b, self.promote_every)

    def of_columns(self, columns: NDArray[np.intp]) -> Schedule:
        """Return that of some columns of the result."""
        return Schedule(self.length, self.scale_a, np.ascontiguousarray(self.scale_b[:, columns]), self.promote_every)


class Product(NamedTuple):
    """``A @ B.T``, and C if it is a chain; with a schedule, a scaled sum of chains that start from +0.

    Codes are a [M, K] and b [N, K], C [M, N] is of the accumulator's own type.
    """

    fa: Format
    fb: Format
    a: Matrix
    b: Matrix
    c: Matrix | None
    scales: BlockScales | None = None
    schedule: Schedule | None = None

    @property
    def start(self) -> Matrix:
        """C of a chain."""
        assert self.c is not None, "a product with a schedule has no C"
        return self.c

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    def of_rows(self, rows: NDArray[np.intp]) -> Product:
        """Return some rows of the result."""
        s, t = self.scales, self.schedule
        return self._replace(
            a=self.a[rows],
            c=None if self.c is None else self.c[rows],
            scales=None if s is None else s._replace(a=s.a[rows]),
            schedule=t and t.of_rows(rows),
        )

    def of_columns(self, columns: NDArray[np.intp]) -> Product:
        """Return some columns of the result."""
        s, t = self.scales, self.schedule
        return self._replace(
            b=self.b[columns],
            c=None if self.c is None else np.ascontiguousarray(self.c[:, columns]),
            scales=None if s is None else s._replace(b=s.b[columns]),
            schedule=t and t.of_columns(columns),
        )

    def chain(self, start: int, stop: int, c: Matrix, block: int = 0) -> Product:
        """Return the chain over a range of k that starts from `c`; `block` codes share a scale inside."""
        a, b = (np.ascontiguousarray(codes[:, start:stop]) for codes in (self.a, self.b))
        s = self.scales
        scales = None if s is None else BlockScales(*(x[:, start // block : stop // block] for x in s))
        return Product(self.fa, self.fb, a, b, c, scales)


def canonical_nan(d: Matrix) -> Matrix:
    """Give every NaN of results, float16 or float32 [M, N], the bits that a tensor core's has."""
    if d.dtype == np.float16:
        d.view(np.uint16)[np.isnan(d)] = 0x7FFF
    else:
        epilogue.canonical_nan(d)
    return d
