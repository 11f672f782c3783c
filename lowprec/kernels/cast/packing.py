"""Codes of b bits as one stream: element i takes bits [i*b, (i+1)*b), least significant first, in bytes."""

import numpy as np

from lowprec._jit import kernel

U = np.uint32


@kernel
def pack_pairs(codes, out):
    """Pack 4-bit codes, an even number of them: the even element goes to the low nibble."""
    for i in range(out.size):
        out[i] = np.uint8(U(U(codes[2 * i]) | U(U(codes[2 * i + 1]) << U(4))))


@kernel
def unpack_pairs(packed, out):
    """Unpack 4-bit codes, an even number of them."""
    for i in range(packed.size):
        byte = U(packed[i])
        out[2 * i] = U(byte & U(15))
        out[2 * i + 1] = U(byte >> U(4))


@kernel
def pack_quads(codes, out):
    """Pack 6-bit codes, a multiple of four of them: four codes are three bytes."""
    for i in range(out.size // 3):
        a, b, c, d = U(codes[4 * i]), U(codes[4 * i + 1]), U(codes[4 * i + 2]), U(codes[4 * i + 3])
        out[3 * i] = np.uint8(U(a | U(U(b & U(3)) << U(6))))
        out[3 * i + 1] = np.uint8(U(U(b >> U(2)) | U(U(c & U(15)) << U(4))))
        out[3 * i + 2] = np.uint8(U(U(c >> U(4)) | U(d << U(2))))


@kernel
def unpack_quads(packed, out):
    """Unpack 6-bit codes, a multiple of four of them."""
    for i in range(packed.size // 3):
        x, y, z = U(packed[3 * i]), U(packed[3 * i + 1]), U(packed[3 * i + 2])
        out[4 * i] = U(x & U(63))
        out[4 * i + 1] = U(U(x >> U(6)) | U(U(y & U(15)) << U(2)))
        out[4 * i + 2] = U(U(y >> U(4)) | U(U(z & U(3)) << U(4)))
        out[4 * i + 3] = U(z >> U(2))


@kernel
def pack_any(codes, bits, out):
    """Pack codes of 1 to 16 bits; what does not fill the last byte is zero there."""
    held, n, at = U(0), 0, 0
    for i in range(codes.size):
        held = U(held | U(U(codes[i]) << U(n)))
        n += bits
        while n >= 8:
            out[at] = np.uint8(held & U(0xFF))
            held = U(held >> U(8))
            n -= 8
            at += 1
    if n > 0:
        out[at] = np.uint8(held & U(0xFF))


@kernel
def unpack_any(packed, bits, out):
    """Unpack codes of 1 to 16 bits into `out`."""
    mask = U(U(U(1) << U(bits)) - U(1))
    held, n, at = U(0), 0, 0
    for i in range(out.size):
        while n < bits:
            held = U(held | U(U(packed[at]) << U(n)))
            n += 8
            at += 1
        out[i] = U(held & mask)
        held = U(held >> U(bits))
        n -= bits
