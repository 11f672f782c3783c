"""Tools for test suites: comparison of bits, derived tolerances, faults, criteria, vectors, hypothesis strategies.

Nothing else in the package imports hypothesis; only the strategies require it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import to_numpy
from ._checks import check_choice
from .bounds.criteria import Criterion as Criterion
from .bounds.criteria import criteria as criteria
from .bounds.criteria import criterion as criterion
from .bounds.data import data_kinds as data_kinds
from .bounds.data import operands as operands
from .bounds.explain import explained
from .bounds.faults import Fault as Fault
from .bounds.faults import faults as faults
from .bounds.power import criterion_power as criterion_power
from .bounds.tolerance import tolerance
from .bounds.verdict import AtolRtol as AtolRtol
from .bounds.verdict import BitsEqual as BitsEqual
from .bounds.verdict import Impossible as Impossible
from .bounds.verdict import Inside as Inside
from .bounds.verdict import Unlike as Unlike
from .bounds.verdict import Verdict as Verdict
from .format.catalogue import Format, formats
from .vectors.catalogue import vectors as vectors

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Nan = Literal["payload", "any"]
Zero = Literal["signed", "any"]
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def assert_bits_equal(
    actual: Any,
    expected: Any,
    *,
    nan: Nan = "payload",
    zero: Zero = "signed",
    fmt: str | Format | None = None,
    inputs: ArrayLike | None = None,
    labels: Sequence[str] | None = None,
    max_shown: int = 10,
) -> None:
    """Raise unless two arrays have the same bits, including signs of zeros and payloads of NaN.

    Parameters
    ----------
    actual, expected : array or Quantized
        Arrays of one shape: floats of one dtype (NumPy's, ml_dtypes', torch's or JAX's), or codes. For two `Quantized`,
        the codes, scales and tensor scales are compared.
    nan : {"payload", "any"}
        Whether a NaN equals only a NaN of the same bits, or any NaN.
    zero : {"signed", "any"}
        Whether -0 equals +0.
    fmt : str or Format, optional
        Format of the codes: the report then shows values, and NaN codes are recognised.
    inputs : array_like, optional
        Inputs of the computation, shown next to the differences.
    labels : sequence of str, optional
        Label of each element, as in `VectorSet.labels`, shown next to the differences.
    max_shown : int
        Number of differences to list.

    Raises
    ------
    AssertionError
        If bits differ; the message has the number of differences and a table: index, bits, values, distance in codes.
    ValueError
        If `nan` or `zero` is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from lowprec.testing import assert_bits_equal
    >>> assert_bits_equal(np.float32([0.0, np.nan]), np.float32([-0.0, -np.nan]), nan="any", zero="any")
    >>> assert_bits_equal(np.uint8([56, 57]), np.uint8([56, 58]), fmt="e4m3fn")
    Traceback (most recent call last):
    AssertionError: 1 of 2 differ:
      index  actual        expected     codes apart
      1      0x39 (1.125)  0x3a (1.25)  1
    """
    __tracebackhide__ = True  # pytest shows the caller's line and the table
    check_choice("assert_bits_equal", "nan", nan, ("payload", "any"))
    check_choice("assert_bits_equal", "zero", zero, ("signed", "any"))
    if hasattr(actual, "granularity") or hasattr(expected, "granularity"):
        _assert_quantized(actual, expected, nan, zero, max_shown)
        return
    a, b = _array(actual), _array(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"{a.dtype} {a.shape} is not {b.dtype} {b.shape}")
    x, y = _bits(a), _bits(b)
    values = _values(a, fmt), _values(b, fmt)
    different = x != y
    if values[0] is not None and values[1] is not None:
        if nan == "any":
            different &= ~(np.isnan(values[0]) & np.isnan(values[1]))
        if zero == "any":
            different &= ~((values[0] == 0) & (values[1] == 0))
    places = np.flatnonzero(different.reshape(-1))
    if places.size == 0:
        return
    rows = [["index", "actual", "expected", "codes apart"]]
    rows[0] += ["input"] * (inputs is not None) + ["exercises"] * (labels is not None)
    for place in places[:max_shown].tolist():
        rows.append(_difference(place, a.shape, (x, y), values))
        if inputs is not None:
            rows[-1].append(repr(float(np.asarray(inputs, dtype=np.float64).reshape(-1)[place])))
        if labels is not None:
            rows[-1].append(labels[place])
    lines = [f"{places.size} of {a.size} differ:", *_aligned(rows)]
    if places.size > max_shown:
        lines.append(f"  and {places.size - max_shown} more")
    raise AssertionError("\n".join(lines))


def assert_product(got: Any, a: Any, b: Any, c: ArrayLike | None = None, **options: Any) -> None:
    """Raise unless a result is one that the given arithmetic can produce for a product of quantized operands.

    Parameters
    ----------
    got : array of NumPy, torch or JAX, shape (M, N)
        Result to judge.
    a, b : Quantized
        Operands.
    c : array_like, optional
        Addend.
    **options
        Arguments of `lowprec.tolerance`: `accumulator`, `out_format`, `promote_every`, `library` ...

    Raises
    ------
    AssertionError
        If the result is not possible. The message has the size and index of the largest error, and its cause: a fault
        of the catalogue, an operand that differs from its quantizer (`lowprec.check`; with `values`), or the arithmetic
        that gives the result (`lowprec.identify`, for up to ten seconds).

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x, y = operands("normal", 32, 48, 512)
    >>> a, b = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(y, "e4m3fn 1x128")
    >>> assert_product(lp.gemm(a, b), a, b, accumulator="hopper_fp8")
    """
    __tracebackhide__ = True
    t, d = tolerance(a, b, c, **options), _array(got)
    verdict = t.test(d)
    if verdict:
        return
    several = len(t.products) > 1 or options.get("order") == "any"
    found = explained(t.products[0], np.asarray(d, np.float64), arithmetic=not (verdict.cause or several))
    lines = [str(verdict), *found]
    if not verdict.cause and not found:
        lines.append(
            "No fault of lowprec.testing.faults gives this result. Is the arithmetic that of the kernel (accumulator, "
            "promote_every, library, split_k, order)?"
        )
    pair = t.atol_rtol()
    lines.append(f"Every correct result is within atol={pair.atol:.3g}, rtol={pair.rtol:.3g} of the exact product.")
    raise AssertionError("\n".join(lines))


def _difference(place: int, shape: tuple[int, ...], words: tuple[Any, Any], values: tuple[Any, Any]) -> list[str]:
    """Return the index, both elements as bits and as values, and their distance."""
    index = place if len(shape) == 1 else tuple(int(i) for i in np.unravel_index(place, shape))
    sides = []
    for word, value in zip(words, values, strict=True):
        text = f"0x{int(word.reshape(-1)[place]):0{2 * word.dtype.itemsize}x}"
        sides.append(text if value is None else f"{text} ({float(value.reshape(-1)[place]):.9g})")
    return [str(index), *sides, str(abs(int(words[0].reshape(-1)[place]) - int(words[1].reshape(-1)[place])))]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _assert_quantized(actual: Any, expected: Any, nan: Nan, zero: Zero, max_shown: int) -> None:
    """Compare codes and scales of two `Quantized`."""
    __tracebackhide__ = True
    for q in (actual, expected):
        if not hasattr(q, "granularity"):
            raise AssertionError(f"both sides or none must be Quantized, got a {type(q).__name__}")
    descriptions = [f"{q.format.name} {q.shape}, {q.granularity}" for q in (actual, expected)]
    if descriptions[0] != descriptions[1]:
        raise AssertionError(f"{descriptions[0]} is not {descriptions[1]}")
    parts: list[tuple[str, Any, Any, Any]] = [
        ("codes", actual.codes, expected.codes, expected.format),
        ("scale", actual.scale, expected.scale, None),
    ]
    if actual.tensor_scale is not None or expected.tensor_scale is not None:
        top = (np.nan if q.tensor_scale is None else q.tensor_scale for q in (actual, expected))
        one, other = (np.atleast_1d(np.asarray(scale, np.float32)) for scale in top)
        parts.append(("tensor_scale", one, other, None))
    wrong = []
    for name, one, other, fmt in parts:
        try:
            assert_bits_equal(one, other, nan=nan, zero=zero, fmt=fmt, max_shown=max_shown)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        raise AssertionError("\n".join(wrong))


def _array(x: Any) -> NDArray[Any]:
    """Return an array of any supported package as an array with a dtype of NumPy or ml_dtypes."""
    return np.asarray(to_numpy(x))


def codes(fmt: str | Format, *, allow_nan: bool = True, allow_infinity: bool = True) -> SearchStrategy[int]:
    """Return a hypothesis strategy of a format's codes.

    Parameters
    ----------
    fmt : str or Format
        Name in ``lowprec.formats``, or a custom format.
    allow_nan, allow_infinity : bool
        Whether to include codes of NaN and Inf.

    Returns
    -------
    hypothesis.strategies.SearchStrategy of int
        Codes from 0 to 2^bits - 1.

    Raises
    ------
    UnknownNameError
        If the format is unknown.

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
    """Return a hypothesis strategy of numbers that test a cast to a format.

    The numbers are values of the format and midpoints between neighbours, the float32 numbers next to both, numbers
    beyond the maximum, and any other float32 numbers.

    Parameters
    ----------
    fmt : str or Format
        Name in ``lowprec.formats``, or a custom format.
    allow_nan, allow_infinity : bool
        Whether to include NaN and Inf.

    Returns
    -------
    hypothesis.strategies.SearchStrategy of float
        Float32 numbers.

    Raises
    ------
    UnknownNameError
        If the format is unknown.

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

    magnitudes = f.magnitudes()

    def near(magnitude: int, halves: int, step: int, negative: bool) -> float:
        value = magnitudes[magnitude]
        after = magnitudes[magnitude + 1] if magnitude + 1 < len(magnitudes) else 2.0 * value
        with np.errstate(over="ignore"):
            at = np.float32(min(value + (after - value) * halves / 2, float(np.finfo(np.float32).max)))
        bits = max(int(at.view(np.uint32)) + step, 0)
        result = float(np.uint32(min(bits, 0x7F7FFFFF)).view(np.float32))
        return -result if negative else result

    steps = strategies.integers(-1, 1)
    nearby = strategies.builds(
        near, strategies.integers(0, len(magnitudes) - 1), steps.map(abs), steps, strategies.booleans()
    )
    return nearby | strategies.floats(width=32, allow_nan=allow_nan, allow_infinity=allow_infinity)


def _bits(a: NDArray[Any]) -> NDArray[Any]:
    __tracebackhide__ = True
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
