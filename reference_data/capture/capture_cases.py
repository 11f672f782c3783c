"""Operands of the captured products, as bit patterns, built from seeds with NumPy only.

Every tile has 64 x 64 outputs, ``D = A B^T + C``, so one tile of K = 32 tests 4096 sums of 33 terms. Families of
operands are defined once, by exponent and mantissa fields, for all formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[Any]
Rng = np.random.Generator
TILE = 64
STEP_BYTES = 32  #: of k in one instruction


@dataclass(frozen=True)
class Fields:
    """A format as its instruction takes it: `shift` low bits of every stored word are not part of the code."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: int  # code of the largest finite value
    dtype: type[np.unsignedinteger[Any]]
    shift: int = 0

    @property
    def bias(self) -> int:
        """Exponent field of 1.0."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign(self) -> int:
        """Sign bit of a code."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def per_step(self) -> int:
        """Values of k in one instruction."""
        return STEP_BYTES // np.dtype(self.dtype).itemsize


E4M3 = Fields("e4m3", 4, 3, 0x7E, np.uint8)
E5M2 = Fields("e5m2", 5, 2, 0x7B, np.uint8)
F16 = Fields("f16", 5, 10, 0x7BFF, np.uint16)
BF16 = Fields("bf16", 8, 7, 0x7F7F, np.uint16)
TF32 = Fields("tf32", 8, 10, 0x3FBFF, np.uint32, shift=13)
F32 = Fields("f32", 8, 23, 0x7F7FFFFF, np.uint32)
FIELDS = {f.name: f for f in (E4M3, E5M2, F16, BF16, TF32, F32)}


@dataclass(frozen=True)
class Instruction:
    """``wgmma.f32.e4m3.e5m2``: unit, format of C and D, formats of A and B."""

    name: str

    @property
    def unit(self) -> str:
        """Either "wgmma" or "mma"."""
        return self.name.split(".")[0]

    @property
    def c(self) -> Fields:
        """Format of C and D."""
        return FIELDS[self.name.split(".")[1]]

    @property
    def a(self) -> Fields:
        """Format of A."""
        return FIELDS[self.name.split(".")[2]]

    @property
    def b(self) -> Fields:
        """Format of B."""
        return FIELDS[self.name.split(".")[3]]


_FP8_PAIRS = ("e4m3.e4m3", "e4m3.e5m2", "e5m2.e4m3", "e5m2.e5m2")
_TYPES = (
    *(f"{out}.{pair}" for out in ("f32", "f16") for pair in _FP8_PAIRS),
    "f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16", "f32.tf32.tf32",
)  # fmt: skip
INSTRUCTIONS = {f"{unit}.{types}": Instruction(f"{unit}.{types}") for unit in ("wgmma", "mma") for types in _TYPES}


# --- operands --------------------------------------------------------------------------------------------------------


def pack(fmt: Fields, sign: Any, field: Any, mantissa: Any) -> NDArray[np.int64]:
    """Put codes together; fields are clipped and magnitudes end at the largest finite one."""
    field = np.clip(field, 0, (1 << fmt.exponent_bits) - 1)
    magnitude = np.minimum(np.asarray(field, np.int64) << fmt.mantissa_bits | mantissa, fmt.largest)
    return np.asarray(magnitude | np.where(sign, fmt.sign, 0), np.int64)


def _with_field(rng: Rng, fmt: Fields, field: Any) -> NDArray[np.int64]:
    shape = np.shape(field)
    return pack(fmt, rng.integers(0, 2, shape), field, rng.integers(0, 1 << fmt.mantissa_bits, shape))


def _around(rng: Rng, fmt: Fields, shape: tuple[int, ...], low: int, high: int) -> NDArray[np.int64]:
    return _with_field(rng, fmt, fmt.bias + rng.integers(low, high + 1, shape))


def narrow(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Exponents within four binades: sums carry and cancel."""
    return _around(rng, fmt, shape, -2, 1)


def bell(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Exponents falling off geometrically from 1, as those of normal data."""
    return _with_field(rng, fmt, fmt.bias + 2 - rng.geometric(0.5, shape))


def wide(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """All exponents of an 8-bit format, up to 16 binades on each side of 1 for others; subnormals of short ranges."""
    return _around(rng, fmt, shape, -16, 16)


def ladder(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Exponents falling by one from term to term, from a random start: every shift of the alignment occurs."""
    rungs = min(30, (1 << fmt.exponent_bits) - 1)
    start = rng.integers(0, rungs, (shape[0], 1))
    return _with_field(rng, fmt, fmt.bias - rungs // 2 + (start - np.arange(shape[1])) % (rungs + 1))


def mirrored(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Every second code is minus the one before, except in the last two of 8: against `doubled` the rest cancels."""
    codes = _around(rng, fmt, shape, -4, 5)
    codes[:, 1::2] = codes[:, 0::2] ^ fmt.sign
    small = _around(rng, fmt, shape, -7, -4)
    return np.where(np.arange(shape[1]) % 8 >= 6, small, codes)


def doubled(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Every second code repeats the one before."""
    codes = _around(rng, fmt, shape, -4, 5)
    codes[:, 1::2] = codes[:, 0::2]
    return codes


def subnormal(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Nothing but subnormals and zeros."""
    return _with_field(rng, fmt, np.zeros(shape, np.int64))


def half_subnormal(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Subnormals among the smallest and the usual normal numbers."""
    choice = rng.integers(0, 3, shape)
    low = _with_field(rng, fmt, rng.integers(0, 3, shape))
    return np.where(choice < 2, low, _around(rng, fmt, shape, -1, 2))


def zeros(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Zeros of both signs."""
    return rng.integers(0, 2, shape) * fmt.sign


def sparse(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """One code in ten is not zero."""
    return np.where(rng.random(shape) < 0.9, zeros(rng, fmt, shape), wide(rng, fmt, shape))


def two_terms(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return rows of zeros and two numbers: a power of two, and a number so far below that it may not count.

    What the zeros count as decides whether it does: products are as small as sums can show, about 2^-25 and 2^-47 for
    float16 results of float16, 2^-149 and 2^-159 for float32 results of long exponents.
    """
    codes, rows = np.zeros(shape, np.int64), shape[0]
    if fmt.exponent_bits < 8:
        codes[:, 0] = pack(fmt, False, rng.integers(1, 5, rows), 0)
        codes[:, 1] = rng.integers(1, 5, rows) | rng.integers(0, 2, rows) * fmt.sign
    else:
        codes[:, 0] = pack(fmt, False, fmt.bias - rng.integers(73, 77, rows), 0)
        codes[:, 1] = pack(fmt, rng.integers(0, 2, rows), fmt.bias - rng.integers(77, 83, rows), 0)
    return codes


def largest(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Nothing but the largest code, rarely negative."""
    return fmt.largest | np.where(rng.random(shape) < 0.1, fmt.sign, 0)


def special(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Usual rows, but every other one holds NaN, Inf where there is one, or Inf and a zero."""
    codes = narrow(rng, fmt, shape)
    infinity = min(fmt.largest + 1, fmt.sign - 1)
    for row in range(1, shape[0], 2):
        here, there = rng.integers(0, 4, 2) * (shape[1] // 4)  # few places, so that Inf and zero meet
        if row % 8 == 7:
            codes[row, there] = 0
        odd = rng.integers(fmt.largest + 1, fmt.sign) | rng.integers(0, 2) * fmt.sign
        codes[row, here] = odd if row % 4 == 1 else infinity
    return codes


def anything(rng: Rng, fmt: Fields, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Any code at all, NaN and Inf left to one row in four."""
    codes = rng.integers(0, 2 * fmt.sign, shape)
    finite = np.where((codes & (fmt.sign - 1)) > fmt.largest, codes & (fmt.sign | 1), codes)
    return np.where(np.arange(shape[0])[:, None] % 4 == 0, codes, finite)


def integers(rng: Rng, fmt: Fields, shape: tuple[int, int], limit: int = 2) -> NDArray[np.int64]:
    """Whole numbers from -limit to limit, exact in every format."""
    return encode_integers(fmt, rng.integers(-limit, limit + 1, shape))


def encode_integers(fmt: Fields, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Encode small integers, which every format holds exactly."""
    magnitude = np.abs(values)
    exponent = np.where(magnitude > 0, np.frexp(np.maximum(magnitude, 1))[1] - 1, 0)
    mantissa = (magnitude << fmt.mantissa_bits >> exponent) - (1 << fmt.mantissa_bits)
    return np.where(magnitude > 0, pack(fmt, values < 0, exponent + fmt.bias, np.maximum(mantissa, 0)), 0)


# --- addends ---------------------------------------------------------------------------------------------------------


def addend(kind: str, rng: Rng, fmt: Fields) -> NDArray[np.int64]:
    """Return C of a tile: 256 patterns, each in many places, so that files stay small."""
    if kind == "zero":
        pool = zeros(rng, fmt, (1, 256))
    elif kind == "near":
        pool = _around(rng, fmt, (1, 256), -16, 12)
    elif kind == "far":
        pool = _around(rng, fmt, (1, 256), -40, 40)
    elif kind == "tiny":
        pool = _around(rng, fmt, (1, 256), -40, -10)
        pool[0, ::2] = subnormal(rng, fmt, (1, 128))
    elif kind == "any":
        pool = rng.integers(0, 2 * fmt.sign, (1, 256))
    elif kind == "edge":
        one, m = fmt.bias << fmt.mantissa_bits, fmt.mantissa_bits
        low = (1 << max(m - 13, 1)) - 1
        top, inf, ones = fmt.largest, fmt.largest + 1, fmt.sign - 1
        edges = [0, 1, low, low + 1, (1 << m) - 1, 1 << m, one, one + low, one + low + 1]
        edges += [top - low - 1, top - low, top, inf, inf + 1, ones - low, ones]
        pool = np.array([[*edges, *(edge | fmt.sign for edge in edges)]], np.int64)
    else:
        raise ValueError(f"addend {kind!r}: one of zero, near, far, tiny, any, edge")
    return rng.choice(pool[0], (TILE, TILE))


# --- cases -----------------------------------------------------------------------------------------------------------

Family = Callable[[Rng, Fields, tuple[int, int]], NDArray[np.int64]]


@dataclass(frozen=True)
class Case:
    """One tile of an instruction: families of A and B, kind of C, instructions chained along k."""

    name: str
    a: Family
    b: Family
    c: str
    steps: int = 1
    every: bool = True  # False: only for FP8 wgmma, whose rules rest on the fewest recordings


CASES = (
    Case("two terms among zeros", two_terms, two_terms, "zero"),
    Case("C alone, edges", zeros, sparse, "edge"),
    Case("C alone, any pattern", zeros, zeros, "any", every=False),
    Case("wide", wide, wide, "zero"),
    Case("wide, C near", wide, wide, "near", every=False),
    Case("narrow, C near", narrow, narrow, "near", every=False),
    Case("ladder, C near", ladder, ladder, "near"),
    Case("ladder by narrow, C far", ladder, narrow, "far", every=False),
    Case("cancellation", mirrored, doubled, "zero", every=False),
    Case("cancellation, C near", mirrored, doubled, "near"),
    Case("subnormal, C tiny", subnormal, subnormal, "tiny"),
    Case("half subnormal, C near", half_subnormal, wide, "near", every=False),
    Case("sparse, C near", sparse, wide, "near", every=False),
    Case("largest, C far", largest, largest, "far"),
    Case("NaN and Inf", special, narrow, "near", every=False),
    Case("NaN and Inf, C edges", special, special, "edge"),
    Case("any code, any C", anything, anything, "any"),
    Case("chain of 4", bell, bell, "zero", steps=4),
    Case("chain of 4, C near", narrow, wide, "near", steps=4, every=False),
)


def cases_of(instruction: Instruction) -> list[Case]:
    """Return the cases that an instruction is asked."""
    primary = instruction.unit == "wgmma" and instruction.a.dtype is np.uint8
    return [case for case in CASES if case.every or primary]


def build(instruction: Instruction, case: Case, seed: int) -> tuple[Codes, Codes, Codes]:
    """Return A [64, K], B [64, K] and C [64, 64] as stored words; the same arguments give the same operands."""
    rng = np.random.default_rng([seed, *instruction.name.encode(), 0, *case.name.encode()])
    operands = []
    for fmt, family in ((instruction.a, case.a), (instruction.b, case.b)):
        codes = family(rng, fmt, (TILE, fmt.per_step * case.steps)) << fmt.shift
        if fmt.shift:  # bits that the unit must ignore
            codes |= rng.integers(0, 1 << fmt.shift, codes.shape) * (rng.random(codes.shape) < 0.25)
        operands.append(codes.astype(fmt.dtype))
    return operands[0], operands[1], addend(case.c, rng, instruction.c).astype(instruction.c.dtype)


def build_integers(
    instruction: Instruction, seed: int, steps: int = 2
) -> tuple[Codes, Codes, Codes, NDArray[np.int64]]:
    """Return A, B, C of small integers and the D that every accumulator gives exactly."""
    rng = np.random.default_rng([seed, *instruction.name.encode()])
    values = [rng.integers(-2, 3, (TILE, instruction.a.per_step * steps)) for _ in range(2)]
    c = rng.integers(-64, 65, (TILE, TILE))
    result = np.einsum("ik,jk->ij", *values) + c
    words = [
        (encode_integers(fmt, value) << fmt.shift).astype(fmt.dtype)
        for fmt, value in zip((instruction.a, instruction.b, instruction.c), (*values, c), strict=True)
    ]
    return words[0], words[1], words[2], result


def build_promoted(kind: str, seed: int, size: int = 128, blocks: int = 3) -> tuple[Codes, Codes, Codes, Codes]:
    """Return e4m3 A, B [size, 128 * blocks] and float32 scales [size, blocks] of a GEMM with promotion every 128.

    `kind` is "1x128 by 128x128" (one scale of B for all columns), "1x128 by 1x128", or "far scales".
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    a, b = (bell(rng, E4M3, (size, 128 * blocks)).astype(np.uint8) for _ in range(2))
    reach = 30 if kind == "far scales" else 3
    scales = [
        (rng.integers(1 << 23, 1 << 24, (size, blocks)) * 2.0 ** (rng.integers(-reach, reach, (size, blocks)) - 30.0))
        for _ in range(2)
    ]
    if kind == "1x128 by 128x128":
        scales[1][:] = scales[1][:1]
    return a, b, scales[0].astype(np.float32), scales[1].astype(np.float32)


PROMOTED = ("1x128 by 128x128", "1x128 by 1x128", "far scales")
