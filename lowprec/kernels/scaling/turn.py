"""Transpose of code rows into columns of a larger matrix, 16 x 16 at a time, in registers."""

import numpy as np

from lowprec._jit import intrinsic, ir, kernel, types

from ..vectors import I8, I16, I64, VectorCode, swapped

SIDE = 16


def _turn_of(item):
    """Return the intrinsic that transposes 16 x 16 codes from one address to another; strides are in bytes."""

    def typed(typingctx, source, stride, target, target_stride):
        def codegen(context, builder, signature, args):
            code, lanes = VectorCode(builder), ir.VectorType(item, SIDE)
            source, stride, target, target_stride = args
            rows = [code.load(code.at(source, builder.mul(stride, I64(i))), lanes, align=1) for i in range(SIDE)]
            for h in (8, 4, 2, 1):
                low, high = swapped(h)
                for i in range(SIDE):
                    if not i & h:
                        a, b = rows[i], rows[i + h]
                        rows[i], rows[i + h] = builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)
            for i, row in enumerate(rows):
                code.store(row, code.at(target, builder.mul(target_stride, I64(i))), align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4), codegen

    return intrinsic(typed)


_turn8, _turn16 = _turn_of(I8), _turn_of(I16)


@kernel
def turn_rows(codes, out, first):
    """Write codes [rows, C] of one or two bytes to the columns from `first` of out [C, R]."""
    rows, columns = codes.shape
    item, stride = codes.itemsize, np.intp(codes.itemsize * columns)
    target_stride = np.intp(item * out.shape[1])
    source, target = np.intp(codes.ctypes.data), np.intp(out.ctypes.data) + np.intp(item * first)
    high, wide = rows // SIDE * SIDE, columns // SIDE * SIDE
    for c in range(0, wide, SIDE):
        for r in range(0, high, SIDE):
            at, to = source + r * stride + c * item, target + c * target_stride + r * item
            if item == 1:
                _turn8(np.intp(at), stride, np.intp(to), target_stride)
            else:
                _turn16(np.intp(at), stride, np.intp(to), target_stride)
    for c in range(columns):
        for r in range(high if c < wide else 0, rows):
            out[c, first + r] = codes[r, c]
