"""Header in front of LogFMT's rows that makes files and messages self-describing."""

from __future__ import annotations

import math
import struct
import zlib
from typing import NamedTuple

import numpy as np

from lowprec._checks import MAX_TILE

from .wire import Bytes

# Magic, CRC-32 of the rest, version, variant, bits, octaves, range bits, fallback, axis, number of axes, tile; then the
# shape, 8 bytes per axis; all little-endian.
_HEADER = struct.Struct("<4sIBBBBBBBBI")
_MAGIC, _VERSION = b"LFMT", 1
_MOST_AXES = 64  # NumPy's limit


class Header(NamedTuple):
    """Fields that the receiver of `to_bytes` needs."""

    variant: int  # 0: paper, 1: deepep
    bits: int
    octaves: int
    range_bits: int
    fallback: bool
    axis: int
    tile: int
    shape: tuple[int, ...]


def with_header(header: Header, payload: Bytes) -> bytes:
    """Return header and payload as bytes.

    Raises
    ------
    ValueError
        If `read_header` would reject them.
    """
    _check(header, payload.size)
    shape = struct.pack(f"<{len(header.shape)}Q", *header.shape)
    fields = (
        _VERSION, header.variant, header.bits, header.octaves, header.range_bits, header.fallback, header.axis,
        len(header.shape), header.tile,
    )  # fmt: skip
    body = _HEADER.pack(_MAGIC, 0, *fields)[8:] + shape + payload.tobytes()
    return _MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def read_header(data: bytes) -> tuple[Header, Bytes]:
    """Return the header and the payload from the bytes of `with_header`.

    Raises
    ------
    ValueError
        If the bytes have another format, are truncated or are corrupt.
    """
    raw = bytes(data)
    if len(raw) < _HEADER.size or raw[:4] != _MAGIC:
        raise ValueError(f"logfmt: data must begin with {_MAGIC!r}, got {len(raw)} bytes that begin with {raw[:4]!r}")
    _, crc, version, variant, bits, octaves, range_bits, fallback, axis, axes, tile = _HEADER.unpack_from(raw)
    if zlib.crc32(raw[8:]) != crc:
        raise ValueError(f"logfmt: data is cut short or changed: the checksum of its {len(raw)} bytes does not match")
    if version != _VERSION or fallback > 1 or len(raw) < _HEADER.size + 8 * axes:
        raise ValueError(
            f"logfmt: header must be of version {_VERSION}, got version {version}, variant {variant}, {axes} axes"
        )
    shape = struct.unpack_from(f"<{axes}Q", raw, _HEADER.size)
    payload = np.frombuffer(raw, np.uint8, offset=_HEADER.size + 8 * axes)
    header = Header(variant, bits, octaves, range_bits, bool(fallback), axis, tile, shape)
    _check(header, payload.size)
    return header, payload


def _check(header: Header, size: int) -> None:
    """Raise ValueError unless every field is one that encoders write and the payload can hold such an array."""
    variant, bits, octaves, range_bits, fallback, axis, tile, shape = header
    if variant not in (0, 1) or not 0 <= axis < len(shape) <= _MOST_AXES:
        raise ValueError(
            f"logfmt: header must have mode 0 or 1 and an axis of the array, got variant {variant}, axis {axis} of "
            f"{len(shape)} axes"
        )
    known = (
        3 <= bits <= 16 and 1 <= octaves <= 32 and range_bits in (32, 64) and 1 <= tile <= MAX_TILE
        if variant == 0
        else (bits, octaves, range_bits, fallback, axis, tile) == (10, 32, 32, True, len(shape) - 1, 128)
    )
    if not known:
        raise ValueError(
            f"logfmt: header must have fields that variant {'paper' if variant == 0 else 'deepep'!r} takes, "
            f"got {bits} bits, {octaves} octaves, ranges of {range_bits} bits, tiles of {tile}, axis {axis}"
        )
    # Every value takes at least three bits. An array may be empty.
    if math.prod(shape) > 8 * size // 3 or math.prod(max(1, n) for n in shape) >= 1 << 56:
        raise ValueError(f"logfmt: {size} bytes cannot hold an array of shape {shape}")
