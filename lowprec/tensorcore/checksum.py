"""Checksums of matrix products (ABFT) with a bound that rounding cannot trip, whatever the accumulator.

The sum of a column of ``D = A @ B.T`` is (sum of A's rows) times a row of B, so that a product can be checked for the
price of two more rows (Huang and Abraham, IEEE Transactions on Computers 33, 1984). D is rounded and the checksum is
not, so both differ without any fault; `Accumulator.step_error` bounds the difference for one instruction.

With m_k the magnitude of the k-th product, an instruction errs by no more than ``r S + z``, S being the sum of the
magnitudes of its products and of C. A chain of n instructions, the t-th of which sees the k-th product first, errs by
``(1 + r)^n (sum of r (n - t(k)) m_k + n z)``: C is what came before, and its own error besides. Promotions, scales and
the last rounding add theirs in the same way. So the bound of a column is one product of vectors, as the checksum is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import check_product, check_shape, real_numbers, whole
from .._ieee import standard
from ..format.catalogue import Format, formats
from ..scaling.quantize import Quantized
from .accumulator import FLOAT64, Accumulator
from .catalogue import accumulators
from .engines.chain import sequential_f64
from .engines.selection import way_for
from .library import GemmLibrary, gemm_libraries
from .operands import as_multiplied, check_quantized, interval, without_tensor_scales

Values = NDArray[np.float64]
#: Half a unit in the last place of float32, relative; and the spacing of its subnormals.
U, TINY = 2.0**-24, 2.0**-149
FLOAT64_MAX = 2.0**1023
#: More rows are not summed in one.
MOST_ROWS = 1 << 20


class Side(NamedTuple):
    """An operand [R, K] as it is multiplied, or the sum of some of its rows.

    Attributes
    ----------
    values : float64 array [R, K]
        Exactly, with scales.
    sizes : float64 array [R, K]
        Magnitudes by which terms are aligned: those of subnormals count as the smallest normal number's.
    scales : float64 array [R, K]
        By which the results of chains are multiplied.
    longest : float64 array [R]
        Norm of the row that a chain multiplies, of sums the largest.
    """

    values: Values
    sizes: Values
    scales: Values
    longest: Values

    def sum(self, first: int, stop: int) -> Side:
        """Return the sum of some rows, as one row."""
        values, sizes, scales = (part[first:stop].sum(axis=0, keepdims=True) for part in self[:3])
        return Side(values, sizes, scales, self.longest[first:stop].max(keepdims=True))

    def times(self, scale: NDArray[np.float32]) -> Side:
        """Return the operand with scales of its rows on top, by which the results of whole chains are multiplied."""
        each = scale.astype(np.float64)[:, None]
        return Side(self.values * each, self.sizes * each, self.scales * each, self.longest)


@dataclass(frozen=True, eq=False)
class Checksum:
    """Sums of a product's columns and rows beside what they must be.

    Attributes
    ----------
    column_error, column_bound : float64 arrays [tiles of M, N]
        How far the sum of a column within a tile is off, and how far rounding can take it.
    row_error, row_bound : float64 arrays [M, tiles of N]
        The same of rows.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> a, b = (lp.quantize(rng.standard_normal((64, 256), np.float32), "e4m3fn 1x128") for _ in range(2))
    >>> d = lp.gemm(a, b)
    >>> lp.checksum(d, a, b).tripped
    False
    >>> d[3, 5] += 1000
    >>> lp.checksum(d, a, b).suspects()
    [(3, 5)]
    """

    column_error: Values
    column_bound: Values
    row_error: Values
    row_bound: Values
    tile: int

    @property
    def _pairs(self) -> tuple[tuple[Values, Values], ...]:
        return (self.column_error, self.column_bound), (self.row_error, self.row_bound)

    @property
    def tripped(self) -> bool:
        """Whether any sum is off by more than rounding explains."""
        return any(bool(_beyond(*pair).any()) for pair in self._pairs)

    @property
    def worst(self) -> float:
        """The largest error over its bound; above 1 the checksum trips."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = [np.abs(error) / bound for error, bound in self._pairs]
        seen = [float(np.max(ratio[~np.isnan(ratio)], initial=0.0)) for ratio in ratios]
        return max(seen)

    def suspects(self) -> list[tuple[int, int]]:
        """Return the places (row, column) where a column and a row that are off cross."""
        columns, rows = _beyond(self.column_error, self.column_bound), _beyond(self.row_error, self.row_bound)
        return [
            (int(i), int(j))
            for i, part in np.argwhere(rows)
            for j in np.flatnonzero(columns[i // self.tile])
            if j // self.tile == part
        ]


@standard
def checksum(
    d: ArrayLike,
    a: Quantized,
    b: Quantized,
    *,
    accumulator: str | Accumulator = "hopper_fp8",
    promote_every: int | Literal["auto"] | None = "auto",
    out_format: str | Format = "float32",
    library: str | GemmLibrary = "deepgemm",
    tile: int = 128,
) -> Checksum:
    """Check a product of `lowprec.gemm`, without C, by the sums of its columns and rows within tiles.

    Parameters
    ----------
    d : array_like, shape (M, N)
        What `gemm` returned, or what became of it.
    a, b : Quantized, shapes (M, K) and (N, K)
        The operands as they were before anything happened to them.
    accumulator, promote_every, out_format, library
        As `gemm` was given them: they decide how much rounding can explain.
    tile : int
        Rows, and columns, of one sum; the shorter, the smaller the faults that show, and the more sums.

    Returns
    -------
    Checksum
        Where what is not finite must be finite, it counts as off; a sum that could overflow is not judged.

    Raises
    ------
    ValueError
        If shapes do not fit together.
    TypeError
        If an operand is not `Quantized`.
    """
    accumulator, library, target = accumulators.get(accumulator), gemm_libraries.get(library), formats.get(out_format)
    if not library.fused or library.split_k > 1:
        raise ValueError(
            f"checksum: {library} rounds more often than the bounds know: fused=True, split_k=1 are needed"
        )
    check_quantized("a", a, accumulator)
    check_quantized("b", b, accumulator)
    check_product("checksum", a.shape, b.shape)
    result = real_numbers("checksum: d", d).astype(np.float64, order="C")  # the order in which NumPy sums
    check_shape("checksum", "d", result, (a.shape[0], b.shape[0]))
    a, b, factor = without_tensor_scales(a, b, np.float32(2.0**accumulator.product_exponent))
    every = interval("checksum", a, b, way_for(accumulator, a.format, b.format), library, promote_every)
    values_alone = every is None and accumulator.multiplies_values
    left, right = (side(q, accumulator, values_alone) for q in (a, b))
    spans = [min(q.granularity.block((q.shape[0], q.shape[1]))[1], max(a.shape[1], 1)) for q in (a, b)]
    if factor.a is not None and factor.b is not None:
        left, right = left.times(factor.a), right.times(factor.b)
    bound = Bound.of(accumulator, a.shape[1], every, min(spans), target, float(factor.alpha))
    tile = whole("checksum", "tile", tile, 1, MOST_ROWS)
    by_column, by_row = [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, a.shape[0], tile):
            sums = result[first : first + tile].sum(axis=0)[None]
            by_column.append(compared(sums, left.sum(first, first + tile), right, bound, tile))
        for first in range(0, b.shape[0], tile):
            sums = result[:, first : first + tile].sum(axis=1)[:, None]
            by_row.append(compared(sums, left, right.sum(first, first + tile), bound, tile))
    # With what is empty before, as a product without rows has no tiles of them.
    none = np.empty((0, b.shape[0])), np.empty((a.shape[0], 0))
    column_error, column_bound = (np.concatenate([none[0], *(pair[i] for pair in by_column)]) for i in (0, 1))
    row_error, row_bound = (np.concatenate([none[1], *(pair[i] for pair in by_row)], axis=1) for i in (0, 1))
    return Checksum(column_error, column_bound, row_error, row_bound, tile)


def _beyond(error: Values, bound: Values) -> NDArray[np.bool_]:
    """Tell where an error is larger than its bound, or no number though the bound is one."""
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = np.isfinite(bound) & ~(np.abs(error) <= bound)
    return found


# --- the bound -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bound:
    """How much rounding can move an element of a product.

    Attributes
    ----------
    weights : float64 array [K]
        Of each product's magnitude.
    steps : float64 array [K]
        Of each product's scales: what chains err absolutely.
    rest : float
        What an element errs absolutely, beside.
    highest, highest_result : float
        From where on a chain, or a result, could overflow: then nothing is judged.
    factor : float
        Scales of whole tensors.
    """

    weights: Values
    steps: Values
    rest: float
    highest: float
    highest_result: float
    factor: float

    @classmethod
    def of(
        cls, accumulator: Accumulator, k: int, every: int | None, span: int, target: Format, factor: float = 1.0
    ) -> Bound:
        """Return that of products of length k, promoted or not, with scales that change every `span`."""
        rule, at, error = accumulator, np.arange(k), accumulator.step_error()
        length = max(k, 1) if every is None else every
        n = rule.steps(min(length, k))
        chains = -(-max(k, 1) // length)
        # Scales that change within a chain: its sum is multiplied by their ratio and cut.
        blocks = -(-max(k, 1) // span) if every is None and accumulator.scale_format is None else 1
        again = 2.0**-accumulator.output_bits + 5 * U if blocks > 1 else 0.0
        growth = (1 + error.relative) ** n * (1 + U) ** (chains + 8) * (1 + again) ** blocks
        after = np.maximum(n - at % length // rule.step(), 1)
        # Beside chains: promotions, products of scales, scales of tensors, values that were dequantized first.
        weights = error.relative * after + U * (chains - at // length + 8) + again * (blocks - 1 - at // span)
        float32 = formats["float32"]
        half = 0.0 if target.same_codes(float32) else 2.0 ** -(target.mantissa_bits + 1)
        weights = growth * weights * (1 + half) + half
        part = span if blocks > 1 else length
        shared = np.minimum(part, k - at // part * part)
        chain = FLOAT64_MAX if accumulator.output_format == FLOAT64 else accumulator.stored_format.max
        return cls(
            weights + (k + MOST_ROWS) * 2.0**-52,  # the checksum itself, in float64
            growth * (1 + half) * (n * error.absolute + 2 * TINY) / shared,
            4 * (chains + 1) * TINY + (target.smallest_subnormal if half else 0.0),
            chain / 2,
            min(target.max, float32.max) / 2,
            factor,
        )


def compared(sums: Values, a: Side, b: Side, bound: Bound, count: int) -> tuple[Values, Values]:
    """Return by how much sums of `count` results are off what the operands say, and how much they may be.

    Parameters
    ----------
    sums : float64 array [R, S]
        Sums of results.
    a, b : Side
        [R, K] and [S, K]; one of them is the sum of `count` rows.
    bound : Bound
        Of one result.
    count : int
        How many results a sum is of.
    """
    off = sums - bound.factor * _product(a.values, b.values)
    size = _product(a.sizes, b.sizes) * bound.factor
    allowed = _product(a.sizes * bound.weights, b.sizes) + _product(a.scales * bound.steps, b.scales)
    longest = a.longest[:, None] * b.longest
    allowed = allowed * bound.factor + count * (bound.rest + TINY * longest)
    judged = (size < bound.highest_result) & (longest < bound.highest)
    return off, np.where(judged, allowed, np.inf)


def _product(a: Values, b: Values) -> Values:
    """Return ``A @ B.T`` in float64, in one fixed order."""
    with np.errstate(over="ignore", invalid="ignore"):
        return sequential_f64(np.ascontiguousarray(a), np.ascontiguousarray(b), np.zeros((len(a), len(b))))


def side(q: Quantized, accumulator: Accumulator, values_alone: bool = False) -> Side:
    """Return an operand with its scales; `values_alone` where it is dequantized before it is multiplied."""
    codes, fmt = as_multiplied(np.ascontiguousarray(q.codes), q.format, accumulator)
    values = accumulator.values(codes, fmt).astype(np.float64)
    sizes = np.where(values == 0, 0.0, np.maximum(np.abs(values), fmt.smallest_normal))
    rows, columns = q.granularity.block((q.shape[0], q.shape[1]))
    scale = q.scale.astype(np.float64) if q.scale.size else np.ones((1, 1))
    spread = np.repeat(np.repeat(scale, rows, axis=0)[: q.shape[0]], columns, axis=1)[:, : q.shape[1]]
    large, outside = spread, spread
    if accumulator.scale_format is not None:
        large = np.where(spread == 0, 0.0, np.maximum(spread, accumulator.scale_format.smallest_normal))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = sizes * large
        if accumulator.scale_format is not None or values_alone:
            scaled = np.where(scaled == 0, 0.0, np.maximum(scaled, formats["float32"].smallest_normal))
            outside, sizes = np.ones_like(spread), scaled
        return Side(values * spread, scaled, outside, np.sqrt(np.square(sizes).sum(axis=1)))
