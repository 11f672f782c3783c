"""Inputs at the edges of what fast kernels compute: a few rows of operands, addends and scales that mix freely.

Each palette has a name and makes rows that differ, so that those a kernel leaves to the reference lie beside others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowprec as lp

Rng = np.random.Generator
Codes = NDArray[Any]
Rows = Callable[[Rng, lp.Format, int, int], Codes]

# --- operands [rows, k] ----------------------------------------------------------------------------------------------


def _codes(fmt: lp.Format, magnitude: Any, negative: Any = False) -> Codes:
    """Codes of magnitudes, with signs where the format has them; a zero is +0 where its -0 is NaN."""
    sign = np.where(negative, fmt.sign_mask, 0)
    if fmt.specials == "fnuz":
        sign = np.where(np.asarray(magnitude) == 0, 0, sign)
    return (np.asarray(magnitude) | sign).astype(fmt.code_dtype)


def _normal(fmt: lp.Format) -> int:
    """The code of the smallest normal number."""
    return 1 << fmt.mantissa_bits if fmt.mantissa_bits else 1


def zeros(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """Zeros, of one sign in each row."""
    return np.broadcast_to(_codes(fmt, 0, np.arange(rows)[:, None] % 2 == 0), (rows, k)).copy()


def subnormals(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """Positive subnormals, or the smallest number where there are none."""
    return _codes(fmt, rng.integers(1, max(_normal(fmt), 2), (rows, k)))


def negative(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """Negative normal numbers."""
    return _codes(fmt, rng.integers(_normal(fmt), fmt.max_code + 1, (rows, k)), True)


def single(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """One number in each row, zeros of both signs beside it."""
    codes = _codes(fmt, np.zeros((rows, k), int), rng.integers(0, 2, (rows, k)))
    if k:
        codes[np.arange(rows), rng.integers(0, k, rows)] = finite(rng, fmt, rows, 1)[:, 0]
    return codes


def finite(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """Any finite number."""
    return _codes(fmt, rng.integers(0, fmt.max_code + 1, (rows, k)), rng.integers(0, 2, (rows, k)))


def usual(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """Numbers around 1, of which every second is minus the one before in every second row."""
    one = int(lp.encode(np.float64(1), fmt))
    low, high = max(one - 2 * _normal(fmt), 1), min(one + 2 * _normal(fmt), fmt.max_code)
    codes = _codes(fmt, rng.integers(low, high + 1, (rows, k)), rng.integers(0, 2, (rows, k)))
    codes[::2, 1::2] = codes[::2, : k // 2 * 2 : 2] ^ fmt.code_dtype.type(fmt.sign_mask)
    return codes


def extremes(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """The smallest and largest subnormal and normal numbers, one of them more often in each row."""
    ends = np.array([1, _normal(fmt) - 1, _normal(fmt), fmt.max_code])
    often = np.where(rng.random((rows, k)) < 0.8, ends[np.arange(rows) % 4][:, None], rng.choice(ends, (rows, k)))
    return _codes(fmt, often, rng.integers(0, 2, (rows, k)))


def special(rng: Rng, fmt: lp.Format, rows: int, k: int) -> Codes:
    """Usual rows, of which three in four hold NaN or Inf of either sign, and zeros to meet it."""
    codes = usual(rng, fmt, rows, k)
    found = np.flatnonzero(~np.isfinite(lp.decode(np.arange(1 << min(fmt.bits, 16), dtype=fmt.code_dtype), fmt)))
    if fmt.bits > 16:  # NaN and Inf lie at both ends
        found = np.array([fmt.inf_code, fmt.nan_code, fmt.inf_code | fmt.sign_mask, fmt.nan_code | fmt.sign_mask])
    if k and found.size:
        for row in range(rows):
            if row % 4:
                codes[row, rng.integers(0, k)] = rng.choice(found)
            if row % 3 == 0:
                codes[row, rng.integers(0, k, 3)] = 0
    return codes


OPERANDS: dict[str, tuple[Rows, Rows]] = {
    "zeros": (zeros, finite),
    "zeros of one sign": (zeros, zeros),
    "subnormals by negative": (subnormals, negative),
    "negative by subnormals": (negative, subnormals),
    "one in a row": (single, single),
    "finite": (finite, finite),
    "usual": (usual, usual),
    "extremes": (extremes, extremes),
    "special": (special, usual),
    "special by special": (special, special),
}


# --- addends [m, n] --------------------------------------------------------------------------------------------------

#: Exponents at which kernels hand over to the reference, and those next to them.
EDGES = (-126, -125, -104, -103, -102, -99, -97, -96, -95, -94, 0, 99, 108, 109, 110, 111, 112, 124, 125, 126, 127)
NAN_BITS = (0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFC12345)


def addend(name: str, rng: Rng, shape: tuple[int, int], dtype: str) -> NDArray[Any] | None:
    """C by the name of its palette, float32 or float16."""
    if name == "none":
        return None
    c = np.ldexp(rng.uniform(1, 2, shape), rng.integers(-6, 7, shape)) * rng.choice([-1, 1], shape)
    if name in ("+0", "-0"):
        c = np.full(shape, float(name[0] + "0"))
    elif name == "-0 among others":
        c = np.where(rng.random(shape) < 0.5, -0.0, c)
    elif name == "subnormal":
        c = np.sign(c) * rng.integers(1, 1 << (23 if dtype == "float32" else 10), shape)
        c = np.ldexp(c, -149 if dtype == "float32" else -24)
    elif name == "edges":
        edges = [e for e in EDGES if dtype == "float32" or -14 <= e <= 15] or [0]
        c = np.where(rng.random(shape) < 0.3, np.sign(c), np.sign(c) * rng.uniform(1, 1.999, shape))
        c = np.ldexp(c, rng.choice(edges, (shape[0], 1)))
        c[rng.random(shape) < 0.2] = -0.0
    elif name == "Inf":
        c = np.where(rng.random(shape) < 0.3, np.copysign(np.inf, c), c)
    found = c.astype(dtype)
    if name == "NaN":
        bits = rng.choice(np.array(NAN_BITS, np.uint32), shape)
        chosen = bits.view(np.float32)
        if dtype == "float16":
            chosen = (bits >> 16 & 0x8000 | 0x7C00 | bits & 0x3FF).astype(np.uint16).view(np.float16)
        found = np.where(rng.random(shape) < 0.3, chosen, found)
    return found


ADDENDS = ("none", "+0", "-0", "-0 among others", "subnormal", "edges", "Inf", "NaN")


# --- scales [rows, blocks] -------------------------------------------------------------------------------------------

_P = 2.0
#: Scales of A and of B by block; the last one holds for the rest.
SCALES: dict[str, tuple[list[float], list[float]]] = {
    "one": ([1], [1]),
    "product overflows first": ([_P**26, 2], [_P**126, _P**125]),
    "product overflows later": ([2, _P**26], [_P**100, _P**126]),
    "NaN": ([1, np.nan, 1], [1, 1, 2]),
    "-NaN": ([-np.nan], [1, np.nan]),
    "product underflows": ([_P**-75], [_P**-80]),
    "product underflows later": ([1, _P**-75, 1], [1, _P**-80, _P**-80]),
    "2^128 and 2^127": ([_P**64, _P**63], [_P**64]),
    "2^-126 and 2^-150": ([_P**-63, _P**-75, _P**-63], [_P**-63, _P**-75, _P**-64]),
    "23 binades": ([1, _P**23, 1], [_P**23, 1, 1.5]),
    "24 binades": ([1.5, _P**-24, 1], [1, _P**-24, 1]),
    "far apart": ([_P**50, _P**-50, _P**-8], [1, _P**60, _P**-60]),
    "ends": ([_P**-149, _P**127, 1], [_P**127, _P**-126, 1.75 * _P**127]),
}


def scales(name: str, rows: int, blocks: int, side: int) -> NDArray[np.float32]:
    """Scales of A (side 0) or B (1): those of the palette, beside them ones and NaN in some rows of an odd number."""
    first = np.array(SCALES[name][side], np.float32)
    values = first[np.minimum(np.arange(blocks), first.size - 1)][None]
    row = np.arange(rows)[:, None] % 8 if rows % 2 else np.zeros((rows, 1), int)
    return np.where(row == 2, np.float32(1), np.where(row == 6, np.float32(np.nan), values)).astype(np.float32)
