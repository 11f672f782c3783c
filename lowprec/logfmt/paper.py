"""LogFMT as the paper defines it; details that the paper leaves open are chosen so that every bit is defined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowprec import _threads
from lowprec._arrays import Array, Floats, copy_if_overlapping, prepare_out
from lowprec._checks import MAX_TILE, check_choice, check_int
from lowprec._fpenv import with_default_fpenv
from lowprec._values import BitwiseEq
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

RangeFormat = Literal["bf16", "fp32"]

_GRAIN = 512  # tiles per chunk of work
TILES_OF_A_CHUNK = 8  # sent as bfloat16 together if one of them does not qualify for LogFMT


@dataclass(frozen=True, eq=False)
class LogFMT(BitwiseEq):
    """An array in LogFMT.

    Attributes
    ----------
    codes : uint8 (bits <= 8) or uint16 array, the shape of the values
        Sign in bit `bits` - 1, magnitude code below it. With a fallback the dtype is always uint16, and a chunk that
        fell back holds the codes of its bfloat16 numbers.
    amin, amax : float32 arrays, the shape of the values with `axis` counting tiles
        Smallest non-zero and largest magnitude of each tile; 0 and 0 for a tile of zeros, amax NaN for a poisoned one.
    bits : int
        Number of bits per value, including the sign.
    tile : int
        Number of values per tile.
    octaves : int
        Largest range of a tile, in octaves: code 1 is max(amin, amax * 2^-octaves).
    axis : int
        Axis of the tiles.
    range_format : {None, "bf16", "fp32"}
        Format in which `amin` and `amax` are stored; None: bfloat16 if it represents all of them exactly, else float32.
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
    range_format: RangeFormat | None = None
    fallback: Literal["bf16"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.codes.shape

    @property
    def range_bits(self) -> int:
        """Number of bits of a tile's (amin, amax) pair: 32 in bfloat16, 64 in float32."""
        if self.range_format is not None:
            return 32 if self.range_format == "bf16" else 64
        for ends in (self.amin, self.amax):
            if (np.ascontiguousarray(ends).view(np.uint32) & np.uint32(0xFFFF)).any():
                return 64
        return 32

    @property
    def encoded_chunks(self) -> npt.NDArray[np.bool_]:
        """Whether each chunk of 8 tiles is in LogFMT, bool array of the shape of `amax` with `axis` counting chunks.

        Without a fallback, all chunks are. With it, only those with amax < 1 and amin < amax in all tiles are, which is
        DeepEP's condition for 1024 channels. The receiver derives it from the metadata.
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
        """Total size in bytes of the rows that `pack()` returns."""
        rows, columns = as_rows(self.codes, self.axis).shape
        if not self.fallback or not self.codes.size:
            return int(rows * row_bytes(columns, self.bits, self.tile, self.range_bits))
        metas = self.amax.size * self.range_bits // 8
        widths = np.array(_chunk_widths(columns, self.bits, self.tile), np.int64).reshape(-1, 2)
        chunks = np.where(as_rows(self.encoded_chunks, self.axis), widths[:, 0], widths[:, 1])
        return int(metas) + int(chunks.sum())

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value, including metadata."""
        return 8 * self.nbytes / max(1, self.codes.size)

    @with_default_fpenv
    def decode(self, out: Floats | None = None) -> Floats:
        """Return the decoded values.

        Parameters
        ----------
        out : float32 array, optional
            Destination of the values: C-contiguous, of the same shape.

        Returns
        -------
        float32 array of `shape`
            The values.

        Raises
        ------
        ValueError
            If `out` does not fit, or a code exceeds `bits` bits.
        """
        codes, amin, amax = (as_rows(array, self.axis) for array in (self.codes, self.amin, self.amax))
        if out is not None:
            out = prepare_out("logfmt", out, self.shape, np.float32)
            codes, amin, amax = (copy_if_overlapping(array, out) for array in (codes, amin, amax))
        direct = out is not None and self.axis in (-1, len(self.shape) - 1)
        rows = as_rows(out, -1) if out is not None and direct else np.empty(codes.shape, np.float32)
        fallen = self.fallback_mask()
        if fallen is not None:
            words, codes = codes, np.where(fallen, codes.dtype.type(0), codes)
        if self.bits != 8 * codes.itemsize and codes.size and int(codes.max()) >> self.bits:
            raise ValueError(f"logfmt: codes must be from 0 to {(1 << self.bits) - 1}, got {codes.max()}")
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
        """Return the encoded bytes, row by row.

        A row is the (amin, amax) pairs of its tiles, little-endian bfloat16 or float32 according to `range_bits`, and
        then the tiles, each a little-endian stream of its codes from the least significant bit, padded to whole bytes
        (16 * bits bytes for 128 values). A chunk that fell back is stored as its bfloat16 numbers.

        Returns
        -------
        uint8 array [..., bytes of a row]
            Leading axes as those of the values, without the axis of the tiles. With a fallback the rows may differ in
            length, so they are concatenated into one dimension.
        """
        codes, amin, amax = (as_rows(array, self.axis) for array in (self.codes, self.amin, self.amax))
        metas = pairs_to_bytes(amin, amax, self.range_bits)
        if self.fallback and not codes.size:
            return np.empty(0, np.uint8)
        if not self.fallback:
            rows = np.concatenate([metas, to_streams(codes, self.bits, self.tile)], axis=1)
            return rows.reshape(*np.moveaxis(self.codes, self.axis, -1).shape[:-1], rows.shape[1])
        cast, size = as_rows(self.encoded_chunks, self.axis), TILES_OF_A_CHUNK * self.tile
        encoded, raw = [], []
        for c, first in enumerate(range(0, codes.shape[1], size)):
            part = codes[:, first : first + size]
            # The words of a chunk that fell back are not codes of `bits` bits.
            encoded.append(to_streams(np.where(cast[:, c : c + 1], part, np.uint16(0)), self.bits, self.tile))
            raw.append(np.ascontiguousarray(part, dtype="<u2").view(np.uint8))
        return join_rows(metas, cast, encoded, raw)

    def to_bytes(self) -> bytes:
        """Return a header with bits, tiles and shape, followed by `pack()`; `from_bytes` reads them."""
        axis = self.axis % len(self.shape)
        header = Header(
            0, self.bits, self.octaves, self.range_bits, self.fallback is not None, axis, self.tile, self.shape
        )
        return with_header(header, self.pack().reshape(-1))

    def fallback_mask(self) -> npt.NDArray[np.bool_] | None:
        """Return whether each value [rows, columns] is stored as bfloat16, or None without a fallback."""
        if not self.fallback:
            return None
        cast_chunks = as_rows(self.encoded_chunks, self.axis)
        columns = self.shape[self.axis]
        return np.repeat(~cast_chunks, min(TILES_OF_A_CHUNK * self.tile, columns), axis=1)[:, :columns]


def unpack(
    wire: Bytes,
    columns: int,
    bits: int = 8,
    tile: int = 128,
    *,
    range_bits: int,
    clamp_octaves: int = 32,
    fallback: Literal["bf16"] | None = None,
) -> LogFMT:
    """Decode the bytes of `LogFMT.pack`.

    Parameters
    ----------
    wire : uint8 array [..., bytes of a row]
        Encoded bytes; with a fallback one-dimensional, row after row.
    columns : int
        Number of values per row.
    bits, tile, clamp_octaves, fallback
        Options that `encode` was given.
    range_bits : {32, 64}
        `LogFMT.range_bits` of the encoded array.

    Returns
    -------
    LogFMT
        The same codes and metadata, with tiles along the last axis.

    Raises
    ------
    ValueError
        If a number is out of range, the number of bytes is wrong, a tile's (amin, amax) pair is invalid, or padding
        bits are not zero.

    Examples
    --------
    >>> from lowprec import logfmt
    >>> z = logfmt.encode(np.linspace(-1, 1, 300, dtype=np.float32))
    >>> back = logfmt.unpack(z.pack(), 300, range_bits=z.range_bits)
    >>> np.array_equal(back.codes, z.codes), back.nbytes
    (True, 324)
    """
    bits, tile, octaves = (
        check_int("logfmt", "bits", bits, 3, 16),
        check_int("logfmt", "tile", tile, 1, MAX_TILE),
        check_int("logfmt", "clamp_octaves", clamp_octaves, 1, 32),
    )
    columns, range_bits = (
        check_int("logfmt", "columns", columns, 0),
        check_choice("logfmt", "range_bits", range_bits, (32, 64)),
    )
    check_choice("logfmt", "fallback", fallback, (None, "bf16"))
    data = np.asarray(wire)
    length = row_bytes(columns, bits, tile, range_bits)
    if data.dtype != np.uint8 or data.ndim < 1 or (data.ndim > 1 and fallback is not None):
        raise ValueError(f"logfmt: wire must be uint8 bytes in rows, got {data.dtype} {data.shape}")
    if fallback is not None:
        return _unpack_varying(data, columns, bits, tile, range_bits, octaves)
    if data.shape[-1] != length:
        raise ValueError(
            f"logfmt: wire must have {length} bytes per row of {columns} values in {bits} bits, got shape {data.shape}"
        )
    lead = data.shape[:-1]
    rows = np.ascontiguousarray(data).reshape(int(np.prod(lead, dtype=np.int64)), length)
    tiles = -(-columns // tile)
    amin, amax = pairs_from_bytes(rows[:, : tiles * range_bits // 8], range_bits)
    codes = from_streams(rows[:, tiles * range_bits // 8 :], columns, bits, tile)
    shape = (*lead, columns)
    axis = len(shape) - 1
    return LogFMT(
        from_rows(codes, shape, axis), from_rows(amin, shape, axis), from_rows(amax, shape, axis), bits, tile, octaves
    )


def paper_from_bytes(header: Header, payload: Bytes) -> LogFMT:
    """Restore an array from the payload of variant "paper"."""
    shape, axis = header.shape, header.axis
    columns = shape[axis]
    lead = (*shape[:axis], *shape[axis + 1 :])
    rows = int(np.prod(lead, dtype=object))
    options: dict[str, Any] = {"range_bits": header.range_bits, "clamp_octaves": header.octaves}
    if header.fallback and columns:
        z = unpack(payload, columns, header.bits, header.tile, fallback="bf16", **options)
    else:
        length = row_bytes(columns, header.bits, header.tile, header.range_bits)
        if payload.size != rows * length:
            raise ValueError(
                f"logfmt: data must have {rows * length} bytes for shape {shape} in {header.bits} bits, got "
                f"{payload.size}"
            )
        z = unpack(payload.reshape(rows, length), columns, header.bits, header.tile, **options)
    if z.codes.shape[0] != rows:
        raise ValueError(f"logfmt: data must have {rows} rows for shape {shape}, got {z.codes.shape[0]}")
    codes = z.codes.astype(np.uint16) if header.fallback else z.codes
    return LogFMT(
        from_rows(codes, shape, axis), from_rows(z.amin, shape, axis), from_rows(z.amax, shape, axis),
        header.bits, header.tile, header.octaves, axis if axis != len(shape) - 1 else -1,
        "fp32" if header.range_bits == 64 else "bf16", "bf16" if header.fallback else None,
    )  # fmt: skip


def _chunk_widths(columns: int, bits: int, tile: int) -> list[tuple[int, int]]:
    """Return the size in bytes of each chunk of a row in LogFMT and in bfloat16."""
    size = TILES_OF_A_CHUNK * tile
    counts = [min(size, columns - first) for first in range(0, columns, size)]
    return [(row_bytes(n, bits, tile, 0), 2 * n) for n in counts]


def _unpack_varying(data: Bytes, columns: int, bits: int, tile: int, range_bits: int, octaves: int) -> LogFMT:
    tiles = -(-columns // tile)
    if not tiles and data.size:
        raise ValueError(f"logfmt: wire must be empty for rows of 0 values, got {data.size} bytes")
    if data.size < tiles * range_bits // 8:  # checked before any work that grows with the columns
        if data.size:
            raise ValueError(f"logfmt: wire is cut short: row 0 has {data.size} bytes")
        ends = np.empty((0, tiles), np.float32)
        return LogFMT(np.empty((0, columns), np.uint16), ends, ends, bits, tile, octaves, -1, None, "bf16")

    def fit(meta: Bytes) -> Flags:
        amin, amax = pairs_from_bytes(meta[None], range_bits)
        return LogFMT(amin[0], amin[0], amax[0], bits, tile, octaves, fallback="bf16").encoded_chunks

    metas, cast, encoded, raw = split_rows(data, tiles * range_bits // 8, _chunk_widths(columns, bits, tile), fit)
    amin, amax = pairs_from_bytes(metas, range_bits)
    codes = np.empty((len(metas), columns), np.uint16)
    size = TILES_OF_A_CHUNK * tile
    for c, first in enumerate(range(0, columns, size)):
        part = codes[:, first : first + size]
        packed = from_streams(encoded[c], part.shape[1], bits, tile)
        part[...] = np.where(cast[:, c : c + 1], packed, np.ascontiguousarray(raw[c]).view("<u2"))
    return LogFMT(codes, amin, amax, bits, tile, octaves, -1, None, "bf16")
