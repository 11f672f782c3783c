"""HiF8's hybrid rounding, as in CANN's reference data: low bits of the number itself replace the random bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._fpenv import with_default_fpenv
from ..format.catalogue import formats
from ..format.policy import Policy
from .arrays import as_values
from .casts import encode


@with_default_fpenv
def encode_hybrid(x: ArrayLike, *, everywhere: bool = False, policy: str | Policy | None = None) -> NDArray[np.uint8]:
    """Encode numbers in HiF8 with CANN's hybrid rounding (CAST_HYBRID).

    Numbers with an exponent below 4 in magnitude are rounded to nearest, ties away from zero. For larger exponents, the
    discarded bits are compared with the low bits of the number itself. A float32 is rounded away from zero if the first
    14 discarded bits, as an integer, are at least the last 14 bits of its fraction; a float16, if the first 2 discarded
    bits are at least 2 b + 1, where b is the last bit of its stored fraction. In [2^-23, 2^-22), below the smallest
    value, the leading one counts as the first discarded bit.

    By that rule a float32 that needs no rounding is increased if its exponent is beyond +-3 and its fraction ends in 14
    zeros: this holds for 70 of the 126 positive values, and 2^15 becomes Inf even when saturating. CANN's data do so;
    whether the chip does is unknown.

    Parameters
    ----------
    x : array_like of float32 or float16, any shape
        Numbers to encode; CANN publishes no rule for other types.
    everywhere : bool
        Whether small exponents use the rule as well (CANN's storound).
    policy : str or Policy, optional
        Rules for overflow, from 1.25 * 2^15 on, and for NaN; ``ocp_sat`` by default.

    Returns
    -------
    ndarray of uint8, shape of `x`
        Codes.

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
        raise TypeError(f"encode_hybrid: x must be float32 or float16, got {values.dtype}")
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
    after = np.array([*range(256)], np.uint8)  # the next code away from zero
    order = encode(np.array(f.magnitudes()), f)
    after[order[:-1]] = order[1:]
    after[order[1:-1] | 0x80] = order[2:] | 0x80
    after[[0x6E, 0xEE]] = 0x6F, 0xEF
    away = np.where((floor == 0) & (wide < 0), np.uint8(0x81), after[floor])
    hybrid = np.where(up, away, floor)
    near = (size < 4) & (not everywhere)
    return np.asarray(np.where(near | (magnitude >= 40960) | ~np.isfinite(wide), usual, hybrid))
