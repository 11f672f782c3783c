"""Magnitudes in a block of consecutive instructions of a chain, from which an accumulator bounds its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Block(NamedTuple):
    """A block of a chain, for all outputs [M, N].

    Attributes
    ----------
    steps : int
        Number of instructions.
    products : int
        Number of products.
    before, after : float64 arrays [M, N]
        Bounds on the magnitude of the running sum before the block, and of the exact sum after it.
    inside : float64 array [M, N]
        Bound on the magnitude of every sum of `before` and some of the products, without rounding.
    largest : float64 array [M, N]
        Bound on the magnitude of a product with both significands replaced by 1, as the alignment reads it.
    size : float64 array [M, N]
        Bound on the sum of the magnitudes of the products.
    below : callable
        Function of integer exponents [M, N] that returns the number of nonzero products with a bit below that power of
        two.
    """

    steps: int
    products: int
    before: Values
    after: Values
    inside: Values
    largest: Values
    size: Values
    below: Callable[[NDArray[np.int16]], Values]


class Added(NamedTuple):
    """Error that a block adds to a running sum.

    Attributes
    ----------
    most : float64 array [M, N]
        Proven bound.
    variance : float64 array [M, N]
        Estimate of the mean square, for errors that are independent and uniform within their bounds.
    """

    most: Values
    variance: Values


_EXPONENT = np.int64(0x7FF) << np.int64(52)


def power_below(x: Values) -> Values:
    """Return the largest power of two that is at most x, for positive normal numbers; 0 for 0.

    Examples
    --------
    >>> power_below(np.array([0.0, 3.0, 4.0]))
    array([0., 2., 4.])
    """
    found: Values = (np.ascontiguousarray(x).view(np.int64) & _EXPONENT).view(np.float64)
    return found


def exponent(power: Values) -> NDArray[np.int16]:
    """Return the exponent of powers of two.

    Examples
    --------
    >>> exponent(np.array([0.25, 8.0]))
    array([-2,  3], dtype=int16)
    """
    found: NDArray[np.int16] = ((power.view(np.int64) >> 52) - 1023).astype(np.int16)
    return found
