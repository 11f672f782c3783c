"""Bounds of a number in a tree of sums: its form, size, bits, and its exponents in an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...format.catalogue import formats
from ...tensorcore.summation_tree import AlignedAddition

_ROUNDED_TO = {name: f for name in formats if not (f := formats[name]).is_table and not f.is_integer and f.emin < 0}
BITS = {name: f.mantissa_bits + 1 for name, f in _ROUNDED_TO.items()}  # significant bits
FINITE = {name: float(f.max) for name, f in _ROUNDED_TO.items()}
#: Powers of two below which all numbers of these many bits are finite.
LARGEST = {
    name: 2.0 ** (f.emax + 1) if float(f.max) == 2.0**f.emax * (2 - 2.0**-f.mantissa_bits) else 2.0**f.emax
    for name, f in _ROUNDED_TO.items()
}
ALIGNED = {name: f.emin for name, f in _ROUNDED_TO.items()}  # the least exponents by which numbers are aligned
LEAST = {name: f.emin - f.mantissa_bits for name, f in _ROUNDED_TO.items()}  # exponents of the smallest subnormals


@dataclass(frozen=True)
class NumberRange:
    """Form and bounds of a number in a tree.

    Attributes
    ----------
    form, unsigned : int
        Number of its form, and of the form that is blind to the signs of zeros.
    terms : tuple of int
        Unsigned forms of which it is the exact sum; itself, if it was rounded.
    unit : int
        It is a multiple of 2 to this power.
    bound : float
        No finite value is larger.
    most : int
        The largest exponent by which it is aligned: a product's is the sum of its operands'.
    holds : str
        A format that has all its values; "" if only the exact sum does.
    positive_zero : bool
        A zero is +0.
    width : int
        It has no more significant bits.
    unnormal : int
        No value that is aligned by a larger exponent has its leading bit below that.
    lowest : int
        No value but zero is aligned by a smaller exponent, nor by one below `unit`.
    uncut : int or None
        Unsigned form of the number before it was cut to FP22.
    """

    form: int
    unsigned: int
    terms: tuple[int, ...]
    unit: int
    bound: float
    most: int
    holds: str = ""
    positive_zero: bool = False
    width: int = 64
    unnormal: int = 10_000
    lowest: int = -10_000
    uncut: int | None = None


def is_lossless(how: AlignedAddition, items: Sequence[NumberRange]) -> bool:
    """Return whether a number that enters alone keeps all of its bits."""
    one, bits = [x for x in items if x.terms], how.fraction_bits
    return len(one) == 1 and one[0].width <= bits + 1 and one[0].unnormal <= bits + one[0].unit


def cut_is_invisible(how: AlignedAddition, items: Sequence[NumberRange]) -> bool:
    """Return whether of two numbers the smaller is cut only where the sum is rounded to the larger anyway.

    What is cut below 2^(e - F) has fewer than `width` bits above that, so that it is less than a quarter of a unit in
    the last place of the larger, whose leading bit is e's: and that is a number of the result's format.
    """
    bits, two = BITS[how.output], [x for x in items if x.terms]
    unit, margin = min((x.unit for x in items), default=0), 0 if how.align == "truncate" else 1
    return (
        len(two) <= 2
        and unit >= LEAST[how.output]
        and all(x.width <= bits and x.unnormal <= how.fraction_bits + unit for x in two)
        and all(how.fraction_bits >= x.width + bits + margin for x in two)
    )


def exponent_of(bound: float) -> int:
    """Return the exponent of the largest number that may be."""
    return int(np.frexp(bound)[1]) - 1


def holds_all(output: str, values: str) -> bool:
    """Return whether a format has all values of another."""
    return values == output or (output == "float32" and values in ("fp22", "float16"))
