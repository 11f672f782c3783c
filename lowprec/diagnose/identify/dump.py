"""Dumps of matrix products: operands, addend, scales and outputs, and parts of them to recompute."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import decode
from ...format.catalogue import Format
from ...scaling.quantized import Quantized
from ...tensorcore.accumulator import FLOAT64

Array = NDArray[Any]
_ROWS_AT_ONCE = 32
_PRODUCTS = 1 << 26  # largest number of products in a part; the deadline is checked between parts


class BlockScales(NamedTuple):
    """Codes of scales inside the instruction, [M, K / block] and [N, K / block]."""

    a: Array
    b: Array


@dataclass(frozen=True, eq=False)
class Part:
    """Some outputs of a dump, with their operands.

    Attributes
    ----------
    a, b : ndarray of codes, shapes (M, K) and (N, K)
        Operands.
    fa, fb : Format
        Formats of the operands; `FLOAT64` for float64 numbers, which are used as codes directly.
    c : ndarray or None
        The addend [M, N].
    scales : BlockScales or None
        Codes of scales inside the instruction.
    quantized : pair of Quantized or None
        Operands with scales as numbers, one per row and block of K; all are 1 for a dump without scales.
    out : Format
        Format of the outputs.
    wanted : ndarray of unsigned integers, shape (outputs,)
        Bits of the outputs; all NaN have the same bits.
    diagonal : bool
        Whether the outputs are the diagonal of the product.
    """

    a: Array
    b: Array
    fa: Format
    fb: Format
    c: Array | None
    scales: BlockScales | None
    quantized: tuple[Quantized, Quantized] | None
    out: Format
    wanted: Array
    diagonal: bool

    def pick(self, matrix: Array) -> Array:
        """Return the outputs of a product as a vector."""
        return np.ascontiguousarray(matrix.diagonal()) if self.diagonal else matrix.reshape(-1)


@dataclass(frozen=True, eq=False)
class GemmDump:
    """Operands and outputs; ``d = A @ B.T + C``, or by rows ``d[i] = a[i] . b[i] + c[i]``.

    The attributes are those of `Part`, and `blocks`: the rows and columns that share a scale, if scales are numbers.
    """

    a: Array
    b: Array
    fa: Format
    fb: Format
    c: Array | None
    scales: BlockScales | None
    quantized: tuple[Quantized, Quantized] | None
    blocks: tuple[str, str] | None
    out: Format
    d: Array

    @property
    def scaled(self) -> bool:
        """Whether the dump has scales, as codes or as numbers."""
        return self.scales is not None or self.blocks is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GemmDump) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    @functools.cached_property
    def content(self) -> str:
        """Digest of operands, scales and outputs; dumps with equal digests are equal."""
        found = hashlib.sha256(repr((_layout(self.fa), _layout(self.fb), _layout(self.out), self.blocks)).encode())
        scales = (*(self.scales or ()), *(q.scale for q in self.quantized or ()))
        for x in (self.a, self.b, self.d, self.c, *scales):
            found.update(
                b"none" if x is None else repr((x.shape, x.dtype.str)).encode() + np.ascontiguousarray(x).tobytes()
            )
        return found.hexdigest()

    @property
    def by_row(self) -> bool:
        """Whether d is a vector: one dot product for each row."""
        return self.d.ndim == 1

    @property
    def k(self) -> int:
        """Number of products per output."""
        return int(self.a.shape[1])

    def part(self, rows: Array, columns: Array) -> Part:
        """Return the outputs of some rows of A and of B, which must be the same rows if `by_row`."""
        c = self.c
        if c is not None:
            addend = np.zeros((len(rows), len(rows)), c.dtype) if self.by_row else c[np.ix_(rows, columns)]
            if self.by_row:
                np.fill_diagonal(addend, c[rows])
            c = np.ascontiguousarray(addend)
        wanted = self.d[rows] if self.by_row else self.d[np.ix_(rows, columns)]
        s, q = self.scales, self.quantized
        return Part(
            np.ascontiguousarray(self.a[rows]), np.ascontiguousarray(self.b[columns]), self.fa, self.fb, c,
            None if s is None else BlockScales(np.ascontiguousarray(s.a[rows]), np.ascontiguousarray(s.b[columns])),
            None if q is None else (_of_rows(q[0], rows), _of_rows(q[1], columns)),
            self.out, wanted.reshape(-1), self.by_row,
        )  # fmt: skip

    def parts(self) -> list[Part]:
        """Return parts that cover all outputs in order."""
        m, n = len(self.a), len(self.b)
        step = _ROWS_AT_ONCE if self.by_row else max(_PRODUCTS // (n * self.k), 1)
        rows = [np.arange(i, min(i + step, m)) for i in range(0, m, step)]
        return [self.part(some, some if self.by_row else np.arange(n)) for some in rows]

    def sample(self, side: int, turn: int = 0) -> Part:
        """Return at most side x side outputs, distributed over the dump; each `turn` selects others."""
        m, n = len(self.a), len(self.b)
        if self.by_row:
            at = _spread(m, min(side * side, _ROWS_AT_ONCE), turn)
            return self.part(at, at)
        return self.part(_spread(m, side, turn), _spread(n, side, turn))

    def place(self, index: int) -> tuple[int, ...]:
        """Return the position in d of the n-th output of `parts`."""
        return tuple(int(i) for i in np.unravel_index(index, self.d.shape))

    def single(self, place: tuple[int, ...]) -> Part:
        """Return the part with one output."""
        i, j = (place[0], place[0]) if self.by_row else place
        return self.part(np.array([i]), np.array([j]))


def _spread(length: int, count: int, turn: int) -> Array:
    """Return `count` indices distributed over a range, or all."""
    if count >= length:
        return np.arange(length)
    step = length / count
    return ((np.arange(count) * step).astype(np.intp) + turn) % length


def _of_rows(q: Quantized, rows: Array) -> Quantized:
    return Quantized(
        np.ascontiguousarray(q.codes[rows]), np.ascontiguousarray(q.scale[rows]), q.format, q.granularity,
        q.scale_format,
    )  # fmt: skip


def _layout(fmt: Format) -> Any:
    return "float64" if fmt == FLOAT64 else fmt.encoding_key


def word_of(fmt: Format) -> np.dtype[Any]:
    """Return the unsigned integer type of a format's bits."""
    return np.dtype(np.uint64) if fmt == FLOAT64 else fmt.code_dtype


def values(codes: Array, fmt: Format) -> NDArray[np.float64]:
    """Return the values of codes; float64 numbers are returned unchanged."""
    return codes if fmt == FLOAT64 else decode(codes, fmt).astype(np.float64)


def canonical(bits: Array, fmt: Format) -> Array:
    """Return bits in which every NaN has all bits but the sign set, because NaN payloads are not compared."""
    if fmt == FLOAT64:
        return np.where(np.isnan(bits.view(np.float64)), np.uint64((1 << 63) - 1), bits)
    ones = bits.dtype.type((1 << (fmt.bits - 1)) - 1)
    return np.where(np.isnan(decode(bits, fmt)), ones, bits)
