"""Validation of scalar arguments: integers, real numbers and choices.

Error messages have one form, ``func: param must be ..., got ...``.
"""

from __future__ import annotations

import math
import operator
from typing import Any, TypeVar

import numpy as np

Option = TypeVar("Option")

#: Largest number of values along an axis that share a scale or a grid; file headers have four bytes for it.
MAX_TILE = (1 << 31) - 1
#: Largest seed: two words of 32 bits.
MAX_SEED = (1 << 64) - 1


def check_int(caller: str, name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int in [low, high]; bool is rejected.

    Raises
    ------
    ValueError
        If `value` is not an integer, or is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.ndarray)) or not _within(number, low, high):
        raise ValueError(f"{parameter(caller, name)} must be an integer{_limits(low, high)}, got {brief_repr(value)}")
    return number


def check_optional_int(caller: str, name: str, value: Any, low: int | None = None) -> int | None:
    """Return an integer of at least `low`, or None.

    Raises
    ------
    ValueError
        If `value` is neither an integer in range nor None.
    """
    if value is None:
        return None
    try:
        return check_int(caller, name, value, low)
    except ValueError:
        raise ValueError(
            f"{parameter(caller, name)} must be an integer{_limits(low, None)} or None, got {brief_repr(value)}"
        ) from None


def check_positive(caller: str, name: str, value: Any, *, zero: bool = False) -> float:
    """Return a finite number > 0, or >= 0 with `zero`.

    Raises
    ------
    ValueError
        If it is not such a number.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:  # an integer beyond float64
        number = math.inf
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        raise ValueError(
            f"{parameter(caller, name)} must be a finite number {'>=' if zero else '>'} 0, got {brief_repr(value)}"
        )
    return number


def check_real(caller: str, name: str, value: Any) -> float:
    """Return a real number as a float; NaN and infinities are accepted, and integers beyond float64 become infinite.

    Raises
    ------
    TypeError
        If it is not a real number.
    """
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{parameter(caller, name)} must be a real number, got {brief_repr(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_float32(caller: str, name: str, value: Any) -> np.float32:
    """Return a real number rounded to float32; numbers beyond its range become infinite.

    Raises
    ------
    TypeError
        If it is not a real number.
    """
    number = check_real(caller, name, value)
    if number == 0.0 or 1.2e-38 < abs(number) < 3.4e38:  # no warning to suppress; errstate takes longer than the rest
        return np.float32(number)
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(number)


def check_positive_float32(caller: str, name: str, value: Any, *, zero: bool = False) -> np.float32:
    """Return a number rounded to float32; before and after, it must be finite and > 0, or >= 0 with `zero`.

    Raises
    ------
    ValueError
        If it is not such a number.
    """
    single = check_float32(caller, name, check_positive(caller, name, value, zero=zero))
    if not (np.isfinite(single) and (single > 0 or zero)):
        raise ValueError(f"{parameter(caller, name)} must be finite and > 0 in float32, got {value!r}, there {single}")
    return single


def check_choice(caller: str, name: str, value: Option, allowed: tuple[Option, ...]) -> Option:
    """Return an option if it is among the allowed ones; raise otherwise.

    Raises
    ------
    ValueError
        If the option is not allowed.
    """
    if isinstance(value, np.ndarray) or not any(value is option or value == option for option in allowed):
        choices = " or ".join(map(repr, allowed)) if len(allowed) < 3 else f"one of {', '.join(map(repr, allowed))}"
        raise ValueError(f"{parameter(caller, name)} must be {choices}, got {brief_repr(value)}")
    return value


def brief_repr(value: Any) -> str:
    """Return the repr of an invalid argument for an error message: one line of at most 200 characters.

    Examples
    --------
    >>> brief_repr("e4m3"), brief_repr(np.ones((4, 3)))
    ("'e4m3'", 'float64 (4, 3)')
    """
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{value.dtype} {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def parameter(caller: str, name: str) -> str:
    """Return the name of a parameter for an error message; `caller` may be empty."""
    return f"{caller}: {name}" if caller else name


def _within(number: int, low: int | None, high: int | None) -> bool:
    return (low is None or low <= number) and (high is None or number <= high)


def _limits(low: int | None, high: int | None) -> str:
    if low is None:
        return ""
    return f" >= {low}" if high is None else f" from {low} to {_short(high)}"


def _short(number: int) -> str:
    for text, power in ((f"2^{number.bit_length()} - 1", number + 1), (f"2^{number.bit_length() - 1}", number)):
        if power > 1 << 32 and power & (power - 1) == 0:
            return text
    return str(number)
