"""`Collective`: an algorithm that adds the arrays of several ranks, and its bits for any data.

A collective cuts the elements into parts. Each part has a tree of additions with one leaf per rank. Some values of the
tree are sent as messages, which a codec encodes. Without a codec, every sum is rounded to the algorithm's format.

Let q be the signal-to-noise ratio of the codec, in power. For independent values on R ranks, a sum has the ratio
q / n(R). A message with the sum of k ranks adds k / R to n(R): the total is 1 for ``one_shot``, 2 for ``two_step``,
log2 R for ``tree`` with R a power of two, (R - 1) / 2 for ``ring``. For ring and tree, n(R) excludes the rounding of
the result before it is sent to all ranks, which adds 1. The formula holds for noise far below the signal: for a ring
of 32 ranks in NVFP4 it gives 8.5 dB, and the measured ratio is 1 dB lower.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32, as_real
from .._checks import check_choice, check_int
from .._fpenv import quiet_nan, with_default_fpenv
from .._values import Value, normalize_fields
from ..cast.casts import round_to
from ..codec import Codec, codecs
from ..order.exact import cast
from ..order.order import DTYPES, FORMATS, FormatName, Order
from ..order.rules import Steps

Array = NDArray[Any]
Fp8Sums = Literal["float32", "float16"]
FP8 = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2"}


class Tree(NamedTuple):
    """Tree of additions: steps as in `Order.steps`, and the indices of the values that are sent as messages.

    A step with a single term adds that term to +0.
    """

    steps: tuple[tuple[int, ...], ...]
    sent: frozenset[int]

    @classmethod
    def of(cls, steps: Steps, sent: Sequence[int]) -> Tree:
        """Return the tree of complete `Steps`, with the values that are sent."""
        return cls(tuple(steps.found), frozenset(sent))


class Part(NamedTuple):
    """Range of elements that one tree adds, and the rank at each of its leaves."""

    start: int
    stop: int
    ranks: Sequence[int]
    tree: Tree


@dataclass(frozen=True, eq=False, repr=False)
class Collective(Value):
    """Base of algorithms that add the arrays of several ranks.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    wide_sums : bool
        Whether sums of elements narrower than float32 are computed in float32 and rounded once, at the end; otherwise
        every sum is rounded to the format of the elements.
    fp8_sums : {"float32", "float16"}
        Format in which FP8 values are added. Each sum is then rounded to FP8, unless `wide_sums` is set.
    source : str
        Reference for the algorithm.
    validated_against : str
        Software with the same outputs, bit for bit.

    Examples
    --------
    >>> import lowprec as lp
    >>> shards = np.array([[1e8], [-1e8], [1.0], [1.0]], np.float32)
    >>> for name in ("gloo", "openmpi"):
    ...     collective = lp.collectives[name]
    ...     print(name, collective.all_reduce(shards), collective.order(4, 1))
    gloo [0.] sum(x[3::-1])
    openmpi [2.] (x[0] + x[1]) + (x[2] + x[3])
    """

    name: str = dataclasses.field(compare=False)
    wide_sums: bool = dataclasses.field(default=False, kw_only=True)
    fp8_sums: Fp8Sums = dataclasses.field(default="float32", kw_only=True)
    source: str = dataclasses.field(default="user-defined", compare=False, kw_only=True)
    validated_against: str = dataclasses.field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice(f"{type(self).__name__} {self.name}", "fp8_sums", self.fp8_sums, get_args(Fp8Sums))

    @abstractmethod
    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield the non-empty parts of an array of `count` elements of `itemsize` bytes, in order."""

    def least(self, ranks: int) -> int:
        """Return the smallest number of elements for which libraries use the algorithm."""
        return 1

    @with_default_fpenv
    def all_reduce(self, shards: ArrayLike, codec: str | Codec | None = None) -> Array:
        """Return the sum that every rank receives.

        Parameters
        ----------
        shards : array [ranks, ...]
            One array for each rank, of float64, float32, float16, bfloat16 or FP8 (E4M3FN, E5M2); with a codec,
            [ranks, ..., columns], converted to float32.
        codec : str or Codec, optional
            Codec of every message. Elements are then rows, and sums are in float32.

        Returns
        -------
        array [...]
            The sums, in the dtype of `shards`; with a codec, in float32. NaN is the positive quiet one.

        Raises
        ------
        ValueError
            If `shards` lacks an axis of ranks, or the arrays differ in shape.
        TypeError
            If their dtypes differ or are not supported.

        Examples
        --------
        >>> import lowprec as lp
        >>> shards = np.ones((4, 2, 128), np.float32)
        >>> lp.collectives["ring"].all_reduce(shards, "fp8_1x128")[0, :3]
        array([4., 4., 4.], dtype=float32)
        """
        if codec is not None:
            return self._coded(shards, codecs.get(codec))
        x = self._shards("all_reduce", shards)
        flat = x.reshape(len(x), -1)
        arithmetic = Arithmetic(x.dtype, wide=self.wide_sums, fp8_sums=self.fp8_sums)
        out = np.empty(flat.shape[1], x.dtype)
        parts = self.parts(len(x), flat.shape[1], x.dtype.itemsize)
        with np.errstate(all="ignore"):
            for tree, alike in groupby(parts, key=lambda part: part.tree):
                group = list(alike)
                for start in range(0, len(group), _PARTS):  # parts with the same tree are computed together
                    some = group[start : start + _PARTS]
                    leaves = {leaf: arithmetic.start(terms) for leaf, terms in enumerate(_leaves(flat, some))}
                    sums = evaluate(tree.steps, leaves, arithmetic.add)
                    out[some[0].start : some[-1].stop] = arithmetic.finish(sums)
        return quiet_nan(out).reshape(x.shape[1:])

    def _coded(self, shards: ArrayLike, codec: Codec) -> Array:
        x = as_float32("all_reduce", shards)
        if x.ndim < 2 or len(x) == 0:
            raise ValueError(f"all_reduce: shards must have shape [ranks >= 1, ..., columns], got {x.shape}")
        rows = x.reshape(len(x), int(np.prod(x.shape[1:-1], dtype=np.int64)), x.shape[-1])
        out: Array = np.zeros_like(rows[0])
        if out.size == 0:
            return out.reshape(x.shape[1:])
        with np.errstate(all="ignore"):
            for start, stop, ranks, tree in self.parts(len(x), rows.shape[1], 4 * x.shape[-1]):
                leaves = {leaf: rows[rank, start:stop] for leaf, rank in enumerate(ranks)}
                out[start:stop] = evaluate(tree.steps, leaves, np.add, tree.sent, codec.round_trip)
        return quiet_nan(out).reshape(x.shape[1:])

    def reduce_scatter(self, shards: ArrayLike) -> Array:
        """Return the sums of an all-reduce as an array [ranks, n / ranks, ...]: rank i receives the part at index i.

        Parameters
        ----------
        shards : array [ranks, n, ...]
            One array for each rank, with n a multiple of the number of ranks.

        Raises
        ------
        ValueError
            If n is not a multiple of the number of ranks.
        """
        x = self._shards("reduce_scatter", shards)
        if x.ndim < 2 or x.shape[1] % len(x):
            raise ValueError(f"reduce_scatter: shards must have shape [ranks, a multiple of ranks, ...], got {x.shape}")
        return self.all_reduce(x).reshape(len(x), x.shape[1] // len(x), *x.shape[2:])

    def order(self, ranks: int, count: int, index: int = 0, dtype: FormatName = "float32") -> Order:
        """Return the order in which an all-reduce adds one element over the ranks.

        Parameters
        ----------
        ranks, count : int
            Numbers of ranks and of elements.
        index : int
            Index of the element.
        dtype : {"float32", "bfloat16", "float16", "float64"}
            Format of the elements.

        Raises
        ------
        ValueError
            If an argument is out of range.

        Examples
        --------
        >>> import lowprec as lp
        >>> for index in (0, 40, 63):
        ...     print(lp.collectives["gloo"].order(4, 64, index))
        sum(x[3::-1])
        sum(x[0], x[1], x[3], x[2])
        sum(x[2::-1], x[3])
        """
        caller = "Collective.order"
        ranks, count = check_int(caller, "ranks", ranks, 1), check_int(caller, "count", count, 1)
        index = check_int(caller, "index", index, 0, count - 1)
        check_choice(caller, "dtype", dtype, FORMATS)
        parts = self.parts(ranks, count, DTYPES[dtype].itemsize)
        tree, seats = next((part.tree, part.ranks) for part in parts if part.start <= index < part.stop)
        number, steps = dict(enumerate(seats)), list[tuple[int, ...]]()
        for i, terms in enumerate(tree.steps):
            if len(terms) == 1:
                number[ranks + i] = number[terms[0]]
                continue
            steps.append(tuple(number[term] for term in terms))
            number[ranks + i] = ranks + len(steps) - 1
        wide = self.wide_sums and DTYPES[dtype].itemsize < 4
        return Order(
            f"{self.name} of {ranks} ranks", tuple(steps), dtype=dtype, sum_format="float32" if wide else dtype,
            out_format=dtype, from_zero=len(steps) < len(tree.steps), source=self.source,
        )  # fmt: skip

    def snr_loss(self, ranks: int) -> float:
        """Return the loss of signal-to-noise ratio of a sum over `ranks` ranks, relative to the codec's, in dB.

        Raises
        ------
        ValueError
            If the algorithm depends on the number of elements.

        Examples
        --------
        >>> import lowprec as lp
        >>> round(lp.collectives["ring"].snr_loss(8), 2), round(lp.collectives["tree"].snr_loss(8), 2)
        (5.44, 4.77)
        """
        noise = self.noise_gain(ranks)
        return 10 * math.log10(noise) if noise else -math.inf

    def noise_gain(self, ranks: int) -> float:
        """Return n(ranks): the relative noise of the sum, divided by that of the codec.

        Raises
        ------
        ValueError
            If the algorithm depends on the number of elements.
        """
        total = 0
        for start, stop, _, (steps, sent) in self.parts(ranks, ranks, 4):
            powers = [1] * ranks
            for terms in steps:
                powers.append(sum(powers[term] for term in terms))
            total += (stop - start) * sum(powers[value] for value in sent)
        return total / ranks**2

    def _shards(self, caller: str, shards: ArrayLike) -> Array:
        if isinstance(shards, list | tuple):
            kinds = sorted({as_real(caller, shard).dtype.name for shard in shards})
            if len(kinds) > 1:
                raise TypeError(f"{caller}: shards must have one dtype, got {', '.join(kinds)}")
        x = as_real(caller, shards)
        if x.dtype.name not in (*FORMATS, *FP8):
            raise TypeError(f"{caller}: shards must be of {', '.join((*FORMATS, *FP8))}, got {x.dtype}")
        if x.ndim < 1 or len(x) == 0:
            raise ValueError(f"{caller}: shards must have shape [ranks >= 1, ...], got {x.shape}")
        return x


_PARTS = 1 << 12  # largest number of parts that are computed together


def _leaves(x: Array, parts: Sequence[Part]) -> Iterator[Array]:
    """Yield the elements at each leaf of consecutive parts with the same tree, given the arrays [ranks, count]."""
    places = np.arange(parts[0].start, parts[-1].stop)
    if len(places) == len(parts):  # as in rings with more ranks than elements
        for ranks in np.array([part.ranks for part in parts]).T:
            yield x[ranks, places]
        return
    for leaf in range(len(x)):
        yield np.concatenate([x[part.ranks[leaf], part.start : part.stop] for part in parts])


class Arithmetic:
    """Operations on the elements of an all-reduce: conversion, addition and rounding.

    Parameters
    ----------
    dtype : dtype
        Type of the elements.
    wide : bool
        Whether sums are rounded to `dtype` only at the end.
    fp8_sums : {"float32", "float16"}
        Format in which FP8 values are added.
    """

    def __init__(self, dtype: np.dtype[Any], *, wide: bool, fp8_sums: Fp8Sums) -> None:
        self.dtype = dtype
        self.inner = np.dtype(fp8_sums if dtype.name in FP8 else "float32" if dtype.itemsize < 4 else dtype)
        self._is_rounded = not wide and dtype != self.inner

    def start(self, x: Array) -> Array:
        """Return elements converted to the format of the sums."""
        return x.astype(self.inner)

    def add(self, a: Array, b: Array) -> Array:
        """Return the rounded sum of two arrays."""
        total = a + b
        return self.finish(total).astype(self.inner) if self._is_rounded else total

    def finish(self, x: Array) -> Array:
        """Return sums converted to the format of the elements; FP8 saturates, as in CUDA's conversions."""
        fmt = FP8.get(self.dtype.name)
        return cast(x, self.dtype) if fmt is None else round_to(x, fmt, policy="cuda_satfinite").astype(self.dtype)


def evaluate(
    steps: Sequence[Sequence[int]], values: dict[int, Array], add: Callable[[Array, Array], Array],
    sent: frozenset[int] = frozenset(), send: Callable[[Any], Array] = np.asarray,
) -> Array:  # fmt: skip
    """Compute the steps of a tree and return the last sum.

    Parameters
    ----------
    steps : sequence of sequence of int
        Terms of each step.
    values : dict from int to array
        Arrays at the leaves; each is removed from the dict after its use.
    add : callable
        Function that adds two arrays.
    sent : frozenset of int
        Indices of the values that are sent as messages.
    send : callable
        Function that encodes and decodes a message.
    """
    n = len(values)

    def take(term: int) -> Array:
        value = values.pop(term)
        return send(value) if term in sent else value

    for i, terms in enumerate(steps):
        total = take(terms[0])
        if len(terms) == 1:
            total = total + total.dtype.type(0)
        for term in terms[1:]:
            total = add(total, take(term))
        values[n + i] = total
    return take(n + len(steps) - 1)
