"""Operand layouts for runs that are scaled inside the instruction: one record per 16 products of a quad or panel.

Elements are multiples of the format's smallest subnormal, at most 12 of them (E2M1: halves); that unit is multiplied
into the scales. A's are signed bytes; B's are increased by 12 to make them unsigned, as the CPU's byte products
require, and 12 times the sum of A's run is subtracted. A run with a zero scale is packed as zeros: both give a zero
term.

A record holds, of 4 rows of A::

    byte 0      elements    [4][4 rows][4] int8
    byte 64     scale       [4] float64, times a factor
    byte 96     offset      [4] int32: -12 times the sum of the run
    byte 112    exponent    [4] int32: exponent of the scale, as the high 16 bits of a float64, twice; biased
    byte 128    nonzero     [4] int32: one bit per element, 16 bits twice

and of 32 columns of B::

    byte 0      elements    [4][32 columns][4] uint8
    byte 512    scale       [32] float64, times a factor
    byte 768    exponent    [32] int16: as A's, not biased
    byte 832    nonzero     [32] int16
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import intrinsic, ir, kernel, types

from .sums import COLUMNS, ROWS

RUN = 16
LARGEST = 12
A_BYTES, B_BYTES = 144, 896
U = np.uint32


def _nonzero(typingctx, address):
    """Return a mask of the nonzero bytes among 16 bytes at an address."""
    if address != types.intp:
        return None

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(8), RUN)
        x = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=1)
        bits = builder.bitcast(builder.icmp_signed("!=", x, ir.Constant(vector, None)), ir.IntType(RUN))
        return builder.zext(bits, ir.IntType(32))

    return types.uint32(types.intp), codegen


nonzero = intrinsic(_nonzero)


class Tables(NamedTuple):
    """Decoding tables of both operands' elements and scales."""

    element: Any  # int8 by code, multiples of the smallest subnormal
    scale: Any  # float64 by scale code, NaN for NaN
    exponent: Any  # int16: its unnormalized exponent
    factor: float  # factor of the scales


@kernel
def _read(codes, table, line):
    """Decode a row, up to its length; further elements are unchanged."""
    for p in range(codes.size):
        line[p] = table[codes[p]]


@kernel
def pack_quads(codes, scale, block, tables, runs, records):
    """Pack A [M, K] with scale codes [M, K / block] as records [quads][runs]."""
    table, scales, exponents, factor = tables
    words, numbers = records.view(np.int32), records.view(np.float64)
    m, k = codes.shape
    line = np.zeros(runs * RUN, np.int8)
    elements = line.view(np.int32)
    for i in range((m + ROWS - 1) // ROWS * ROWS):
        r = i % ROWS
        if i < m:
            _read(codes[i], table, line)
        else:
            line[:] = np.int8(0)
        for q in range(runs):
            s, e = 1.0, np.int32(0)
            if i < m and q * RUN < k:
                at = scale[i, q * RUN // block]
                s, e = scales[at], np.int32(exponents[at])
            if s == 0.0:
                line[q * RUN : (q + 1) * RUN] = np.int8(0)
            record = (i // ROWS * runs + q) * A_BYTES
            total = np.int32(0)
            for t in range(RUN):
                total += np.int32(line[q * RUN + t])
            w = words[record // 4 : (record + A_BYTES) // 4]
            for t in range(4):
                w[t * ROWS + r] = elements[q * 4 + t]
            numbers[record // 8 + 8 + r] = s * factor
            w[24 + r] = np.int32(-LARGEST) * total
            bits = nonzero(np.intp(line.ctypes.data) + q * RUN)
            w[32 + r] = np.int32(U(bits | U(bits << U(16))))
            high = U((e + np.int32(1023)) << np.int32(4))
            w[28 + r] = np.int32(U(high | U(high << U(16))))


@kernel
def pack_panels(codes, scale, block, tables, runs, records):
    """Pack B [N, K] with scale codes [N, K / block] as records [panels][runs]."""
    table, scales, exponents, factor = tables
    words, numbers, shorts = records.view(np.int32), records.view(np.float64), records.view(np.int16)
    n, k = codes.shape
    line = np.zeros(runs * RUN, np.int8)
    elements = line.view(np.uint32)
    raised = U(0x01010101 * LARGEST)
    for j in range((n + COLUMNS - 1) // COLUMNS * COLUMNS):
        c = j % COLUMNS
        if j < n:
            _read(codes[j], table, line)
        else:
            line[:] = np.int8(0)
        for q in range(runs):
            s, e = 1.0, np.int32(0)
            if j < n and q * RUN < k:
                at = scale[j, q * RUN // block]
                s, e = scales[at], np.int32(exponents[at])
            if s == 0.0:
                line[q * RUN : (q + 1) * RUN] = np.int8(0)
            record = (j // COLUMNS * runs + q) * B_BYTES
            w = words[record // 4 : (record + B_BYTES) // 4]
            for t in range(4):
                w[t * COLUMNS + c] = np.int32(_add_bytes(elements[q * 4 + t], raised))
            numbers[record // 8 + 64 + c] = s * factor
            shorts[record // 2 + 384 + c] = np.int16(e << np.int32(4))
            shorts[record // 2 + 416 + c] = np.int16(nonzero(np.intp(line.ctypes.data) + q * RUN))


@kernel
def _add_bytes(x, y):
    """Add four bytes, each modulo 256."""
    low = U(0x7F7F7F7F)
    return U(U(U(x & low) + U(y & low)) ^ U(U(x ^ y) & U(0x80808080)))
