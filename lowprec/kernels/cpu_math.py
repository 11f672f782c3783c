"""exp and log in float32 as CPU libraries compute them: vector functions of PyTorch and SLEEF, scalar ones of glibc.

The vector functions are those of ATen/cpu/vec/vec512/vec512_float.h in the wheel of PyTorch 2.13.0, lines 316 to 437,
and Sleef_expf16_u10 of SLEEF 3.6; the scalar ones are expf and logf of glibc 2.28 to 2.40
(sysdeps/ieee754/flt-32/e_expf.c, e_logf.c, e_logf_data.c), which compute in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._jit import bits32, float32_from_bits, float64_from_bits, fma32, kernel
from lowprec.kernels.elementary import exp64
from lowprec.kernels.logfmt.tables import EXP2

F, U = np.float32, np.uint32
_LOG2_E, _LN_2 = F(1.44269502162933349609375), F(0.693147182464599609375)
_LOWEST = F(-87.33654022216796875)  # 0xc2aeac50
_HIGHEST = F(88.72283935546875)  # 0x42b17218
_TAYLOR = np.array([1.0, 0.999999701, 0.499991506, 0.166676521, 0.0418978221, 0.00828929059], np.float32)
_FAST = np.array([0.00010703434948458272, 0.30354260500649682, -0.22433836478672356, -0.079204240219773236], np.float32)
_SLEEF = np.array(
    [0.5, 0.166666671633720397949219, 0.0416664853692054748535156, 0.00833336077630519866943359,
     0.00139304355252534151077271, 0.000198527617612853646278381], np.float32,
)  # fmt: skip
_LN_2_HIGH, _LN_2_LOW = F(0.693145751953125), F(1.428606765330187045e-06)


def _doubles(text: str) -> npt.NDArray[np.float64]:
    return np.array([float.fromhex(word) for word in text.split()])


_LOGF_INVERSE = _doubles("""
0x1.661ec79f8f3bep+0 0x1.571ed4aaf883dp+0 0x1.49539f0f010bp+0 0x1.3c995b0b80385p+0 0x1.30d190c8864a5p+0
0x1.25e227b0b8eap+0 0x1.1bb4a4a1a343fp+0 0x1.12358f08ae5bap+0 0x1.0953f419900a7p+0 0x1p+0 0x1.e608cfd9a47acp-1
0x1.ca4b31f026aap-1 0x1.b2036576afce6p-1 0x1.9c2d163a1aa2dp-1 0x1.886e6037841edp-1 0x1.767dcf5534862p-1
""")
_LOGF_LOG = _doubles("""
-0x1.57bf7808caadep-2 -0x1.2bef0a7c06ddbp-2 -0x1.01eae7f513a67p-2 -0x1.b31d8a68224e9p-3 -0x1.6574f0ac07758p-3
-0x1.1aa2bc79c81p-3 -0x1.a4e76ce8c0e5ep-4 -0x1.1973c5a611cccp-4 -0x1.252f438e10c1ep-5 0x0p+0 0x1.aa5aa5df25984p-5
0x1.c5e53aa362eb4p-4 0x1.526e57720db08p-3 0x1.bc2860d22477p-3 0x1.1058bc8a07ee1p-2 0x1.4043057b6ee09p-2
""")
_LOGF_2, _LOGF_3, _LOGF_4 = (
    float.fromhex(x) for x in ("-0x1.ffffef20a4123p-2", "0x1.5575b0be00b6ap-2", "-0x1.00ea348b88334p-2")
)
_EXPF_SCALE = float.fromhex("0x1.71547652b82fep+0") * 32
_EXPF_1, _EXPF_2, _EXPF_3 = (
    float.fromhex("0x1.62e42ff0c52d6p-1") / 32, float.fromhex("0x1.ebfce50fac4f3p-3") / 32**2,
    float.fromhex("0x1.c6af84b912394p-5") / 32**3,
)  # fmt: skip


@kernel
def exp_u20(x: Any) -> Any:
    """Return PyTorch's ``Vectorized<float>::exp_u20``; NaN is treated as the largest argument."""
    clamped = x if x < _HIGHEST else _HIGHEST
    clamped = clamped if clamped > _LOWEST else _LOWEST
    whole = F(np.floor(fma32(clamped, _LOG2_E, F(0.5))))
    rest = fma32(F(-whole), _LN_2, clamped)
    value = _TAYLOR[5]
    for i in range(4, -1, -1):
        value = fma32(rest, value, _TAYLOR[i])
    power = F(0) if x < _LOWEST else float32_from_bits(U((np.int32(whole) + np.int32(126)) << np.int32(23)))
    return F(F(value * power) * F(2))


@kernel
def fexp_u20(x: Any) -> Any:
    """Return PyTorch's ``Vectorized<float>::fexp_u20``, which is accurate to 14 bits; NaN gives -0."""
    if x != x:
        return F(-0.0)
    if x < _LOWEST:
        return F(0)
    if x > _HIGHEST:
        return F(np.inf)
    octaves = F(x * _LOG2_E)
    fraction = F(octaves - F(np.floor(octaves)))
    value = _FAST[3]
    for i in range(2, -1, -1):
        value = fma32(fraction, value, _FAST[i])
    return float32_from_bits(U(np.int32(fma32(F(8388608.0), F(octaves - value), F(8388608.0 * 127.0)))))


@kernel
def exp_sleef(x: Any) -> Any:
    """Return SLEEF's ``expf_u10`` with fused multiply-adds."""
    if x < F(-104.0):
        return F(0)
    if not x <= F(100.0):
        return x if x != x else F(np.inf)
    whole = F(np.rint(F(x * _LOG2_E)))
    rest = fma32(whole, F(-_LN_2_HIGH), x)
    rest = fma32(whole, F(-_LN_2_LOW), rest)
    value = _SLEEF[5]
    for i in range(4, -1, -1):
        value = fma32(value, rest, _SLEEF[i])
    value = F(F(1) + fma32(F(rest * rest), value, rest))
    half = np.int32(whole) >> np.int32(1)
    for power in (half, np.int32(whole) - half):
        value = F(value * float32_from_bits(U((power + np.int32(127)) << np.int32(23))))
    return value


@kernel
def exp_rounded(x: Any) -> Any:
    """Return e**x computed in float64 and rounded to float32, as C++'s ``exp(double)`` of a float."""
    return F(exp64(np.float64(x)))


@kernel
def exp_glibc(x: Any) -> Any:
    """Return glibc's expf of a number that is not positive, or NaN."""
    if x < F(-104.0):
        return F(0)
    if x != x:
        return x
    scaled = np.float64(x) * _EXPF_SCALE
    whole = np.rint(scaled)
    rest = scaled - whole
    n = np.int64(whole)
    power = float64_from_bits(np.uint64((n >> 5) + 1023) << np.uint64(52))
    squared = rest * rest
    value = (_EXPF_3 * rest + _EXPF_2) * squared + (_EXPF_1 * rest + 1.0)
    return F(value * (EXP2[2 * (n & 31)] * power))


@kernel
def log_glibc(x: Any) -> Any:
    """Return glibc's logf of a number of at least 2^-126, infinity or NaN."""
    if not x < F(np.inf):
        return x
    bits = bits32(x)
    shifted = np.int32(U(bits - U(0x3F330000)))
    i = (shifted >> np.int32(19)) & np.int32(15)
    k = shifted >> np.int32(23)
    z = np.float64(float32_from_bits(U(np.int32(bits) - (k << np.int32(23)))))
    r = z * _LOGF_INVERSE[i] - 1.0
    start = _LOGF_LOG[i] + np.float64(k) * math.log(2.0)
    squared = r * r
    return F((_LOGF_4 * squared + (_LOGF_3 * r + _LOGF_2)) * squared + (start + r))


@kernel
def exp_tile(x: Any, function: int, width: int, out: Any) -> None:
    """Write e**x of a tile [M, keys]: whole vectors of `width` columns by a vector function, the rest by C's exp.

    Functions: 0 `exp_u20`, 1 `fexp_u20`, 2 `exp_sleef`.
    """
    whole = x.shape[1] // width * width
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if j >= whole:
                out[i, j] = exp_rounded(x[i, j])
            elif function == 0:
                out[i, j] = exp_u20(x[i, j])
            elif function == 1:
                out[i, j] = fexp_u20(x[i, j])
            else:
                out[i, j] = exp_sleef(x[i, j])


@kernel
def exp_scalars(x: Any, out: Any) -> None:
    """Write glibc's expf of numbers that are not positive, or NaN."""
    for i in range(x.size):
        out[i] = exp_glibc(x[i])


@kernel
def log_scalars(x: Any, out: Any) -> None:
    """Write glibc's logf of numbers of at least 2^-126, infinity or NaN."""
    for i in range(x.size):
        out[i] = log_glibc(x[i])


@kernel
def sum_by_lanes(p: Any, scales: Any, vectors: int, in_lanes: bool, sums: Any) -> None:
    """Multiply the sums [M, 1] by a scale and add a tile's probabilities [M, keys] by vectors of 16.

    Vector v is added to accumulator v mod `vectors`. The accumulators are then added to one, and the upper half of its
    16, 8, 4 and 2 lanes to the lower. Keys after the last vector are added to the first lanes if `in_lanes`, else to
    the result, one by one; fewer than 16 keys are always added one by one. The tile's sum is added to the rescaled
    one by a fused multiply-add.
    """
    lanes = np.empty((vectors, 16), np.float32)
    whole = p.shape[1] // 16
    for i in range(p.shape[0]):
        row = p[i]
        lanes[:] = F(0)
        for v in range(whole):
            for j in range(16):
                lanes[v % vectors, j] = F(lanes[v % vectors, j] + row[16 * v + j])
        for v in range(1, vectors):
            for j in range(16):
                lanes[0, j] = F(lanes[0, j] + lanes[v, j])
        done = 16 * whole
        if in_lanes and whole:
            for j in range(done, row.size):
                lanes[0, j - done] = F(lanes[0, j - done] + row[j])
            done = row.size
        for half in (8, 4, 2, 1):
            for j in range(half):
                lanes[0, j] = F(lanes[0, j] + lanes[0, j + half])
        total = lanes[0, 0]
        for j in range(done, row.size):
            total = F(total + row[j])
        sums[i, 0] = fma32(scales[i], sums[i, 0], total)
