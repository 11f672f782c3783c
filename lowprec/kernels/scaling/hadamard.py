"""Walsh-Hadamard transform of runs within rows or columns, in one fixed order of additions."""

import numpy as np

from lowprec._jit import kernel

F = np.float32


@kernel
def transform_rows(x, signs, factor, inverse, out, start, stop):
    """Transform each run of `signs.size` columns in rows `start` to `stop` of x [R, C] into out [R, C].

    Signs are applied first (last for the inverse); then for h = 1, 2, 4, ... pairs at distance h become (a + b, a - b);
    finally all values are multiplied by `factor`.
    """
    size = signs.size
    piece = np.empty(size, np.float32)
    for i in range(start, stop):
        for c0 in range(0, x.shape[1], size):
            for j in range(size):
                piece[j] = x[i, c0 + j] if inverse else F(x[i, c0 + j] * signs[j])
            h = 1
            while h < size:
                for first in range(0, size, 2 * h):
                    for j in range(first, first + h):
                        a, b = piece[j], piece[j + h]
                        piece[j], piece[j + h] = F(a + b), F(a - b)
                h *= 2
            for j in range(size):
                y = F(piece[j] * factor)
                out[i, c0 + j] = F(y * signs[j]) if inverse else y


@kernel
def transform_columns(x, signs, factor, inverse, out, start, stop):
    """Transform each run of `signs.size` rows, for runs `start` to `stop`, with columns processed in parallel."""
    size, columns = signs.size, x.shape[1]
    for run in range(start, stop):
        r0 = run * size
        for i in range(size):
            for j in range(columns):
                out[r0 + i, j] = x[r0 + i, j] if inverse else F(x[r0 + i, j] * signs[i])
        h = 1
        while h < size:
            for first in range(0, size, 2 * h):
                for i in range(first, first + h):
                    for j in range(columns):
                        a, b = out[r0 + i, j], out[r0 + i + h, j]
                        out[r0 + i, j], out[r0 + i + h, j] = F(a + b), F(a - b)
            h *= 2
        for i in range(size):
            for j in range(columns):
                y = F(out[r0 + i, j] * factor)
                out[r0 + i, j] = F(y * signs[i]) if inverse else y
