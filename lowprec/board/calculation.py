"""Step-by-step calculations, in fractions, for the inputs that the board shows."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction
from typing import Any

import numpy as np

from ..format.catalogue import Format, formats


def number(bits: str) -> np.float32:
    """Return the float32 number whose bit pattern is given in hexadecimal digits."""
    return np.float32(np.array([int(bits, 16)], np.uint32).view(np.float32)[0])


def short(x: Any) -> str:
    """Write a number: a multiple of a power of two for small significands, decimal digits otherwise.

    Examples
    --------
    >>> short(0.0546875), short(2.0**-127), short(61440.0), short(0.1)
    ('7 * 2^-7', '2^-127', '61440', '0.1')
    """
    x = float(x)
    if not math.isfinite(x) or (x == int(x) and abs(x) < 1e6):
        return f"{x:g}" if not math.isfinite(x) or abs(x) < 1e5 else f"{x:.0f}"
    significand, exponent = math.frexp(x)
    places = Fraction(significand).denominator.bit_length() - 1
    if places <= 8:
        whole = int(significand * 2**places)
        power = f"2^{exponent - places}"
        return power if whole == 1 else f"-{power}" if whole == -1 else f"{whole} * {power}"
    return f"{x:.9g}"


def between(x: Fraction, f: Format) -> str:
    """Describe the position of a magnitude between neighbouring values of a format, relative to their midpoint."""
    size = abs(x)
    values = sorted({Fraction(float(v)) for v in f.values() if np.isfinite(v) and v >= 0})
    place = bisect.bisect_right(values, size)
    if place == 0:
        return f"it is below the smallest value {short(values[0])}"
    if size == values[place - 1]:
        return f"it is a value of {f}"
    if place == len(values):
        values.append(2 * values[-1] - values[-2])  # overflow is decided after rounding to it
    low, high = values[place - 1], values[place]
    middle = (low + high) / 2
    side = "is" if size == middle else "is below" if size < middle else "is above"
    beyond = f", which overflows, at {short(high)}" if place == len(values) - 1 and float(low) == f.max else ""
    pair = f"{short(low)} and {short(high)}" if not beyond else f"{short(low)} and the next step{beyond}"
    return f"its neighbours in {f} are {pair}; it {side} their midpoint {short(middle)}"


def calculation(entry: Format | None, element: Format | None, scale_format: str, example: dict[str, Any]) -> str:
    """Return the calculation for an example of a cast to `entry`, or of a block of `element` and its scale."""
    if entry is not None:
        x = number(example["x"][0])
        if not np.isfinite(x) or entry.bits > 8:
            return ""
        return f"{short(x)}: {between(Fraction(float(x)), entry)}"
    assert element is not None
    amax, value = number(example["amax"]), number(example["value"])
    if not np.isfinite(amax) or amax == 0 or "scale" not in example["theirs"]:
        return ""
    theirs, ours = (number(example[caller]["scale"]) for caller in ("theirs", "ours"))
    quotient = Fraction(float(amax)) / Fraction(float(element.max))
    text = f"amax / max = {short(amax)} / {short(element.max)} = "
    if scale_format == "e8m0fnu":
        e = _floor_log2(quotient)
        exact = quotient == Fraction(2) ** e
        text += f"2^{e}" + ("" if exact else f" * {float(quotient / Fraction(2) ** e):.9g}")
    else:
        text += f"{float(quotient):.9g}"
    if theirs.view(np.uint32) != ours.view(np.uint32):
        return f"{text}; scale {short(theirs)}, ours {short(ours)}"
    if scale_format not in formats or ours == 0 or not np.isfinite(ours) or scale_format == "e4m3fn":
        return text
    y = Fraction(float(value)) / Fraction(float(ours))
    return f"{text}; x / s = {short(value)} / {short(ours)} = {short(float(y))}: {between(y, element)}"


def _floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1
