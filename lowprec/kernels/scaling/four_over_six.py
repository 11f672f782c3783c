"""NVFP4 with a choice: each block is quantized with its scale and with 1.5 times that, and the better one is kept.

With s the largest value of a block lies on 6, with 1.5 s on 4, which spares the wide gap between 4 and 6. Errors are
summed in float32 in the order of the columns, and over the rows of a two-dimensional block as a tree of halves, as
TransformerEngine's reference does.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

from ..cast.bounded import INF, encode_bounded, round_bounded
from ..cast.nearest import decode_bits, encode_bits
from .elements import amax_rows, mend_codes
from .scales import LARGEST

U = np.uint32
F = np.float32
amax_any = amax_rows[0]


@kernel
def scale_and_factor(t, tensor, e4m3, e4m3_values):
    """Return the E4M3 scale nearest to t, and what values are multiplied with."""
    s = float32_from_bits(decode_bits(encode_bits(bits32(t), e4m3), e4m3_values))
    return s, min(F(F(1) / F(s * tensor)), LARGEST)


@kernel
def row_error(x, s, f, tensor_amax, denominator, squares, constants):
    """Return the summed error of a row of a block, quantized with scale s and factor f."""
    total = F(0)
    for j in range(x.size):
        q = round_bounded(bits32(F(x[j] * f)), constants)
        d = F(F(F(F(q * s) * tensor_amax) / denominator) - x[j])
        total = F(total + (F(d * d) if squares else abs(d)))
    return total


@kernel
def tree_sum(errors):
    """Add the second half to the first until one is left; the length is a power of two. Overwrites `errors`."""
    n = errors.size // 2
    while n > 0:
        for i in range(n):
            errors[i] = F(errors[i] + errors[i + n])
        n //= 2
    return errors[0]


@kernel
def quantize_strips(x, block, rule, casts, codes, scales, start, stop):
    """Quantize strips of x [R, C] in blocks of rows x width (`block`) into codes [R, C] and scales.

    `rule` is numbers (largest element, the tensor's scale, its inverse, the tensor's amax, and the product of largest
    element and bound), scales and factors of special blocks as for `block_scales`, and whether errors are squared.
    `casts`: bounded, general, and E4M3's for encoding and decoding.
    """
    (rows, width), (numbers, special, squares) = block, rule
    largest, tensor, inverse, tensor_amax, denominator = numbers
    constants, any_constants, e4m3, e4m3_values = casts
    _, _, inf_scale, inf_factor, nan_scale, nan_factor = special
    height, columns = x.shape
    size = 1
    while size < min(rows, height):
        size *= 2
    six, four = np.zeros(size, np.float32), np.zeros(size, np.float32)
    amax, factor = np.empty(1, np.uint32), np.empty(1, np.float32)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, height)
        for b in range((columns + width - 1) // width):
            c0, c1 = b * width, min(b * width + width, columns)
            amax[0] = U(0)
            for i in range(r0, r1):
                amax_any(x[i, c0:c1], width, amax)
            if amax[0] >= INF:
                scales[strip, b] = inf_scale if amax[0] == INF else nan_scale
                factor[0] = inf_factor if amax[0] == INF else nan_factor
                for i in range(r0, r1):
                    mend_codes(x[i, c0:c1], width, False, amax, factor, any_constants, codes[i, c0:c1])
                continue
            base = F(F(float32_from_bits(amax[0]) / largest) * inverse)
            s6, f6 = scale_and_factor(base, tensor, e4m3, e4m3_values)
            s4, f4 = scale_and_factor(F(base * F(1.5)), tensor, e4m3, e4m3_values)
            six[:], four[:] = F(0), F(0)
            for i in range(r0, r1):
                row = x[i, c0:c1]
                six[i - r0] = row_error(row, s6, f6, tensor_amax, denominator, squares, constants)
                four[i - r0] = row_error(row, s4, f4, tensor_amax, denominator, squares, constants)
            better = tree_sum(four) < tree_sum(six)
            scales[strip, b] = s4 if better else s6
            f = f4 if better else f6
            for i in range(r0, r1):
                for j in range(c0, c1):
                    codes[i, j] = encode_bounded(bits32(F(x[i, j] * f)), constants)
