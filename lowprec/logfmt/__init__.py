"""LogFMT-nBit: blocks of a sign and an (n-1)-bit code on a logarithmic grid that spans the block's own range.

From "Insights into DeepSeek-V3" (arXiv 2505.09343, section 3.2), which proposes it for the combine step of expert
parallelism. A tile of 128 values has K = 2^(n-1) - 1 magnitudes: code 1 is the smallest non-zero magnitude of the
tile, code K the largest, those between stand at equal ratios, and code 0 is zero. The paper leaves several things
open; in mode `paper` they are settled so that every bit is defined:

* Both ends are exact. The decoder gets the tile's (amin, amax) pair; the lower end is max(amin, amax * 2^-32).
* Code k decodes to float32(low * (amax / low)^((k-1) / (K-1))), computed by a fixed sequence of float64 operations.
* Encoding rounds to nearest in *linear* space, as the paper asks: a magnitude takes the larger of two codes when it is
  at or above the exact mean of what they decode to; below half of code 1 it becomes 0. No logarithm decides anything.
* Zeros do not count for the smallest magnitude. The sign of zeros, and of what becomes zero, is kept.
* A tile of equal magnitudes takes code K. A short last tile is a tile of its own length.
* NaN and infinities are refused, or poison their tile (it decodes to NaN): never dropped silently.

Mode `deepep` is the arithmetic that DeepEP ships, with what it does otherwise (`lowprec.logfmt.deepep`).
"""

from __future__ import annotations

from typing import Literal, overload

import numpy.typing as npt

from .._arrays import one_of
from .._ieee import standard
from .deepep import DeepEPMessage as DeepEPMessage
from .deepep import Units as Units
from .deepep import deepep_from_bytes, encode_deepep, same_units
from .encoder import Rounding, encode_paper
from .header import read_header
from .paper import LogFMT as LogFMT
from .paper import Meta, paper_from_bytes
from .paper import unpack as unpack

__all__ = ["DeepEPMessage", "LogFMT", "Units", "encode", "from_bytes", "unpack"]


@overload
def encode(
    x: npt.ArrayLike,
    bits: int | None = None,
    tile: int = 128,
    mode: Literal["paper"] = "paper",
    *,
    axis: int = -1,
    rounding: Rounding = "linear",
    clamp_octaves: int = 32,
    meta: Meta | None = None,
    fallback: Literal["bf16"] | None = None,
    nonfinite: Literal["raise", "poison"] = "raise",
    seed: int = 0,
    offset: int = 0,
    units: None = None,
) -> LogFMT: ...
@overload
def encode(
    x: npt.ArrayLike,
    bits: int | None = None,
    tile: int = 128,
    *,
    mode: Literal["deepep"],
    units: Units | None = None,
) -> DeepEPMessage: ...
@standard
def encode(
    x: npt.ArrayLike,
    bits: int | None = None,
    tile: int = 128,
    mode: Literal["paper", "deepep"] = "paper",
    *,
    axis: int = -1,
    rounding: Rounding = "linear",
    clamp_octaves: int = 32,
    meta: Meta | None = None,
    fallback: Literal["bf16"] | None = None,
    nonfinite: Literal["raise", "poison"] = "raise",
    seed: int = 0,
    offset: int = 0,
    units: Units | None = None,
) -> LogFMT | DeepEPMessage:
    """Encode an array in LogFMT, tiles running along an axis.

    Parameters
    ----------
    x : array of one or more axes
        float32, float16 or bfloat16; other real types if float32 holds their values exactly.
    bits : int
        Bits per value, sign included, 3 to 16; 8 by default. The paper uses 8 and 10.
    tile : int
        Values per tile; the last tile along the axis may be shorter.
    mode : {"paper", "deepep"}
        The definition above, or what DeepEP ships: bfloat16 numbers [..., channels] in 10 bits and tiles of 128. There
        every option but `units` keeps its default, and NaN and infinities fare as DeepEP treats them.
    axis : int
        Axis that tiles run along.
    rounding : {"linear", "log", "logmean", "stochastic"}
        Where the threshold between two grid values lies: at their arithmetic mean (the paper's choice; magnitudes come
        out s^2/12 too small on average for a smooth density, s the step in nats), their geometric mean (s^2/24 too
        large), or their logarithmic mean (neither). "stochastic" takes the upper one with the probability that makes
        the mean of the outcomes the value itself. Below code 1 all but the last round to the nearer of it and zero.
    clamp_octaves : int
        Largest range of a tile, 1 to 32. The paper's 32 keeps every magnitude of most tiles; fewer make the steps finer
        and flush the smallest values.
    meta : {None, "bf16", "fp32"}
        What the ends of a tile are sent as. None: bfloat16 if every one is such a number, as for bfloat16 input, else
        float32. "bf16" moves ends that are not outwards to the next that is, so that they are exact no longer.
    fallback : {None, "bf16"}
        "bf16": chunks of 8 tiles, any of which has amax >= 1 or equal magnitudes, are sent as bfloat16 numbers. Finite
        values that round to no finite one are refused.
    nonfinite : {"raise", "poison"}
        What to do with NaN and infinities: refuse the array, or make their tile decode to NaN (in a chunk that falls
        back, as theirs does, only they are what they are).
    seed, offset : int
        For "stochastic": random words are those of (seed, offset + index), where the index counts values in C order
        with `axis` moved last.
    units : Units, optional
        For mode "deepep": tables of a GPU's log2 and 2**y in place of correctly rounded ones.

    Returns
    -------
    LogFMT or DeepEPMessage
        Codes and metadata; its ``decode()`` gives the values, its ``pack()`` the wire's bytes.

    Raises
    ------
    ValueError
        If a number is out of range, an option is unknown, or a value is not finite or not a float32 number.
    TypeError
        If `x` does not hold real numbers.

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
    one_of("logfmt", "mode", mode, ("paper", "deepep"))
    if mode == "paper":
        if units is not None:
            raise ValueError("logfmt: units belong to mode 'deepep'; mode 'paper' has no approximate log2")
        return encode_paper(
            x, 8 if bits is None else bits, tile, axis=axis, rounding=rounding, clamp_octaves=clamp_octaves, meta=meta,
            fallback=fallback, nonfinite=nonfinite, seed=seed, offset=offset,
        )  # fmt: skip
    given = {
        "bits": 10 if bits is None else bits, "tile": tile, "axis": axis, "rounding": rounding, "meta": meta,
        "clamp_octaves": clamp_octaves, "fallback": fallback, "nonfinite": nonfinite,
    }  # fmt: skip
    for name, value in given.items():
        if value != _OF_DEEPEP[name]:
            raise ValueError(f"logfmt: {name} {value!r}: mode 'deepep' is what it is, with {name} {_OF_DEEPEP[name]!r}")
    return encode_deepep(x, same_units(units))


_OF_DEEPEP = {
    "bits": 10, "tile": 128, "axis": -1, "rounding": "linear", "meta": None, "clamp_octaves": 32, "fallback": None,
    "nonfinite": "raise",
}  # fmt: skip


def from_bytes(data: bytes, units: Units | None = None) -> LogFMT | DeepEPMessage:
    """Read back what `to_bytes` of an encoded array wrote.

    Parameters
    ----------
    data : bytes
        Header and payload.
    units : Units, optional
        For mode "deepep", as given to `encode`.

    Returns
    -------
    LogFMT or DeepEPMessage
        The same codes and metadata.

    Raises
    ------
    ValueError
        If the bytes are something else, cut short or changed.
    """
    header, payload = read_header(data)
    if header.mode == 0:
        return paper_from_bytes(header, payload)
    return deepep_from_bytes(header, payload, same_units(units))
