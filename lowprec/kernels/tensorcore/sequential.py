"""One fused multiply-add after the other in float64: the FP64 units of all makers."""

import numpy as np

from lowprec._jit import intrinsic, kernel, types


def _fma64(typingctx, a, b, c):
    if (a, b, c) != (types.float64,) * 3:
        return None

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


fma64 = intrinsic(_fma64)  # a * b + c with one rounding


@kernel
def sequential64(a, b, state, start, stop):
    """Add rows `start` to `stop` of ``A @ B.T`` onto `state` [M, N] in increasing k; a [M, K], b [K, N], float64."""
    for i in range(start, stop):
        d = state[i]
        for p in range(a.shape[1]):
            x = np.float64(a[i, p])
            y = b[p]
            for j in range(d.size):
                d[j] = fma64(x, y[j], d[j])
