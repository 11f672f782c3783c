"""LogFMT as the paper defines it, with what the paper leaves open settled so that every bit is defined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowprec import _threads
from lowprec._arrays import LARGEST_TILE, Array, Floats, apart, one_of, output, whole
from lowprec._ieee import standard
from lowprec._values import ByBits
from lowprec.cast import casts as cast
from lowprec.kernels.logfmt import grid as kernels

from .arrays import as_rows, from_rows
from .header import Header, with_header
from .wire import (
    Bytes,
    Flags,
    from_streams,
    join_rows,
    pairs_from_bytes,
    pairs_to_bytes,
    row_bytes,
    split_rows,
    to_streams,
)  # fmt: skip

Meta = Literal["bf16", "fp32"]

_GRAIN = 512  # tiles per piece of work
TILES_OF_A_CHUNK = 8  # that are sent as bfloat16 together, if one of them is not fit for LogFMT


@dataclass(frozen=True, eq=False)
class LogFMT(ByBits):
    """An array in LogFMT.

    Attributes
    ----------
    codes : uint8 (bits <= 8) or uint16 array, the shape of the values
        Sign in bit `bits` - 1, magnitude code below it. With a fallback always uint16, and in a chunk that fell back
        the bfloat16 numbers' own codes.
    amin, amax : float32 arrays, the shape of the values with `axis` counting tiles
        Smallest non-zero and largest magnitude of each tile; 0 and 0 for a tile of zeros, amax NaN for a poisoned one.
    bits : int
        Bits per value, sign included.
    tile : int
        Values per tile.
    octaves : int
        Largest distance of the two ends: the lower one is at least amax * 2^-octaves.
    axis : int
        Axis that tiles run along.
    meta : {None, "bf16", "fp32"}
        What the ends are sent as; None: bfloat16 if every one is such a number.
    fallback : {None, "bf16"}
        Whether chunks of 8 tiles may have fallen back to bfloat16.
    """

    codes: Array = field(repr=False)
    amin: Floats = field(repr=False)
    amax: Floats = field(repr=False)
    bits: int
    tile: int = 128
    octaves: int = 32
    axis: int = -1
    meta: Meta | None = None
    fallback: Literal["bf16"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.codes.shape

    @property
    def meta_bits(self) -> int:
        """Bits of a tile's (amin, amax) pair: 32 for bfloat16 numbers, 64 for float32."""
        if self.meta is not None:
            return 32 if self.meta == "bf16" else 64
        for ends in (self.amin, self.amax):
            if (np.ascontiguousarray(ends).view(np.uint32) & np.uint32(0xFFFF)).any():
                return 64
        return 32

    @property
    def cast(self) -> npt.NDArray[np.bool_]:
        """Which chunks of 8 tiles are in LogFMT: bool, the shape of `amax` with `axis` counting chunks.

        All without a fallback; with one, those whose tiles all have amax < 1 and amin < amax, which is what DeepEP
        asks of 1024 channels. The receiver knows it from the metadata.
        """
        amin, amax = as_rows(self.amin, self.axis), as_rows(self.amax, self.axis)
        fit = (amax < 1) & (amin < amax) if self.fallback else np.ones(amax.shape, bool)
        chunks = np.empty((len(fit), -(-fit.shape[1] // TILES_OF_A_CHUNK)), bool)
        if chunks.size:
            starts = np.arange(0, fit.shape[1], TILES_OF_A_CHUNK)
            chunks = np.logical_and.reduceat(fit, starts, axis=1)
        return from_rows(chunks, self.shape, self.axis % len(self.shape))

    @property
    def nbytes(self) -> int:
        """Length of `pack()`, or the sum of the lengths of its rows."""
        rows, columns = as_rows(self.codes, self.axis).shape
        if not self.fallback or not self.codes.size:
            return int(rows * row_bytes(columns, self.bits, self.tile, self.meta_bits))
        metas = self.amax.size * self.meta_bits // 8
        widths = np.array(_chunk_widths(columns, self.bits, self.tile), np.int64).reshape(-1, 2)
        chunks = np.where(as_rows(self.cast, self.axis), widths[:, 0], widths[:, 1])
        return int(metas) + int(chunks.sum())

    @property
    def bits_per_value(self) -> float:
        """Bits on the wire per value, metadata included."""
        return 8 * self.nbytes / max(1, self.codes.size)

    @standard
    def decode(self, out: Floats | None = None) -> Floats:
        """Return the values that the codes stand for.

        Parameters
        ----------
        out : float32 array, optional
            Where to put them: C-contiguous, of the same shape.

        Returns
        -------
        float32 array of `shape`
            The values.

        Raises
        ------
        ValueError
            If `out` does not fit, or a code has more than `bits` bits.
        """
        codes, amin, amax = (as_rows(array, self.axis) for array in (self.codes, self.amin, self.amax))
        if out is not None:
            out = output("logfmt", out, self.shape, np.float32)
            codes, amin, amax = (apart(array, out) for array in (codes, amin, amax))
        direct = out is not None and self.axis in (-1, len(self.shape) - 1)
        rows = as_rows(out, -1) if out is not None and direct else np.empty(codes.shape, np.float32)
        fallen = self.fallen()
        if fallen is not None:
            words, codes = codes, np.where(fallen, codes.dtype.type(0), codes)
        if self.bits != 8 * codes.itemsize and codes.size and int(codes.max()) >> self.bits:
            raise ValueError(f"logfmt: code {codes.max()} is outside 0..{(1 << self.bits) - 1} ({self.bits} bits)")
        tile = min(self.tile, max(1, codes.shape[1]))
        _threads.run_chunks(
            lambda start, stop: kernels.decode_tiles(
                codes.reshape(-1), amin.reshape(-1), amax.reshape(-1), codes.shape[1], self.bits, tile,
                self.octaves, rows.reshape(-1), start, stop,
            ),
            amin.size,
            _GRAIN,
        )  # fmt: skip
        if fallen is not None:
            rows[fallen] = cast.decode(words[fallen], "bfloat16")
        if out is not None and direct:
            return out
        values = from_rows(rows, self.shape, self.axis % len(self.shape))
        if out is None:
            return np.ascontiguousarray(values)
        out[...] = values
        return out

    def pack(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that go over the wire, row by row.

        A row is the (amin, amax) pairs of its tiles, little-endian bfloat16 or float32 by `meta_bits`, and then the
        tiles, each a little-endian stream of its codes from the least significant bit on, padded to whole bytes
        (16 * bits bytes for 128 values). A chunk that fell back is its bfloat16 numbers instead.

        Returns
        -------
        uint8 array [..., bytes of a row]
            Leading axes as the values', without the tiles' axis. With a fallback, where rows may differ in length: one
            dimension, row after row.
        """
        codes, amin, amax = (as_rows(array, self.axis) for array in (self.codes, self.amin, self.amax))
        metas = pairs_to_bytes(amin, amax, self.meta_bits)
        if self.fallback and not codes.size:
            return np.empty(0, np.uint8)
        if not self.fallback:
            rows = np.concatenate([metas, to_streams(codes, self.bits, self.tile)], axis=1)
            return rows.reshape(*np.moveaxis(self.codes, self.axis, -1).shape[:-1], rows.shape[1])
        cast, size = as_rows(self.cast, self.axis), TILES_OF_A_CHUNK * self.tile
        encoded, raw = [], []
        for c, first in enumerate(range(0, codes.shape[1], size)):
            part = codes[:, first : first + size]
            # What stands in a chunk that fell back is no code of `bits` bits.
            encoded.append(to_streams(np.where(cast[:, c : c + 1], part, np.uint16(0)), self.bits, self.tile))
            raw.append(np.ascontiguousarray(part, dtype="<u2").view(np.uint8))
        return join_rows(metas, cast, encoded, raw)

    def to_bytes(self) -> bytes:
        """Return a header that tells all of bits, tiles and shape, and then `pack()`: `from_bytes` needs no more."""
        axis = self.axis % len(self.shape)
        header = Header(
            0, self.bits, self.octaves, self.meta_bits, self.fallback is not None, axis, self.tile, self.shape
        )
        return with_header(header, self.pack().reshape(-1))

    def fallen(self) -> npt.NDArray[np.bool_] | None:
        """Return which values [rows, columns] are bfloat16 numbers, or None if there are none."""
        if not self.fallback:
            return None
        cast_chunks = as_rows(self.cast, self.axis)
        columns = self.shape[self.axis]
        return np.repeat(~cast_chunks, min(TILES_OF_A_CHUNK * self.tile, columns), axis=1)[:, :columns]


def unpack(
    wire: Bytes,
    columns: int,
    bits: int = 8,
    tile: int = 128,
    *,
    meta_bits: int,
    clamp_octaves: int = 32,
    fallback: Literal["bf16"] | None = None,
) -> LogFMT:
    """Read back what `LogFMT.pack` wrote.

    Parameters
    ----------
    wire : uint8 array [..., bytes of a row]
        The bytes; with a fallback of one dimension, row after row.
    columns : int
        Values in a row.
    bits, tile, clamp_octaves, fallback
        As given to `encode`.
    meta_bits : {32, 64}
        As `LogFMT.meta_bits` was.

    Returns
    -------
    LogFMT
        The same codes and metadata, tiles along the last axis.

    Raises
    ------
    ValueError
        If a number is out of range, there are too few or too many bytes, a tile's ends are no ends, or padding bits are
        not zero.

    Examples
    --------
    >>> from lowprec import logfmt
    >>> z = logfmt.encode(np.linspace(-1, 1, 300, dtype=np.float32))
    >>> back = logfmt.unpack(z.pack(), 300, meta_bits=z.meta_bits)
    >>> np.array_equal(back.codes, z.codes), back.nbytes
    (True, 324)
    """
    bits, tile, octaves = (
        whole("logfmt", "bits", bits, 3, 16),
        whole("logfmt", "tile", tile, 1, LARGEST_TILE),
        whole("logfmt", "clamp_octaves", clamp_octaves, 1, 32),
    )
    columns, meta_bits = whole("logfmt", "columns", columns, 0), one_of("logfmt", "meta_bits", meta_bits, (32, 64))
    one_of("logfmt", "fallback", fallback, (None, "bf16"))
    data = np.asarray(wire)
    length = row_bytes(columns, bits, tile, meta_bits)
    if data.dtype != np.uint8 or data.ndim < 1 or (data.ndim > 1 and fallback is not None):
        raise ValueError(f"logfmt: wire is {data.dtype} {data.shape}; uint8 bytes in rows are needed")
    if fallback is not None:
        return _unpack_varying(data, columns, bits, tile, meta_bits, octaves)
    if data.shape[-1] != length:
        raise ValueError(
            f"logfmt: wire is {data.dtype} {data.shape}; rows of {columns} values in {bits} bits are {length} uint8"
        )
    lead = data.shape[:-1]
    rows = np.ascontiguousarray(data).reshape(int(np.prod(lead, dtype=np.int64)), length)
    tiles = -(-columns // tile)
    amin, amax = pairs_from_bytes(rows[:, : tiles * meta_bits // 8], meta_bits)
    codes = from_streams(rows[:, tiles * meta_bits // 8 :], columns, bits, tile)
    shape = (*lead, columns)
    axis = len(shape) - 1
    return LogFMT(
        from_rows(codes, shape, axis), from_rows(amin, shape, axis), from_rows(amax, shape, axis), bits, tile, octaves
    )


def paper_from_bytes(header: Header, payload: Bytes) -> LogFMT:
    """Read the payload of mode paper."""
    shape, axis = header.shape, header.axis
    columns = shape[axis]
    lead = (*shape[:axis], *shape[axis + 1 :])
    rows = int(np.prod(lead, dtype=object))
    options: dict[str, Any] = {"meta_bits": header.meta_bits, "clamp_octaves": header.octaves}
    if header.fallback and columns:
        z = unpack(payload, columns, header.bits, header.tile, fallback="bf16", **options)
    else:
        length = row_bytes(columns, header.bits, header.tile, header.meta_bits)
        if payload.size != rows * length:
            raise ValueError(f"logfmt: {payload.size} bytes; shape {shape} in {header.bits} bits takes {rows * length}")
        z = unpack(payload.reshape(rows, length), columns, header.bits, header.tile, **options)
    if z.codes.shape[0] != rows:
        raise ValueError(f"logfmt: bytes of {z.codes.shape[0]} rows; shape {shape} has {rows}")
    codes = z.codes.astype(np.uint16) if header.fallback else z.codes
    return LogFMT(
        from_rows(codes, shape, axis), from_rows(z.amin, shape, axis), from_rows(z.amax, shape, axis),
        header.bits, header.tile, header.octaves, axis if axis != len(shape) - 1 else -1,
        "fp32" if header.meta_bits == 64 else "bf16", "bf16" if header.fallback else None,
    )  # fmt: skip


def _chunk_widths(columns: int, bits: int, tile: int) -> list[tuple[int, int]]:
    """Return for each chunk of a row how many bytes it takes in LogFMT and in bfloat16."""
    size = TILES_OF_A_CHUNK * tile
    counts = [min(size, columns - first) for first in range(0, columns, size)]
    return [(row_bytes(n, bits, tile, 0), 2 * n) for n in counts]


def _unpack_varying(data: Bytes, columns: int, bits: int, tile: int, meta_bits: int, octaves: int) -> LogFMT:
    tiles = -(-columns // tile)
    if not tiles and data.size:
        raise ValueError(f"logfmt: {data.size} bytes; rows of 0 values take none")
    if data.size < tiles * meta_bits // 8:  # before any work that grows with the columns
        if data.size:
            raise ValueError(f"logfmt: row 0 begins at byte 0 of {data.size}; it is cut short")
        ends = np.empty((0, tiles), np.float32)
        return LogFMT(np.empty((0, columns), np.uint16), ends, ends, bits, tile, octaves, -1, None, "bf16")

    def fit(meta: Bytes) -> Flags:
        amin, amax = pairs_from_bytes(meta[None], meta_bits)
        return LogFMT(amin[0], amin[0], amax[0], bits, tile, octaves, fallback="bf16").cast

    metas, cast, encoded, raw = split_rows(data, tiles * meta_bits // 8, _chunk_widths(columns, bits, tile), fit)
    amin, amax = pairs_from_bytes(metas, meta_bits)
    codes = np.empty((len(metas), columns), np.uint16)
    size = TILES_OF_A_CHUNK * tile
    for c, first in enumerate(range(0, columns, size)):
        part = codes[:, first : first + size]
        packed = from_streams(encoded[c], part.shape[1], bits, tile)
        part[...] = np.where(cast[:, c : c + 1], packed, np.ascontiguousarray(raw[c]).view("<u2"))
    return LogFMT(codes, amin, amax, bits, tile, octaves, -1, None, "bf16")
