"""The proven bound of every output of a product, from the exponents of its own operands.

A chain is followed block by block: the exact running sum is known in float64, the error so far is bounded, and
`Accumulator.block_error` bounds what the next instructions add. Promotions, scales, splits and the epilogue add one
rounding each to sums that are known as well. docs/tolerances.md has the proofs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..format.catalogue import Format, formats
from ..kernels.tensorcore.reference.exact import sequential64
from ..scaling.granularity import Granularity
from ..scaling.quantized import Quantized
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.block import Added, Block
from ..tensorcore.engines.selection import plan_for
from ..tensorcore.gemm import gemm
from ..tensorcore.library import GemmLibrary
from ..tensorcore.operands import interleave_k, promotion_interval, slice_k, strip_tensor_scales
from .checksum import TINY, U, Values, side

_ROWS = 1 << 16  # outputs per tile: its arrays stay in the cache
_SPLIT_TILE = 128
_NO_BITS = np.int16(8000)  # exponent of the lowest bit of a zero: no sum of two is below a unit


class Errors(NamedTuple):
    """Exact values of sums of float32 numbers, and bounds on the errors of the computed ones.

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
        """Return the product with exact factors."""
        return Errors(self.exact * factor, self.most * np.abs(factor), self.variance * np.square(factor))

    def plus(self, other: Errors) -> Errors:
        """Return the sum, not rounded."""
        return Errors(self.exact + other.exact, self.most + other.most, self.variance + other.variance)

    def rounded(self, relative: float, absolute: float = TINY) -> Errors:
        """Return the sum after one rounding of the given relative or absolute error."""
        lost = relative * (np.abs(self.exact) + self.most) + absolute
        return Errors(self.exact, self.most + lost, self.variance + np.square(relative * self.exact) / 3)


@dataclass(frozen=True, eq=False)
class Product:
    """A product of quantized operands, with the arguments of `gemm`.

    Attributes
    ----------
    a, b : Quantized
        Operands [M, K] and [N, K].
    c : array_like, optional
        Addend [M, N].
    options : dict
        Arguments of `lowprec.gemm`.
    sources : pair of arrays, optional
        Values before quantization, for the fault that forgets it.
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
    """An arithmetic: the arguments of `gemm` that determine the bits, without the operands.

    With `any_order`, products may be added in any order within a scale, scales in any order within a split.
    """

    accumulator: Accumulator
    library: GemmLibrary
    promote_every: object
    split_k: int
    target: Format
    alpha: float = 1.0
    any_order: bool = False

    def part(self, k: int) -> int:
        """Return the length in K of a split."""
        tiles = -(-k // _SPLIT_TILE)
        return max(-(-tiles // self.split_k), 1) * _SPLIT_TILE


class Operand(NamedTuple):
    """An operand [R, K] of chains: exact values, magnitudes that the alignment reads, and lowest bits.

    Attributes
    ----------
    values : float64 array [R, K]
    powers : float64 array [R, K]
        Powers of two, with the exponents that the alignment reads; 0 for 0.
    bits : int16 array [R, K]
        Exponents of the lowest bits of the values.
    """

    values: Values
    powers: Values
    bits: NDArray[np.int16]

    @classmethod
    def of(cls, q: Quantized, accumulator: Accumulator, with_scales: bool) -> Operand:
        """Return an operand with or without its scales."""
        if not with_scales:
            q = replace(q, scale=np.ones((1, 1), np.float32), granularity=Granularity(None, None))
        found = side(q, accumulator)
        mantissa, high = np.frexp(np.nan_to_num(found.values, posinf=0.0, neginf=0.0))
        whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
        low = np.frexp((whole & -whole).astype(np.float64))[1] - 1
        bits = np.where(whole == 0, _NO_BITS, high - 53 + low).astype(np.int16)
        sizes = np.nan_to_num(found.sizes, posinf=0.0)
        return cls(found.values, np.where(sizes > 0, np.exp2(np.frexp(sizes)[1] - 1.0), 0.0), bits)

    def rows(self, some: slice) -> Operand:
        """Return some rows."""
        return Operand(self.values[some], self.powers[some], self.bits[some])


def errors_of(a: Quantized, b: Quantized, order: Order, addend: Values | None = None) -> Errors:
    """Return the exact product of two matrices, and how far a result of an arithmetic may be from it before its format.

    `addend` is ``beta * C``, in float32.
    """
    rule, library = order.accumulator, order.library
    if not library.has_usual_parts:
        raise ValueError(
            "tolerance: library must add parts of whole tiles of 128 in float32 or in the result's format, for which "
            f"there are bounds, got {library}"
        )
    a, b, factor = strip_tensor_scales(a, b, np.float32(order.alpha))
    way = plan_for(rule, a.format, b.format)
    every = promotion_interval("tolerance", a, b, way, library, order.promote_every)
    if library.k_order == "interleaved":
        a, b = interleave_k(a, way.step), interleave_k(b, way.step)
    k = a.shape[1]
    step = order.part(k)
    alpha: Values = np.full((1, 1), float(factor.alpha))
    if factor.a is not None and factor.b is not None:
        alpha = float(factor.alpha) * factor.a.astype(np.float64)[:, None] * factor.b.astype(np.float64)
    by_out, total = library.split_k_reduction == "out" and step < k, None
    half = _half_ulp(order.target)
    for start in range(0, max(k, 1), step):
        parts = [slice_k(q, start, min(start + step, k)) for q in (a, b)]
        part = _chains(parts[0], parts[1], order, every)
        if by_out:
            part = _finished(part, alpha, addend if start == 0 else None).rounded(half, order.target.smallest_subnormal)
        total = part if total is None else total.plus(part).rounded(U)
        if by_out and 0 < start < k - step:
            total = total.rounded(half, order.target.smallest_subnormal)
    assert total is not None
    found = total if by_out else _finished(total, alpha, addend)
    norms = [np.sqrt(np.square(_scaled(q)).sum(axis=1)) for q in (a, b)]
    with np.errstate(invalid="ignore", over="ignore"):
        slack = (k + 16) * 2.0**-52 * np.multiply.outer(*norms) * np.abs(alpha)
        return found._replace(most=found.most * (1 + 2.0**-30) + slack)


def _half_ulp(target: Format) -> float:
    return 0.0 if target.same_codes(formats["float32"]) else 2.0 ** -(target.mantissa_bits + 1)


def _finished(total: Errors, alpha: Values, addend: Values | None) -> Errors:
    """Return the result of the epilogue: ``fma(alpha, T, beta C)``; alpha itself has up to three roundings."""
    if addend is None and (alpha == 1).all():
        return total
    exact = (power_of_two(alpha)).all()
    found = total.times(alpha)
    if not exact:
        found = found.rounded(4 * U)
    if addend is not None:
        found = found.plus(Errors(addend, np.zeros_like(addend), np.zeros_like(addend)))
    return found.rounded(U)


def power_of_two(x: Values) -> NDArray[np.bool_]:
    """Return whether numbers are powers of two."""
    found: NDArray[np.bool_] = np.frexp(x)[0] == 0.5
    return found


def _spread(q: Quantized, at: int | NDArray[np.intp]) -> Values:
    """Return the scale of every row at an index of K, or at several."""
    rows, columns = q.granularity.block((q.shape[0], q.shape[1]))
    found: Values = q.scale[np.arange(q.shape[0]) // rows][:, np.asarray(at) // columns].astype(np.float64)
    return found


def _scaled(q: Quantized) -> Values:
    return replace(q, tensor_scale=None).dequantize().astype(np.float64)


def _chains(a: Quantized, b: Quantized, order: Order, every: int | None) -> Errors:
    """Return the sum of the chains of one part of K, tile by tile of rows."""
    rule, (m, k) = order.accumulator, a.shape
    alone = every is None and rule.multiplies_values
    inside = rule.scale_format is not None or alone
    left, right = (Operand.of(q, rule, inside) for q in (a, b))
    step = max(_ROWS // max(b.shape[0], 1), 1)
    found = [
        _Tile(left.rows(slice(i, i + step)), right, a[i : i + step], b, order, every, inside, alone).sum(k)
        for i in range(0, m, step)
    ]
    return Errors(*(np.concatenate([part[i] for part in found]) for i in range(3)))


@dataclass(frozen=True, eq=False)
class _Tile:
    """Some rows of a product."""

    left: Operand
    right: Operand
    a: Quantized
    b: Quantized
    order: Order
    every: int | None
    inside: bool
    alone: bool

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.left.values), len(self.right.values)

    def scale(self, at: int) -> Values:
        """Return the scale of a chain for every output."""
        if self.inside:
            return np.ones((1, 1))
        return np.multiply.outer(_spread(self.a, at), _spread(self.b, at))

    def sum(self, k: int) -> Errors:
        """Return the sum of the chains with their scales."""
        rule, zero, sizes = self.order.accumulator, np.zeros(self.shape), np.zeros(self.shape)
        length, total = self.every or max(k, 1), Errors(zero, zero, zero)
        at_end = self.order.library.apply_scales_at == "end"
        for start in range(0, max(k, 1), length):
            chain, scale = self.chain(start, min(start + length, k))
            chain = chain.times(2.0**rule.product_scale_log2)
            exact = bool(power_of_two(scale).all())
            chain = chain.times(scale)
            if not exact:
                chain = chain.rounded(U)
                if not self.order.library.fma_promotion or at_end:
                    chain = chain.rounded(U)
            sizes += np.abs(chain.exact) + chain.most
            total = chain if start == 0 and exact else total.plus(chain).rounded(U)
        if k > length:  # in another order, the partial sums of chains are larger
            more = -(-k // length) * (U * (sizes + np.abs(total.exact)) / 2 + TINY)
            total = total._replace(most=total.most + more)
        return total

    def chain(self, start: int, stop: int) -> tuple[Errors, Values]:
        """Return a chain over a range of K, and the scale of its result."""
        rule, scale = self.order.accumulator, self.scale(start)
        exact, most, variance = np.zeros(self.shape), np.zeros(self.shape), np.zeros(self.shape)
        highest = rule.stored_format.max / 2 if hasattr(rule.stored_format, "max") else np.inf
        span = min((q.granularity.columns or stop) for q in (self.a, self.b))
        peak = np.zeros(self.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            for at, end in _blocks(start, stop, rule.block_length(), span if self.every is None else stop):
                now = self.scale(at)
                if now is not scale and not (now == scale).all():
                    ratio = scale / now
                    again = 2.0**-rule.output_bits + 5 * U
                    exact, most = exact * ratio, most * ratio
                    sums = np.abs(exact)
                    if self.order.any_order:
                        _, size, total, _ = self.ranges(0, len(self.left.values[0]), True)
                        sums = (size + total) / (2 * now)
                    most = most + again * (sums + most)
                    variance = variance * np.square(ratio) + np.square(again * exact) / 3
                    scale = now
                after, block = self.block(at, end, exact, most)
                added = rule.block_error(block)
                if self.order.any_order:
                    added = self.in_any_order(block, self.scope(start, stop, span), most, scale)
                if self.alone:  # the values were rounded to float32 with their scales
                    most = most + 2.01 * U * block.size + 2 * TINY * (end - at) * (1 + block.size)
                exact, most, variance = after, most + added.most, variance + added.variance
                np.maximum(peak, block.inside + most, out=peak)
            most = np.where(peak < highest, most, np.inf)
        return Errors(exact, most, variance), scale

    def block(self, at: int, end: int, exact: Values, most: Values) -> tuple[Values, Block]:
        """Return the exact sum after some products, and their magnitudes."""
        rule, some = self.order.accumulator, slice(at, end)
        x, y = self.left.values[:, some], self.right.values[:, some]
        after = exact.copy()
        sequential64(np.ascontiguousarray(x), np.ascontiguousarray(y.T), after, 0, len(after))  # in one fixed order
        p, q = self.left.powers[:, some], self.right.powers[:, some]
        largest = np.multiply.outer(p.max(axis=1, initial=0), q.max(axis=1, initial=0))
        # A product is less than four times its powers; Cauchy and Schwarz bound the sum of magnitudes.
        norms = (np.sqrt(np.square(np.maximum(np.abs(v), w)).sum(axis=1)) for v, w in ((x, p), (y, q)))
        size = np.multiply.outer(*norms)
        before, beyond = np.abs(exact), np.abs(after)
        steps = rule.steps(end - at)
        inside = before if steps == 1 else (before + beyond + size) / 2
        below = _counter(self.left.bits[:, some], self.right.bits[:, some])
        return after, Block(steps, end - at, before + most, beyond + most, inside + most, largest, size, below)

    def scope(self, start: int, stop: int, span: int) -> tuple[int, int, bool]:
        """Return the range of K from which the products of a chain may come, and whether its scales differ."""
        k = self.left.values.shape[1]
        if span >= k:
            return 0, k, False
        if stop - start > span:
            return 0, k, not self.inside
        return start // span * span, min(-(-stop // span) * span, k), False

    def in_any_order(self, block: Block, scope: tuple[int, int, bool], most: Values, scale: Values) -> Added:
        """Return the error that a block adds if its chain takes the products of a scope in any order.

        A partial sum is at most (sum of magnitudes + |sum|) / 2. Its mean square over all orders is S^2 / 3 + Q / 6, Q
        being the sum of the squares of the products.
        """
        largest, size, sums, typical = (x / scale if scope[2] else x for x in self.ranges(*scope))
        highest = (size + sums) / 2 + most
        rule = self.order.accumulator
        common = block._replace(largest=largest)
        added = rule.block_error(common._replace(before=highest, after=highest, inside=highest))
        usual = rule.block_error(block._replace(before=typical, after=typical, inside=typical))
        return Added(added.most, usual.variance)

    @functools.cache  # noqa: B019  # a tile lives as long as one call
    def ranges(self, start: int, stop: int, scaled: bool) -> tuple[Values, Values, Values, Values]:
        """Return, for a range of K, the largest product, the sum of magnitudes, |sum|, and the rms of a partial sum."""
        some, sides, tops = slice(start, stop), [], []
        for operand, q in ((self.left, self.a), (self.right, self.b)):
            values, powers = operand.values[:, some], operand.powers[:, some]
            if scaled:
                values, powers = (x * _spread(q, np.arange(start, stop)) for x in (values, powers))
            tops.append(powers.max(axis=1, initial=0))
            sides.append((np.maximum(np.abs(values), powers), values, np.square(values)))
        size, sums, squares = (np.zeros(self.shape) for _ in range(3))
        for x, y, out in zip(*sides, (size, sums, squares), strict=True):
            sequential64(np.ascontiguousarray(x), np.ascontiguousarray(y.T), out, 0, len(out))
        return np.multiply.outer(*tops), size, np.abs(sums), np.sqrt(np.square(sums) / 3 + squares / 6)


def _blocks(start: int, stop: int, length: int, span: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most `length` products with constant scales."""
    at = start
    while at < stop:
        end = min(at + length, stop, (at // span + 1) * span)
        yield at, end
        at = end


def _counter(x: NDArray[np.int16], y: NDArray[np.int16]) -> Callable[[NDArray[np.int16]], Values]:
    """Return a function that counts, for each output, the products with bits below a given power of two."""

    def count(unit: NDArray[np.int16]) -> Values:
        found = np.zeros(unit.shape)
        if (np.add.outer(x.min(axis=1), y.min(axis=1)) >= unit).all():  # no loss, as most wide accumulators of FP8
            return found
        lowest, flag = np.empty(unit.shape, np.int16), np.empty(unit.shape, np.bool_)
        some = np.zeros(unit.shape, np.uint8)
        rows = np.ascontiguousarray(y.T)
        for k in range(x.shape[1]):
            np.add(x[:, k, None], rows[k], out=lowest)
            np.less(lowest, unit, out=flag)
            np.add(some, flag.view(np.uint8), out=some)
            if k % 255 == 254:
                found += some
                some[...] = 0
        found += some
        return found

    return count
