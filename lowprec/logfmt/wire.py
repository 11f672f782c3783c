"""LogFMT as bytes: rows of metadata and bit streams, of one length or of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from lowprec.cast import packing

from .arrays import Array, as_rows, from_rows, one_of, whole
from .paper import TILES_OF_A_CHUNK, LogFMT

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


def row_bytes(columns: int, bits: int, tile: int, meta_bits: int) -> int:
    """Return the bytes of a row in which nothing fell back."""
    whole_tiles, rest = divmod(columns, tile)
    streams = whole_tiles * packing.packed_size(tile, bits) + packing.packed_size(rest, bits)
    return (whole_tiles + (rest > 0)) * meta_bits // 8 + streams


def packed_sizes(z: LogFMT) -> npt.NDArray[np.int64]:
    """Return the bytes of each row of `LogFMT.pack`."""
    rows, columns = as_rows(z.codes, z.axis).shape
    if not z.fallback:
        return np.full(rows, row_bytes(columns, z.bits, z.tile, z.meta_bits), np.int64)
    metas = as_rows(z.amax, z.axis).shape[1] * z.meta_bits // 8
    widths = np.array(_chunk_widths(columns, z.bits, z.tile), np.int64).reshape(-1, 2)
    chunks: npt.NDArray[np.int64] = np.where(as_rows(z.cast, z.axis), widths[:, 0], widths[:, 1])
    sizes: npt.NDArray[np.int64] = metas + chunks.sum(axis=1, dtype=np.int64)
    return sizes


def pack(z: LogFMT) -> Bytes:
    """Return the bytes of `LogFMT.pack`."""
    codes, amin, amax = (as_rows(array, z.axis) for array in (z.codes, z.amin, z.amax))
    metas = pairs_to_bytes(amin, amax, z.meta_bits)
    if not z.fallback:
        rows = np.concatenate([metas, to_streams(codes, z.bits, z.tile)], axis=1)
        return rows.reshape(*np.moveaxis(z.codes, z.axis, -1).shape[:-1], rows.shape[1])
    cast, size = as_rows(z.cast, z.axis), TILES_OF_A_CHUNK * z.tile
    encoded, raw = [], []
    for c, first in enumerate(range(0, codes.shape[1], size)):
        part = codes[:, first : first + size]
        # What stands in a chunk that fell back is no code of `bits` bits.
        encoded.append(to_streams(np.where(cast[:, c : c + 1], part, np.uint16(0)), z.bits, z.tile))
        raw.append(np.ascontiguousarray(part, dtype="<u2").view(np.uint8))
    return join_rows(metas, cast, encoded, raw)


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
        whole("bits", bits, 3, 16),
        whole("tile", tile, 1),
        whole("clamp_octaves", clamp_octaves, 1, 32),
    )
    columns, meta_bits = whole("columns", columns, 0), one_of("meta_bits", meta_bits, (32, 64))
    one_of("fallback", fallback, (None, "bf16"))
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


# --- rows of one length ----------------------------------------------------------------------------------------------


def to_streams(codes: Array, bits: int, tile: int) -> Bytes:
    """Return each row's tiles as bit streams, every tile padded to whole bytes."""
    rows, columns = codes.shape
    parts = []
    edge = columns // tile * tile
    for part, n in ((codes[:, :edge], tile), (codes[:, edge:], columns - edge)):
        if not part.size:
            continue
        # Eight codes fill whole bytes whatever their bits, so tiles padded to a multiple of eight follow each other.
        padded, size = -(-n // 8) * 8, packing.packed_size(n, bits)
        tiles = part.reshape(-1, n)
        if padded != n:
            tiles = np.concatenate([tiles, np.zeros((len(tiles), padded - n), codes.dtype)], axis=1)
        stream = packing.pack(tiles, bits).reshape(len(tiles), padded * bits // 8)
        parts.append(stream[:, :size].reshape(rows, part.shape[1] // n * size))
    return np.concatenate(parts, axis=1) if parts else np.empty((rows, row_bytes(columns, bits, tile, 0)), np.uint8)


def from_streams(rows: Bytes, columns: int, bits: int, tile: int) -> Array:
    """Return the codes of `to_streams`.

    Raises
    ------
    ValueError
        If padding bits are not zero.
    """
    codes = np.empty((len(rows), columns), np.uint8 if bits <= 8 else np.uint16)
    edge = columns // tile * tile
    position = 0
    for first, last, n in ((0, edge, tile), (edge, columns, columns - edge)):
        if first == last or not len(rows):
            continue
        padded, size = -(-n // 8) * 8, packing.packed_size(n, bits)
        count = len(rows) * ((last - first) // n)
        streams = rows[:, position : position + (last - first) // n * size].reshape(count, size)
        spare = padded * bits // 8 - size
        if spare:
            streams = np.concatenate([streams, np.zeros((count, spare), np.uint8)], axis=1)
        tiles = packing.unpack(np.ascontiguousarray(streams), bits, count * padded).reshape(count, padded)
        if tiles[:, n:].any():
            raise ValueError(f"logfmt: padding bits after {n} codes of {bits} bits are not zero")
        codes[:, first:last] = tiles[:, :n].reshape(len(rows), last - first)
        position += (last - first) // n * size
    return codes


def pairs_to_bytes(first: Array, second: Array, meta_bits: int) -> Bytes:
    """Return pairs of float32 numbers [rows, tiles] as little-endian bytes, bfloat16 numbers for 32 bits a pair."""
    words = np.stack([first, second], axis=-1).view(np.uint32)
    halves = (words >> np.uint32(16)).astype("<u2") if meta_bits == 32 else words.astype("<u4")
    return halves.reshape(-1).view(np.uint8).reshape(len(first), first.shape[1] * meta_bits // 8)


def pairs_from_bytes(rows: Bytes, meta_bits: int) -> tuple[Array, Array]:
    """Return the (amin, amax) pairs of `pairs_to_bytes`.

    Raises
    ------
    ValueError
        If a pair cannot be the ends of a tile.
    """
    amin, amax = any_pairs_from_bytes(rows, meta_bits)
    in_order = (amin >= 0) & (amin <= amax) & (amax < np.inf) & ((amin > 0) == (amax > 0)) & ~np.signbit(amin + amax)
    bad = ~(in_order | (np.isnan(amax) & (amin == 0)))
    if bad.any():
        row, tile = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"logfmt: row {row}, tile {tile}: ends {amin[row, tile]} and {amax[row, tile]};"
            " 0 < amin <= amax, 0 and 0, or 0 and NaN are possible"
        )
    return amin, amax


def any_pairs_from_bytes(rows: Bytes, meta_bits: int) -> tuple[Array, Array]:
    """Return pairs of float32 numbers, whatever they are."""
    raw = np.ascontiguousarray(rows).reshape(-1)
    words = raw.view("<u4") if meta_bits == 64 else raw.view("<u2").astype(np.uint32) << np.uint32(16)
    pairs = (
        np.ascontiguousarray(words, dtype=np.uint32)
        .view(np.float32)
        .reshape(len(rows), rows.shape[1] * 8 // meta_bits, 2)
    )
    return np.ascontiguousarray(pairs[..., 0]), np.ascontiguousarray(pairs[..., 1])


# --- rows in which chunks may have fallen back -----------------------------------------------------------------------


def join_rows(metas: Bytes, cast: Flags, encoded: Sequence[Bytes], raw: Sequence[Bytes]) -> Bytes:
    """Return rows of metadata and, for each chunk, its encoded or its raw bytes, one after another."""
    widths = np.array([(a.shape[1], b.shape[1]) for a, b in zip(encoded, raw, strict=True)], np.int64).reshape(-1, 2)
    sizes = np.where(cast, widths[:, 0], widths[:, 1])
    lengths = metas.shape[1] + sizes.sum(axis=1)
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    _scatter(out, starts, metas)
    places = starts + metas.shape[1]
    for c, versions in enumerate(zip(encoded, raw, strict=True)):
        for flag, version in zip((True, False), versions, strict=True):
            chosen = cast[:, c] == flag
            _scatter(out, places[chosen], version[chosen])
        places = places + sizes[:, c]
    return out


def split_rows(
    data: Bytes, meta_size: int, widths: Sequence[tuple[int, int]], fit: Callable[[Bytes], Flags]
) -> tuple[Bytes, Flags, list[Bytes], list[Bytes]]:
    """Take apart what `join_rows` made; `fit` tells from a row's metadata which of its chunks are encoded.

    Bytes of the other kind of a chunk are zero in the result.

    Raises
    ------
    ValueError
        If the bytes end within a row.
    """
    starts, flags, position = [], [], 0
    while position < data.size:
        starts.append(position)
        if position + meta_size > data.size:
            raise ValueError(f"logfmt: row {len(starts) - 1} begins at byte {position} of {data.size}; it is cut short")
        cast = fit(data[position : position + meta_size])
        flags.append(cast)
        position += meta_size + sum(width[0 if flag else 1] for width, flag in zip(widths, cast, strict=True))
    if position != data.size:
        raise ValueError(f"logfmt: row {len(starts) - 1} needs {position - data.size} bytes more; it is cut short")
    table = np.array(flags, bool).reshape(len(starts), len(widths))
    places = np.array(starts, np.int64)
    metas = _gather(data, places, meta_size)
    places = places + meta_size
    kinds: tuple[list[Bytes], list[Bytes]] = ([], [])
    for c, width in enumerate(widths):
        for flag, size, kind in zip((True, False), width, kinds, strict=True):
            part = np.zeros((len(starts), size), np.uint8)
            chosen = table[:, c] == flag
            part[chosen] = _gather(data, places[chosen], size)
            kind.append(part)
        places = places + np.where(table[:, c], *width)
    return metas, table, *kinds


def _scatter(out: Bytes, places: npt.NDArray[np.int64], rows: Bytes) -> None:
    out[places[:, None] + np.arange(rows.shape[1])] = rows


def _gather(data: Bytes, places: npt.NDArray[np.int64], size: int) -> Bytes:
    rows: Bytes = data[places[:, None] + np.arange(size)]
    return rows


def _chunk_widths(columns: int, bits: int, tile: int) -> list[tuple[int, int]]:
    """Return for each chunk of a row how many bytes it takes in LogFMT and in bfloat16."""
    size = TILES_OF_A_CHUNK * tile
    counts = [min(size, columns - first) for first in range(0, columns, size)]
    return [(row_bytes(n, bits, tile, 0), 2 * n) for n in counts]


def _unpack_varying(data: Bytes, columns: int, bits: int, tile: int, meta_bits: int, octaves: int) -> LogFMT:
    tiles = -(-columns // tile)
    if not tiles and data.size:
        raise ValueError(f"logfmt: {data.size} bytes; rows of 0 values take none")

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
