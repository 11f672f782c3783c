"""Proven bound on the error of every output of a product, from the exponents of its operands.

A chain is followed block by block: the exact running sum is known in float64, the error so far is bounded, and
`Accumulator.block_error` bounds what the next instructions add. Promotions, scales, splits and the epilogue add one
rounding each to sums that are also known. docs/tolerances.md has the proofs.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._threads import run_chunks
from ..format.catalogue import Format, formats
from ..kernels.tensorcore.bounds.chains import CHAINS, Plan
from ..kernels.tensorcore.bounds.operand import WIDTH, Operand, Scope, prepare
from ..scaling.quantized import Quantized
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.engines.selection import plan_for
from ..tensorcore.gemm import gemm
from ..tensorcore.library import GemmLibrary, sum_halves
from ..tensorcore.operands import (
    instruction_codes,
    interleave_k,
    promotion_interval,
    slice_k,
    strip_row_scales,
    strip_tensor_scales,
    take_k,
)
from .checksum import TINY, U, Values, half_ulp

_WORK = 1 << 22  # multiply-adds that justify a thread
_MAX = formats["float32"].max


class Errors(NamedTuple):
    """Exact sums of float32 values, and bounds on the errors of the computed sums.

    Attributes
    ----------
    exact : float64 array [M, N]
        Sum without rounding.
    most : float64 array [M, N]
        Proven bound on the error; inf where a sum may overflow.
    variance : float64 array [M, N]
        Estimate of the mean square of the error.
    """

    exact: Values
    most: Values
    variance: Values

    def times(self, factor: Values | float) -> Errors:
        """Return the errors of the sums times exact factors."""
        return Errors(self.exact * factor, self.most * np.abs(factor), self.variance * np.square(factor))

    def plus(self, other: Errors) -> Errors:
        """Return the errors of the sum of two results, without its rounding."""
        return Errors(self.exact + other.exact, self.most + other.most, self.variance + other.variance)

    def rounded(self, relative: float, absolute: float = TINY) -> Errors:
        """Return the errors after one rounding with the given relative or absolute error."""
        lost = relative * (np.abs(self.exact) + self.most) + absolute
        return Errors(self.exact, self.most + lost, self.variance + np.square(relative * self.exact) / 3)

    def added(self, other: Errors) -> Errors:
        """Return the errors of the sum of two results, rounded to float32."""
        return self.plus(other).rounded(U)

    def stored(self, target: Format) -> Errors:
        """Return the errors after a rounding to a format; a sum that may overflow has no bound."""
        if target.same_codes(formats["float32"]):
            return self
        found = self.rounded(half_ulp(target), target.smallest_subnormal)
        return found._replace(most=np.where(np.abs(found.exact) + found.most < target.max, found.most, np.inf))


@dataclass(frozen=True, eq=False)
class Product:
    """Product of quantized operands, with the arguments of `gemm`.

    Attributes
    ----------
    a, b : Quantized
        Operands [M, K] and [N, K].
    c : array_like, optional
        Addend [M, N].
    options : dict
        Arguments of `lowprec.gemm`.
    sources : pair of arrays, optional
        Values before quantization, for the fault of an operand that is not quantized.
    """

    a: Quantized
    b: Quantized
    c: ArrayLike | None
    options: dict[str, Any]
    sources: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def result(self, **changes: Any) -> NDArray[np.float32]:
        """Return the emulated result; `changes` are fields of this object or arguments of `gemm`."""
        own = {name: changes.pop(name) for name in ("a", "b", "c") if name in changes}
        p = replace(self, options={**self.options, **changes}, **own)
        return gemm(p.a, p.b, p.c, **p.options)


@dataclass(frozen=True)
class Order:
    """Arguments of `gemm` that determine the bits of a product, without the operands.

    With `any_order`, products that share a scale may be added in any order, and so may the scale blocks within each
    part of split-K.
    """

    accumulator: Accumulator
    library: GemmLibrary
    promote_every: object
    split_k: int
    target: Format
    alpha: float = 1.0
    any_order: bool = False

    def parts(self, k: int) -> list[tuple[int, int]]:
        """Return the ranges of K that are summed separately."""
        is_whole = self.library.split_k_reduction == "tree" and self.target.same_codes(formats["float32"])
        return [(0, k)] if is_whole else self.library.parts(k, self.split_k)

    def common_parts(self, m: int, n: int, k: int) -> list[tuple[int, int]]:
        """Return the ranges of K within which every output [m, n] has one part and one slice."""
        library, found = self.library, self.parts(k)
        if library.stream_k:
            edges = {edge for *_, parts in library.streamed_parts(m, n, k) for part in parts for edge in part}
            found = list(itertools.pairwise(sorted(edges)))
        if library.slices == 1:
            return found
        length = library.slice_length
        return [(i, min(i + length, stop)) for start, stop in found for i in range(start, stop, length)]


@np.errstate(invalid="ignore", over="ignore")
def errors_of(a: Quantized, b: Quantized, order: Order, addend: Values | None = None) -> Errors:
    """Return the exact product of two matrices, and bounds on the errors of a result before its final rounding.

    `addend` is ``beta * C``, in float32.
    """
    rule, library = order.accumulator, order.library
    a, b, factor = strip_tensor_scales(a, b, np.float32(order.alpha))
    way = plan_for(rule, a.format, b.format)
    every = promotion_interval("tolerance", a, b, way, library, order.promote_every)
    if library.k_order == "interleaved":
        a, b = interleave_k(a, way.step), interleave_k(b, way.step)
    by_row = [] if factor.a is None or factor.b is None else [(factor.a, factor.b)]
    before: Values = np.ones((1, 1))  # scales that multiply the sum before alpha
    one_by_one = library.scales_one_by_one and a.granularity.rows is not None and b.granularity.rows is not None
    if library.apply_scales_at == "end" and rule.scale_format is None:
        (a, scale_a), (b, scale_b) = strip_row_scales("a", a, library), strip_row_scales("b", b, library)
        if one_by_one:
            before, scale_b = scale_b[None].astype(np.float64), np.ones_like(scale_b)
        by_row.append((scale_a, scale_b))
    # Alpha is a product of scales: each multiplication may round, underflow or overflow.
    alpha: Values = np.full((1, 1), float(factor.alpha))
    largest, normal, roundings = np.maximum(np.abs(alpha), 1.0), np.ones((1, 1), np.bool_), 0
    for rows in by_row:
        scale = np.multiply.outer(*(x.astype(np.float64) for x in rows))
        roundings += int(not power_of_two(scale).all()) + int(not power_of_two(alpha).all())
        alpha, largest = alpha * scale, largest * np.maximum(np.abs(scale), 1.0)
        normal = normal & _is_normal(scale) & _is_normal(alpha)
    lost = ((1 + U) ** roundings - 1) * np.abs(alpha) + np.where(normal, 0.0, 4 * TINY * largest)
    lost = np.where(largest < _MAX, lost, np.inf)
    finish = functools.partial(_finished, before=before, alpha=alpha, lost=lost)
    alpha = alpha * before
    plus = None if addend is None else Errors(addend, np.zeros_like(addend), np.zeros_like(addend))
    (m, k), n = a.shape, b.shape[0]
    if library.stream_k:
        total = Errors(*np.empty((3, m, n)))
        for down, across, parts in library.streamed_parts(m, n, k):
            tile = functools.reduce(Errors.added, _sums(a[down], b[across], parts, order, every))
            for whole, part in zip(total, tile, strict=True):
                whole[down, across] = part
        found = finish(total, plus)
    else:
        found = _reduced(_sums(a, b, order.parts(k), order, every), order, k, finish, plus)
    if library.round_through != "float32" and order.target.bits >= 16:
        found = found.stored(formats[library.round_through])
    norms = [np.sqrt(np.einsum("ij,ij->i", *[q.dequantize()] * 2, dtype=np.float64)) for q in (a, b)]
    size = np.multiply.outer(*norms)
    most = found.most * (1 + 2.0**-30) + (k + 16) * 2.0**-52 * size * np.abs(alpha)
    below = np.maximum(size, size * np.abs(alpha)) < _MAX / 2
    return found._replace(most=np.where(below & ~np.isnan(most), most, np.inf))  # NaN: an infinite bound times 0


def _reduced(
    sums: Iterator[Errors], order: Order, k: int, finish: Callable[[Errors, Errors | None], Errors],
    addend: Errors | None,
) -> Errors:  # fmt: skip
    """Return the errors of the sum of all parts of K after the epilogue, as `gemm` adds them."""
    library, store = order.library, operator.methodcaller("stored", order.target)
    reduction = library.split_k_reduction if len(order.parts(k)) > 1 else "float32"
    if reduction in ("out", "serial"):
        total = finish(next(sums), addend)
        for part in sums:
            serial = reduction == "serial"
            total = finish(part, store(total)) if serial else store(total).added(store(finish(part, None)))
        return total
    if reduction == "tree":
        total = store(sum_halves(sums, k, library.split_tile, lambda x, y: store(x).added(store(y))))
    else:
        total = functools.reduce(Errors.added, map(store, sums) if reduction == "workspace" else sums)
    return finish(total, addend)


def _finished(total: Errors, addend: Errors | None, *, before: Values, alpha: Values, lost: Values) -> Errors:
    """Return the errors of the epilogue ``fma(alpha, before * T, beta C)``; alpha has an error of up to `lost`."""
    if not (before == 1).all():
        total = total.times(before).rounded(0.0 if power_of_two(before).all() else U)
        total = total._replace(most=np.where(np.abs(total.exact) + total.most < _MAX, total.most, np.inf))
    if addend is None and (alpha == 1).all():
        return total
    found, wrong = total.times(alpha), total.times(lost)
    found = Errors(
        found.exact, found.most + np.abs(wrong.exact) + wrong.most, found.variance + np.square(wrong.exact) / 3
    )  # fmt: skip
    if addend is not None:
        return found.plus(addend).rounded(U)
    return found.rounded(0.0 if power_of_two(alpha).all() else U)


def _is_normal(x: Values) -> NDArray[np.bool_]:
    """Return which numbers are zero or in the range of normal float32 numbers."""
    size, fmt = np.abs(x), formats["float32"]
    found: NDArray[np.bool_] = (size == 0) | (size >= fmt.smallest_normal) & (size <= fmt.max)
    return found


def power_of_two(x: Values) -> NDArray[np.bool_]:
    """Return which numbers are powers of two."""
    found: NDArray[np.bool_] = np.frexp(x)[0] == 0.5
    return found


def _spread(q: Quantized, at: NDArray[np.intp]) -> Values:
    """Return the scales of all rows at the given indices of K."""
    rows, columns = q.granularity.block((q.shape[0], q.shape[1]))
    found: Values = q.scale[np.arange(q.shape[0]) // rows][:, at // columns].astype(np.float64)
    return found


# --- the chains of a part of K ---------------------------------------------------------------------------------------


def _sums(
    a: Quantized, b: Quantized, parts: Sequence[tuple[int, int]], order: Order, every: int | None
) -> Iterator[Errors]:  # fmt: skip
    """Yield the errors of the float32 sum of each part of K: that of its slices' chains, if the library slices K."""
    for start, stop in parts:
        x, y = (q if len(parts) == 1 else slice_k(q, start, stop) for q in (a, b))
        some = order.library.pieces(stop - start)
        pieces = [(x, y)] if len(some) == 1 else [(take_k(x, at), take_k(y, at)) for at in some]
        yield functools.reduce(Errors.added, (_chains(*piece, order, every) for piece in pieces))


def _chains(a: Quantized, b: Quantized, order: Order, every: int | None) -> Errors:
    """Return the errors of the sum of one part of K: its chains, times their scales."""
    rule, library, k = order.accumulator, order.library, a.shape[1]
    alone = every is None and rule.multiplies_values and any((q.scale != 1).any() for q in (a, b))
    inside = rule.scale_format is not None or alone
    span = min(q.granularity.columns or max(k, 1) for q in (a, b))
    edges, first = _blocks(k, every, rule.block_length(), span if every is None else max(k, 1))
    scopes, scaled = np.empty((0, 2), np.int64), False
    if order.any_order:
        scopes, scaled = _scopes(k, every, span, inside)
    x, x_scope = _operand(a, rule, edges, inside, scopes, scaled)
    y, y_scope = _operand(b, rule, edges, inside, scopes, scaled)
    m, n, error, last = a.shape[0], b.shape[0], rule.block_error(), first[1:] - 1
    scales, norms = ([_rows(p, m), _rows(q, n)] for p, q in ((x.scales, y.scales), (x.norms, y.norms)))
    steps = [float(rule.steps(n)) for n in np.diff(edges).tolist()]
    plan = Plan(
        edges, first, np.array(steps), np.array([(1 + error.relative) ** n for n in steps]),
        _are_rescaled(scales, first), np.all([power_of_two(s[:, last]).all(axis=0) for s in scales], axis=0),
        scopes, scaled, 2.0**rule.product_scale_log2, 2.0**-rule.output_bits + 5 * U,
        rule.largest_sum / 2,
        1 if library.fma_promotion else 2, alone,
    )  # fmt: skip
    exact, most, variance = (np.empty((m, n)) for _ in range(3))

    def some_panels(start: int, stop: int) -> None:
        CHAINS[error.form](x, y, x_scope, y_scope, plan, error, exact, most, variance, start, stop)

    run_chunks(some_panels, len(x.values), max(_WORK // max(k * n * WIDTH, 1), 1))
    # Products of scales that underflow lose up to half of the smallest float32 number; ratios of them have no bound.
    ends = [(np.where(s == 0, s.max(axis=1, keepdims=True), s).min(axis=1), s.max(axis=1)) for s in scales]
    lowest, highest = (np.multiply.outer(*pair) for pair in zip(*ends, strict=True))
    size = np.multiply.outer(*(np.sqrt(np.square(part).sum(axis=1)) for part in norms))
    lost = np.inf if plan.rescaled.any() else TINY * plan.factor * (size + most)
    most += np.where(_is_normal(lowest), 0.0, lost)
    if library.scales_one_by_one:  # a chain times A's scale may underflow or overflow
        most += TINY * (len(first) - 1) * ends[1][1]
        most = np.where(2 * plan.factor * size * ends[0][1][:, None] < _MAX, most, np.inf)
    return Errors(exact, np.where(highest <= _MAX, most, np.inf), variance)


def _blocks(k: int, every: int | None, length: int, span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the edges of blocks of at most `length` products with constant scales, and each chain's first block."""
    chain, edges, first = every or max(k, 1), [0], [0]
    for start in range(0, max(k, 1), chain):
        stop = min(start + chain, k)
        while len(edges) == first[-1] + 1 or edges[-1] < stop:  # a chain without products has one empty block
            edges.append(min(edges[-1] + length, stop, (edges[-1] // span + 1) * span))
        first.append(len(edges) - 1)
    return np.array(edges), np.array(first)


def _operand(
    q: Quantized, rule: Accumulator, edges: NDArray[np.int64], inside: bool, scopes: NDArray[np.int64], scaled: bool
) -> tuple[Operand, Scope]:
    """Return an operand for `chains`, and its data for chains whose products are added in any order.

    With `inside`, the values include the scales. Without `scopes`, the data are empty.
    """
    codes, fmt = instruction_codes(np.ascontiguousarray(q.codes), q.format, rule)
    k, blocks, floor = q.shape[1], len(edges) - 1, 0.0
    laid_out = _panels(codes)
    given = rule.values(laid_out.reshape(-1, WIDTH), fmt).reshape(laid_out.shape)
    scale = large = np.ones((1, 1, WIDTH))
    outside = np.ones((len(given), blocks, WIDTH))
    if q.scale.size and inside:
        scale = large = _panels(_spread(q, np.arange(k)))
        if rule.scale_format is not None:
            large = np.where(scale == 0, 0.0, np.maximum(scale, rule.scale_format.smallest_normal))
            floor = formats["float32"].smallest_normal
    elif q.scale.size:
        outside = _panels(_spread(q, edges[:-1]))
    found = Operand(
        np.empty(given.shape), np.empty(given.shape, np.int16), np.empty(outside.shape), np.empty(outside.shape),
        np.empty(outside.shape, np.int16), outside,
    )  # fmt: skip
    powers = np.empty(given.shape if len(scopes) else (1, 1, WIDTH))
    prepare(given, scale, large, fmt.smallest_normal, floor, edges, found, powers)
    if not len(scopes):
        return found, Scope(powers, powers, powers, powers)
    factor = _panels(_spread(q, np.arange(k))) if scaled else 1.0
    values, powers = found.values * factor, powers * factor
    tops = np.stack([powers[:, i:j].max(axis=1, initial=0) for i, j in scopes], axis=1)
    return found, Scope(np.maximum(np.abs(values), powers), values, np.square(values), tops)


def _panels(x: NDArray[Any]) -> NDArray[Any]:
    """Return rows [R, K] in panels [R / WIDTH, K, WIDTH], padded with zeros."""
    found = np.zeros((-(-x.shape[0] // WIDTH), x.shape[1], WIDTH), x.dtype)
    for panel, i in zip(found, range(0, x.shape[0], WIDTH), strict=True):
        part = x[i : i + WIDTH]
        panel[:, : len(part)] = part.T
    return found


def _rows(panels: Values, count: int) -> Values:
    """Return the rows [count, K] of panels."""
    return np.concatenate([panel.T for panel in panels])[:count] if count else np.empty((0, panels.shape[1]))


def _are_rescaled(scales: Sequence[Values], first: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a chain's scales differ between a block and the one before."""
    found = np.zeros(scales[0].shape[1], np.bool_)
    for x in scales:
        found[1:] |= (x[:, 1:] != x[:, :-1]).any(axis=0)
    found[first[:-1]] = False
    return found


def _scopes(k: int, every: int | None, span: int, inside: bool) -> tuple[NDArray[np.int64], bool]:
    """Return the range of K from which the products of each chain may come, and whether scales within it differ."""
    length = every or max(k, 1)
    starts = np.arange(0, max(k, 1), length)
    if span >= k or length > span:
        return np.tile(np.array([0, k]), (len(starts), 1)), span < k and not inside
    stops = np.minimum(starts + length, k)
    return np.stack([starts // span * span, np.minimum(-(-stops // span) * span, k)], axis=1), False
