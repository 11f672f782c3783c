"""For suites that compare bits: reports of differences, test vectors, and hypothesis strategies of values and codes.

Nothing else in the package imports hypothesis; it is needed for the strategies alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import one_of
from .conformance.catalogue import vectors as vectors
from .format.catalogue import Format, formats

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Nan = Literal["any", "same_bits"]
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def assert_bits_equal(
    actual: ArrayLike,
    expected: ArrayLike,
    *,
    fmt: str | Format | None = None,
    nan: Nan = "any",
    inputs: ArrayLike | None = None,
    shown: int = 5,
) -> None:
    """Raise unless two arrays have the same bits, the sign of zero included.

    Parameters
    ----------
    actual, expected : array_like of one shape and type
        Floats of any kind, or codes.
    fmt : str or Format, optional
        What the codes mean: the report then shows values, and NaN codes are known as such.
    nan : {"any", "same_bits"}
        Whether one NaN equals every other, or only one of the same bits.
    inputs : array_like, optional
        What the arrays were computed from, shown beside the differences.
    shown : int
        How many differences the report lists.

    Raises
    ------
    AssertionError
        With the number of differences and the first of them: index, bits, values, distance in codes.
    ValueError
        If `nan` is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from lowprec.testing import assert_bits_equal
    >>> assert_bits_equal(np.float32([0.0, np.nan]), np.float32([0.0, -np.nan]))
    >>> assert_bits_equal(np.uint8([56, 57]), np.uint8([56, 58]), fmt="e4m3fn")
    Traceback (most recent call last):
    AssertionError: 1 of 2 differ:
      index 1: 0x39 (1.125) is not 0x3a (1.25), 1 code away
    """
    nan = one_of("", "nan", nan, ("any", "same_bits"))
    a, b = np.asarray(actual), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"{a.dtype} {a.shape} is not {b.dtype} {b.shape}")
    x, y = _bits(a), _bits(b)
    values = _values(a, fmt), _values(b, fmt)
    different = x != y
    if nan == "any" and values[0] is not None and values[1] is not None:
        different &= ~(np.isnan(values[0]) & np.isnan(values[1]))
    places = np.flatnonzero(different.reshape(-1))
    if places.size == 0:
        return
    digits = 2 * x.dtype.itemsize
    lines = [f"{places.size} of {a.size} differ:"]
    for place in places[:shown].tolist():
        index = place if a.ndim == 1 else tuple(int(i) for i in np.unravel_index(place, a.shape))
        sides = []
        for word, value in zip((x, y), values, strict=True):
            text = f"0x{int(word.reshape(-1)[place]):0{digits}x}"
            sides.append(text if value is None else f"{text} ({float(value.reshape(-1)[place]):.9g})")
        away = abs(int(x.reshape(-1)[place]) - int(y.reshape(-1)[place]))
        line = f"  index {index}: {sides[0]} is not {sides[1]}, {away} code{'s' * (away != 1)} away"
        if inputs is not None:
            line += f", from {float(np.asarray(inputs, dtype=np.float64).reshape(-1)[place])!r}"
        lines.append(line)
    if places.size > shown:
        lines.append(f"  and {places.size - shown} more")
    raise AssertionError("\n".join(lines))


def codes(fmt: str | Format, *, allow_nan: bool = True, allow_infinity: bool = True) -> SearchStrategy[int]:
    """Return a hypothesis strategy of a format's codes.

    Parameters
    ----------
    fmt : str or Format
        Name in ``lowprec.formats``, or a format of one's own.
    allow_nan, allow_infinity : bool
        Whether codes of NaN and Inf are among them.

    Returns
    -------
    hypothesis.strategies.SearchStrategy of int
        Codes from 0 to 2^bits - 1.

    Raises
    ------
    UnknownNameError
        If there is no such format.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> import lowprec as lp
    >>> @settings(deadline=None, max_examples=20)
    ... @given(codes("e4m3fn", allow_nan=False))
    ... def test_values_come_back(code):
    ...     assert lp.encode(lp.decode(np.uint8(code), "e4m3fn"), "e4m3fn") == code
    >>> test_values_come_back()
    """
    from hypothesis import strategies

    f = formats.get(fmt)

    def wanted(code: int) -> bool:
        value = f.value(code)
        return (allow_nan or value == value) and (allow_infinity or abs(value) != np.inf)

    every = strategies.integers(0, (1 << f.bits) - 1)
    return every if allow_nan and allow_infinity else every.filter(wanted)


def values(fmt: str | Format, *, allow_nan: bool = False, allow_infinity: bool = False) -> SearchStrategy[float]:
    """Return a hypothesis strategy of numbers that a cast to a format can get wrong.

    Values of the format, midpoints between neighbours, and both with the float32 on either side; numbers beyond the
    maximum; and any other float32.

    Parameters
    ----------
    fmt : str or Format
        Name in ``lowprec.formats``, or a format of one's own.
    allow_nan, allow_infinity : bool
        Whether NaN and Inf are among them.

    Returns
    -------
    hypothesis.strategies.SearchStrategy of float
        Float32 numbers.

    Raises
    ------
    UnknownNameError
        If there is no such format.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> import lowprec as lp
    >>> @settings(deadline=None, max_examples=20)
    ... @given(values("e2m1fn"))
    ... def test_casts_are_odd(x):
    ...     assert lp.round_to(-x, "e2m1fn") == -lp.round_to(x, "e2m1fn")
    >>> test_casts_are_odd()
    """
    from hypothesis import strategies

    f = formats.get(fmt)

    def near(magnitude: int, halves: int, step: int, negative: bool) -> float:
        value = f.value(magnitude)
        after = f.value(magnitude + 1) if magnitude < f.max_code else 2.0 * value
        with np.errstate(over="ignore"):
            at = np.float32(min(value + (after - value) * halves / 2, float(np.finfo(np.float32).max)))
        bits = max(int(at.view(np.uint32)) + step, 0)
        result = float(np.uint32(min(bits, 0x7F7FFFFF)).view(np.float32))
        return -result if negative else result

    steps = strategies.integers(-1, 1)
    nearby = strategies.builds(near, strategies.integers(0, f.max_code), steps.map(abs), steps, strategies.booleans())
    return nearby | strategies.floats(width=32, allow_nan=allow_nan, allow_infinity=allow_infinity)


def _bits(a: NDArray[Any]) -> NDArray[Any]:
    if a.dtype.itemsize not in _WORDS:
        raise AssertionError(f"{a.dtype} has no bits of 1, 2, 4 or 8 bytes to compare")
    return np.ascontiguousarray(a).reshape(a.shape).view(_WORDS[a.dtype.itemsize])


def _values(a: NDArray[Any], fmt: str | Format | None) -> NDArray[Any] | None:
    if fmt is not None:
        from .cast.casts import decode

        return decode(a, fmt)
    if a.dtype.kind == "f" or a.dtype.kind == "V":
        with np.errstate(invalid="ignore"):
            return a.astype(np.float64)
    return None
