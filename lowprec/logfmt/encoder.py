"""Encoder of LogFMT as the paper defines it: tiles, their (amin, amax) pairs, and treatment of non-finite values."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from lowprec import _threads
from lowprec._arrays import Floats
from lowprec._checks import MAX_TILE, check_choice, check_int
from lowprec.cast import casts as cast
from lowprec.kernels.logfmt import encode as logfmt_encode
from lowprec.kernels.logfmt import stochastic as logfmt_stochastic

from .arrays import as_rows, exact_float32, from_rows
from .paper import LogFMT, RangeFormat

Rounding = Literal["linear", "log", "logmean", "stochastic"]

_BF16_INF = 0x7F80
_GRAIN = 512  # tiles per chunk of work
_RULES = {
    "linear": logfmt_encode.LINEAR,
    "log": logfmt_encode.LOG,
    "logmean": logfmt_encode.LOGMEAN,
    "stochastic": logfmt_encode.STOCHASTIC,
}


def encode_paper(
    x: npt.ArrayLike,
    bits: int,
    tile: int,
    *,
    axis: int,
    rounding: Rounding,
    clamp_octaves: int,
    range_format: RangeFormat | None,
    fallback: Literal["bf16"] | None,
    nonfinite: Literal["raise", "poison"],
    seed: int,
    offset: int,
) -> LogFMT:
    """Encode an array in variant "paper"; see `lowprec.logfmt.encode`."""
    bits, tile, octaves = (
        check_int("logfmt", "bits", bits, 3, 16),
        check_int("logfmt", "tile", tile, 1, MAX_TILE),
        check_int("logfmt", "clamp_octaves", clamp_octaves, 1, 32),
    )
    rule = _RULES[check_choice("logfmt", "rounding", rounding, tuple(_RULES))]
    check_choice("logfmt", "range_format", range_format, (None, "bf16", "fp32"))
    check_choice("logfmt", "fallback", fallback, (None, "bf16"))
    check_choice("logfmt", "nonfinite", nonfinite, ("raise", "poison"))
    seed, offset = check_int("logfmt", "seed", seed, 0, 2**63 - 1), check_int("logfmt", "offset", offset, 0, 2**62)
    values = exact_float32(x)
    axis = check_int("logfmt", "axis", axis, -values.ndim, values.ndim - 1) % values.ndim
    rows = as_rows(values, axis)
    tiles = -(-rows.shape[1] // tile)
    codes = np.empty(rows.shape, np.uint8 if bits <= 8 else np.uint16)
    amin, amax = (np.empty((len(rows), tiles), np.float32) for _ in range(2))
    flat, flat_codes, mins, maxs = (array.reshape(-1) for array in (rows, codes, amin, amax))
    bad: list[int] = []
    width = min(tile, max(1, rows.shape[1]))  # of the longest tile

    def piece(start: int, stop: int) -> None:
        if rule == logfmt_encode.STOCHASTIC:
            found = logfmt_stochastic.encode_tiles_stochastic(
                flat, rows.shape[1], bits, width, octaves, range_format == "bf16", seed, offset, flat_codes, mins, maxs,
                start, stop,
            )  # fmt: skip
        else:
            found = logfmt_encode.encode_tiles(
                flat, rows.shape[1], bits, width, octaves, rule, range_format == "bf16", flat_codes, mins, maxs, start,
                stop,
            )  # fmt: skip
        if found >= 0:
            bad.append(found)

    _threads.run_chunks(piece, amin.size, _GRAIN)
    if bad:
        _refuse_or_poison(min(bad), rows, tile, amin, amax, nonfinite, range_format)
    shape = values.shape
    result = LogFMT(
        from_rows(codes, shape, axis), from_rows(amin, shape, axis), from_rows(amax, shape, axis),
        bits, tile, octaves, axis if axis != values.ndim - 1 else -1, range_format, fallback,
    )  # fmt: skip
    fallen = result.fallback_mask()
    if fallen is None:
        return result
    wide = codes.astype(np.uint16)
    wide[fallen] = cast.encode(rows[fallen], "bfloat16")
    overflowed = fallen & (wide & 0x7FFF == _BF16_INF) & np.isfinite(rows)
    if overflowed.any():
        row, column = (int(i) for i in np.argwhere(overflowed)[0])
        raise ValueError(
            f"logfmt: with fallback='bf16', values must not overflow bfloat16, got {abs(rows[row, column])} in row "
            f"{row}, tile {column // tile}; use fallback=None"
        )
    return replace(result, codes=from_rows(wide, shape, axis))


def _refuse_or_poison(
    first: int, rows: Floats, tile: int, amin: Floats, amax: Floats, nonfinite: str, range_format: RangeFormat | None
) -> None:
    """Raise an error for a non-finite tile, unless it is to be poisoned, and always if an amax overflowed bfloat16."""
    overflowed = np.isinf(amax)
    if overflowed.any():
        row, part = (int(i) for i in np.argwhere(overflowed)[0])
        largest = np.abs(rows[row, part * tile : (part + 1) * tile]).max()
        raise ValueError(
            f"logfmt: with range_format='bf16', values must not overflow bfloat16, got {largest} in row {row}, "
            f"tile {part}; use range_format='fp32'"
        )
    if nonfinite == "raise":
        row, part = divmod(first, amax.shape[1])
        ends = rows[row, part * tile : (part + 1) * tile]
        value = ends[~np.isfinite(ends)][0]
        raise ValueError(
            f"logfmt: x must be finite, got {value} in row {row}, tile {part}; nonfinite='poison' makes the tile NaN"
        )
