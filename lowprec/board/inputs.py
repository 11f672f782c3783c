"""Inputs of the board: every bfloat16, and values at which casts and scale rules change their answers."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode
from ..format.catalogue import formats
from ..measure.selftest import critical

F32 = NDArray[np.float32]
_TIES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -1.25, -5.0, 0.5, 1.0, 3.0, -0.0, 5.5, 6.0]) / 6
_LARGEST = (1.0, 1.25, 1.5, 1.75, 1.875, 1.9375, 127 / 64)
"""Significands of the largest elements: E8M0 rules compare an amax with them."""
_ROWS, _COLUMNS = 16, 64
"""Shape of a tensor with two levels of scales."""


PLAIN = ("codes", "hadamard", "nibbles", "products")
"""Kinds of inputs without the bfloat16 values."""


def inputs(key: str) -> NDArray[Any]:
    """Return the inputs of a key, see `lowprec.board.adapters.harness.Operation`; `bfloat16_count` of them come first.

    Raises
    ------
    ValueError
        If the key is unknown.
    """
    kind, _, name = key.partition("/")
    if kind == "casts":
        return _casts(name)
    if kind == "codes":
        return np.arange(1 << formats[name].bits, dtype=formats[name].code_dtype)
    if kind == "blocks":
        return blocks(int(name))
    if kind == "tiles":  # whole tiles, without Inf and NaN
        rows = blocks(int(name))[: -len(_special(int(name)))]
        return rows[: len(rows) // int(name) * int(name)]
    if kind == "tensors":
        return _brain(tensors()) if name else tensors()
    if kind == "hadamard":
        return _brain(blocks(int(name))[-10_000 : -len(_special(int(name)))])
    if kind == "nibbles":
        return _nibbles(name)
    if kind == "products":
        return _products(name)
    raise ValueError(
        f"inputs: key must begin with casts, codes, blocks, tiles, tensors, hadamard, nibbles or products, got {key!r}"
    )


def bfloat16_count(key: str) -> int:
    """Return the number of leading inputs that are exhaustive: all bfloat16 values, or all normal magnitudes."""
    kind = key.partition("/")[0]
    other = {"casts": 1 << 16, "tensors": len(_bfloat16_amaxes()) // 64} | dict.fromkeys(PLAIN, 0)
    return other.get(kind, len(_bfloat16_amaxes()))


def digest(arrays: list[NDArray[Any]]) -> str:
    """Return a SHA-256 of arrays in which all NaNs are replaced by one."""
    found = hashlib.sha256()
    for array in arrays:
        plain = np.where(np.isnan(array), np.float32(np.nan), array) if array.dtype.kind == "f" else array
        found.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(plain).tobytes())
    return found.hexdigest()


@functools.cache
def _casts(name: str) -> F32:
    """Return all bfloat16 numbers, the critical values of the format, and random bit patterns."""
    every = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    random = np.random.default_rng(8).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    return np.concatenate([every, critical(name), random])


@functools.cache
def _bfloat16_amaxes() -> F32:
    """Return the 32,512 positive normal bfloat16 values."""
    return (np.arange(0x80, 0x7F80, dtype=np.uint32) << np.uint32(16)).view(np.float32)


@functools.cache
def _amaxes() -> F32:
    """Return powers of two times the significands of the formats' maxima, and the neighbours within 2 ulp."""
    marks = np.unique(np.outer(np.exp2(np.arange(-149.0, 128)), _LARGEST).astype(np.float32))
    near = np.unique(marks.view(np.int32)[:, None] + np.arange(-2, 3, dtype=np.int32))
    return near[(near > 0) & (near < 0x7F800000)].view(np.float32)


def _special(width: int) -> F32:
    """Return blocks with NaN and Inf."""
    x = np.ones((8, width), np.float32)
    x[:3, 0] = np.nan, np.inf, -np.inf
    x[3:6] = np.array([[np.nan], [np.inf], [-np.inf]])
    x[6, :2], x[7] = (np.nan, np.inf), 0.0
    x[7, 0] = np.inf
    return x


@functools.cache
def blocks(width: int) -> F32:
    """Return blocks: one for each bfloat16 amax, then adversarial ones, then those with NaN or Inf."""
    rng, tops = np.random.default_rng(width), _amaxes().astype(np.float64)
    amaxes = _bfloat16_amaxes()
    rest = amaxes[:, None] * np.where(np.arange(width) % 2, -1, 1) * np.linspace(1, 0, width, dtype=np.float32)
    single = np.zeros((len(tops), width))
    single[:, 0] = tops * np.where(np.arange(len(tops)) % 2, -1, 1)
    ties = rng.choice(tops, 2500)[:, None] * np.resize(_TIES, width)
    exact = np.exp2(rng.integers(-100, 100, 1500))[:, None] * np.resize(_TIES * 6, width)
    exact[:, -1] = exact[:, 15]
    filled = rng.choice(tops, 2500)[:, None] * rng.uniform(-1, 1, (2500, width))
    normal = rng.standard_normal((3000, width)).astype(np.float32)
    brain = (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    wide = normal[:1500] * np.exp2(rng.integers(-30, 30, (1500, width)))
    outlier = normal[:1000].copy()
    outlier[np.arange(1000), rng.integers(0, width, 1000)] *= np.exp2(rng.integers(4, 30, 1000))
    zeros = np.zeros((4, width))
    zeros[1] = -0.0
    zeros[2, 1], zeros[3, ::2] = 2.0**-149, -0.0
    subnormal = rng.integers(0, 1 << 23, (500, width), dtype=np.uint32).view(np.float32)
    huge = np.full((3, width), np.finfo(np.float32).max)
    huge[1, 1:], huge[2, ::2] = 1.0, -1.0
    families = (rest, single, ties, exact, filled, brain, normal, wide, outlier, zeros, subnormal, huge)
    found = np.concatenate([np.asarray(family, np.float64) for family in families]).astype(np.float32)
    return np.concatenate([_brain(found[: len(amaxes)]), found[len(amaxes) :], _special(width)])


def _nibbles(name: str) -> F32:
    """Return 64 blocks of 32 nonzero values of a 4-bit format; their scales, per 16 or 32 values, are 1."""
    values = formats[name].values()
    values = values[values != 0]
    x = np.random.default_rng(4).choice(values, (64, 32)).astype(np.float32)
    x[:, [5, 21]] = np.abs(values).max()
    return x


def _products(name: str) -> NDArray[Any]:
    """Return codes [24, 72, 32] for 24 products: in each, 64 rows of A, then 8 rows of B, of length 32.

    Eight products have similar exponents within a row, eight have mixed exponents, four have numbers around the
    smallest normal one, and four have arbitrary codes, two of these without Inf and NaN.
    """
    f, rng = formats[name], np.random.default_rng(6)
    x = rng.standard_normal((24, 72, 32)) * np.exp2(rng.integers(-3, 4, (24, 72, 1)))
    x[8:16] *= np.exp2(rng.integers(-4, 5, (8, 72, 32)))
    x[16:20] *= f.smallest_normal
    codes = encode(x.astype(np.float32), f)
    codes[20:] = rng.integers(0, 1 << f.bits, (4, 72, 32))
    finite = np.isfinite(np.asarray(decode(codes[20:22], f)))
    codes[20:22] = np.where(finite, codes[20:22], 0)
    return codes


def _brain(x: F32) -> F32:
    """Truncate to bfloat16."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@functools.cache
def tensors() -> F32:
    """Return tensors of 16 x 64: all bfloat16 amaxes in blocks of 16, adversarial ones, then those with NaN or Inf.

    The simplest have two or three nonzero values: the largest one of the tensor, and those of one other block.
    """
    rng, tops = np.random.default_rng(2), _amaxes().astype(np.float64)
    every = _bfloat16_amaxes().reshape(-1, _ROWS, _COLUMNS // 16, 1) * np.resize(_TIES, 16).astype(np.float32)
    plain = tops[(tops > 2.0**-40) & (tops < 2.0**40)]
    grid = np.arange(1, 256) / 16.0
    pairs = np.zeros((300, _ROWS, _COLUMNS))
    pairs[:, 0, 0] = rng.choice(tops, 300)
    pairs[:, 0, 16] = pairs[:, 0, 0] * rng.choice(grid, 300) * np.exp2(-rng.integers(4, 20, 300))
    triples = pairs.copy()  # and a value whose quotient may be a tie
    triples[:, 0, 17] = pairs[:, 0, 16] * rng.choice(_TIES, 300)
    out = [_brain(every.reshape(-1, _ROWS, _COLUMNS).astype(np.float32)), pairs, triples]
    for kind in range(5):
        shape = (100, _ROWS, _COLUMNS // 16)
        top = rng.choice(tops if kind == 4 else plain, (100, 1, 1))
        amax = top * np.exp2(-rng.uniform(0, 24 if kind == 2 else 12, shape))
        if kind == 1:  # block scales at codes of E4M3 and at midpoints between them
            amax = np.minimum(top * rng.choice(grid, shape) * np.exp2(-rng.integers(4, 12, shape)), top)
        if kind == 3:  # block scales near the underflow of E4M3
            amax = top / 448 * rng.choice([2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-11], shape)
        amax *= 1 + rng.integers(-2, 3, shape) * 2.0**-24
        unit = _TIES if kind in (1, 3) else rng.uniform(-1, 1, (*shape, 16))
        x = amax[..., None] * unit
        x[..., 15] = amax
        x[:, 0, 0, 0] = top[:, 0, 0]
        out.append(x.reshape(100, _ROWS, _COLUMNS))
    edges = np.zeros((5, _ROWS, _COLUMNS))
    edges[1] = -0.0
    edges[2, 0, 0], edges[3], edges[4] = 2.0**-149, 1.0, np.finfo(np.float32).max
    edges[3, 5, 5] = 2.0**-100
    special = np.ones((4, _ROWS, _COLUMNS))
    special[:3, 3, 17], special[3] = (np.nan, np.inf, -np.inf), np.nan
    largest = float(np.finfo(np.float32).max)
    finite = np.clip(np.concatenate([*out, edges]), -largest, largest)
    return np.concatenate([finite, special]).astype(np.float32)
