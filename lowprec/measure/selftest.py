"""Checks of an installation: casts against ml_dtypes and the exact oracle, bit for bit, on this machine.

These checks of the test suite can be repeated on any CPU, for which other instructions are compiled. A check counts
inputs and differences; a correct installation has no differences.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .. import _threads, oracle
from ..cast.casts import decode, encode, round_to
from ..format.catalogue import formats
from ..format.rounding import Rounding
from ..kernels.cast.random_bits import random_word
from ..oracle import casts

Progress = Callable[[int], None]
"""Callback that gets the number of inputs processed since the last call."""

EXHAUSTIVE = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e4m3", "e3m4", "bfloat16")
"""Formats that ml_dtypes rounds correctly, so that all 2^32 float32 inputs can be compared."""
_NARROW = ("e2m3fn", "e3m2fn", "e2m1fn")
_CHUNK = 1 << 22


@dataclass(frozen=True)
class SelfTest:
    """Comparison of one operation with a reference implementation.

    Attributes
    ----------
    name : str
        Name of the checked operation.
    reference : str
        Implementation to compare with.
    inputs : int
        Number of inputs.
    run : callable
        Function that takes a `Progress` and returns the number of differences.
    """

    name: str
    reference: str
    inputs: int
    run: Callable[[Progress], int]


def self_tests(exhaustive: bool = False, names: tuple[str, ...] = ()) -> list[SelfTest]:
    """Return the checks: quick ones (seconds), or exhaustive ones over all 2^32 float32 inputs per format (minutes).

    Parameters
    ----------
    exhaustive : bool
        Whether to check all inputs.
    names : tuple of str
        Formats to check; all by default.

    Raises
    ------
    ValueError
        If a format has no check against ml_dtypes.
    """
    allowed = EXHAUSTIVE if exhaustive else EXHAUSTIVE + _NARROW
    chosen = tuple(formats[name].name for name in names) or allowed
    for name in chosen:
        if name not in allowed:
            raise ValueError(f"selftest: formats must be among {', '.join(allowed)}, which ml_dtypes has, got {name}")
    found = []
    for name in chosen:
        if exhaustive:
            run = functools.partial(_every_float32, name)
            found.append(SelfTest(f"encode {name}, every float32", "ml_dtypes", 1 << 32, run))
            continue
        found.append(
            SelfTest(f"encode {name}, every bfloat16", "ml_dtypes", 1 << 16, functools.partial(_bfloat16, name))
        )
        f = formats[name]
        found.append(
            SelfTest(f"decode {name}, every code", "ml_dtypes", 1 << f.bits, functools.partial(_every_code, name))
        )
        points = critical(name)
        modes = ("nearest_even", "toward_zero", "up", "to_odd", "stochastic")
        run = functools.partial(_critical, name, points, modes)
        found.append(SelfTest(f"cast {name}, {len(modes)} roundings", "oracle", points.size * len(modes), run))
    return found


def differences(x: NDArray[np.float32], name: str) -> int:
    """Count the inputs for which `encode` with ml_dtypes' policy differs from ml_dtypes."""
    with np.errstate(all="ignore"):
        theirs = x.astype(_dtype(name)).view(formats[name].code_dtype)
    return int(np.count_nonzero(encode(x, name, policy="ml_dtypes") != theirs))


def critical(name: str) -> NDArray[np.float32]:
    """Return float32 inputs where a cast can go wrong: codes and midpoints with their neighbours, and specials."""
    f = formats[name]
    codes = range(f.max_code + 1) if f.bits <= 8 else [*range(40), *range(f.max_code - 40, f.max_code + 1)]
    values = [f.value(code) for code in codes]
    points = values + [(a + b) / 2 for a, b in itertools.pairwise(values)] + [f.max * 1.5]
    with np.errstate(over="ignore"):
        around = np.array(points).astype(np.float32).view(np.uint32).astype(np.int64)
    bits = np.unique(
        np.concatenate([around - 1, around, around + 1, [1, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]])
    )
    magnitudes = bits[(bits >= 0) & (bits <= 0x7FC00000)].astype(np.uint32)
    return np.concatenate([magnitudes, magnitudes | np.uint32(0x80000000)]).view(np.float32)


def _dtype(name: str) -> Any:
    known = [name, *formats.aliases(name)]
    return next(getattr(ml_dtypes, alias) for alias in known if hasattr(ml_dtypes, alias))


def _bfloat16(name: str, progress: Progress) -> int:
    x = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    found = differences(x, name)
    progress(x.size)
    return found


def _every_code(name: str, progress: Progress) -> int:
    f = formats[name]
    codes = np.arange(1 << f.bits, dtype=f.code_dtype)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(_dtype(name)).astype(np.float32)
    ours = decode(codes, name)
    progress(codes.size)
    nan = np.isnan(theirs)
    return int(np.count_nonzero((ours.view(np.uint32) != theirs.view(np.uint32)) & ~(nan & np.isnan(ours))))


def _critical(name: str, x: NDArray[np.float32], modes: tuple[str, ...], progress: Progress) -> int:
    fields, found = oracle.fields(formats[name]), 0
    for mode in modes:
        stochastic = mode == "stochastic"
        rounding: str | Rounding = Rounding.stochastic(16, "C") if stochastic else mode
        ours = encode(x, name, rounding=rounding, policy="ocp_sat", seed=1)
        for i, value in enumerate(x.tolist()):
            if stochastic:
                word = int(random_word(np.uint32(1), np.uint32(0), np.uint32(i), np.uint32(0)))
                found += int(ours[i]) != casts.cast(value, fields, "C", "ocp_sat", word >> 16, 16)
            else:
                found += int(ours[i]) != casts.cast(value, fields, mode, "ocp_sat")
        values = decode(ours, name).view(np.uint32)
        rounded = round_to(x, name, rounding=rounding, policy="ocp_sat", seed=1).view(np.uint32)
        found += int(np.count_nonzero(values != rounded))
        progress(x.size)
    return found


def _every_float32(name: str, progress: Progress) -> int:
    found: list[int] = []

    def piece(a: int, b: int) -> None:
        for start in range(a, b, _CHUNK):
            x = np.arange(start, min(b, start + _CHUNK), dtype=np.int64).astype(np.uint32).view(np.float32)
            found.append(differences(x, name))  # called by several threads
            progress(x.size)

    for start in range(0, 1 << 32, 16 * _CHUNK):  # in rounds, so that an interrupt takes effect soon
        _threads.run_chunks(functools.partial(_shifted, piece, start), 16 * _CHUNK, _CHUNK)
    return sum(found)


def _shifted(piece: Callable[[int, int], None], start: int, a: int, b: int) -> None:
    piece(start + a, start + b)
