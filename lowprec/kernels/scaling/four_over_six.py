"""NVFP4 with a choice of scale: each block is quantized with its scale and with 1.5 times that; the better one is used.

The scale s maps the largest value of a block to 6, 1.5 s maps it to 4, which avoids the wide gap between 4 and 6.
Errors are summed in float32 in the order of the columns, and over the rows of a two-dimensional block as a binary tree,
as in TransformerEngine's reference. Sums of 16 blocks are computed in parallel, which changes no order.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, intrinsic, ir, kernel, types, variant

from ..cast.bounded import INF, round_bounded
from ..vectors import F32, VectorCode, fill, swapped
from .elements import amax_rows, encode_rows, mend_codes
from .scales import LARGEST

U = np.uint32
F = np.float32
SIDE = 16  # blocks summed in parallel, and their width
WIDTH = 0


def _sum_sixteens(typingctx, source, target):
    """Sum 16 runs of 16 float32 at an address, each from its first number, and store the 16 sums."""

    def codegen(context, builder, signature, args):
        code, lanes = VectorCode(builder), ir.VectorType(F32, SIDE)
        rows = [code.load(code.at(args[0], 4 * SIDE * i), lanes, align=4) for i in range(SIDE)]
        for h in (8, 4, 2, 1):
            low, high = swapped(h)
            for i in range(SIDE):
                if not i & h:
                    a, b = rows[i], rows[i + h]
                    rows[i], rows[i + h] = builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)
        total = fill(lanes, 0.0)
        for column in rows:
            total = builder.fadd(total, column)
        code.store(total, args[1], align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


sum_sixteens = intrinsic(_sum_sixteens)


@kernel
def scales_and_factors(amax, numbers, e4m3, six, four):
    """Write the E4M3 scales of both choices, and the factors of the values: (scale, factor) for each."""
    largest, tensor, inverse, _, _ = numbers
    (scale6, factor6), (scale4, factor4) = six, four
    for b in range(amax.size):
        base = F(F(float32_from_bits(amax[b]) / largest) * inverse)
        s6, s4 = round_bounded(bits32(base), e4m3), round_bounded(bits32(F(base * F(1.5))), e4m3)
        scale6[b], scale4[b] = s6, s4
        factor6[b] = min(F(F(1) / F(s6 * tensor)), LARGEST)
        factor4[b] = min(F(F(1) / F(s4 * tensor)), LARGEST)


def _row_errors(x, width, choice, numbers, squares, constants, error):
    """Write the errors of a row's values when quantized with the scale and factor of their block."""
    size = WIDTH if WIDTH else width
    scale, factor = choice
    tensor_amax, denominator = numbers[3], numbers[4]
    whole = x.size // size
    for b in range(whole):
        tile, into = x[b * size : b * size + size], error[b * size : b * size + size]
        s, f = scale[b], factor[b]
        for j in range(size):
            q = round_bounded(bits32(F(tile[j] * f)), constants)
            into[j] = F(F(F(F(q * s) * tensor_amax) / denominator) - tile[j])
    for j in range(whole * size, x.size):
        q = round_bounded(bits32(F(x[j] * factor[whole])), constants)
        error[j] = F(F(F(F(q * scale[whole]) * tensor_amax) / denominator) - x[j])
    if squares:
        for j in range(x.size):
            error[j] = F(error[j] * error[j])
    else:
        for j in range(x.size):
            error[j] = abs(error[j])


@kernel
def sum_blocks(error, size, width, sums):
    """Sum each block of a row's errors from its first column."""
    for b in range(sums.size):
        total = F(0)
        for j in range(b * width, min(b * width + width, size)):
            total = F(total + error[j])
        sums[b] = total


@kernel
def sum_blocks_of_sixteen(error, size, width, sums):
    """Sum each block of 16 of a row's errors; `error` (zero-padded) and `sums` extend to a multiple of 16 blocks."""
    source, target = np.intp(error.ctypes.data), np.intp(sums.ctypes.data)
    for b in range((size + SIDE * SIDE - 1) // (SIDE * SIDE)):
        sum_sixteens(source + np.intp(4 * SIDE * SIDE * b), target + np.intp(4 * SIDE * b))


@kernel
def tree_sums(errors):
    """Add the second half of the rows to the first until one is left; the number of rows is a power of two."""
    n = errors.shape[0] // 2
    while n > 0:
        for i in range(n):
            upper, lower = errors[i], errors[i + n]
            for b in range(upper.size):
                upper[b] = F(upper[b] + lower[b])
        n //= 2
    return errors[0]


def amax_row(x, width, amax):
    """Serve as a placeholder, rebound to the variants of `elements`."""


def encode_row(x, width, divide, factor, constants, ahead, codes):
    """Serve as a placeholder, rebound to the variants of `elements`."""


def row_errors(x, width, choice, numbers, squares, constants, error):
    """Serve as a placeholder, rebound by the variants of this module."""


def sum_row(error, size, width, sums):
    """Serve as a placeholder, rebound by the variants of this module."""


def _quantize_strips(x, blocks, rule, casts, codes, scales, start, stop):
    """Quantize strips of x [R, C] in `blocks` (a `Blocks`) into codes [R, C] and scales.

    `rule` is numbers (largest element, the tensor's scale, its inverse, the tensor's amax, and the product of largest
    element and bound), scales and factors of special blocks as for `block_scales`, and whether errors are squared.
    `casts` are three constants: bounded, general, and bounded for E4M3.
    """
    (rows, width, segment), (numbers, special, squares) = blocks, rule
    constants, any_constants, e4m3 = casts
    _, _, inf_scale, inf_factor, nan_scale, nan_factor = special
    height, columns = x.shape
    size, most = 1, (segment // width + SIDE - 1) // SIDE * SIDE
    while size < min(rows, height):
        size *= 2
    six_errors, four_errors = np.zeros((size, most), np.float32), np.zeros((size, most), np.float32)
    error = np.zeros(most * width, np.float32)
    amax = np.empty(most, np.uint32)
    numbers6, numbers4 = np.empty((2, most), np.float32), np.empty((2, most), np.float32)
    for strip in range(start, stop):
        r0, r1 = strip * rows, min(strip * rows + rows, height)
        for c0 in range(0, columns, segment):
            c1 = min(c0 + segment, columns)
            n = (c1 - c0 + width - 1) // width
            a, s = amax[:n], scales[strip, c0 // width : c0 // width + n]
            six, four = (numbers6[0, :n], numbers6[1, :n]), (numbers4[0, :n], numbers4[1, :n])
            a[:] = U(0)
            for i in range(r0, r1):
                amax_row(x[i, c0:c1], width, a)
            scales_and_factors(a, numbers, e4m3, six, four)
            error[c1 - c0 :] = F(0)
            for i in range(r0, r1):
                row_errors(x[i, c0:c1], width, six, numbers, squares, constants, error)
                sum_row(error, c1 - c0, width, six_errors[i - r0])
                row_errors(x[i, c0:c1], width, four, numbers, squares, constants, error)
                sum_row(error, c1 - c0, width, four_errors[i - r0])
            six_errors[r1 - r0 :, :] = F(0)
            four_errors[r1 - r0 :, :] = F(0)
            by_six, by_four, f = tree_sums(six_errors), tree_sums(four_errors), six[1]
            worst = U(0)
            for b in range(n):
                better = by_four[b] < by_six[b]
                s[b] = four[0][b] if better else six[0][b]
                f[b] = four[1][b] if better else f[b]
                worst = max(worst, a[b])
            if worst >= INF:
                for b in range(n):
                    if a[b] >= INF:
                        s[b] = inf_scale if a[b] == INF else nan_scale
                        f[b] = inf_factor if a[b] == INF else nan_factor
            for i in range(r0, r1):
                encode_row(x[i, c0:c1], width, False, f, constants, np.int64(0), codes[i, c0:c1])
                if worst >= INF:
                    mend_codes(x[i, c0:c1], width, False, a, f, any_constants, codes[i, c0:c1])


_row_errors_16 = variant(_row_errors, "row_errors_16", WIDTH=SIDE)
quantize_strips = variant(
    _quantize_strips, "quantize_strips_any", amax_row=amax_rows[0], encode_row=encode_rows[0],
    row_errors=kernel(_row_errors), sum_row=sum_blocks,
)  # fmt: skip
quantize_strips_16 = variant(
    _quantize_strips, "quantize_strips_16", amax_row=amax_rows[2], encode_row=encode_rows[2],
    row_errors=_row_errors_16, sum_row=sum_blocks_of_sixteen,
)  # fmt: skip
