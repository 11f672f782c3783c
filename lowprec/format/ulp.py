"""The unit in the last place: how far the values of a format lie apart around a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import real_numbers
from .._ieee import standard
from .catalogue import Format, formats


@standard
def ulp(x: ArrayLike, fmt: str | Format) -> NDArray[np.float64]:
    """Return the distance between neighbouring values of a format in the binade of each number.

    ``2^(max(e, emin) - mantissa_bits)`` with e the exponent of x, so the smallest subnormal around zero, and never
    more than at the format's maximum. Exponents come from the numbers' bits. For a table of values, the distance
    between the values on either side.

    Parameters
    ----------
    x : array_like of real numbers, any shape
        Where.
    fmt : str or Format
        Name in ``lowprec.formats``, or a format of one's own.

    Returns
    -------
    ndarray of float64, shape of `x`
        Powers of two, unless the values are a table; NaN for NaN and Inf.

    Raises
    ------
    TypeError
        If `x` is not real.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.ulp([1.0, 1.99, 448.0, 1e-9, 1e9], "e4m3fn").tolist()
    [0.125, 0.125, 32.0, 0.001953125, 32.0]
    """
    f = formats.get(fmt)
    a = real_numbers("ulp", x)
    with np.errstate(invalid="ignore"):
        values = a.astype(np.float64)
    return f.gaps(values)
