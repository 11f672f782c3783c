"""Errors of a format on an array, as one row of numbers: for any codec, quantizer and element format."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec._arrays import as_float32, repeat_tiles
from lowprec._values import BitwiseEq
from lowprec.cast.casts import round_to
from lowprec.codec import Codec, codecs
from lowprec.format.catalogue import Format, formats
from lowprec.measure.comparison import Comparison, compare
from lowprec.measure.metrics import gain_error
from lowprec.measure.spread import tile_range
from lowprec.registry import UnknownNameError
from lowprec.scaling.quantize import quantize
from lowprec.scaling.quantizer import Quantizer, quantizers

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FormatErrors:
    """Errors of one format on one array x, which the format encodes and decodes to y.

    Attributes
    ----------
    format : str
        Name of the codec, quantizer or element format.
    bits_per_value : float
        Number of bits per value, scales included.
    sqnr : float
        Signal to quantization noise ratio, dB.
    relative_rms, relative_max : float
        Root mean square and maximum of |y - x| / |x| where x is not 0.
    magnitude_bias : float
        mean |y| / mean |x| - 1.
    gain_error : float
        sum(y x) / sum(x^2) - 1.
    underflow : float
        Share of the nonzero values that became 0.
    saturated : float
        Share of all values that exceed the largest magnitude representable in their tile and saturated to it.
    tile_range_octaves : float
        Mean over tiles of 128 values of R = log2(largest / smallest non-zero magnitude), a property of the data.
    """

    format: str
    bits_per_value: float
    sqnr: float
    relative_rms: float
    relative_max: float
    magnitude_bias: float
    gain_error: float
    underflow: float
    saturated: float
    tile_range_octaves: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a row of a table."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class RoundTrip(BitwiseEq):
    """Result of a round trip: values, the largest magnitude that each could have, and bits per value."""

    name: str
    values: Floats
    limits: Floats
    bits: float


def find_format(name: Any) -> Codec | Quantizer | Format:
    """Return the codec, quantizer or element format of a name (searched in this order), or the object itself.

    Raises
    ------
    UnknownNameError
        If none of the catalogues has the name.
    """
    if isinstance(name, Quantizer | Format) or not isinstance(name, str):
        return name if isinstance(name, Quantizer | Format) else codecs.get(name)
    for catalogue in (codecs, quantizers, formats):
        if name in catalogue:
            found: Codec | Quantizer | Format = catalogue[name]
            return found
    try:
        return codecs[name]
    except UnknownNameError as error:
        hint = str(error).partition(": ")[2]
        raise UnknownNameError(
            f"unknown codec, quantizer or format {name!r}: {hint} "
            "(lists: lowprec codecs, lowprec quantizers, lowprec formats)"
        ) from None


def round_trip(x: Floats, fmt: str | Codec | Quantizer | Format) -> RoundTrip:
    """Encode and decode an array [..., columns]; an element format has no scales and saturates."""
    found = find_format(fmt)
    if isinstance(found, Format):
        limits = np.broadcast_to(np.float32(found.max), x.shape)
        return RoundTrip(found.name, round_to(x, found, overflow="saturate"), limits, float(found.bits))
    if isinstance(found, Quantizer):
        q = quantize(x, found)
        rows, columns = q.granularity.block((x.size // x.shape[-1], x.shape[-1]))
        by_value = repeat_tiles(repeat_tiles(q.scale, rows, x.size // x.shape[-1], 0), columns, x.shape[-1])
        top = np.float32(1) if q.tensor_scale is None else q.tensor_scale
        limits = (np.float32(q.format.max) * by_value * top).reshape(x.shape)
        return RoundTrip(found.name, q.dequantize(), limits, q.bits_per_value)
    wire = found.encode(x)
    largest: Any = getattr(found, "max_magnitudes", lambda _: np.float32(np.inf))(wire)
    return RoundTrip(found.name, found.decode(wire), np.broadcast_to(largest, x.shape), wire.bits_per_value)


def measure_errors(x: ArrayLike, fmt: str | Codec | Quantizer | Format) -> FormatErrors:
    """Return all error measures of a format on an array.

    Parameters
    ----------
    x : array_like [..., columns]
        Finite real numbers, taken as float32; tiles run along the last axis.
    fmt : str, Codec, Quantizer or Format
        Codec, quantizer or element format, or its name.

    Returns
    -------
    FormatErrors
        Errors, one row of a table.

    Raises
    ------
    ValueError
        If the array is empty, a single number or not finite.
    TypeError
        If it does not hold real numbers.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((64, 1024), dtype=np.float32)
    >>> row = measure_errors(x, "fp8_1x128")
    >>> f"{row.sqnr:.1f} dB with {row.bits_per_value} bits, R = {row.tile_range_octaves:.1f} octaves"
    '31.8 dB with 8.25 bits, R = 9.1 octaves'
    """
    values = _measurable(x)
    return _measured(values, round_trip(values, fmt))[0]


def errors_and_comparison(x: ArrayLike, fmt: str | Codec | Quantizer | Format) -> tuple[FormatErrors, Comparison]:
    """Return the result of `measure_errors`, and the `Comparison` of the same values.

    Examples
    --------
    >>> row, all_of_it = errors_and_comparison(np.float32([[1.0, 0.3]]), "e4m3fn")
    >>> row.bits_per_value, round(all_of_it.relative_max, 4)
    (8.0, 0.0417)
    """
    values = _measurable(x)
    return _measured(values, round_trip(values, fmt))


def _measurable(x: ArrayLike) -> Floats:
    """Return rows of finite float32 numbers."""
    values = as_float32("measure_errors", x)
    if values.ndim < 1 or values.size == 0:
        raise ValueError(f"measure_errors: x must have an axis and a value at least, got shape {values.shape}")
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(
            f"measure_errors: x must be finite, got {int(bad.sum())} of {values.size} values that are NaN or infinite, "
            f"the first at {tuple(int(i) for i in np.argwhere(bad)[0])}"
        )
    return values


def _measured(values: Floats, passed: RoundTrip) -> tuple[FormatErrors, Comparison]:
    outcome = compare(passed.values, values)
    cut = (np.abs(values) > passed.limits) & (np.abs(passed.values) >= passed.limits)
    ranges = tile_range(values)
    row = FormatErrors(
        format=passed.name,
        bits_per_value=passed.bits,
        sqnr=outcome.sqnr,
        relative_rms=outcome.relative_rms,
        relative_max=outcome.relative_max,
        magnitude_bias=outcome.magnitude_bias,
        gain_error=gain_error(passed.values, values),
        underflow=outcome.underflow,
        saturated=float(cut.mean()),
        tile_range_octaves=float(np.nanmean(ranges)) if np.isfinite(ranges).any() else float("nan"),
    )
    return row, outcome
