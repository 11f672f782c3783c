"""Bounds on a number in a summation tree: form, size, bits, and exponents in an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...format.catalogue import formats
from ...order.summation_tree import AlignedAddition

_ROUNDED_TO = {name: f for name in formats if not (f := formats[name]).is_table and not f.is_integer and f.emin < 0}
BITS = {name: f.mantissa_bits + 1 for name, f in _ROUNDED_TO.items()}  # significant bits
FINITE = {name: float(f.max) for name, f in _ROUNDED_TO.items()}
#: Powers of two below which all numbers with the significant bits of a format are finite in it.
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
        Number of the form, and of the form without the signs of zeros.
    terms : tuple of int
        Unsigned forms of the terms of an exact sum; the number's unsigned form if it was rounded.
    unit : int
        Exponent of a power of two of which the number is a multiple.
    bound : float
        Upper bound on finite magnitudes.
    most : int
        Largest exponent in an alignment; the exponent of a product is the sum of its operands' exponents.
    holds : str
        Format that represents all its values; "" if no format does.
    positive_zero : bool
        Whether a zero is +0.
    width : int
        Largest number of significant bits.
    unnormal : int
        Exponent above which values are normalized: their leading bit has the exponent of the alignment.
    lowest : int
        Smallest exponent, at least `unit`, by which a nonzero value is aligned.
    uncut : int or None
        Unsigned form of the number before its truncation to FP22.
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
    """Return whether an aligned addition with one nonzero term returns it without loss."""
    one, bits = [x for x in items if x.terms], how.fraction_bits
    return len(one) == 1 and one[0].width <= bits + 1 and one[0].unnormal <= bits + one[0].unit


def cut_is_invisible(how: AlignedAddition, items: Sequence[NumberRange]) -> bool:
    """Return whether the truncation of the smaller of two numbers never changes the rounded sum.

    A number with bits below 2^(e - F) has at most `width` bits, so it is less than a quarter of an ulp of the larger
    number, whose leading bit has exponent e. The larger number is in the format of the result, so the sum rounds to it
    with or without the truncation.
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
    """Return the exponent of the largest possible number."""
    return int(np.frexp(bound)[1]) - 1


def holds_all(output: str, values: str) -> bool:
    """Return whether a format represents all values of another."""
    return values == output or (output == "float32" and values in ("fp22", "float16"))
