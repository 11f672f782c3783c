"""All measures of the difference of two arrays in one row of a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowprec._fpenv import with_default_fpenv
from lowprec._markup import html_table

from .metrics import bit_match_fraction, calc_diff, magnitude_bias, relative_error, sqnr, ulp_difference, underflow
from .pairs import errors, norm, pair, ratio, rms


@dataclass(frozen=True)
class Comparison:
    """Result of `compare` for an array a and a reference r: one field per measure.

    Attributes
    ----------
    sqnr : float
        Signal to quantization noise ratio, dB; inf if no value differs.
    relative_rms, relative_max : float
        Root mean square and maximum of ``|a - r| / |r|`` over the elements where r is not 0.
    norm_error : float
        ``||a - r|| / ||r||`` of the whole arrays.
    absolute_max : float
        Largest ``|a - r|``.
    ulp_max : float
        Largest distance in float32 units in the last place.
    bit_match_fraction : float
        Share of elements with the same float32 bits (all NaN count as equal).
    underflow : float
        Share of nonzero reference elements that became 0.
    magnitude_bias : float
        ``mean |a| / mean |r| - 1``.
    calc_diff : float
        1 - 2 sum(a r) / sum(a^2 + r^2), the measure of DeepGEMM's tests.

    Examples
    --------
    >>> row = compare([1.0, 2.0, 0.0], [1.0, 2.5, 1e-9])
    >>> row.absolute_max, row.underflow, list(row.as_dict())[:2]
    (0.5, 0.3333333333333333, ['sqnr', 'relative_rms'])
    """

    sqnr: float
    relative_rms: float
    relative_max: float
    norm_error: float
    absolute_max: float
    ulp_max: float
    bit_match_fraction: float
    underflow: float
    magnitude_bias: float
    calc_diff: float

    def as_dict(self) -> dict[str, float]:
        """Return the fields as a dictionary, one row of a table."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        return (
            f"<Comparison: {self.sqnr:.2f} dB, relative error rms {self.relative_rms:.3g} max {self.relative_max:.3g},"
            f" {100 * self.bit_match_fraction:.4g} % equal bits, up to {self.ulp_max:.6g} ulp,"
            f" {100 * self.underflow:.3g} % underflow, magnitude bias {self.magnitude_bias:+.2e}>"
        )

    def _repr_html_(self) -> str:
        return html_table([(name, f"{value:.6g}") for name, value in self.as_dict().items()], title="Comparison")


@with_default_fpenv
def compare(actual: npt.ArrayLike, reference: npt.ArrayLike) -> Comparison:
    """Compare an array with a reference.

    Parameters
    ----------
    actual, reference : array_like of one shape
        Real numbers; bits and units in the last place are those of their float32 values.

    Returns
    -------
    Comparison
        Result, with one field per measure.

    Raises
    ------
    ValueError
        If the shapes differ.
    TypeError
        If they do not hold real numbers.

    Examples
    --------
    >>> r = np.linspace(1, 2, 1000, dtype=np.float32)
    >>> compare(r * np.float32(1.001), r)
    <Comparison: 60.00 dB, relative error rms 0.001 max 0.001, 0 % equal bits, up to 16761 ulp, 0 % underflow,
    magnitude bias +1.00e-03>
    """
    x, r = pair(actual, reference)
    relative = relative_error(x, r)[r != 0]
    return Comparison(
        sqnr=sqnr(x, r),
        relative_rms=rms(relative),
        relative_max=float(relative.max(initial=0.0)),
        norm_error=ratio(norm(errors(x, r)), norm(r[np.isfinite(r)])),
        absolute_max=float(np.abs(errors(x, r)).max(initial=0.0)),
        ulp_max=float(ulp_difference(x, r).max(initial=0.0)),
        bit_match_fraction=bit_match_fraction(x, r),
        underflow=underflow(x, r),
        magnitude_bias=magnitude_bias(x, r),
        calc_diff=calc_diff(x, r),
    )
