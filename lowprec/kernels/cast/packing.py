"""Codes of b bits as one stream: element i has bits [i*b, (i+1)*b), least significant first, in bytes.

Eight codes are b bytes. Within 64-bit registers, packing joins neighbouring fields into pairs, quads and so on, and
unpacking separates them in reverse order. A load or store takes 8 bytes at any address and may exceed its b bytes; the
next store overwrites the excess. The last few codes are packed one by one.
"""

import numpy as np

from lowprec._jit import intrinsic, ir, kernel, types

U = np.uint32
U64 = np.uint64
_BYTES, _SHORTS, _WORDS = U64(0x00FF00FF00FF00FF), U64(0x0000FFFF0000FFFF), U64(0x00000000FFFFFFFF)


def _load64(typingctx, address):
    """Return the 8 bytes at an address as a little-endian integer."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.intp), codegen


def _store64(typingctx, address, value):
    """Store an integer as 8 bytes at an address, in little-endian order."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.uint64), codegen


load64, store64 = intrinsic(_load64), intrinsic(_store64)


@kernel
def pack_pairs(codes, out):
    """Pack an even number of 4-bit codes; the even element is the low nibble."""
    for i in range(out.size):
        out[i] = np.uint8(U(U(codes[2 * i]) | U(U(codes[2 * i + 1]) << U(4))))


@kernel
def unpack_pairs(packed, out):
    """Unpack an even number of 4-bit codes."""
    for i in range(packed.size):
        byte = U(packed[i])
        out[2 * i] = U(byte & U(15))
        out[2 * i + 1] = U(byte >> U(4))


@kernel
def pack_quads(codes, out):
    """Pack 6-bit codes, a multiple of four; four codes are three bytes."""
    for i in range(out.size // 3):
        a, b, c, d = U(codes[4 * i]), U(codes[4 * i + 1]), U(codes[4 * i + 2]), U(codes[4 * i + 3])
        out[3 * i] = np.uint8(U(a | U(U(b & U(3)) << U(6))))
        out[3 * i + 1] = np.uint8(U(U(b >> U(2)) | U(U(c & U(15)) << U(4))))
        out[3 * i + 2] = np.uint8(U(U(c >> U(4)) | U(d << U(2))))


@kernel
def unpack_quads(packed, out):
    """Unpack 6-bit codes, a multiple of four."""
    for i in range(packed.size // 3):
        x, y, z = U(packed[3 * i]), U(packed[3 * i + 1]), U(packed[3 * i + 2])
        out[4 * i] = U(x & U(63))
        out[4 * i + 1] = U(U(x >> U(6)) | U(U(y & U(15)) << U(2)))
        out[4 * i + 2] = U(U(y >> U(4)) | U(U(z & U(3)) << U(4)))
        out[4 * i + 3] = U(z >> U(2))


@kernel
def _push(x, lower, by):
    """Shift the upper field of every pair down by `by` bits; `lower` masks the lower fields."""
    return U64(U64(x & lower) | U64(U64(x & U64(~lower)) >> by))


@kernel
def _pull(x, kept, bits, by):
    """Shift the upper field of every pair up by `by` bits; `kept` masks the lower fields, of `bits` bits."""
    return U64(U64(x & kept) | U64(U64(x & U64(kept << bits)) << by))


@kernel
def pack_any(codes, bits, out):
    """Pack codes of 1 to 16 bits; unused bits of the last byte are zero."""
    reach = 8 if bits <= 8 else 16  # bytes per store
    eights = max(0, min(codes.size // 8, (out.size - reach) // bits + 1)) if out.size >= reach else 0
    b, source, target = U64(bits), np.intp(codes.ctypes.data), np.intp(out.ctypes.data)
    if bits <= 8:
        by1, by2, by4 = U64(8) - b, U64(16) - U64(2) * b, U64(32) - U64(4) * b
        for i in range(eights):
            x = load64(source + 8 * i)
            store64(target + bits * i, _push(_push(_push(x, _BYTES, by1), _SHORTS, by2), _WORDS, by4))
    else:
        by1, by2, four = U64(16) - b, U64(32) - U64(2) * b, U64(4) * b
        for i in range(eights):
            x = _push(_push(load64(source + 16 * i), _SHORTS, by1), _WORDS, by2)
            y = _push(_push(load64(source + 16 * i + 8), _SHORTS, by1), _WORDS, by2)
            store64(target + bits * i, U64(x | U64(y << U64(four & U64(63)))))
            store64(target + bits * i + 8, U64(y >> U64(U64(64) - four)))
    held, n, at = U(0), 0, eights * bits
    for i in range(eights * 8, codes.size):
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
    reach = 8 if bits <= 8 else 16  # bytes per load
    eights = min(out.size // 8, (packed.size - reach) // bits + 1) if packed.size >= reach else 0
    one, two, four = U64(bits), U64(2 * bits), U64(4 * bits)
    source, target = np.intp(packed.ctypes.data), np.intp(out.ctypes.data)
    single = U64(U64(U64(1) << one) - U64(1))
    pair = U64(U64(U64(1) << two) - U64(1))
    if bits <= 8:
        quad = U64(U64(U64(1) << four) - U64(1))
        pair, single = U64(pair * U64(0x0000000100000001)), U64(single * U64(0x0001000100010001))
        for i in range(eights):
            x = _pull(load64(source + bits * i), quad, four, U64(32) - four)
            store64(target + 8 * i, _pull(_pull(x, pair, two, U64(16) - two), single, one, U64(8) - one))
    else:
        single = U64(single * U64(0x0000000100000001))
        for i in range(eights):
            low, high = load64(source + bits * i), load64(source + bits * i + 8)
            above = U64(U64(low >> four) | U64(high << U64(U64(64) - four)))
            x, y = _pull(low, pair, two, U64(32) - two), _pull(above, pair, two, U64(32) - two)
            store64(target + 16 * i, _pull(x, single, one, U64(16) - one))
            store64(target + 16 * i + 8, _pull(y, single, one, U64(16) - one))
    mask = U(U(U(1) << U(bits)) - U(1))
    held, n, at = U(0), 0, eights * bits
    for i in range(eights * 8, out.size):
        while n < bits:
            held = U(held | U(U(packed[at]) << U(n)))
            n += 8
            at += 1
        out[i] = U(held & mask)
        held = U(held >> U(bits))
        n -= bits
