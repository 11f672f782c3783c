"""IEEE P3109's blocks: the codes of a scale and of elements, and operations on them with one rounding each.

Values are exact until the one projection (rounding and saturation) at the end of an operation. Quotients and sums are
first rounded to odd in float64, which gives the same result as the exact number when it is rounded to a P3109 format;
products and elementwise operations use fractions, which takes about ten microseconds per element.

Source: the formal specification of the draft (imandra-ai/ieee-p3109 7b6f5ba, ``specification.iml``, section 5); only
abstracts of the standard itself are public.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import check_choice
from .._fpenv import quiet_nan, with_default_fpenv
from ..cast.casts import decode, encode
from ..format.catalogue import Format, formats
from ..format.policy import Policy
from ..format.rounding import Rounding

Floats = NDArray[np.float64]
Operation = Literal["add", "subtract", "multiply", "divide"]
_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
}  # fmt: skip
_FAR = 1000  # powers of two above this, or below its negative, are out of the range of all formats


class Projection(TypedDict, total=False):
    """Rounding of exact results to codes: options of `lowprec.encode`; the default policy is ``p3109_satfinite``."""

    rounding: str | Rounding
    policy: str | Policy
    seed: int


@dataclass(frozen=True, eq=False)
class ScaledBlocks:
    """Blocks of P3109, each with a scale, and with elements along the last axis.

    Attributes
    ----------
    elements : ndarray of unsigned integers, shape (..., n)
        Codes of `format`.
    scale : ndarray of unsigned integers, shape (...)
        Codes of `scale_format`.
    format, scale_format : Format
        Formats of elements and scales: members of the P3109 family, such as ``binary8p4se``.
    """

    elements: NDArray[Any]
    scale: NDArray[Any]
    format: Format
    scale_format: Format

    @with_default_fpenv
    def values(self) -> Floats:
        """Return scale times element, exactly (DecodeBlock); zero times Inf is NaN."""
        scale = decode(self.scale, self.scale_format).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return quiet_nan(decode(self.elements, self.format) * scale[..., None] + 0.0)  # turns -0 into 0

    @with_default_fpenv
    def to(self, fmt: str | Format, **how: Unpack[Projection]) -> NDArray[Any]:
        """Return the codes of the values in an element format (ConvertFromBlock)."""
        return _project(self.values(), formats.get(fmt), how)


@with_default_fpenv
def block_project(
    x: ArrayLike, scale: ArrayLike, fmt: str | Format, scale_format: str | Format, **how: Unpack[Projection]
) -> ScaledBlocks:
    """Divide numbers by given scales, and round once (BlockProject; ConvertToBlock).

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n)
        Values, taken as float64.
    scale : array_like of codes of `scale_format`, shape (...)
        Scales of the blocks. A NaN in `x` remains NaN. Other elements of a block are NaN if its scale is NaN, 0
        if it is 0, and 1 if it is infinite.
    fmt, scale_format : str or Format
        Formats of elements and of scales.
    **how
        ``rounding``, ``policy`` and ``seed``, see `lowprec.encode`.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> b = block_project([3.5, -1.0, 0.1, 6.0], 0x82, "binary8p4se", "binary8p1ue")  # a scale of 4
    >>> [f"{code:02X}" for code in b.elements], b.values().tolist()
    (['3E', 'B0', '15', '44'], [3.5, -1.0, 0.1015625, 6.0])
    """
    values = _numbers("block_project", x)
    f, g = formats.get(fmt), formats.get(scale_format)
    codes = np.asarray(scale)
    if codes.shape != values.shape[:-1]:
        raise ValueError(f"block_project: scale must have shape {values.shape[:-1]}, one per block, got {codes.shape}")
    return ScaledBlocks(_scaled(values, codes, f, g, how), codes.astype(g.code_dtype), f, g)


@with_default_fpenv
def block_convert(
    x: ArrayLike,
    fmt: str | Format,
    scale_format: str | Format,
    *,
    scale_rounding: str | Rounding = "nearest_even",
    scale_policy: str | Policy = "p3109_satfinite",
    **how: Unpack[Projection],
) -> ScaledBlocks:
    """Compute each block's scale from its largest finite magnitude, then `block_project` (ConvertToBlockMaxAbsFinite).

    The scale is that magnitude rounded to the scale format: it is not divided by the elements' maximum, so elements are
    about 1 or less. A block of only NaN has a scale of NaN, a block of NaN and Inf a scale of Inf.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n)
        Values, taken as float64.
    fmt, scale_format, **how
        See `block_project`.
    scale_rounding, scale_policy
        Rounding and policy of the scales.

    Examples
    --------
    >>> b = block_convert([3.5, -1, 0.1, 6, np.inf, np.nan], "binary8p4se", "binary8p1ue", policy="p3109_satpropagate")
    >>> hex(b.scale), [f"{code:02X}" for code in b.elements]
    ('0x82', ['3E', 'B0', '15', '44', '7F', '80'])
    """
    values = np.abs(_numbers("block_convert", x))
    finite = np.where(np.isfinite(values), values, -1.0).max(axis=-1, initial=-1.0)
    infinite = np.isinf(values).any(axis=-1)
    largest = np.where(finite >= 0, finite, np.where(infinite, np.inf, np.nan))
    scale = encode(largest, scale_format, rounding=scale_rounding, policy=scale_policy)
    return block_project(x, scale, fmt, scale_format, **how)


@with_default_fpenv
def block_reduce(
    operation: Literal["add", "multiply"], x: ScaledBlocks, fmt: str | Format, **how: Unpack[Projection]
) -> NDArray[Any]:
    """Return the code of each block's exact sum or product (BlockReduceAdd, BlockReduceMultiply).

    Examples
    --------
    >>> b = block_convert([3.5, -1.0, 0.1, 6.0], "binary8p4se", "binary8p1ue")
    >>> float(decode(block_reduce("add", b, "binary8p4se"), "binary8p4se"))
    9.0
    """
    check_choice("block_reduce", "operation", operation, ("add", "multiply"))
    rule = _sum if operation == "add" else _product
    return _project(np.apply_along_axis(rule, -1, x.values()), formats.get(fmt), how)


@with_default_fpenv
def block_dot(x: ScaledBlocks, y: ScaledBlocks, fmt: str | Format, **how: Unpack[Projection]) -> NDArray[Any]:
    """Return the code of the exact sum of products of two blocks' values (BlockDotProduct).

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> b = block_convert([3.5, -1.0, 0.1, 6.0], "binary8p4se", "binary8p1ue")
    >>> float(decode(block_dot(b, b, "binary16p11se"), "binary16p11se"))
    49.25
    """
    a, b = _same("block_dot", x, y)
    with np.errstate(invalid="ignore"):
        high = b * (2.0**27 + 1)  # b has 30 bits at most: split in two, whose products with a's 30 bits are exact
        high = np.where(np.isfinite(high), high - (high - b), b)
        low = np.where(np.isfinite(b), b - high, 0.0)
        terms = np.concatenate([a * high, np.where(low == 0, 0.0, a * low)], axis=-1)
    return _project(np.apply_along_axis(_sum, -1, terms), formats.get(fmt), how)


@with_default_fpenv
def block_apply(
    operation: Operation,
    x: ScaledBlocks,
    y: ScaledBlocks,
    scale: ArrayLike,
    fmt: str | Format,
    scale_format: str | Format,
    **how: Unpack[Projection],
) -> ScaledBlocks:
    """Add, subtract, multiply or divide blocks element by element; the results are blocks with given scales.

    Parameters
    ----------
    operation : {"add", "subtract", "multiply", "divide"}
        Operation on the exact values; the result is divided by the scale and rounded once.
    x, y : ScaledBlocks
        Operands of the same shape.
    scale, fmt, scale_format, **how
        Scale and formats of the result, see `block_project`.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> b = block_convert([3.5, -1.0, 0.5, 6.0], "binary8p4se", "binary8p1ue")
    >>> block_apply("add", b, b, 0x83, "binary8p4se", "binary8p1ue").values().tolist()
    [7.0, -2.0, 1.0, 12.0]
    """
    rule = _OPERATIONS[check_choice("block_apply", "operation", operation, tuple(_OPERATIONS))]
    a, b = _same("block_apply", x, y)
    f, g, codes = formats.get(fmt), formats.get(scale_format), np.asarray(scale)
    if codes.shape != a.shape[:-1]:
        raise ValueError(f"block_apply: scale must have shape {a.shape[:-1]}, one per block, got {codes.shape}")
    scales = np.broadcast_to(decode(codes, g).astype(np.float64)[..., None], a.shape)
    found = np.empty(a.shape)
    with np.errstate(all="ignore"):
        plain = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}[operation](a, b)
    exact = np.isfinite(a) & np.isfinite(b) & np.isfinite(scales) & (scales != 0)
    exact &= (b != 0) if operation == "divide" else True
    for at in np.ndindex(a.shape):
        if exact[at]:
            found[at] = _odd(rule(Fraction(float(a[at])), Fraction(float(b[at]))) / Fraction(float(scales[at])))
        else:
            found[at] = _by_scale(float(plain[at]), float(scales[at]))
    return ScaledBlocks(_project(found, f, how), codes.astype(g.code_dtype), f, g)


def _numbers(caller: str, x: ArrayLike) -> Floats:
    values = np.asarray(x, np.float64)
    if values.ndim == 0:
        raise ValueError(f"{caller}: x must have shape (..., n), got a single number")
    return values


def _same(caller: str, x: ScaledBlocks, y: ScaledBlocks) -> tuple[Floats, Floats]:
    a, b = x.values(), y.values()
    if a.shape != b.shape:
        raise ValueError(f"{caller}: x and y must have the same shape, got {a.shape} and {b.shape}")
    return a, b


def _project(values: Floats, f: Format, how: Projection) -> NDArray[Any]:
    options: dict[str, Any] = {"policy": "p3109_satfinite", **how}
    return encode(quiet_nan(values), f, **options)


def _scaled(x: Floats, codes: NDArray[Any], f: Format, g: Format, how: Projection) -> NDArray[Any]:
    scale = np.broadcast_to(decode(codes, g).astype(np.float64)[..., None], x.shape)
    plain = np.isfinite(x) & np.isfinite(scale) & (scale != 0) & (x != 0)
    found = np.vectorize(_by_scale, otypes=[np.float64])(x, scale) if not plain.all() and x.size else np.empty(x.shape)
    found[plain] = _quotient(x[plain], scale[plain])
    return _project(found, f, how)


def _by_scale(x: float, scale: float) -> float:
    """Return x / scale for operands of which one is zero, infinite or NaN."""
    if math.isnan(x) or math.isnan(scale):
        return math.nan
    return 0.0 if scale == 0 else 1.0 if math.isinf(scale) else x / scale


def _quotient(x: Floats, scale: Floats) -> Floats:
    """Return x / scale rounded to odd: truncated, with the last bit set if the result is inexact."""
    (m, e), (s, g) = np.frexp(x), np.frexp(scale)
    q = m / s
    high = q * (2.0**27 + 1)
    high = high - (high - q)
    rest = (m - high * s) - (q - high) * s  # exact: s has 26 bits at most
    word = q.view(np.int64) - ((rest != 0) & ((rest < 0) != (m < 0)))
    odd = (word | (rest != 0)).view(np.float64)
    result: Floats = np.ldexp(odd, np.clip(e - g, -_FAR, _FAR))
    return result


def _sum(values: Floats) -> float:
    """Return the exact sum rounded to odd."""
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore"):
            return float(values.sum())
    total = math.fsum(values)
    return _with_rest(total, math.fsum([*values.tolist(), -total]))


def _product(values: Floats) -> float:
    """Return the exact product rounded to odd."""
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore"):
            return float(values[~np.isfinite(values)].prod() * np.sign(values[np.isfinite(values)]).prod())
    return _odd(math.prod(map(Fraction, values.tolist()), start=Fraction(1)))


def _odd(value: Fraction) -> float:
    """Return a fraction rounded to odd in float64; magnitudes beyond the range of all formats remain beyond it."""
    if value == 0:
        return 0.0
    size = value.numerator.bit_length() - value.denominator.bit_length()
    if abs(size) > _FAR:
        return math.copysign(math.ldexp(1.0, _FAR if size > 0 else -_FAR), value)
    near = value.numerator / value.denominator
    rest = value - Fraction(near)
    return _with_rest(near, float(rest > 0) - float(rest < 0))


def _with_rest(near: float, rest: float) -> float:
    """Return a sum rounded to odd, given its nearest float64 and the sign of the rest."""
    if rest == 0:
        return near
    inside = near if (rest < 0) == (near < 0) and near else math.nextafter(near, 0.0) if near else 0.0
    word = int(np.float64(inside).view(np.int64)) | 1
    return float(np.int64(word).view(np.float64)) if near else math.copysign(math.ldexp(1.0, -_FAR), rest)
