"""Random float32 numbers, the bits of floats, and float32 arithmetic in fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.oracle.values import FLOAT32, decode, encode


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """Return the bits of floats as unsigned integers."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def normal(rng: np.random.Generator | int, *shape: int) -> NDArray[np.float32]:
    """Float32 numbers of the normal distribution, of a generator or a seed."""
    return np.random.default_rng(rng).standard_normal(shape).astype(np.float32)


def rounded(value):
    """Return a fraction rounded to float32, as a fraction."""
    return Fraction(decode(encode(value, FLOAT32), FLOAT32))


class Exact:
    """A number of which every operation is exact and then rounded to float32."""

    def __init__(self, value):
        self.value = rounded(Fraction(value))

    def __add__(self, other):
        return Exact(self.value + other.value)

    def __sub__(self, other):
        return Exact(self.value - other.value)

    def __mul__(self, other):
        return Exact(self.value * other.value)

    def __truediv__(self, other):
        return Exact(self.value / other.value)


def fma(a, b, c):
    return Exact(a.value * b.value + c.value)
