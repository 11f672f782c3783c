"""LogFMT-nBit: tiles of a sign and an (n-1)-bit code on a logarithmic grid that spans the range of the tile.

From "Insights into DeepSeek-V3" (arXiv 2505.09343, section 3.2), which proposes it for the combine step of expert
parallelism. A tile of 128 values has K = 2^(n-1) - 1 magnitudes: code 1 is the smallest non-zero magnitude of the
tile, code K the largest, the codes between them have a constant ratio, and code 0 is zero. The paper leaves some
details open; variant `paper` settles them so that every bit is defined:

* Both ends of the grid are exact. The decoder receives the tile's smallest and largest magnitude, amin and amax; the
  lower end is low = max(amin, amax * 2^-32).
* Code k decodes to float32(low * (amax / low)^((k-1) / (K-1))), computed by a fixed sequence of float64 operations.
* Encoding rounds to nearest in *linear* space, as in the paper: a magnitude takes the larger of two codes if it is at
  or above the exact mean of their decoded values; below half of code 1 it becomes 0. No decision uses a logarithm.
* The smallest magnitude excludes zeros. Zeros, and values that round to zero, keep their sign.
* A tile of equal magnitudes takes code K. A short last tile is encoded at its own length.
* NaN and infinities are never dropped silently: they raise an error or poison their tile, which then decodes to NaN.

Variant `deepep` is the arithmetic of DeepEP, including its differences from the paper (`lowprec.logfmt.deepep`).
"""

from __future__ import annotations

from typing import Literal, overload

import numpy.typing as npt

from .._checks import check_choice
from .._fpenv import with_default_fpenv
from .deepep import ApproxTables as ApproxTables
from .deepep import DeepEPMessage as DeepEPMessage
from .deepep import deepep_from_bytes, encode_deepep, resolve_tables
from .encoder import Rounding, encode_paper
from .header import read_header
from .paper import LogFMT as LogFMT
from .paper import RangeFormat, paper_from_bytes
from .paper import unpack as unpack

__all__ = ["ApproxTables", "DeepEPMessage", "LogFMT", "encode", "from_bytes", "unpack"]


@overload
def encode(
    x: npt.ArrayLike,
    bits: int | None = None,
    tile: int = 128,
    variant: Literal["paper"] = "paper",
    *,
    axis: int = -1,
    rounding: Rounding = "linear",
    clamp_octaves: int = 32,
    range_format: RangeFormat | None = None,
    fallback: Literal["bf16"] | None = None,
    nonfinite: Literal["raise", "poison"] = "raise",
    seed: int = 0,
    offset: int = 0,
    approx_tables: None = None,
) -> LogFMT: ...
@overload
def encode(
    x: npt.ArrayLike,
    bits: int | None = None,
    tile: int = 128,
    *,
    variant: Literal["deepep"],
    approx_tables: ApproxTables | None = None,
) -> DeepEPMessage: ...
@with_default_fpenv
def encode(
    x: npt.ArrayLike,
    bits: int | None = None,
    tile: int = 128,
    variant: Literal["paper", "deepep"] = "paper",
    *,
    axis: int = -1,
    rounding: Rounding = "linear",
    clamp_octaves: int = 32,
    range_format: RangeFormat | None = None,
    fallback: Literal["bf16"] | None = None,
    nonfinite: Literal["raise", "poison"] = "raise",
    seed: int = 0,
    offset: int = 0,
    approx_tables: ApproxTables | None = None,
) -> LogFMT | DeepEPMessage:
    """Encode an array in LogFMT, with tiles along an axis.

    Parameters
    ----------
    x : array of one or more axes
        Input as float32, float16 or bfloat16; other real types are accepted if float32 holds their values exactly.
    bits : int
        Number of bits per value, including the sign, from 3 to 16; 8 by default. The paper uses 8 and 10.
    tile : int
        Number of values per tile; the last tile along the axis may be shorter.
    variant : {"paper", "deepep"}
        "paper": the definition in the docstring of `lowprec.logfmt`. "deepep": the arithmetic of DeepEP, for bfloat16
        numbers [..., channels], with tiles of 128 and DeepEP's results for NaN and infinities; `bits` is then 10, and
        of the other options only `approx_tables` may differ from its default.
    axis : int
        Axis of the tiles.
    rounding : {"linear", "log", "logmean", "stochastic"}
        Threshold between two grid values: their arithmetic mean (the paper's choice; for a smooth density the decoded
        magnitudes are on average s^2/12 too small, s being the step in nats), their geometric mean (s^2/24 too large),
        or their logarithmic mean (unbiased). "stochastic" takes the upper one with the probability that makes the
        expected result equal to the value. Below code 1, all but "stochastic" round to the nearer of code 1 and zero.
    clamp_octaves : int
        Largest range of a tile, 1 to 32. The paper's 32 keeps every magnitude of most tiles; a smaller range makes the
        steps finer and flushes the smallest values.
    range_format : {None, "bf16", "fp32"}
        Format of amin and amax. None: bfloat16 if it represents all of them exactly, as for bfloat16 input, else
        float32. "bf16": those that bfloat16 does not represent are rounded outwards, so that they are no longer exact.
    fallback : {None, "bf16"}
        "bf16": a chunk of 8 tiles is sent as bfloat16 numbers if any of them has amax >= 1 or equal magnitudes. Finite
        values that overflow bfloat16 are rejected.
    nonfinite : {"raise", "poison"}
        Treatment of NaN and infinities: raise, or make their tile decode to NaN. With a fallback, their chunk falls
        back instead, and the finite values in it are kept.
    seed, offset : int
        Seed and index of the random words of "stochastic": those of (seed, offset + index), with the index over values
        in C order and `axis` moved last.
    approx_tables : ApproxTables, optional
        Tables of a GPU's log2 and 2**y that variant "deepep" uses instead of correctly rounded functions.

    Returns
    -------
    LogFMT or DeepEPMessage
        Codes and metadata; ``decode()`` returns the values, ``pack()`` the bytes to send.

    Raises
    ------
    ValueError
        If a number is out of range, an option is unknown, or a value is not finite or not exact in float32.
    TypeError
        If the values of `x` are not real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from lowprec import logfmt
    >>> tile = np.array([1, 2, 4, 8, 16, 32, 64, 1.4999, 1.5, -3], np.float32)
    >>> z = logfmt.encode(tile, bits=4)
    >>> z.decode()
    array([ 1.,  2.,  4.,  8., 16., 32., 64.,  1.,  2., -4.], dtype=float32)
    >>> z.codes.tolist(), z.bits_per_value
    ([1, 2, 3, 4, 5, 6, 7, 1, 2, 11], 7.2)
    """
    check_choice("logfmt", "variant", variant, ("paper", "deepep"))
    if variant == "paper":
        if approx_tables is not None:
            raise ValueError(
                f"logfmt: approx_tables must be None with variant='paper', which has no approximate log2, "
                f"got {approx_tables!r}"
            )
        return encode_paper(
            x, 8 if bits is None else bits, tile, axis=axis, rounding=rounding, clamp_octaves=clamp_octaves,
            range_format=range_format, fallback=fallback, nonfinite=nonfinite, seed=seed, offset=offset,
        )  # fmt: skip
    given = {
        "bits": 10 if bits is None else bits, "tile": tile, "axis": axis, "rounding": rounding,
        "range_format": range_format, "clamp_octaves": clamp_octaves, "fallback": fallback, "nonfinite": nonfinite,
    }  # fmt: skip
    for name, value in given.items():
        if value != _OF_DEEPEP[name]:
            raise ValueError(f"logfmt: {name} must be {_OF_DEEPEP[name]!r} with variant='deepep', got {value!r}")
    return encode_deepep(x, resolve_tables(approx_tables))


_OF_DEEPEP = {
    "bits": 10, "tile": 128, "axis": -1, "rounding": "linear", "range_format": None, "clamp_octaves": 32,
    "fallback": None, "nonfinite": "raise",
}  # fmt: skip


def from_bytes(data: bytes, approx_tables: ApproxTables | None = None) -> LogFMT | DeepEPMessage:
    """Restore an encoded array from the bytes that its method `to_bytes` returned.

    Parameters
    ----------
    data : bytes
        Header and payload.
    approx_tables : ApproxTables, optional
        Tables for variant "deepep", as in `encode`.

    Returns
    -------
    LogFMT or DeepEPMessage
        The same codes and metadata.

    Raises
    ------
    ValueError
        If the bytes have another format, are truncated or are corrupt.
    """
    header, payload = read_header(data)
    if header.variant == 0:
        return paper_from_bytes(header, payload)
    return deepep_from_bytes(header, payload, resolve_tables(approx_tables))
