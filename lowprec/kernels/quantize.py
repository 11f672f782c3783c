"""Block quantization: the largest magnitude of a block, its scale, and the block's codes, in one sweep.

A strip of rows is walked row by row with all its blocks at once, so that memory is read in order and the
second pass over the strip finds it in the cache. Magnitudes are compared as integers: NaN sorts above Inf
above everything else, so what is not finite shows up in the maximum without a test of its own.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

from .cast import decode_bits, encode_bits

U = np.uint32
INF = U(0x7F800000)

SCALE_FP32, SCALE_UE8M0 = 0, 1  # kinds of scale
DIVIDE, RECIPROCAL = 0, 1  # how a value is divided by its scale: x / s, or x * float32(1 / s)


@kernel
def block_scale(amax_bits, max_value, amax_floor, kind):
    """Return the scale of a block whose largest magnitude has these bits.

    ``float32(amax / max_value)``, at least 2^-149; for UE8M0, the smallest power of two not below that quotient,
    at least 2^-126, found from its bits. A block of zeros gets 1, a block with NaN or Inf gets NaN.
    """
    if amax_bits >= INF:
        return np.float32(np.nan)
    amax = max(float32_from_bits(U(amax_bits)), np.float32(amax_floor))
    if amax == np.float32(0):
        return np.float32(1)
    quotient = bits32(np.float32(amax / np.float32(max_value)))
    if kind == SCALE_UE8M0:
        field = U(quotient >> U(23))
        if U(quotient & U(0x7FFFFF)) != U(0):
            field = U(field + U(1))
        return float32_from_bits(U(max(field, U(1)) << U(23)))
    return float32_from_bits(max(quotient, U(1)))


@kernel
def quantize_blocks(x, rows, cols, max_value, amax_floor, kind, division, constants, codes, scales, start, stop):
    """Quantize strips `start` to `stop` (of `rows` rows) of x [R, C] in blocks of rows x cols, ragged at the edges.

    Writes codes [R, C] and scales [ceil(R / rows), ceil(C / cols)].
    """
    height, width = x.shape
    blocks = (width + cols - 1) // cols
    amax = np.empty(blocks, np.uint32)
    factor = np.empty(blocks, np.float32)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, height)
        amax[:] = U(0)
        for i in range(r0, r1):
            for b in range(blocks):
                tile = x[i, b * cols : min(b * cols + cols, width)]
                top = U(0)
                for j in range(tile.size):
                    top = max(top, U(bits32(tile[j]) & U(0x7FFFFFFF)))
                amax[b] = max(amax[b], top)
        for b in range(blocks):
            s = block_scale(amax[b], max_value, amax_floor, kind)
            scales[strip, b] = s
            factor[b] = reciprocal(s) if division == RECIPROCAL else s
        for i in range(r0, r1):
            for b in range(blocks):
                tile = x[i, b * cols : min(b * cols + cols, width)]
                into = codes[i, b * cols : min(b * cols + cols, width)]
                f = factor[b]
                if division == RECIPROCAL:
                    for j in range(tile.size):
                        into[j] = encode_bits(bits32(tile[j] * f), constants)
                else:
                    for j in range(tile.size):
                        into[j] = encode_bits(bits32(tile[j] / f), constants)


@kernel
def quantize_columns(x, rows, max_value, amax_floor, kind, division, constants, codes, scales, start, stop):
    """Do the same for blocks of one column: `rows` x 1, the vectors running over the columns."""
    height, width = x.shape
    amax = np.empty(width, np.uint32)
    factor = np.empty(width, np.float32)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, height)
        amax[:] = U(0)
        for i in range(r0, r1):
            row = x[i]
            for j in range(width):
                amax[j] = max(amax[j], U(bits32(row[j]) & U(0x7FFFFFFF)))
        for j in range(width):
            s = block_scale(amax[j], max_value, amax_floor, kind)
            scales[strip, j] = s
            factor[j] = reciprocal(s) if division == RECIPROCAL else s
        for i in range(r0, r1):
            row, into = x[i], codes[i]
            if division == RECIPROCAL:
                for j in range(width):
                    into[j] = encode_bits(bits32(row[j] * factor[j]), constants)
            else:
                for j in range(width):
                    into[j] = encode_bits(bits32(row[j] / factor[j]), constants)


@kernel
def reciprocal(s):
    """Return float32(1 / s), at most the largest finite number, so that 0 stays 0."""
    return min(np.float32(np.float32(1) / s), np.float32(3.4028234663852886e38)) if s == s else s


@kernel
def dequantize_blocks(codes, scales, rows, cols, constants, out, start, stop):
    """Write ``float32(scale * decode(code))`` for rows `start` to `stop` of codes [R, C]."""
    width = codes.shape[1]
    blocks = (width + cols - 1) // cols
    for i in range(start, stop):
        for b in range(blocks):
            tile = codes[i, b * cols : min(b * cols + cols, width)]
            into = out[i, b * cols : min(b * cols + cols, width)]
            s = scales[i // rows, b]
            for j in range(tile.size):
                into[j] = s * float32_from_bits(decode_bits(U(tile[j]), constants))


@kernel
def dequantize_columns(codes, scales, rows, constants, out, start, stop):
    """Do the same for blocks of one column."""
    for i in range(start, stop):
        tile, into, s = codes[i], out[i], scales[i // rows]
        for j in range(tile.size):
            into[j] = s[j] * float32_from_bits(decode_bits(U(tile[j]), constants))
