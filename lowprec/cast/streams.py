"""Streams of random words by name: lowprec's own function of (seed, index), and third-party generators.

In a stochastic cast, element i takes the word of index i, whose leading bits are the random number R of its rounding
(`lowprec.format.rounding`). The third-party generators serve to reproduce casts of other software, which documents the
words and their order. Which word a kernel assigns to which element of a tensor depends on its tiling, so a cast's
`random_words=` takes the words in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_unsigned
from .._checks import MAX_SEED, check_int
from .._values import normalize_fields
from ..format.rounding import Rounding
from ..registry import Registry

Words = NDArray[np.uint32]
_ALL = 0xFFFFFFFF
_U64 = np.uint64


def split_seed(seed: int) -> tuple[np.uint32, np.uint32]:
    """Return the words of a seed, the low one first."""
    return np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)


def random_key(caller: str, what: str, seed: int | None, offset: int) -> tuple[np.uint32, np.uint32, int]:
    """Return the two words of a seed, and the index of the first element.

    Raises
    ------
    ValueError
        If the seed is missing or has more than 64 bits, or the index is negative or too large.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"{caller}: seed must be an integer from 0 to 2^64 - 1 for {what}, got {seed!r}")
    return *split_seed(int(seed)), check_int(caller, "offset", offset, 0, 1 << 62)


def philox4x32(counter: ArrayLike, key: ArrayLike, rounds: int = 10) -> Words:
    """Return the blocks of Philox4x32 (Salmon et al., SC 2011).

    Parameters
    ----------
    counter : array_like of uint32, shape (..., 4)
        Counters.
    key : array_like of uint32, shape (..., 2)
        Keys; they broadcast with the counters.
    rounds : int
        Number of rounds; 10 in practice.

    Returns
    -------
    ndarray of uint32, shape (..., 4)
        Blocks of four words.

    Examples
    --------
    >>> [f"{word:08X}" for word in philox4x32([0, 0, 0, 0], [0, 0])]
    ['6627E8D5', 'E169C58D', 'BC57AC4C', '9B00DBD8']
    """
    c0, c1, c2, c3 = (np.asarray(counter, _U64)[..., i] for i in range(4))
    k0, k1 = (np.asarray(key, _U64)[..., i] for i in range(2))
    low, half = _U64(_ALL), _U64(32)
    for _ in range(rounds):
        p, q = c0 * _U64(0xD2511F53), c2 * _U64(0xCD9E8D57)
        c0, c1, c2, c3 = q >> half ^ c1 ^ k0, q & low, p >> half ^ c3 ^ k1, p & low
        k0, k1 = k0 + _U64(0x9E3779B9) & low, k1 + _U64(0xBB67AE85) & low
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


_THREEFRY_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry2x32(counter: ArrayLike, key: ArrayLike) -> Words:
    """Return the blocks of Threefry2x32 with 20 rounds (Salmon et al., SC 2011), the generator of JAX.

    Parameters
    ----------
    counter, key : array_like of uint32, shape (..., 2)
        Counters and keys; they broadcast.

    Returns
    -------
    ndarray of uint32, shape (..., 2)
        Blocks of two words.

    Examples
    --------
    >>> [f"{word:08X}" for word in threefry2x32([0, 0], [0, 0])]
    ['6B200159', '99BA4EFE']
    """
    x0, x1 = (np.asarray(counter, np.uint32)[..., i] for i in range(2))
    k0, k1 = (np.asarray(key, np.uint32)[..., i] for i in range(2))
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):  # sums modulo 2^32
        x0, x1 = x0 + keys[0], x1 + keys[1]
        for i in range(5):
            for turn in _THREEFRY_TURNS[i % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(turn) | x1 >> np.uint32(32 - turn)) ^ x0
            x0, x1 = x0 + keys[(i + 1) % 3], x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return np.stack(np.broadcast_arrays(x0, x1), axis=-1)


@dataclass(frozen=True)
class Stream(ABC):
    """A sequence of random words for each seed.

    Parameters
    ----------
    name : str
        Name; it does not affect the words.
    source : str
        Software or standard that defines the words.
    """

    name: str
    source: str = field(default="user-defined", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        normalize_fields(self)

    @abstractmethod
    def words(self, seed: int, start: int, size: int) -> Words:
        """Return the words of indices `start`, ``start + 1``, ..."""


@dataclass(frozen=True)
class LowprecStream(Stream):
    """lowprec's words: `lowprec.kernels.cast.random_bits.random_word`."""

    def words(self, seed: int, start: int, size: int) -> Words:
        """Return the words of indices `start`, ``start + 1``, ..."""
        from ..kernels.cast.random_bits import fill_words

        words = np.empty(size, np.uint32)
        fill_words(words, *split_seed(seed), start)
        return words


@dataclass(frozen=True)
class PhiloxStream(Stream):
    """Philox4x32-10 in the order of cuRAND and PyTorch's CUDA kernels: four words per block, then the next block.

    The counter is (block, subsequence), each of 64 bits, low word first; the key is the seed. Index i is word
    ``i % 4`` of block ``first_block + i // 4``.

    Parameters
    ----------
    subsequence : int
        Thread number in kernels of PyTorch and TransformerEngine.
    first_block : int
        Block of the first word: an offset in blocks, as in ``at::Philox4_32``.
    """

    subsequence: int = 0
    first_block: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("subsequence", "first_block"):
            value = check_int(f"PhiloxStream {self.name}", name, getattr(self, name), 0, (1 << 64) - 1)
            object.__setattr__(self, name, value)

    def words(self, seed: int, start: int, size: int) -> Words:
        """Return the words of indices `start`, ``start + 1``, ..."""
        first, last = start // 4, (start + size + 3) // 4
        with np.errstate(over="ignore"):
            block = np.arange(last - first, dtype=_U64) + _U64((self.first_block + first) % (1 << 64))
        counter = np.empty((block.size, 4), np.uint32)
        counter[:, 0], counter[:, 1] = block & _U64(_ALL), block >> _U64(32)
        counter[:, 2:] = split_seed(self.subsequence)
        return philox4x32(counter, split_seed(seed)).reshape(-1)[start - 4 * first :][:size]


@dataclass(frozen=True)
class TritonStream(Stream):
    """``tl.randint(seed, offset)`` of Triton: the first word of the block with the offset as counter."""

    def words(self, seed: int, start: int, size: int) -> Words:
        """Return the words of offsets `start`, ``start + 1``, ..."""
        if start + size > 1 << 32:
            raise ValueError(f"stream {self.name}: offset must be below 2^32, as in Triton, got {start + size - 1}")
        counter = np.zeros((size, 4), np.uint32)
        counter[:, 0] = np.arange(start, start + size)
        return philox4x32(counter, split_seed(seed))[:, 0].copy()

    def uniform(self, seed: int, start: int, size: int) -> NDArray[np.float32]:
        """Return ``tl.rand(seed, offset)``: the words as float32 in [0, 1)."""
        signed = self.words(seed, start, size).view(np.int32)
        magnitude = np.where(signed < 0, ~signed, signed)
        return magnitude.astype(np.float32) * np.float32(4.6566127342e-10)


@dataclass(frozen=True)
class ThreefryStream(Stream):
    """Threefry2x32-20 with two words per block; counter (block number) and key (seed) have the high half first."""

    def words(self, seed: int, start: int, size: int) -> Words:
        """Return the words of indices `start`, ``start + 1``, ..."""
        first, last = start // 2, (start + size + 1) // 2
        return _threefry(seed, first, last - first).reshape(-1)[start - 2 * first :][:size]


@dataclass(frozen=True)
class JaxStream(Stream):
    """``jax.random.bits(jax.random.key(seed))``: the word of an index is the exclusive or of both words of its block.

    This is JAX's partitionable order, the default since 0.5: the word of an element does not depend on the shape.
    """

    def words(self, seed: int, start: int, size: int) -> Words:
        """Return the words of indices `start`, ``start + 1``, ..."""
        both = _threefry(seed, start, size)
        return both[:, 0] ^ both[:, 1]


def _threefry(seed: int, first: int, size: int) -> Words:
    at = np.arange(first, first + size, dtype=_U64)
    counter = np.stack([at >> _U64(32), at & _U64(_ALL)], axis=-1).astype(np.uint32)
    low, high = split_seed(seed)
    return threefry2x32(counter, (high, low))


streams: Registry[Stream] = Registry("stream", Stream)  # type: ignore[type-abstract]  # for isinstance only
"""Catalogue of random streams."""


def _add(stream: Stream) -> None:
    streams.register(stream.name, stream)


_RANDOM123 = "Salmon et al., SC 2011 (Random123)"
_add(LowprecStream("lowprec", source="lowprec.kernels.cast.random_bits"))
_add(PhiloxStream("philox4x32", source=f"{_RANDOM123}; at::Philox4_32, cuRAND, TransformerEngine's curanddx"))
_add(TritonStream("triton", source="triton.language.random"))
_add(ThreefryStream("threefry2x32", source=_RANDOM123))
_add(JaxStream("jax", source="jax.random, threefry2x32, partitionable"))


class RandomSource(NamedTuple):
    """Random words of a cast: a stream and a split seed, or given words; and the index of the first element."""

    low: np.uint32
    high: np.uint32
    offset: int
    stream: Stream | None = None  # None: lowprec's own
    given: Words | None = None

    @property
    def own(self) -> bool:
        """Whether the words are lowprec's own, which the kernels compute themselves."""
        return self.stream is None and self.given is None

    def words(self, start: int, size: int) -> Words:
        """Return the words of `size` elements, beginning at element `start` of the cast."""
        if self.given is not None:
            return self.given[start : start + size]
        stream = streams["lowprec"] if self.stream is None else self.stream
        return stream.words(int(self.high) << 32 | int(self.low), self.offset + start, size)


def random_source(
    caller: str,
    mode: Rounding,
    seed: int | None,
    offset: int,
    random: str | Stream | ArrayLike = "lowprec",
    shape: tuple[int, ...] | None = None,
) -> RandomSource:
    """Return the source of random words for a cast of an array with the given shape."""
    no_seed = np.uint32(0), np.uint32(0), 0
    if isinstance(random, str | Stream):
        stream = None if isinstance(random, str) and random == "lowprec" else streams.get(random)
        if not mode.is_stochastic:
            return RandomSource(*no_seed)
        key = random_key(caller, f"rounding={mode.name!r}", seed, offset)
        return RandomSource(*key, None if isinstance(stream, LowprecStream) else stream)
    words = as_unsigned(f"{caller}: random_words", np.asarray(random), 32, np.dtype(np.uint32), hint="")
    if words.shape != shape:
        raise ValueError(f"{caller}: random_words must have a word for each value, shape {shape}, got {words.shape}")
    if seed is not None:
        raise ValueError(f"{caller}: seed must be None with given random_words, got {seed!r}")
    return (
        RandomSource(*no_seed, given=np.ascontiguousarray(words).reshape(-1))
        if mode.is_stochastic
        else RandomSource(*no_seed)
    )
