"""Operands for any machine: codes of any format by family, and addends around the sums of their products."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.oracle import Fields, max_code

Codes = NDArray[np.unsignedinteger[Any]]
Rng = np.random.Generator


def dtype_of(fmt: Fields) -> np.dtype[Any]:
    bits = fmt.width + fmt.signed
    return np.dtype(f"uint{8 if bits <= 8 else 16 if bits <= 16 else 32 if bits <= 32 else 64}")


def values(codes: Codes, fmt: Fields) -> NDArray[np.float64]:
    """Values of finite codes, 0 for others: good enough to choose inputs by."""
    m = fmt.mantissa_bits
    magnitude = codes.astype(np.uint64) & np.uint64((1 << fmt.width) - 1)
    field = (magnitude >> np.uint64(m)).astype(np.int64)
    fraction = (magnitude & np.uint64((1 << m) - 1)).astype(np.float64)
    significand = np.where((field > 0) | (not fmt.has_zero), 2.0**m, 0.0) + fraction
    with np.errstate(over="ignore"):
        size = np.ldexp(significand, np.maximum(field, int(fmt.has_zero)) - fmt.bias - m)
    negative = (codes.astype(np.uint64) >> np.uint64(fmt.width)) & np.uint64(1) if fmt.signed else 0
    return np.where(magnitude > max_code(fmt), 0.0, np.where(negative, -size, size))


def _build(field: NDArray[Any], rng: Rng, fmt: Fields) -> Codes:
    """Codes with the given exponent fields (clipped to those of finite numbers), random signs and mantissas."""
    m, top = fmt.mantissa_bits, max_code(fmt)
    field = np.clip(field, 0, top >> m).astype(np.uint64)
    # Short mantissas now and then: bits at the ends of words, sums that cancel exactly.
    mantissa = rng.integers(0, 1 << m, field.shape, dtype=np.uint64) if m else np.zeros(field.shape, np.uint64)
    ends = np.array([0, 1, (1 << m) - 1, 1 << max(m - 1, 0)], dtype=np.uint64) & np.uint64((1 << m) - 1)
    mantissa = np.where(rng.random(field.shape) < 0.3, rng.choice(ends, field.shape), mantissa)
    magnitude = np.minimum(field << np.uint64(m) | mantissa, np.uint64(top))
    return _signed(magnitude, rng, fmt)


def _signed(magnitude: NDArray[np.uint64], rng: Rng, fmt: Fields) -> Codes:
    sign = rng.integers(0, 2, magnitude.shape, dtype=np.uint64) << np.uint64(fmt.width)
    return (magnitude | sign).astype(dtype_of(fmt)) if fmt.signed else magnitude.astype(dtype_of(fmt))


def _negated(codes: Codes, fmt: Fields) -> Codes:
    return codes ^ codes.dtype.type(1 << fmt.width)


def random(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Any finite code."""
    return _signed(rng.integers(0, max_code(fmt) + 1, (m, k), dtype=np.uint64), rng, fmt)


def narrow(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents within a few binades, as real data have them: sums carry and cancel."""
    return _build(fmt.bias + rng.integers(-2, 2, (m, k)), rng, fmt)


def ladder(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents falling from a random start, by up to three a term: every shift of the alignment occurs."""
    top = max_code(fmt) >> fmt.mantissa_bits
    start = np.minimum(fmt.bias + 20, top)
    fall = np.arange(k) * rng.integers(1, 4, (m, 1)) % 48
    return _build(rng.permuted(start - rng.integers(0, 3, (m, 1)) - fall, axis=1), rng, fmt)


def cancelling(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Each second code is minus the one before; a few small ones stay."""
    a = narrow(rng, m, k, fmt)
    a[:, 1::2] = _negated(a[:, : k // 2 * 2 : 2], fmt)
    small = _build(fmt.bias - rng.integers(2, 14, (m, k)), rng, fmt)
    return np.where(rng.random((m, k)) < 0.15, small, a)


def repeated(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Each second code is the one before, so that what `cancelling` has cancels."""
    b = narrow(rng, m, k, fmt)
    b[:, 1::2] = b[:, : k // 2 * 2 : 2]
    return b


def subnormal(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Subnormal codes, and some random ones."""
    low = _build(np.zeros((m, k)), rng, fmt)
    return np.where(rng.random((m, k)) < 0.3, random(rng, m, k, fmt), low)


def least(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents whose products are the smallest that float32 results can show: 2^-150 and a little more."""
    return _build(fmt.bias - rng.integers(58, 80, (m, k)) if fmt.bias > 63 else np.zeros((m, k)), rng, fmt)


def only_subnormal(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Subnormal codes alone, which keep the smallest normal exponent in the alignment."""
    return _build(np.zeros((m, k)), rng, fmt)


def cancelling_subnormal(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Subnormal codes of which each second is minus the one before: nothing is left but their exponent."""
    codes = only_subnormal(rng, m, k, fmt) | dtype_of(fmt).type(1)
    codes[::2] &= dtype_of(fmt).type(1 << fmt.width | 1)
    codes[:, 1::2] = _negated(codes[:, : k // 2 * 2 : 2], fmt)
    return codes


def greatest(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """The largest number alone."""
    return np.full((m, k), max_code(fmt), dtype_of(fmt))


def upper(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents half way between 1 and the largest."""
    return _build(
        fmt.bias + ((max_code(fmt) >> fmt.mantissa_bits) - fmt.bias) // 2 + rng.integers(-2, 3, (m, k)), rng, fmt
    )


def deep(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Of every four codes two that cancel beside those of `deep_repeated`, and two of which the sum is made."""
    return _deep(rng, fmt, fmt.bias + rng.integers(3, 6, (m, k)), cancel=True)


def deep_subnormal(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """As `deep`, what cancels is subnormal."""
    return _deep(rng, fmt, np.zeros((m, k), dtype=np.int64), cancel=True)


def deep_repeated(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """As `deep`, the first two of every four equal."""
    return _deep(rng, fmt, fmt.bias + rng.integers(3, 6, (m, k)), cancel=False)


def deep_upper(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """As `deep_repeated`, large enough to lift `deep_subnormal`."""
    top = max_code(fmt) >> fmt.mantissa_bits
    return _deep(rng, fmt, np.minimum(2 * fmt.bias - rng.integers(0, 2, (m, k)), top), cancel=False)


def _deep(rng: Rng, fmt: Fields, field: NDArray[Any], cancel: bool) -> Codes:
    high, shape = _build(field, rng, fmt), field.shape
    low = _build(fmt.bias - rng.integers(0, 17, shape), rng, fmt)
    low = np.where(rng.random(shape) < 0.5, low, zeros(rng, *shape, fmt))
    codes = np.where(np.arange(shape[1]) % 4 < 2, high, low)
    pairs = shape[1] // 4
    first = codes[:, ::4][:, :pairs]
    codes[:, 1::4][:, :pairs] = _negated(first, fmt) if cancel else first
    codes[:, pairs * 4 :] = low[:, pairs * 4 :]
    return codes


def wide(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Exponents within seven binades of 1 on either side: float32 sums are rounded, step by step."""
    return _build(fmt.bias + rng.integers(-7, 8, (m, k)), rng, fmt)


def vanishing(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """The first 32 codes of every 64 cancel beside those of `repeated`, or all of K if it is short."""
    a = narrow(rng, m, k, fmt)
    other = narrow(rng, m, k, fmt)
    a[:, 1::2] = _negated(a[:, : k // 2 * 2 : 2], fmt)
    return np.where(np.arange(k) % 64 < 32, a, other)


def nothing(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """What cancels beside `repeated` to the last product, so that c alone is left, cut or not."""
    a = narrow(rng, m, k, fmt)
    a[:, 1::2] = _negated(a[:, : k // 2 * 2 : 2], fmt)
    a[:, k // 2 * 2 :] = 0
    return a


def negative_zeros(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Nothing but -0, or a negative number too small to be seen."""
    codes = np.full((m, k), 1 << fmt.width, dtype=dtype_of(fmt)) if fmt.specials != "fnuz" else zeros(rng, m, k, fmt)
    codes[::4, 0] |= dtype_of(fmt).type(1)
    return codes


def positive(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Small positive numbers, zeros too."""
    return _build(np.maximum(fmt.bias - 60, 0) + rng.integers(0, 2, (m, k)), rng, fmt) & dtype_of(fmt).type(
        (1 << fmt.width) - 1
    )


def sparse(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Mostly zeros of both signs."""
    return np.where(rng.random((m, k)) < 0.9, zeros(rng, m, k, fmt), random(rng, m, k, fmt))


def zeros(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Zeros, half of the rows of one sign."""
    codes = _signed(np.zeros((m, k), dtype=np.uint64), rng, fmt)
    codes[::2] = codes[::2, :1]
    return codes


def zeros_of_one_sign(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Zeros, each row of one sign."""
    return np.repeat(zeros(rng, m, 1, fmt), k, axis=1)


def largest(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """The largest binades: results overflow where they can."""
    field = (max_code(fmt) >> fmt.mantissa_bits) - rng.integers(0, 2, (m, k))
    codes = _build(field, rng, fmt)
    return np.where(rng.random((m, 1)) < 0.5, codes & codes.dtype.type((1 << fmt.width) - 1), codes)


def special(rng: Rng, m: int, k: int, fmt: Fields) -> Codes:
    """Narrow rows with a NaN or an infinity (or two, or zeros to meet them) in three of four."""
    codes = narrow(rng, m, k, fmt)
    all_ones, top = (1 << fmt.width) - 1, max_code(fmt)
    found = [c for c in (top + 1, top + 2, all_ones) if top < c <= all_ones]
    found += [c | 1 << fmt.width for c in found] if fmt.signed else []
    if fmt.specials == "fnuz":
        found = [1 << fmt.width]
    for row in range(m):
        if row % 4 and found:
            codes[row, rng.integers(0, k, row % 4 - row % 2 or 1)] = rng.choice(np.array(found, dtype=codes.dtype))
        if row % 3 == 0:
            codes[row, rng.integers(0, k, 2)] = 0
    return codes


Maker = Callable[[Rng, int, int, Fields], Codes]
FAMILIES: dict[str, tuple[Maker, Maker]] = {
    "random": (random, random),
    "narrow": (narrow, narrow),
    "wide": (wide, wide),
    "ladder": (ladder, narrow),
    "two ladders": (ladder, ladder),
    "cancellation": (cancelling, repeated),
    "subnormal": (subnormal, subnormal),
    "subnormal by random": (subnormal, random),
    "subnormal by large": (only_subnormal, upper),
    "deep cancellation": (deep, deep_repeated),
    "deep subnormal": (deep_subnormal, deep_upper),
    "vanishing": (vanishing, repeated),
    "nothing": (nothing, repeated),
    "least": (least, least),
    "sparse": (sparse, narrow),
    "zeros": (zeros, sparse),
    "negative zeros": (negative_zeros, positive),
    "largest": (largest, largest),
    "special": (special, narrow),
    "specials": (special, special),
    "subnormals that cancel": (cancelling_subnormal, greatest),
    "zeros of one sign": (zeros_of_one_sign, zeros_of_one_sign),
}


def addends(kind: str, products: NDArray[np.float64], kept: int, rng: Rng, fmt: Fields) -> Codes:
    """Codes of c, of the shape of `products`, which holds the largest magnitude of a product for each output.

    "near": from a little above that magnitude to just below its last kept bit; "zeros"; "tiny": subnormals and the
    binades above; "edge": zeros, ones, extremes, infinities and NaNs; "any": any pattern; "verge": exponents at which
    fast kernels hand over to the reference, and the last ones.
    """
    shape = products.shape
    if kind == "zeros":
        return ((rng.random(shape) < 0.7).astype(np.uint64) << np.uint64(fmt.width)).astype(dtype_of(fmt))
    if kind == "tiny":
        return _build(rng.integers(0, 3, shape), rng, fmt)
    if kind == "any":
        return (
            rng.integers(0, 1 << (fmt.width + 1), shape, dtype=np.uint64).astype(dtype_of(fmt))
            if (fmt.width < 63)
            else rng.integers(0, 1 << 63, shape, dtype=np.uint64).astype(dtype_of(fmt)) * dtype_of(fmt).type(2)
        )
    if kind == "edge":
        m, top = fmt.mantissa_bits, max_code(fmt)
        quiet = top + 1 + (1 << (m - 1))
        magnitudes = [
            0, 1, (1 << m) - 1, 1 << m, (1 << m) + 1, fmt.bias << m, top - 1, top, top + 1, top + 2, quiet, quiet + 1,
            (1 << fmt.width) - 1,
        ]  # fmt: skip
        return _signed(rng.choice(np.array(magnitudes, dtype=np.uint64), shape), rng, fmt)
    if kind == "verge":
        ends = [0, 1, 26, 27, 28, 236, 237, 238, 253, 254]
        top = (1 << fmt.exponent_bits) - 2
        return _build(rng.choice([e for e in ends if e < 30 or top == 254] + [top - 1, top], shape), rng, fmt)
    exponent = np.frexp(products)[1] - 1
    return _build(fmt.bias + np.where(products > 0, exponent, 0) + rng.integers(-kept - 4, 5, shape), rng, fmt)


ADDENDS = ("near", "zeros", "tiny", "edge", "any", "verge")


@dataclass(frozen=True)
class Tile:
    """``D = A B^T + C``: codes a [M, K], b [N, K], c [M, N]; or c [M] and one output for each row of a and b."""

    name: str
    a: Codes
    b: Codes
    c: Codes


def tile(
    family: str,
    formats: tuple[Fields, Fields, Fields],
    shape: tuple[int, int, int],
    addend: str = "near",
    kept: int = 25,
    seed: int = 0,
    rows: bool = False,
) -> Tile:
    """Build one case; the same arguments give the same inputs. With `rows`, N is M and c is [M]."""
    fa, fb, fc = formats
    m, n, k = shape
    key = [ord(x) for x in f"{family} {addend}"] + [x + 200 for f in formats for x in f[:3]]
    rng = np.random.default_rng([seed, m, n, k, *key])
    make_a, make_b = FAMILIES[family]
    a, b = make_a(rng, m, k, fa), make_b(rng, n, k, fb)
    x, y = np.abs(values(a, fa)), np.abs(values(b, fb))
    with np.errstate(over="ignore", under="ignore"):
        products = (x * y if rows else x[:, None] * y[None]).max(axis=-1, initial=0.0)
    products[~np.isfinite(products)] = 1.0
    return Tile(f"{family}, {m}x{n}x{k}, c {addend}", a, b, addends(addend, products, kept, rng, fc))
