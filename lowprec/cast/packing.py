"""Packed storage: codes of b bits as one stream of bytes, nothing between them.

Element i takes bits ``[i*b, (i+1)*b)`` of the stream, least significant bit first, so byte j holds the stream's bits
``8j`` to ``8j + 7``. For 4 bits the even element is the low nibble, as in ``float4_e2m1fn_x2`` and NVFP4 tensors;
four 6-bit codes are three bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _threads
from .._arrays import apart, codes_of, output, whole
from ..kernels.cast import packing as kernels

_GRAIN = 1 << 17  # codes per piece of work; a multiple of 8 codes fills whole bytes


def packed_size(count: int, bits: int) -> int:
    """Return the bytes that `count` codes of `bits` bits take, ``ceil(count * bits / 8)``."""
    return -(-count * bits // 8)


def pack(codes: ArrayLike, bits: int, *, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Pack codes into a stream of bytes.

    Parameters
    ----------
    codes : array_like of integers, any shape
        Codes below ``2^bits``, taken in C order.
    bits : int
        Bits of a code, 1 to 16.
    out : ndarray of uint8, optional
        Where to put the bytes: contiguous, ``ceil(size * bits / 8)`` of them.

    Returns
    -------
    ndarray of uint8, one dimension
        The stream; bits after the last code are zero.

    Raises
    ------
    ValueError
        If a code needs more bits, `bits` is impossible, or `out` does not fit.
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
    bits = whole("pack", "bits", bits, 1, 16)
    c = codes_of(f"bits={bits}", codes, bits, np.dtype(np.uint8 if bits <= 8 else np.uint16))
    into = output("pack", out, (packed_size(c.size, bits),), np.uint8)
    flat = apart(c, into).reshape(-1)
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
    """Unpack a stream of bytes into codes.

    Parameters
    ----------
    packed : array_like of uint8
        What `pack` returned, ``ceil(count * bits / 8)`` bytes.
    bits : int
        Bits of a code, 1 to 16.
    count : int
        How many codes there are.
    out : ndarray of uint8 (uint16 above 8 bits), optional
        Where to put the codes: contiguous, of `count` elements.

    Returns
    -------
    ndarray of uint8 or uint16, shape (count,)

    Raises
    ------
    ValueError
        If the number of bytes does not fit `bits` and `count`, or `out` does not fit.
    TypeError
        If `packed` does not hold bytes.
    """
    bits, n = whole("unpack", "bits", bits, 1, 16), whole("unpack", "count", count, 0)
    p = np.asarray(packed)
    if p.dtype.kind in "iu" and p.dtype != np.uint8 and p.dtype.itemsize > 1 and not isinstance(packed, np.ndarray):
        if p.size and (p.min() < 0 or p.max() > 255):
            raise ValueError(f"unpack: {p.max() if p.max() > 255 else p.min()} is not a byte")
        p = p.astype(np.uint8)
    elif p.size == 0:
        p = p.astype(np.uint8)
    if p.dtype != np.uint8:
        raise TypeError(f"unpack: packed codes are bytes (uint8), not {p.dtype}")
    if p.size != packed_size(n, bits):
        raise ValueError(f"unpack: {n} codes of {bits} bits take {packed_size(n, bits)} bytes, not {p.size}")
    into = output("unpack", out, (n,), np.uint8 if bits <= 8 else np.uint16)
    flat = np.ascontiguousarray(apart(p, into)).reshape(-1)
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
