"""Checksums of matrix products (ABFT) with a bound that rounding cannot exceed, for every accumulator.

The column sums of ``D = A @ B.T`` are the sum of A's rows times B, so two additional rows are enough to check a
product (Huang and Abraham, IEEE Transactions on Computers 33, 1984). D is rounded and the checksum is not, so the two
differ even without a fault; `Accumulator.step_error` bounds the difference for one instruction.

With m_k the magnitude of the k-th product, and r and z the relative and absolute error of a step, the error of an
instruction is at most ``r S + z``, where S is the sum of the magnitudes of its products and of C. A chain of n
instructions that takes the k-th product in its t(k)-th instruction has an error of at most
``(1 + r)^n (sum of r (n - t(k)) m_k + n z)``, because C is the previous result with its error. Promotions, scales and
the final rounding add their errors in the same way. The bound of a column is therefore one product of vectors, as is
the checksum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_real, check_matmul, check_shape
from .._checks import check_int
from .._fpenv import with_default_fpenv
from ..format.catalogue import Format, formats
from ..scaling.quantize import Quantized
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.catalogue import accumulators
from ..tensorcore.engines.chain import sequential_f64
from ..tensorcore.engines.selection import plan_for
from ..tensorcore.library import GemmLibrary, gemm_libraries
from ..tensorcore.operands import check_quantized, instruction_codes, promotion_interval, strip_tensor_scales

Values = NDArray[np.float64]
#: Half an ulp of float32, relative; and the spacing of its subnormals.
U, TINY = 2.0**-24, 2.0**-149
#: Largest number of rows in one sum.
MOST_ROWS = 1 << 20


def half_ulp(target: Format) -> float:
    """Return half an ulp of 1 in a format: the largest relative error of a rounding."""
    return 2.0 ** -(target.mantissa_bits + 1)


class Side(NamedTuple):
    """An operand [R, K] of the checked product, or the sum of some of its rows.

    Attributes
    ----------
    values : float64 array [R, K]
        Values with scales, exact.
    sizes : float64 array [R, K]
        Magnitudes that determine the alignment, in which a subnormal counts as the smallest normal number.
    scales : float64 array [R, K]
        Scales that are applied to the results of chains; 1 for scales that the instruction applies.
    longest : float64 array [R]
        Euclidean norm of the row's magnitudes as chains add them, without the `scales` that are applied to their
        results; for a sum of rows, the largest norm.
    """

    values: Values
    sizes: Values
    scales: Values
    longest: Values

    def sum(self, first: int, stop: int) -> Side:
        """Return the sum of a range of rows, as one row."""
        values, sizes, scales = (part[first:stop].sum(axis=0, keepdims=True) for part in self[:3])
        return Side(values, sizes, scales, self.longest[first:stop].max(keepdims=True))

    def times(self, scale: NDArray[np.float32]) -> Side:
        """Return the operand with an additional scale per row, which multiplies the results of whole chains."""
        each = scale.astype(np.float64)[:, None]
        return Side(self.values * each, self.sizes * each, self.scales * each, self.longest)


@dataclass(frozen=True, eq=False)
class Checksum:
    """Deviations of a product's column and row sums from the expected ones, with bounds.

    Attributes
    ----------
    column_error, column_bound : float64 arrays [tiles of M, N]
        Error of the sum of a column within a tile, and the largest magnitude that rounding can cause.
    row_error, row_bound : float64 arrays [M, tiles of N]
        Error of the sum of a row within a tile, and the largest magnitude that rounding can cause.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> a, b = (lp.quantize(rng.standard_normal((64, 256), np.float32), "e4m3fn 1x128") for _ in range(2))
    >>> d = lp.gemm(a, b)
    >>> lp.checksum(d, a, b).failed
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
    def failed(self) -> bool:
        """Whether any sum deviates by more than rounding can explain."""
        return any(bool(_beyond(*pair).any()) for pair in self._pairs)

    @property
    def max_error_ratio(self) -> float:
        """Largest ratio of an error to its bound; above 1 the check has failed."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = [np.abs(error) / bound for error, bound in self._pairs]
        seen = [float(np.max(ratio[~np.isnan(ratio)], initial=0.0)) for ratio in ratios]
        return max(seen)

    def suspects(self) -> list[tuple[int, int]]:
        """Return the positions (row, column) where a deviating column and a deviating row intersect."""
        columns, rows = _beyond(self.column_error, self.column_bound), _beyond(self.row_error, self.row_bound)
        return [
            (int(i), int(j))
            for i, part in np.argwhere(rows)
            for j in np.flatnonzero(columns[i // self.tile])
            if j // self.tile == part
        ]


@with_default_fpenv
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
    """Check a product of `lowprec.gemm` without C by the sums of its columns and rows within tiles.

    Parameters
    ----------
    d : array_like, shape (M, N)
        Product to check: the result of `gemm`, possibly corrupted since.
    a, b : Quantized, shapes (M, K) and (N, K)
        Operands of the product, uncorrupted.
    accumulator, promote_every, out_format, library
        Arguments of `gemm`: they determine the error that rounding can cause.
    tile : int
        Number of rows, or columns, per sum; smaller tiles detect smaller faults and need more sums.

    Returns
    -------
    Checksum
        Errors and bounds. A sum that is not finite but should be counts as deviating; sums that could overflow are not
        checked.

    Raises
    ------
    ValueError
        If shapes do not match.
    TypeError
        If an operand is not `Quantized`.
    """
    accumulator, library, target = accumulators.get(accumulator), gemm_libraries.get(library), formats.get(out_format)
    if not library.fma_promotion or library.split_k > 1 or not library.has_usual_parts:
        raise ValueError(
            "checksum: library must have fma_promotion=True, split_k=1, split_k_reduction='float32' or 'out', "
            "split_tile=128, slices=1, slice_length=32, no stream_k and round_through='float32', for which there are "
            f"bounds, got {library!r}"
        )
    check_quantized("a", a, accumulator)
    check_quantized("b", b, accumulator)
    check_matmul("checksum", a.shape, b.shape)
    result = as_real("checksum: d", d).astype(np.float64, order="C")  # C order fixes NumPy's order of summation
    check_shape("checksum", "d", result, (a.shape[0], b.shape[0]))
    a, b, factor = strip_tensor_scales(a, b, np.float32(2.0**accumulator.product_scale_log2))
    every = promotion_interval("checksum", a, b, plan_for(accumulator, a.format, b.format), library, promote_every)
    values_alone = every is None and accumulator.multiplies_values
    left, right = (side(q, accumulator, values_alone) for q in (a, b))
    spans = [min(q.granularity.block((q.shape[0], q.shape[1]))[1], max(a.shape[1], 1)) for q in (a, b)]
    if factor.a is not None and factor.b is not None:
        left, right = left.times(factor.a), right.times(factor.b)
    bound = Bound.of(accumulator, a.shape[1], every, min(spans), target, float(factor.alpha))
    if library.scales_one_by_one:  # a product with one of the scales may underflow or overflow
        most, chains = max(float(q.scale.max(initial=1)) for q in (a, b)), -(-a.shape[1] // (every or a.shape[1] or 1))
        bound = replace(bound, rest=bound.rest + 2 * chains * TINY * most * bound.factor, highest=bound.highest / most)
    tile = check_int("checksum", "tile", tile, 1, MOST_ROWS)
    by_column, by_row = [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, a.shape[0], tile):
            sums = result[first : first + tile].sum(axis=0)[None]
            by_column.append(compared(sums, left.sum(first, first + tile), right, bound, tile))
        for first in range(0, b.shape[0], tile):
            sums = result[:, first : first + tile].sum(axis=1)[:, None]
            by_row.append(compared(sums, left, right.sum(first, first + tile), bound, tile))
    # The concatenation begins with an empty array because a product without rows has zero tiles.
    none = np.empty((0, b.shape[0])), np.empty((a.shape[0], 0))
    column_error, column_bound = (np.concatenate([none[0], *(pair[i] for pair in by_column)]) for i in (0, 1))
    row_error, row_bound = (np.concatenate([none[1], *(pair[i] for pair in by_row)], axis=1) for i in (0, 1))
    return Checksum(column_error, column_bound, row_error, row_bound, tile)


def _beyond(error: Values, bound: Values) -> NDArray[np.bool_]:
    """Return which errors exceed their bound, or are NaN although the bound is finite."""
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = np.isfinite(bound) & ~(np.abs(error) <= bound)
    return found


# --- the bound -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bound:
    """Bound on the rounding error of an element of a product.

    Attributes
    ----------
    weights : float64 array [K]
        Error of each product, relative to its magnitude.
    steps : float64 array [K]
        Absolute error of the chains, divided among their products, before it is multiplied by the scales of A and B.
    rest : float
        Absolute error of an element from other sources.
    highest, highest_result : float
        Magnitudes above which a chain, or a result, could overflow; elements with larger ones are not checked.
    factor : float
        Product of the scales of whole tensors.
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
        """Return the bound for products of length k, promoted or not, with scales that change every `span` products."""
        rule, at, error = accumulator, np.arange(k), accumulator.step_error()
        length = max(k, 1) if every is None else every
        n = rule.steps(min(length, k))
        chains = -(-max(k, 1) // length)
        # If scales change within a chain, its sum is multiplied by their ratio and truncated.
        blocks = -(-max(k, 1) // span) if every is None and accumulator.scale_format is None else 1
        again = 2.0**-accumulator.output_bits + 5 * U if blocks > 1 else 0.0
        growth = (1 + error.relative) ** n * (1 + U) ** (chains + 8) * (1 + again) ** blocks
        after = np.maximum(n - at % length // rule.step(), 1)
        # In addition to chains: promotions, products of scales, tensor scales, values that were dequantized first.
        weights = error.relative * after + U * (chains - at // length + 8) + again * (blocks - 1 - at // span)
        float32 = formats["float32"]
        half = 0.0 if target.same_codes(float32) else half_ulp(target)
        weights = growth * weights * (1 + half) + half
        part = span if blocks > 1 else length
        shared = np.minimum(part, k - at // part * part)
        return cls(
            weights + (k + MOST_ROWS) * 2.0**-52,  # the checksum itself, in float64
            growth * (1 + half) * (n * error.absolute + 2 * TINY) / shared,
            4 * (chains + 1) * TINY + (target.smallest_subnormal if half else 0.0),
            accumulator.largest_sum / 2,
            min(target.max, float32.max) / 2,
            factor,
        )


def compared(sums: Values, a: Side, b: Side, bound: Bound, count: int) -> tuple[Values, Values]:
    """Return the difference between sums of `count` results and the sums computed from the operands, and its bound.

    Parameters
    ----------
    sums : float64 array [R, S]
        Sums of results.
    a, b : Side
        Operands [R, K] and [S, K]; one of them is the sum of `count` rows.
    bound : Bound
        Bound of one result.
    count : int
        Number of results per sum.
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
    """Return an operand and its scales as a `Side`; with `values_alone`, values are dequantized before the product."""
    codes, fmt = instruction_codes(np.ascontiguousarray(q.codes), q.format, accumulator)
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
