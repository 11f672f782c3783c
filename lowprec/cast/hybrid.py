"""HiF8's hybrid rounding, as CANN's reference data have it: the number's own low bits stand in for random ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._ieee import standard
from ..format.catalogue import formats
from ..format.policy import Policy
from .arrays import as_values
from .casts import encode


@standard
def encode_hybrid(x: ArrayLike, *, everywhere: bool = False, policy: str | Policy | None = None) -> NDArray[np.uint8]:
    """Encode numbers in HiF8 by CANN's CAST_HYBRID.

    Exponents of magnitude below 4 round to nearest, ties away. Beyond, a float32 goes away from zero if the first 14 of
    the bits that are cut, as a number, are at least the last 14 of its fraction; a float16, if the first 2 are at least
    twice its last bit and one. With 2^-23 as leading one, below the least value, that one is the first of those bits.

    By that rule a float32 that needs no rounding goes up if it lies at an exponent beyond +-3 and ends in 14 zeros: 70
    of the 126 positive values do, 2^15 to Inf even when saturating. Whether the chip compares so is not known; CANN's
    data do. For subnormal float16 numbers "last bit" is read as that of the stored fraction.

    Parameters
    ----------
    x : array_like of float32 or float16, any shape
        Other types are not published.
    everywhere : bool
        Whether small exponents are rounded so, too (CANN's storound).
    policy : str or Policy, optional
        What becomes of overflow, from 1.25 * 2^15 on, and of NaN; ``ocp_sat`` by default.

    Returns
    -------
    ndarray of uint8, shape of `x`

    Raises
    ------
    TypeError
        If `x` is neither float32 nor float16.

    References
    ----------
    CANN, ``generate_hifloat8_data.py``; ascriptor, ``hif8_codec.py``.

    Examples
    --------
    >>> [f"{code:02X}" for code in encode_hybrid(np.float32([16, 16.001, 17, 300, 33000]))]
    ['41', '40', '41', '61', '6E']
    """
    values = as_values("encode_hybrid", x)
    if values.dtype not in (np.float32, np.float16):
        raise TypeError(f"encode_hybrid: {values.dtype}: float32 or float16 is needed")
    f = formats["hif8"]
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    magnitude = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    mantissa, exponent = np.frexp(magnitude)
    exponent = np.where(magnitude > 0, exponent - 1, -999)
    size = np.abs(exponent)
    cut = np.int64(20) + (size > 3) + (size > 7) + (size > 15)
    fraction = np.where(magnitude > 0, np.ldexp(2 * mantissa - 1, 23), 0).astype(np.int64)
    rest = np.where(exponent == -23, fraction + (1 << 23), fraction & ((1 << cut) - 1))
    cut = np.where(exponent == -23, 24, cut)
    if values.dtype == np.float32:
        up = rest >> (cut - 14) >= (fraction & 0x3FFF)
    else:
        last = values.view(np.uint16).astype(np.int64) & 1
        up = rest >> (cut - 2) >= 2 * last + 1
    up &= exponent >= -23
    usual = encode(values, f, rounding="nearest_away", policy=policy)
    floor = encode(values, f, rounding="toward_zero", policy=policy)
    after = np.array([*range(256)], np.uint8)  # the code next to each, away from zero
    order = encode(np.array(f.magnitudes()), f)
    after[order[:-1]] = order[1:]
    after[order[1:-1] | 0x80] = order[2:] | 0x80
    after[[0x6E, 0xEE]] = 0x6F, 0xEF
    away = np.where((floor == 0) & (wide < 0), np.uint8(0x81), after[floor])
    hybrid = np.where(up, away, floor)
    near = (size < 4) & (not everywhere)
    return np.asarray(np.where(near | (magnitude >= 40960) | ~np.isfinite(wide), usual, hybrid))
