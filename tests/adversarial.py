"""Inputs on which the rules of tensor cores part: operand codes and addends for the FP8 accumulators, by family."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import E4M3FN, E5M2, Fields, Rule
from lowprec.tensorcore.fused_kernels import fused_kernels

FP8 = {"e4m3fn": E4M3FN, "e5m2": E5M2}
PAIRS = [(a, b) for a in FP8 for b in FP8]

Codes = NDArray[np.uint8]
Bits = NDArray[np.uint32]


@dataclass(frozen=True)
class Case:
    """``D = A B^T + C``: codes a [M, K] and b [N, K], float32 bits c [M, N]."""

    name: str
    a: Codes
    b: Codes
    c: Bits


def wanted(case: Case, rule: Rule | str, a_format: str, b_format: str) -> Bits:
    """The oracle's bits for every output of a case; `rule` may also be "exact" or "float32"."""
    fa, fb = FP8[a_format], FP8[b_format]
    out = np.zeros(case.c.shape, dtype=np.uint32)
    rows_a, rows_b, c = case.a.tolist(), case.b.tolist(), case.c.tolist()
    for i, row_a in enumerate(rows_a):
        for j, row_b in enumerate(rows_b):
            if isinstance(rule, Rule):
                out[i, j] = oracle.fused_dot(row_a, row_b, c[i][j], rule, fa, fb)
            else:
                dot = oracle.exact_dot if rule == "exact" else oracle.sequential_f32
                out[i, j] = dot(row_a, row_b, c[i][j], fa, fb)
    return out


def kernels() -> list[str]:
    """Names of the fused kernels that this CPU can run."""
    names = []
    for name in fused_kernels:
        with contextlib.suppress(ValueError), lp.using(kernel=name):
            names.append(name)
    return names


KERNELS = kernels()


def on_every_kernel(compute: Callable[[], NDArray[np.float32]]) -> Bits:
    """Run a computation on every fused kernel of this CPU; all must give the same bits, which are returned."""
    answers = []
    for name in KERNELS:
        with lp.using(kernel=name):
            answers.append(compute().view(np.uint32).copy())
    for name, answer in zip(KERNELS, answers, strict=True):
        wrong = np.argwhere(answer != answers[-1])
        assert not wrong.size, f"{name} and {KERNELS[-1]} differ in {len(wrong)} of {answer.size}, first at {wrong[0]}"
    return answers[-1]


def finite_codes(fmt: Fields) -> Codes:
    codes = np.arange(256, dtype=np.uint8)
    return codes[(codes & 0x7F) <= oracle.max_code(fmt)]


def _exponent_code(fmt: Fields, field: NDArray[np.integer], rng: np.random.Generator) -> Codes:
    """Codes with the given exponent fields and random signs and mantissas."""
    m = fmt.mantissa_bits
    mantissa = rng.integers(0, 1 << m, field.shape)
    magnitude = np.minimum((np.clip(field, 0, (1 << fmt.exponent_bits) - 1) << m) | mantissa, oracle.max_code(fmt))
    return (magnitude | rng.integers(0, 2, field.shape) << 7).astype(np.uint8)


def _random(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    return rng.choice(finite_codes(fmt), (m, k))


def _narrow(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents within a few binades, as real data have them: sums carry and cancel."""
    middle = 1 << (fmt.exponent_bits - 1)
    return _exponent_code(fmt, middle + rng.integers(-2, 2, (m, k)), rng)


def _ladder(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents falling by one from term to term, from a random start: every shift of the alignment occurs."""
    top = (1 << fmt.exponent_bits) - 1
    start = rng.integers(top // 2, top + 1, (m, 1))
    return _exponent_code(fmt, (start - np.arange(k) % (top + 1)) % (top + 1), rng)


def _cancel_a(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """Each second code is minus the one before; the last two of every group are small and stay."""
    a = _random(rng, m, k, fmt)
    a[:, 1::2] = a[:, : k // 2 * 2 : 2] ^ 0x80
    small = rng.integers(1, 3 << fmt.mantissa_bits, a.shape).astype(np.uint8)
    return np.where(np.arange(k) % 16 >= 14, small, a)


def _cancel_b(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    b = _random(rng, m, k, fmt)
    b[:, 1::2] = b[:, : k // 2 * 2 : 2]
    return b


def _subnormal(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    codes = rng.integers(0, 1 << fmt.mantissa_bits, (m, k)) | rng.integers(0, 2, (m, k)) << 7
    return codes.astype(np.uint8)


def _mixed_subnormal(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    return np.where(rng.random((m, k)) < 0.5, _subnormal(rng, m, k, fmt), _random(rng, m, k, fmt)).astype(np.uint8)


def _cancelling_subnormal(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """Subnormal codes of which each second is minus the one before: nothing is left but their exponent."""
    codes = _subnormal(rng, m, k, fmt)
    codes[::2] = codes[::2] & 0x80 | 1
    codes[:, 1::2] = codes[:, : k // 2 * 2 : 2] ^ 0x80
    return codes


def _greatest(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    return np.full((m, k), oracle.max_code(fmt), dtype=np.uint8)


def _sparse(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """Mostly zeros of both signs."""
    zeros = (rng.integers(0, 2, (m, k)) << 7).astype(np.uint8)
    return np.where(rng.random((m, k)) < 0.9, zeros, _random(rng, m, k, fmt)).astype(np.uint8)


def _zeros(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    return (rng.integers(0, 2, (m, k)) << 7).astype(np.uint8)


def _zeros_of_one_sign(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    return np.broadcast_to((rng.integers(0, 2, (m, 1)) << 7).astype(np.uint8), (m, k)).copy()


def _largest(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    return (oracle.max_code(fmt) | (rng.random((m, k)) < 0.1) << 7).astype(np.uint8)


def _special(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """Finite rows, with NaN (or Inf and NaN) codes in every other one, early or in the last group."""
    codes = _narrow(rng, m, k, fmt)
    special = np.setdiff1d(np.arange(256, dtype=np.uint8), finite_codes(fmt))
    for row in range(1, m, 2):
        codes[row, rng.integers(0, k) if row % 4 == 1 else k - 1] = rng.choice(special)
        if row % 3 == 0:
            codes[row, rng.integers(0, k)] = rng.choice([0x00, 0x80])
    return codes


def _infinite(rng: np.random.Generator, m: int, k: int, fmt: Fields) -> Codes:
    """E5M2's infinities of both signs, rarely; for a format without them the NaNs of `_special`."""
    if fmt.specials != "ieee":
        return _narrow(rng, m, k, fmt)
    codes = _narrow(rng, m, k, fmt)
    where = rng.random((m, k)) < 1.0 / k
    return np.where(where, rng.choice(np.array([0x7C, 0xFC], dtype=np.uint8), (m, k)), codes).astype(np.uint8)


Family = Callable[[np.random.Generator, int, int, Fields], Codes]
FAMILIES: dict[str, tuple[Family, Family]] = {
    "random": (_random, _random),
    "narrow": (_narrow, _narrow),
    "ladder": (_ladder, _ladder),
    "ladder by narrow": (_ladder, _narrow),
    "cancellation": (_cancel_a, _cancel_b),
    "subnormal": (_subnormal, _subnormal),
    "subnormal by random": (_mixed_subnormal, _random),
    "subnormals that cancel": (_cancelling_subnormal, _greatest),
    "sparse": (_sparse, _random),
    "zeros": (_zeros, _sparse),
    "zeros of one sign": (_zeros_of_one_sign, _zeros_of_one_sign),
    "largest": (_largest, _largest),
    "NaN rows": (_special, _narrow),
    "NaN rows and columns": (_special, _special),
    "infinities": (_infinite, _infinite),
}
FINITE = [name for name in FAMILIES if name not in {"NaN rows", "NaN rows and columns", "infinities"}]

EDGE_C = np.array(
    [
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x000003FF, 0x800003FF, 0x00000400, 0x80000400, 0x007FFFFF,
        0x807FFFFF, 0x00800000, 0x3F800000, 0xBF8003FF, 0x3F8003FF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FFC00, 0x7F800000,
        0xFF800000, 0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FBFFFFF,
    ],
    dtype=np.uint32,
)  # fmt: skip


def addends(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> Bits:
    """float32 bits of C.

    "zeros": of both signs; "near": exponents among those of products; "tiny": far below them, subnormal too;
    "far": exponents from -100 to 110; "verge": those at which fast kernels hand over to slow ones, and the last ones;
    "any": any pattern at all; "edge": from `EDGE_C`.
    """
    if kind == "zeros":
        return rng.integers(0, 2, shape).astype(np.uint32) << np.uint32(31)
    if kind == "edge":
        return rng.choice(EDGE_C, shape)
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)
    ranges = {"near": range(127 - 26, 127 + 22), "tiny": range(60), "far": range(127 - 100, 127 + 111)}
    ranges["verge"] = [0, 1, 26, 27, 28, 236, 237, 238, 253, 254]
    if kind in ranges:
        exponent = rng.choice(ranges[kind], shape).astype(np.uint32)
        bits = (bits & np.uint32(0x807FFFFF)) | exponent << np.uint32(23)
    return bits


def case(family: str, a_format: str, b_format: str, m: int, n: int, k: int, c: str = "near", seed: int = 0) -> Case:
    """Build one case; the same arguments give the same inputs."""
    key = [ord(x) for x in f"{family} {a_format} {b_format} {m} {n} {k} {c}"]
    rng = np.random.default_rng([seed, *key])
    make_a, make_b = FAMILIES[family]
    a, b = make_a(rng, m, k, FP8[a_format]), make_b(rng, n, k, FP8[b_format])
    return Case(f"{family}, {a_format} x {b_format}, {m}x{n}x{k}, c {c}", a, b, addends(c, (m, n), rng))
