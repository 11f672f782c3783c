"""Functions in float32 of which every bit is defined here: computed in float64 by IEEE operations, and rounded once.

sin and cos reduce the argument exactly, by 128 bits of a fraction of a turn. Errors in float64 are a few units in the
last place, so that a float32 result is correctly rounded unless the exact value is that close to the middle of two
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lowprec._jit import bits32, kernel, variant
from lowprec.kernels.elementary import exp64, log64

_SQRT_HALF, _INVERSE_SQRT_PI = math.sqrt(0.5), 1 / math.sqrt(math.pi)
_GELU_SLOPE, _GELU_CUBE = math.sqrt(2 / math.pi), 0.044715
#: Terms of the series of erf for arguments below 1, 2 and 3, beyond which it is a continued fraction.
_FEW, _SOME, _MANY, _LEVELS = 20, 34, 54, 34
_ODD_INVERSES = np.array([1 / (2 * i + 1) for i in range(_MANY + 1)])
#: Inverse factorials of the series of sin and cos.
_OF_SINE = np.array([1 / math.factorial(n) for n in range(17, 1, -2)])
_OF_COSINE = np.array([1 / math.factorial(n) for n in range(16, 0, -2)])
_LIMB, _TURN = 32, 2 * math.pi * 2.0**-64


def _arctangent(inverse: int, bits: int) -> int:
    """Return 2**bits * atan(1 / inverse)."""
    term, total, i = (1 << bits) // inverse, 0, 1
    while term:
        total += (-1) ** (i // 2) * (term // i)
        term, i = term // inverse**2, i + 2
    return total


def _turns() -> np.ndarray[Any, Any]:
    """Return 2**(e - 150) / (2 pi) modulo 1 for e from 126 to 254, each as four limbs of 32 bits."""
    bits = 400
    pi = 4 * (4 * _arctangent(5, bits) - _arctangent(239, bits))  # Machin's formula
    inverse = (1 << 2 * bits) // (2 * pi)
    words = [(inverse >> (bits - 128 + 150 - e)) % (1 << 128) for e in range(126, 255)]
    return np.array([[word >> _LIMB * (3 - i) & 0xFFFFFFFF for i in range(4)] for word in words], np.uint64)


_TURNS = _turns()


@kernel
def _reduced(x: float) -> Any:
    """Return a quadrant, and the angle from the middle of the quadrant to a float32 number."""
    word = np.uint64(bits32(np.float32(abs(x))))
    exponent = np.int64(word >> np.uint64(23))
    if exponent < 126 or exponent == 255:  # |x| < 1/2 needs no reduction; infinities and NaN give NaN
        return np.int64(0), abs(x) if exponent < 126 else np.nan
    significand = np.uint64(np.uint64(word & np.uint64(0x7FFFFF)) | np.uint64(0x800000))
    high = low = carry = np.uint64(0)
    for i in range(3, -1, -1):
        total = np.uint64(np.uint64(significand * _TURNS[exponent - 126, i]) + carry)
        part, carry = np.uint64(total & np.uint64(0xFFFFFFFF)), np.uint64(total >> np.uint64(32))
        shifted = np.uint64(part << np.uint64(32 * (3 - i) % 64))
        if i > 1:
            low = np.uint64(low | shifted)
        else:
            high = np.uint64(high | shifted)
    quadrant = np.uint64(np.uint64(high + np.uint64(1 << 61)) >> np.uint64(62))
    rest = np.int64(np.uint64(high - np.uint64(quadrant << np.uint64(62))))
    return np.int64(quadrant), (np.float64(rest) + np.float64(low) * 2.0**-64) * _TURN


@kernel
def _alternating(y: float, coefficients: Any) -> float:
    """Return c0 - c1 y + c2 y**2 - ... of coefficients that begin with the last."""
    total = 0.0
    for c in coefficients:
        total = c - total * y
    return total


@kernel
def _sine(r: float) -> float:
    """Return sin(r) for angles up to pi / 4."""
    y = r * r
    return r - r * (y * _alternating(y, _OF_SINE))


@kernel
def _cosine(r: float) -> float:
    """Return cos(r) for angles up to pi / 4."""
    y = r * r
    return 1.0 - y * _alternating(y, _OF_COSINE)


@kernel
def sin64(x: float) -> float:
    """Return sin x of a float32 number."""
    quadrant, r = _reduced(x)
    value = _cosine(r) if quadrant & 1 else _sine(r)
    return -value if (quadrant > 1) != (np.copysign(1.0, x) < 0.0) else value


@kernel
def cos64(x: float) -> float:
    """Return cos x of a float32 number."""
    quadrant, r = _reduced(x)
    value = _sine(r) if quadrant & 1 else _cosine(r)
    return -value if quadrant == 1 or quadrant == 2 else value


@kernel
def tanh64(x: float) -> float:
    """Return tanh x: by a continued fraction up to 1, else by exp."""
    size = abs(x)
    if size > 1.0:
        return math.copysign(1.0 - 2.0 / (exp64(2.0 * size) + 1.0), x)
    y, q = x * x, 21.0
    for i in range(19, 0, -2):
        q = i + y / q
    return x / q


@kernel
def normal_cdf64(x: float) -> float:
    """Return the probability that a normal variate is below x, from erf's series or erfc's continued fraction."""
    t = abs(x) * _SQRT_HALF
    density = exp64(-(t * t)) * _INVERSE_SQRT_PI
    if t < 3.0:
        terms = _FEW if t < 1.0 else _SOME if t < 2.0 else _MANY
        y, q = 2.0 * t * t, 1.0
        for i in range(terms, 0, -1):
            q = 1.0 + y * _ODD_INVERSES[i] * q
        half = t * density * q
        return 0.5 + (half if x > 0.0 else -half)
    q = t
    for i in range(_LEVELS, 0, -1):
        q = t + 0.5 * i / q
    tail = 0.5 * density / q
    return 1.0 - tail if x > 0.0 else tail


@kernel
def sigmoid64(x: float) -> float:
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + exp64(-x))


@kernel
def silu64(x: float) -> float:
    """Return x / (1 + exp(-x)), and -0 for -inf."""
    return x / (1.0 + exp64(-x)) if x > -800.0 else x * 0.0 if x > -np.inf else -0.0 if x == x else x


@kernel
def gelu64(x: float) -> float:
    """Return x times the probability that a normal variate is below x; -0 for -inf."""
    return x * normal_cdf64(x) if x != -np.inf else -0.0


@kernel
def gelu_tanh64(x: float) -> float:
    """Return the approximation of GELU by tanh, as x times a sigmoid; -0 for -inf."""
    if x < -64.0:
        return -0.0
    return x / (1.0 + exp64(-2.0 * _GELU_SLOPE * (x + _GELU_CUBE * (x * x * x))))


@kernel
def rsqrt64(x: float) -> float:
    """Return 1 / sqrt(x)."""
    return 1.0 / math.sqrt(x)


def _apply(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = np.float32(FUNCTION(np.float64(x[i])))


FUNCTION: Any = exp64
#: Kernels (x, out) by name of the function, for contiguous vectors of float32.
FUNCTIONS: dict[str, Callable[[Any, Any], None]] = {
    name: variant(_apply, f"apply_{name}", FUNCTION=function)
    for name, function in (
        ("exp", exp64), ("log", log64), ("sin", sin64), ("cos", cos64), ("tanh", tanh64), ("sigmoid", sigmoid64),
        ("silu", silu64), ("gelu", gelu64), ("gelu_tanh", gelu_tanh64), ("rsqrt", rsqrt64),
    )
}  # fmt: skip
