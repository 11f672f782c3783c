"""Readings of a dump: the format to which its outputs were rounded, and the layout of its arrays.

A layout is judged by a product in float64: outputs differ from it by rounding errors if the layout is right, and by
about their magnitude if it is wrong. This takes less time than one candidate, for any arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._arrays import to_numpy
from ...cast.casts import decode
from ...format.catalogue import Format, formats
from ...scaling.quantized import Quantized
from ...tensorcore.accumulator import FLOAT64
from ...tensorcore.catalogue import accumulators
from ..deadline import Deadline
from .dump import Array, GemmDump, Part, values
from .inputs import dump_of, grids
from .ranking import explained_by_catalogue

Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]
_SIDE = 12  # rows and columns of the outputs that are compared
_NEAR = 2.0**-12  # distance of outputs up to which other layouts are not tried
_NEARER = 8  # factor by which another layout must be nearer
_LAYOUTS = 2  # largest number of simultaneous changes of the layout
_PERMUTED = 1 << 24  # products up to which the order of scales is searched; 16 times as many pairs of scales
_PADDED = 32  # number of zeros before K below which all numbers are tried
_SCALES = ("e8m0fnu", "e4m3fn")


@dataclass(frozen=True, eq=False)
class Reading:
    """A dump under assumptions on its layout and output format.

    Attributes
    ----------
    dump : GemmDump
        The dump in the assumed layout.
    assumed : tuple of str
        Assumptions, as text; empty if the arguments are used unchanged.
    changes : tuple of callable
        Functions of the arguments of a dump that return the changed arguments.
    """

    dump: GemmDump
    assumed: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, arguments: Arguments, assumed: tuple[str, ...] = (), changes: tuple[Change, ...] = ()) -> Reading:
        """Return the reading of changed arguments."""
        for change in changes:
            arguments = change(arguments)
        return cls(dump_of(**arguments), assumed, changes)


@np.errstate(all="ignore")  # a wrong layout overflows
def readings(arguments: Arguments, deadline: Deadline) -> list[Reading]:
    """Return readings of arguments in the likeliest layout, one per grid of the outputs, the finest first.

    After the deadline, no further layout is tried.

    Raises
    ------
    ValueError or TypeError
        If the arguments are not a dump, and no other layout makes them one.
    """
    best, error = _layout(arguments, deadline)
    if best is None:
        assert error is not None
        raise error
    best = _in_listed_formats(arguments, best)
    d = arguments["d"]
    if arguments["d_format"] is not None or best.dump.fa == FLOAT64:
        return [best]
    found = [best]
    for name in grids(d):
        if name != best.dump.out.name:
            words = f"d is rounded to {name}, which has all its values"
            found.append(Reading.of(arguments, (*best.assumed, words), (*best.changes, _with(d_format=name))))
    return found


def _layout(arguments: Arguments, deadline: Deadline) -> tuple[Reading | None, Exception | None]:
    """Return the reading in the likeliest layout, or the error of the arguments."""
    best, error = None, None
    try:
        best = Reading.of(arguments)
    except (ValueError, TypeError) as wrong:
        error = wrong
    least = np.inf if best is None else distance(best.dump)
    for _ in range(_LAYOUTS):
        if least <= _NEAR:
            break
        assumed, changes = ((), ()) if best is None else (best.assumed, best.changes)
        looked: list[tuple[float, int, Reading]] = []
        for words, change in deadline.limit(_layouts(arguments, best)):
            try:
                other = Reading.of(arguments, (*assumed, words), (*changes, change))
            except (ValueError, TypeError):
                continue
            looked.append((distance(other.dump), len(looked), other))
        nearest = min(looked, default=None)
        if nearest is None or not nearest[0] < (0.1 if best is None else least / _NEARER):
            break
        least, _, best = nearest
    return best, error


def _with(**changes: Any) -> Change:
    return lambda given: given | changes


def _mapped(function: Callable[[Array], Array], *names: str) -> Change:
    """Return a change that applies a function to the named arrays."""

    def change(given: Arguments) -> Arguments:
        arrays = {n: np.asarray(to_numpy(given[n])) for n in names if given[n] is not None}
        return given | {n: np.ascontiguousarray(function(x)) for n, x in arrays.items()}

    return change


#: Layouts of scales, with the functions that undo them.
_SCALE_LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "transposed": np.transpose,
    "stored column by column": lambda x: x.reshape(x.shape[::-1]).T,
    "inverted": lambda x: 1 / x.astype(np.float32),
    "shifted by 1 block": lambda x: np.roll(x, 1, 1),
    "shifted by -1 block": lambda x: np.roll(x, -1, 1),
    "in reverse along K": lambda x: x[:, ::-1],
}


def _are(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _layouts(given: Arguments, read: Reading | None) -> Iterator[tuple[str, Change]]:
    """Yield changes of the layout with their descriptions, the simpler ones first."""
    plain = [n for n in ("a", "b") if not isinstance(given[n], Quantized)]
    scales = [f"{n}_scale" for n in plain if given[f"{n}_scale"] is not None]
    if given["d_format"] is None and np.asarray(to_numpy(given["d"])).dtype == np.uint16:
        yield "d holds words of bfloat16", _with(d_format="bfloat16")
    sides = [[n] for n in plain] + [plain] * (len(plain) == 2)
    for names in (["d"], *sides, *([["c"]] if given["c"] is not None else [])):
        yield f"{_are(names)} transposed", _mapped(np.transpose, *names)
    if len(scales) == 2:
        yield "scales of a and b are swapped", lambda g: g | {"a_scale": g["b_scale"], "b_scale": g["a_scale"]}
        for names in (scales, scales[:1], scales[1:]):
            for words, function in _SCALE_LAYOUTS.items():
                yield f"{_are(names)} {words}", _mapped(function, *names)
    if read is None:
        return
    if given["c"] is not None:
        yield "c is not added", _with(c=None)
    for names in sides:
        yield from _siblings(names, [read.dump.fa if n == "a" else read.dump.fb for n in names])
    if len(plain) == 2 and not read.dump.scaled:
        yield from _shorter(read.dump)
    if len(scales) == 2 and read.dump.quantized is not None:
        yield from _permuted(read.dump)


def _siblings(names: Sequence[str], own: Sequence[Format]) -> Iterator[tuple[str, Change]]:
    """Yield changes that read the operands' codes in other formats of the same width, each with a description."""
    for other in map(formats.get, formats) if FLOAT64 not in own else ():
        if {other.bits} == {f.bits for f in own} and not any(map(other.same_codes, own)) and other.signed:
            yield f"{_are(names)} {other.name}", functools.partial(_in_format, fmt=other, names=names)


def _in_format(given: Arguments, fmt: Format, names: Sequence[str]) -> Arguments:
    codes = {n: np.ascontiguousarray(np.asarray(to_numpy(given[n]))).view(fmt.code_dtype) for n in names}
    return given | codes | {f"{n}_format": fmt.name for n in names}


def _in_listed_formats(given: Arguments, read: Reading) -> Reading:
    """Return the reading in formats that accumulators list, if these have the same values for all codes.

    E4M3 with infinities and E4M3 without differ only above 240.
    """
    listed = dict.fromkeys(fmt for name in accumulators for fmt in accumulators[name].input_formats)
    both = {"a": (read.dump.a, read.dump.fa), "b": (read.dump.b, read.dump.fb)}
    plain = {n: side for n, side in both.items() if side[1] != FLOAT64 and not isinstance(given[n], Quantized)}
    sides = {n: (x, f) for n, (x, f) in plain.items() if not any(map(f.same_codes, listed))}
    for other in listed:
        if sides and all(f.bits == other.bits and np.array_equal(values(x, f), values(x, other))
                         for x, f in sides.values()):  # fmt: skip
            words = f"{_are(list(sides))} {other.name}, which has the same values for these codes"
            change = functools.partial(_in_format, fmt=other, names=list(sides))
            return Reading.of(given, (*read.assumed, words), (*read.changes, change))
    return read


def _shorter(dump: GemmDump) -> Iterator[tuple[str, Change]]:
    """Yield the part of K, from its start or to its end, for which the product is nearest to the outputs."""
    products, c, d = _terms(dump.sample(_SIDE))
    for words, order in (
        ("the first {} products are summed: the rest of K is padding", 1),
        ("the last {} products are summed: K begins with padding", -1),
    ):
        sums, sizes = (np.cumsum(x[..., ::order], axis=-1) for x in (products, np.abs(products)))
        far = _far(sums, sizes, c[..., None], d[..., None])
        n = int(np.median(far.reshape(-1, dump.k), axis=0).argmin()) + 1
        if n < dump.k:
            at = np.arange(n) if order > 0 else np.arange(dump.k - n, dump.k)
            yield words.format(n), _mapped(functools.partial(np.take, indices=at, axis=1), "a", "b")


def _permuted(dump: GemmDump) -> Iterator[tuple[str, Change]]:
    """Yield the order of rows of scales that fits each row of outputs best."""
    assert dump.quantized is not None
    (qa, qb), d = dump.quantized, values(dump.d, dump.out)
    block, count = qa.granularity.block((qa.shape[0], dump.k))[1], qa.scale.shape[1]
    m, n = len(qa.codes), len(qb.codes)
    if dump.by_row or dump.c is not None or m * n * max(dump.k, count * (m + n) // 16) > _PERMUTED:
        return
    if qb.scale.shape[1] != count:
        return
    x, y = (values(q.codes, q.format).reshape(len(q.codes), dump.k) for q in (qa, qb))
    edges = range(0, dump.k, block)
    partial = np.stack([x[:, i : i + block] @ y[:, i : i + block].T for i in edges], axis=-1)
    for name, own, other, sums, out in (
        ("a_scale", qa.scale, qb.scale, partial, d), ("b_scale", qb.scale, qa.scale, partial.transpose(1, 0, 2), d.T),
    ):  # fmt: skip
        tried = np.stack([np.abs(np.einsum("ijk,jk->ij", sums, other * row) - out).sum(1) for row in own])
        order = tried.argmin(0)
        if (order != np.arange(len(own))).any():
            yield f"rows of {name} are in another order", _mapped(functools.partial(_in_order, order=order), name)


def _in_order(x: Array, order: NDArray[np.intp]) -> Array:
    if len(x) != len(order):  # of blocks of rows
        raise ValueError("order must be of rows with a scale each, got rows that share scales")
    return x[order]


def distance(dump: GemmDump) -> float:
    """Return the median distance of outputs from the float64 product, relative to the sum of magnitudes."""
    part, found = dump.sample(_SIDE), []
    for name in _SCALES if part.scales is not None else _SCALES[:1]:
        products, c, d = _terms(part, name)
        far = _far(products.sum(-1), np.abs(products).sum(-1), c, d)
        found.append(float(np.median(far[np.isfinite(far)])) if np.isfinite(far).any() else np.inf)
    return min(found)


def _far(sums: Array, sizes: Array, c: Array, d: Array) -> NDArray[np.float64]:
    far: NDArray[np.float64] = np.abs(sums + c - d) / np.maximum(sizes + np.abs(c), 1e-300)
    return far


def _terms(
    part: Part, scale_format: str = "e8m0fnu"
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the products of every output, its addend and itself, as float64."""
    a, b = values(part.a, part.fa), values(part.b, part.fb)
    if part.quantized is not None:
        a, b = (q.dequantize().astype(np.float64) for q in part.quantized)
    if part.scales is not None:
        fmt = formats[scale_format]
        a, b = (
            x * np.repeat(decode(s, fmt).astype(np.float64), x.shape[1] // s.shape[1], 1)
            for x, s in zip((a, b), part.scales, strict=True)
        )
    wanted = part.wanted.view(np.float64) if part.out == FLOAT64 else part.wanted
    d = values(wanted, part.out)
    if part.diagonal:
        return a * b, np.zeros(len(d)) if part.c is None else part.c.diagonal().astype(np.float64), d
    c = np.zeros((len(a), len(b))) if part.c is None else part.c.astype(np.float64)
    return a[:, None] * b[None], c, d.reshape(c.shape)


def padded(reading: Reading, deadline: Deadline) -> Iterator[Reading]:
    """Yield readings with zeros before K, or without leading zeros, that an entry of the catalogue explains.

    Leading zeros move the borders of groups, but do not change the exact product.
    """
    dump = reading.dump
    if dump.scaled or dump.fa == FLOAT64:
        return
    leading = min(int(np.argmax(np.append((values(x, f) != 0).any(0), True)))
                  for x, f in ((dump.a, dump.fa), (dump.b, dump.fb)))  # fmt: skip
    counts = dict.fromkeys((-leading, *((-dump.k) % n for n in (32, 64, 128, 256)), *range(1, _PADDED)))
    for count in deadline.limit(n for n in counts if n and n > -dump.k):
        words = f"{abs(count)} zeros {'come before K' if count > 0 else 'at the start of K are not summed'}"
        moved = functools.partial(_moved, count=count)
        a, b, pair = moved(dump.a), moved(dump.b), dump.quantized
        pair = None if pair is None else (replace(pair[0], codes=a), replace(pair[1], codes=b))
        other = replace(dump, a=a, b=b, quantized=pair)
        if explained_by_catalogue(other, deadline):
            yield Reading(other, (*reading.assumed, words), (*reading.changes, _mapped(moved, "a", "b")))


def _moved(x: Array, count: int) -> Array:
    codes = x.view(f"u{x.itemsize}")  # whose types np.pad may not know
    return np.pad(codes, ((0, 0), (count, 0))).view(x.dtype) if count > 0 else np.ascontiguousarray(x[:, -count:])
