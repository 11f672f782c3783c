"""GELU in float32 as PyTorch computes it on CPUs: vector functions of ATen, SLEEF and oneDNN, scalar ones of glibc.

ATen's formulas are those of ATen/native/cpu/Gelu.h and of erf in ATen/cpu/vec/vec512/vec512_float.h, in the wheel of
PyTorch 2.13.0; GCC fuses x + 0.044715 x^3. tanh is Sleef_tanhf16_u10 of SLEEF 3.6. oneDNN 3.12 has polynomials of erf
(cpu/x64/injectors/jit_uni_eltwise_injector.cpp). The scalar functions are erff and tanhf of glibc 2.28 to 2.40
(sysdeps/ieee754/flt-32/s_erff.c, s_tanhf.c, s_expm1f.c), compiled without fused multiply-adds; 2.41 has others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._jit import bits32, float32_from_bits, fma32, kernel, variant
from lowprec.kernels.cpu_math import exp_glibc, exp_sleef

F, U = np.float32, np.uint32
_SQRT_HALF, _SLOPE, _CUBE = F(math.sqrt(0.5)), F(math.sqrt(2 / math.pi)), F(0.044715)


def _floats(text: str) -> npt.NDArray[np.float32]:
    return np.array(text.split(), np.float32)


def _from_bits(text: str) -> npt.NDArray[np.float32]:
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)


# --- vector functions ------------------------------------------------------------------------------------------------

_ERF = _floats("0.254829592 -0.284496736 1.421413741 -1.453152027 1.061405429")
_ERF_WIDTH = F(0.3275911)
_EXP = _floats("0.0001980960224 0.001394256484 0.008333456703 0.04166637361")
_SIXTH, _LOG2_E = F(0.166666659414234244790680580464), F(1.44269502162933349609375)
_LN_2_HIGH, _LN_2_LOW = F(0.693145751953125), F(1.428606765330187045e-06)
_TANH_IS_ONE, _ERF_IS_ONE = F(8.664339742), F(float.fromhex("0x1.62b9dcp+2"))
#: Coefficients of 24 polynomials in |x|, constants first: for quarters of powers of two, then 1, and |x| for NaN.
_POLYNOMIALS = _from_bits("""
32827792 3381cc0c 34523d4a 351ac44d 35f36d88 36ee8229 37b8a3bb 3867a213 3940033b 3a2a5a1d 3ae35863 3b7828f2
3c08b14b 3c515ed3 bb503236 bd8d8e5e be8abcd9 bf0c19a2 beccb328 3e176ced 3f470d99 3f7abb28 3f800000 00000000
3f4c421f 3f4c4207 3f4c41cb 3f4c413b 3f4c3fad 3f4c3a2f 3f4c2d40 3f4c146a 3f4bc341 3f4ad08c 3f48f8cf 3f45fac7
3f404e07 3f3b980f 3f48dff3 3f78b21b 3fbb0704 40019c32 3fe536d6 3f81331e 3e6c8684 3c98f936 00000000 3f800000
3735e4cf 37f2ff89 388c23be 3917535c 39ab2ab0 3a60fadb 3af9b960 3b6e5491 3c0a4ec5 3ca5aa8c 3d2138d9 3d8737d4
3ddfb660 3e0f27ab 3d94004b be0efdeb bf1d96c3 bf89db58 bf6d9897 bef69fb8 bdc4f8a8 bbde6422 00000000 00000000
be084570 be08639b be089837 be08f409 be09ab95 be0b66d0 be0e400a be124df8 be1bde02 be2f19c9 be4931bf be685fbc
be89c95f be96cbca be8044aa be0550f2 3dcfd6a1 3e94c826 3e79345f 3decec91 3ca46568 3aa1e00a 00000000 00000000
39f097a3 3a5845dc 3ab1fa35 3b0cefb8 3b653ab6 3bcae527 3c221712 3c6c5840 3cc0a703 3d1dcc19 3d63656d 3d955907
3dbf9910 3dd53f69 3db7dcef 3d639ebe ba6ede48 bd22be69 bd041cf1 bc64f5ab bb097a32 b8ebf380 00000000 00000000
3c9b6050 3c978d11 3c92e850 3c8d058b 3c848454 3c6cd623 3c4c824b 3c2a7935 3be0b390 3b0651ac bb232f53 bbd42fa0
bc2c5366 bc492c9e bc2a7aa6 bbd55d04 ba823a76 3b102aa8 3ae25a7e 3a31f792 38b84375 3689bb5a 00000000 00000000
""").reshape(6, 24)
_FIRST_INTERVAL, _SATURATED = np.int32(0x3E000001), np.int32(22)


@kernel
def gelu_onednn(x: Any) -> Any:
    """Return x (1 + erf(x / sqrt(2))) / 2 as oneDNN computes it with AVX-512; NaN for -inf."""
    size = abs(x)
    i = min(max((np.int32(bits32(size)) - _FIRST_INTERVAL) >> np.int32(21), np.int32(0)), np.int32(23))
    if size > _ERF_IS_ONE:
        i = _SATURATED
    value = _POLYNOMIALS[5, i]
    for j in range(4, -1, -1):
        value = fma32(value, size, _POLYNOMIALS[j, i])
    return F(F(x * F(F(math.copysign(value, x)) + F(1))) * F(0.5))


@kernel
def gelu_aten(x: Any) -> Any:
    """Return x / 2 (1 + erf(x / sqrt(2))), with erf by a formula of Abramowitz and Stegun."""
    z = F(x * _SQRT_HALF)
    t = F(F(1) / fma32(_ERF_WIDTH, abs(z), F(1)))
    value = _ERF[4]
    for i in range(3, -1, -1):
        value = fma32(value, t, _ERF[i])
    erf = fma32(F(-exp_sleef(F(-F(z * z))) * t), value, F(1))
    erf = float32_from_bits(U(bits32(erf) ^ (bits32(z) & U(0x80000000))))
    return F(F(x * F(0.5)) * F(F(1) + erf))


@kernel
def _add(x: Any, y: Any) -> Any:
    """Return the sum of two numbers, each of which is a sum of a float32 and a smaller one."""
    total = F(x[0] + y[0])
    of_y = F(total - x[0])
    rest = F(F(x[0] - F(total - of_y)) + F(y[0] - of_y))
    return total, F(rest + F(x[1] + y[1]))


@kernel
def _add_smaller(x: Any, y: Any) -> Any:
    """Return the sum of two numbers of two parts, of which the first is the larger."""
    total = F(x[0] + y[0])
    return total, F(F(F(F(x[0] - total) + y[0]) + x[1]) + y[1])


@kernel
def _multiply(x: Any, y: Any) -> Any:
    """Return the product of two numbers of two parts."""
    product = F(x[0] * y[0])
    return product, fma32(x[0], y[1], fma32(x[1], y[0], fma32(x[0], y[0], F(-product))))


@kernel
def _exp_of_two_parts(x: Any) -> Any:
    """Return e**x of a number from 0 to 9 as two parts."""
    octaves = F(np.rint(F(x * _LOG2_E)))
    zero = F(0)
    rest = _add(_add((x, zero), (F(octaves * -_LN_2_HIGH), zero)), (F(octaves * -_LN_2_LOW), zero))
    value = _EXP[0]
    for i in range(1, 4):
        value = fma32(value, rest[0], _EXP[i])
    series = _add(_multiply(rest, (value, zero)), (_SIXTH, zero))
    series = _add(_multiply(rest, series), (F(0.5), zero))
    square = F(rest[0] * rest[0])
    low = fma32(F(rest[0] + rest[0]), rest[1], fma32(rest[0], rest[0], F(-square)))
    series = _add_smaller((F(1), zero), _add(rest, _multiply((square, low), series)))
    power = float32_from_bits(U((np.int32(octaves) + np.int32(127)) << np.int32(23)))
    return F(series[0] * power), F(series[1] * power)


@kernel
def tanh_sleef(x: Any) -> Any:
    """Return SLEEF's ``tanhf_u10`` with fused multiply-adds."""
    if not abs(x) <= _TANH_IS_ONE:
        return x if x != x else F(math.copysign(F(1), x))
    e = _exp_of_two_parts(abs(x))
    inverse = F(F(1) / e[0])
    low = F(inverse * fma32(F(-e[1]), inverse, fma32(F(-e[0]), inverse, F(1))))
    n, d = _add_smaller(e, (F(-inverse), F(-low))), _add_smaller(e, (inverse, low))
    inverse = F(F(1) / d[0])
    quotient = F(n[0] * inverse)
    error = fma32(F(-d[1]), inverse, fma32(F(-d[0]), inverse, F(1)))
    rest = fma32(n[1], inverse, fma32(inverse, n[0], F(-quotient)))
    return F(math.copysign(F(quotient + fma32(quotient, error, rest)), x))


# --- scalar functions ------------------------------------------------------------------------------------------------

#: Numerators and denominators of erf for |x| below 0.84375, 1.25, 1/0.35 and 6; constants first.
_BELOW_27_32 = (
    _floats("0.12837916613 -0.32504209876 -0.028481749818 -0.0057702702470 -2.3763017452e-05"),
    _floats("1 0.39791721106 0.065022252500 0.0050813062117 1.3249473704e-04 -3.9602282413e-06"),
)
_BELOW_5_4 = (
    _floats("""-0.0023621185683 0.41485610604 -0.37220788002 0.31834661961 -0.11089469492 0.035478305072
               -0.0021663755178"""),
    _floats("1 0.10642088205 0.54039794207 0.071828655899 0.12617121637 0.013637083583 0.011984500103"),
)  # fmt: skip
_BELOW_20_7 = (
    _floats("""-0.0098649440333 -0.69385856390 -10.558626175 -62.375331879 -162.39666748 -184.60508728 -81.287437439
               -9.8143291473"""),
    _floats("""1 19.651271820 137.65776062 434.56588745 645.38726807 429.00814819 108.63500214 6.5702495575
               -0.060424413532"""),
)  # fmt: skip
_BELOW_6 = (
    _floats("-0.0098649431020 -0.79928326607 -17.757955551 -160.63638306 -637.56646729 -1025.0950928 -483.51919556"),
    _floats("1 30.338060379 325.79251099 1536.7296143 3199.8581543 2553.0502930 474.52853394 -22.440952301"),
)
_ERX, _EFX, _20_7 = F(0.84506291151), F(0.12837916613), F(float.fromhex("0x1.6db6dcp+1"))
_EXPM1 = _floats("1 -0.033333335072 0.0015873016091 -7.9365076090e-05 4.0082177293e-06 -2.0109921195e-07")
_INVERSE_LN_2, _LN_2_UPPER, _LN_2_REST = F(1.4426950216), F(0.69313812256), F(9.0580006145e-06)
_HALF_LN_2, _3_LN_2_HALVES = F(float.fromhex("0x1.62e430p-2")), F(float.fromhex("0x1.0a2b24p+0"))


@kernel
def _polynomial(coefficients: Any, x: Any) -> Any:
    value = coefficients[-1]
    for i in range(coefficients.size - 2, -1, -1):
        value = F(coefficients[i] + F(x * value))
    return value


@kernel
def _ratio(of: Any, x: Any) -> Any:
    return F(_polynomial(of[0], x) / _polynomial(of[1], x))


@kernel
def erf_glibc(x: Any) -> Any:
    """Return glibc's erff."""
    size = abs(x)
    if size < F(2.0**-28):
        if size < F(2.0**-119):
            return F(F(0.0625) * F(F(F(16) * x) + F(F(F(16) * _EFX) * x)))
        return F(x + F(_EFX * x))
    if size < F(0.84375):
        return F(x + F(x * _ratio(_BELOW_27_32, F(x * x))))
    if size < F(1.25):
        value = F(_ERX + _ratio(_BELOW_5_4, F(size - F(1))))
    elif size < F(6):
        s = F(F(1) / F(size * size))
        quotient = _ratio(_BELOW_20_7, s) if size < _20_7 else _ratio(_BELOW_6, s)
        z = float32_from_bits(U(bits32(size) & U(0xFFFFF000)))
        e = F(exp_glibc(F(F(F(-z) * z) - F(0.5625))) * exp_glibc(F(F(F(z - size) * F(z + size)) + quotient)))
        value = F(F(1) - F(e / size))
    else:
        value = F(1)
    return F(math.copysign(value, x)) if x == x else x


@kernel
def expm1_glibc(x: Any) -> Any:
    """Return glibc's expm1f of a number from -2 to 44."""
    size = abs(x)
    if size < F(2.0**-25):
        return x
    sign = F(math.copysign(F(1), x))
    octaves = F(0)
    if size > _HALF_LN_2:
        octaves = sign if size < _3_LN_2_HALVES else F(np.trunc(F(F(_INVERSE_LN_2 * x) + F(F(0.5) * sign))))
    high, low = F(x - F(octaves * _LN_2_UPPER)), F(octaves * _LN_2_REST)
    x = F(high - low)
    c = F(F(high - x) - low)
    half = F(F(0.5) * x)
    square = F(x * half)
    r = _polynomial(_EXPM1, square)
    t = F(F(3) - F(r * half))
    e = F(square * F(F(r - t) / F(F(6) - F(x * t))))
    k = np.int32(octaves)
    if k == 0:
        return F(x - F(F(x * e) - square))
    e = F(F(F(x * F(e - c)) - c) - square)
    if k == -1:
        return F(F(F(0.5) * F(x - e)) - F(0.5))
    if k == 1:
        return F(F(-2) * F(e - F(x + F(0.5)))) if x < F(-0.25) else F(F(1) + F(F(2) * F(x - e)))
    power = float32_from_bits(U((k + np.int32(127)) << np.int32(23)))
    if k < 0 or k > 56:
        return F(F(F(F(1) - F(e - x)) * power) - F(1))
    inverse = F(F(1) / power)
    if k < 23:
        return F(F(F(F(1) - inverse) - F(e - x)) * power)
    return F(F(F(x - F(e + inverse)) + F(1)) * power)


@kernel
def tanh_glibc(x: Any) -> Any:
    """Return glibc's tanhf."""
    size = abs(x)
    if not size < F(22):
        return x if x != x else F(math.copysign(F(1), x))
    if size < F(2.0**-55):
        return x
    if size >= F(1):
        value = F(F(1) - F(F(2) / F(expm1_glibc(F(F(2) * size)) + F(2))))
    else:
        t = expm1_glibc(F(F(-2) * size))
        value = F(F(-t) / F(t + F(2)))
    return F(math.copysign(value, x))


@kernel
def gelu_glibc(x: Any) -> Any:
    """Return x / 2 (1 + erf(x / sqrt(2))) by glibc's erff."""
    return F(F(x * F(0.5)) * F(F(1) + erf_glibc(F(x * _SQRT_HALF))))


# --- arrays ----------------------------------------------------------------------------------------------------------


@kernel
def _cubic(x: Any) -> Any:
    """Return the argument of tanh in the approximation of GELU."""
    return F(_SLOPE * fma32(_CUBE, F(F(x * x) * x), x))


@kernel
def gelu_tanh_sleef(x: Any) -> Any:
    """Return x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) by SLEEF's tanh."""
    return F(F(F(0.5) * x) * F(F(1) + tanh_sleef(_cubic(x))))


@kernel
def gelu_tanh_glibc(x: Any) -> Any:
    """Return x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) by glibc's tanhf."""
    return F(F(F(0.5) * x) * F(F(1) + tanh_glibc(_cubic(x))))


@kernel
def gelu_onednn_ftz(x: Any) -> Any:
    """Return `gelu_onednn`, or a zero of its sign if it is subnormal, as VCVTNEPS2BF16 reads it."""
    value = gelu_onednn(x)
    return F(math.copysign(F(0), value)) if abs(value) < F(2.0**-126) else value


def _apply(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = FUNCTION(x[i])


FUNCTION: Any = gelu_aten
#: Kernels (x, out) by name of the function, for contiguous vectors of float32.
FUNCTIONS: dict[str, Callable[[Any, Any], None]] = {
    name: variant(_apply, f"apply_{name}", FUNCTION=function)
    for name, function in (
        ("aten", gelu_aten), ("glibc", gelu_glibc), ("onednn", gelu_onednn), ("onednn_ftz", gelu_onednn_ftz),
        ("sleef_tanh", gelu_tanh_sleef), ("glibc_tanh", gelu_tanh_glibc),
    )
}  # fmt: skip
