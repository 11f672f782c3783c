"""Serialization of LogFMT: each row is (amin, amax) pairs and bit streams of codes; rows may differ in length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lowprec._arrays import Array
from lowprec.cast import packing

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


def row_bytes(columns: int, bits: int, tile: int, range_bits: int) -> int:
    """Return the size in bytes of a row without fallback."""
    whole_tiles, rest = divmod(columns, tile)
    streams = whole_tiles * packing.packed_size(tile, bits) + packing.packed_size(rest, bits)
    return (whole_tiles + (rest > 0)) * range_bits // 8 + streams


# --- rows of equal length --------------------------------------------------------------------------------------------


def to_streams(codes: Array, bits: int, tile: int) -> Bytes:
    """Return each row's tiles as bit streams, with every tile padded to whole bytes."""
    rows, columns = codes.shape
    parts = []
    edge = columns // tile * tile
    for part, n in ((codes[:, :edge], tile), (codes[:, edge:], columns - edge)):
        if not part.size:
            continue
        # Eight codes fill whole bytes at any width, so tiles padded to a multiple of eight can be packed in one stream.
        padded, size = -(-n // 8) * 8, packing.packed_size(n, bits)
        tiles = part.reshape(-1, n)
        if padded != n:
            tiles = np.concatenate([tiles, np.zeros((len(tiles), padded - n), codes.dtype)], axis=1)
        stream = packing.pack(tiles, bits).reshape(len(tiles), padded * bits // 8)
        parts.append(stream[:, :size].reshape(rows, part.shape[1] // n * size))
    return np.concatenate(parts, axis=1) if parts else np.empty((rows, row_bytes(columns, bits, tile, 0)), np.uint8)


def from_streams(rows: Bytes, columns: int, bits: int, tile: int) -> Array:
    """Return the codes from the streams of `to_streams`.

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
            raise ValueError(f"logfmt: wire must have zero bits after {n} codes of {bits} bits, got others")
        codes[:, first:last] = tiles[:, :n].reshape(len(rows), last - first)
        position += (last - first) // n * size
    return codes


def pairs_to_bytes(first: Array, second: Array, range_bits: int) -> Bytes:
    """Return pairs of float32 numbers [rows, tiles] as little-endian bytes, as bfloat16 if a pair has 32 bits."""
    words = np.stack([first, second], axis=-1).view(np.uint32)
    halves = (words >> np.uint32(16)).astype("<u2") if range_bits == 32 else words.astype("<u4")
    return halves.reshape(-1).view(np.uint8).reshape(len(first), first.shape[1] * range_bits // 8)


def pairs_from_bytes(rows: Bytes, range_bits: int) -> tuple[Array, Array]:
    """Return the (amin, amax) pairs from the bytes of `pairs_to_bytes`.

    Raises
    ------
    ValueError
        If a pair is not a valid (amin, amax).
    """
    amin, amax = any_pairs_from_bytes(rows, range_bits)
    # The encoder writes +0 for both amin and amax of a tile of zeros.
    in_order = (amin >= 0) & (amin <= amax) & (amax < np.inf) & ((amin > 0) == (amax > 0))
    in_order &= ~(np.signbit(amin) & np.signbit(amax))
    bad = ~(in_order | (np.isnan(amax) & (amin == 0)))
    if bad.any():
        row, tile = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"logfmt: row {row}, tile {tile}: (amin, amax) must be 0 < amin <= amax, (0, 0) or (0, NaN), got "
            f"({amin[row, tile]}, {amax[row, tile]})"
        )
    return amin, amax


def any_pairs_from_bytes(rows: Bytes, range_bits: int) -> tuple[Array, Array]:
    """Return pairs of float32 numbers without validation."""
    raw = np.ascontiguousarray(rows).reshape(-1)
    words = raw.view("<u4") if range_bits == 64 else raw.view("<u2").astype(np.uint32) << np.uint32(16)
    pairs = (
        np.ascontiguousarray(words, dtype=np.uint32)
        .view(np.float32)
        .reshape(len(rows), rows.shape[1] * 8 // range_bits, 2)
    )
    return np.ascontiguousarray(pairs[..., 0]), np.ascontiguousarray(pairs[..., 1])


# --- rows in which chunks may have fallen back -----------------------------------------------------------------------


def join_rows(metas: Bytes, cast: Flags, encoded: Sequence[Bytes], raw: Sequence[Bytes]) -> Bytes:
    """Return rows of metadata followed by the encoded or the raw bytes of each chunk."""
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
    """Split rows that `join_rows` returned into metadata, flags, and the encoded and the raw bytes of each chunk.

    `fit` takes a row's metadata and returns which chunks of the row are encoded. The encoded bytes of a raw chunk are
    zeros, as are the raw bytes of an encoded one.

    Raises
    ------
    ValueError
        If the bytes end within a row.
    """
    starts, flags, position = [], [], 0
    while position < data.size:
        starts.append(position)
        if position + meta_size > data.size:
            raise ValueError(
                f"logfmt: wire is cut short: row {len(starts) - 1} begins at byte {position} of {data.size}"
            )
        cast = fit(data[position : position + meta_size])
        flags.append(cast)
        position += meta_size + sum(width[0 if flag else 1] for width, flag in zip(widths, cast, strict=True))
    if position != data.size:
        raise ValueError(f"logfmt: wire is cut short: row {len(starts) - 1} needs {position - data.size} bytes more")
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
