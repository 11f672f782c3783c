"""Packed storage: codes of b bits as one byte stream without padding.

Element i takes bits ``[i*b, (i+1)*b)`` of the stream, least significant bit first, so byte j holds the stream's bits
``8j`` to ``8j + 7``. With 4 bits, the even element is the low nibble, as in ``float4_e2m1fn_x2`` and NVFP4 tensors;
four 6-bit codes are three bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _threads
from .._arrays import as_unsigned, copy_if_overlapping, prepare_out
from .._checks import check_int
from ..kernels.cast import packing as kernels

_GRAIN = 1 << 17  # codes per chunk; a multiple of 8 codes fills whole bytes


def packed_size(count: int, bits: int) -> int:
    """Return the size in bytes of `count` packed codes of `bits` bits, ``ceil(count * bits / 8)``."""
    return -(-count * bits // 8)


def pack(codes: ArrayLike, bits: int, *, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Pack codes into a byte stream.

    Parameters
    ----------
    codes : array_like of integers, any shape
        Codes below ``2^bits``, taken in C order.
    bits : int
        Width of a code, 1 to 16.
    out : ndarray of uint8, optional
        Destination of the bytes: contiguous, of size ``ceil(size * bits / 8)``.

    Returns
    -------
    ndarray of uint8, one dimension
        The stream; bits after the last code are zero.

    Raises
    ------
    ValueError
        If a code does not fit in `bits`, `bits` is out of range, or `out` does not fit.
    TypeError
        If the codes are not integers.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.pack([1, 2, 3], 4).tolist()
    [33, 3]
    >>> lp.unpack([33, 3], 4, 3).tolist()
    [1, 2, 3]
    """
    bits = check_int("pack", "bits", bits, 1, 16)
    c = as_unsigned("pack: codes", codes, bits, np.dtype(np.uint8 if bits <= 8 else np.uint16))
    into = prepare_out("pack", out, (packed_size(c.size, bits),), np.uint8)
    flat = copy_if_overlapping(c, into).reshape(-1)
    if bits in (8, 16):
        into[...] = flat.astype("<u2").view(np.uint8) if bits == 16 else flat
        return into
    together = {4: 2, 6: 4}.get(bits, 1)

    def piece(a: int, b: int) -> None:
        x, y = flat[a:b], into[a * bits // 8 : packed_size(b, bits)]
        even = (b - a) // together * together
        if bits == 4:
            kernels.pack_pairs(x[:even], y[: even // 2])
        elif bits == 6:
            kernels.pack_quads(x[:even], y[: even // 4 * 3])
        else:
            even = 0
        if even < b - a:
            kernels.pack_any(x[even:], bits, y[even * bits // 8 :])

    _threads.run_chunks(piece, flat.size, _GRAIN)
    return into


def unpack(packed: ArrayLike, bits: int, count: int, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Unpack a byte stream into codes.

    Parameters
    ----------
    packed : array_like of uint8
        Result of `pack`: ``ceil(count * bits / 8)`` bytes.
    bits : int
        Width of a code, 1 to 16.
    count : int
        Number of codes.
    out : ndarray of uint8 (uint16 above 8 bits), optional
        Destination of the codes: contiguous, of size `count`.

    Returns
    -------
    ndarray of uint8 or uint16, shape (count,)
        Codes.

    Raises
    ------
    ValueError
        If the number of bytes does not match `bits` and `count`, or `out` does not fit.
    TypeError
        If `packed` does not hold bytes.
    """
    bits, n = check_int("unpack", "bits", bits, 1, 16), check_int("unpack", "count", count, 0)
    p = np.asarray(packed)
    if p.dtype.kind in "iu" and p.dtype != np.uint8 and p.dtype.itemsize > 1 and not isinstance(packed, np.ndarray):
        if p.size and (p.min() < 0 or p.max() > 255):
            raise ValueError(f"unpack: packed must be bytes from 0 to 255, got {p.max() if p.max() > 255 else p.min()}")
        p = p.astype(np.uint8)
    elif p.size == 0:
        p = p.astype(np.uint8)
    if p.dtype != np.uint8:
        raise TypeError(f"unpack: packed must be bytes (uint8), got {p.dtype}")
    if p.size != packed_size(n, bits):
        raise ValueError(
            f"unpack: packed must be {packed_size(n, bits)} bytes for {n} codes of {bits} bits, got {p.size}"
        )
    into = prepare_out("unpack", out, (n,), np.uint8 if bits <= 8 else np.uint16)
    flat = np.ascontiguousarray(copy_if_overlapping(p, into)).reshape(-1)
    if bits in (8, 16):
        into[...] = flat.view("<u2") if bits == 16 else flat
        return into
    together = {4: 2, 6: 4}.get(bits, 1)

    def piece(a: int, b: int) -> None:
        x, y = flat[a * bits // 8 : packed_size(b, bits)], into[a:b]
        even = (b - a) // together * together
        if bits == 4:
            kernels.unpack_pairs(x[: even // 2], y[:even])
        elif bits == 6:
            kernels.unpack_quads(x[: even // 4 * 3], y[:even])
        else:
            even = 0
        if even < b - a:
            kernels.unpack_any(x[even * bits // 8 :], bits, y[even:])

    _threads.run_chunks(piece, n, _GRAIN)
    return into


def pack_e5m6(codes: ArrayLike) -> NDArray[np.uint32]:
    """Pack 12-bit codes in the E5M6 layout of DeepSeek's TileKernels: eight codes in three words, from the highest bit.

    Parameters
    ----------
    codes : array_like of integers, shape (..., 8 n)
        Codes below 2^12, for example of ``e5m6`` in `lowprec.formats`.

    Returns
    -------
    ndarray of uint32, shape (..., 3 n)
        Words, little-endian in memory.

    Raises
    ------
    ValueError
        If a code does not fit in 12 bits, or the last axis is not a multiple of 8.
    TypeError
        If the codes are not integers.

    Notes
    -----
    TileKernels 1.0.0, ``cast_e5m6``. Only the layout is the same: its rounding goes through float16 and differs below
    2^-14.

    Examples
    --------
    >>> import lowprec as lp
    >>> from lowprec.cast.packing import pack_e5m6
    >>> [f"{word:08X}" for word in pack_e5m6(lp.encode(range(1, 9), "e5m6")).tolist()]
    ['3C040042', '04404504', '60470480']
    """
    c = as_unsigned("pack_e5m6: codes", codes, 12, np.dtype(np.uint16)).astype(np.uint32)
    if c.ndim == 0 or c.shape[-1] % 8:
        raise ValueError(f"pack_e5m6: codes must have a multiple of 8 along the last axis, got shape {c.shape}")
    h = np.moveaxis(c.reshape(*c.shape[:-1], -1, 8), -1, 0)
    words = [
        h[0] << 20 | h[1] << 8 | h[2] >> 4,
        (h[2] & 15) << 28 | h[3] << 16 | h[4] << 4 | h[5] >> 8,
        (h[5] & 255) << 24 | h[6] << 12 | h[7],
    ]
    return np.stack(words, axis=-1).reshape(*c.shape[:-1], -1)


def unpack_e5m6(words: ArrayLike) -> NDArray[np.uint16]:
    """Return the codes that `pack_e5m6` packed.

    Parameters
    ----------
    words : array_like of uint32, shape (..., 3 n)
        Result of `pack_e5m6`.

    Returns
    -------
    ndarray of uint16, shape (..., 8 n)
        Codes of 12 bits.

    Raises
    ------
    ValueError
        If the last axis is not a multiple of 3.
    TypeError
        If the words are not uint32.

    Examples
    --------
    >>> from lowprec.cast.packing import pack_e5m6, unpack_e5m6
    >>> unpack_e5m6(pack_e5m6([1, 2, 3, 4, 5, 6, 7, 0xFFF])).tolist()
    [1, 2, 3, 4, 5, 6, 7, 4095]
    """
    w = np.asarray(words)
    if w.dtype != np.uint32:
        raise TypeError(f"unpack_e5m6: words must be uint32, got {w.dtype}")
    if w.ndim == 0 or w.shape[-1] % 3:
        raise ValueError(f"unpack_e5m6: words must have a multiple of 3 along the last axis, got shape {w.shape}")
    a, b, c = np.moveaxis(w.reshape(*w.shape[:-1], -1, 3), -1, 0)
    codes = [a >> 20, a >> 8, a << 4 | b >> 28, b >> 16, b >> 4, b << 8 | c >> 24, c >> 12, c]
    found = np.stack([code & 0xFFF for code in codes], axis=-1).astype(np.uint16)
    return found.reshape(*w.shape[:-1], -1)
