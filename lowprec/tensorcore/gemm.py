"""`gemm`: products of quantized matrices with scales, in the order of a library.

Both operands are contiguous in K: a is [M, K], b is [N, K], and the product is ``D = A @ B.T``.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from .._arrays import check_matmul, to_like
from .._checks import check_float32, check_int
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..format.catalogue import Format, formats
from ..kernels.tensorcore import epilogue
from ..scaling.quantize import Quantized
from .accumulator import Accumulator
from .catalogue import accumulators
from .engines.chain import accumulate_f32, pack_f32
from .engines.engine import Packed
from .engines.selection import ProductPlan, plan_for, solve
from .library import GemmLibrary, SplitKReduction, gemm_libraries
from .operands import (
    Factor,
    as_addend,
    build_problem,
    check_chains,
    check_parts,
    check_quantized,
    interleave_k,
    promotion_interval,
    split_batch,
    strip_row_scales,
    strip_tensor_scales,
)
from .packed import PackedB
from .problem import Float32Matrix, Joins, canonical_nan, times
from .splits import Cut, Parts, Split, split_of

_FLOAT32, _ONE = formats["float32"], np.float32(1)
#: Factors and addend of the epilogue of each part of K.
_Finish = tuple[Float32Matrix | None, Float32Matrix | None] | None


class ProductOptions(NamedTuple):
    """Options of one call of `gemm`, shared by all matrices of a batch."""

    way: ProductPlan
    library: GemmLibrary
    promote_every: int | None
    split_k: int
    target: Format
    kept: Packed | None

    def product(self, a: Quantized, b: Quantized) -> _Codes | _Values:
        """Return the product of two matrices: of values in float32, or of codes."""
        if self.promote_every is not None or not self.way.accumulator.multiplies_values:
            return _Codes(a, b, self)
        x, y = (replace(q, codes=np.ascontiguousarray(q.codes)).dequantize() for q in (a, b))
        return _Values(x, y, self)


@with_default_fpenv
def gemm(
    a: Quantized,
    b: Quantized | PackedB,
    c: ArrayLike | None = None,
    *,
    accumulator: str | Accumulator = "hopper_fp8",
    promote_every: int | Literal["auto"] | None = "auto",
    out_format: str | Format = "float32",
    library: str | GemmLibrary = "deepgemm",
    alpha: float = 1.0,
    beta: float = 1.0,
    split_k: int | None = None,
    like: Any = None,
) -> Float32Matrix:
    """Multiply two quantized matrices: ``D = alpha * A @ B.T + beta * C`` with scales, promotion and a rounded result.

    Parameters
    ----------
    a : Quantized, shape (M, K) or (batch, M, K)
        First operand, for example activations in 1x128 tiles.
    b : Quantized, shape (N, K) or (batch, N, K), or PackedB
        Second operand, for example weights in 128x128 blocks. Use ``b.T`` for a transposed operand. See
        `lowprec.prepack_b`.
    c : array_like, shape (M, N) or (batch, M, N), optional
        Addend, converted to float32, for example the gradient accumulated so far.
    accumulator : str or Accumulator
        Summation rule, see ``lowprec.accumulators``. Accumulators with scales inside the instruction
        (``blackwell_mxf8``, ``blackwell_nvfp4``) take those of the operands, which their scale format must represent
        exactly.
    promote_every : int, None or "auto"
        Length in k of one chain on the tensor core. Its result is multiplied by ``s = float32(scale_a * scale_b)`` and
        added in float32, ``D = fma(s, chain, D)``, as in DeepGEMM. None: one chain over all of K that never leaves the
        tensor core (see Notes). "auto": the accumulator's default, else None if the scales are inside the instruction,
        else the library's default (128 for DeepGEMM), shortened to whole instructions that divide the k over which
        scales are constant: 64 with 1x64 scales.
    out_format : str or Format
        Format of the result, rounded once from float32, for example ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    library : str or GemmLibrary
        GEMM library that sets the order of operations: ``"deepgemm"``, ``"cublaslt"``, ``"cublaslt_fast"``,
        ``"cutlass_2xacc"`` and others of ``lowprec.gemm_libraries``, or a custom `lowprec.GemmLibrary`.
    alpha, beta : float
        Factors of the product and of C, converted to float32. Scales per tensor or row (NVFP4) are multiplied into
        alpha, see Notes. If beta is 0, C is not read, so that NaN in it has no effect.
    split_k : int, optional
        Number of parts into which K is split, in whole tiles of the library's `split_tile`. Each part is summed
        separately until the epilogue. Default: the library's, which is 1 for all libraries of the catalogue. Libraries
        with `stream_k` cut K themselves and take no other value.
    like : array or str, optional
        Array package of the result (NumPy, torch or JAX): one of its arrays, or its name.

    Returns
    -------
    ndarray of float32, shape (M, N) or (batch, M, N)
        Values of the format `out_format`. NaN is 0x7FFFFFFF before that rounding. The bits of a row, and of a column,
        do not depend on the other rows or columns.

    Raises
    ------
    ValueError
        If shapes differ, the accumulator does not support a format, scales are not positive, or `promote_every` does
        not fit the accumulator's groups or the operands' scales; the message quotes the values.
    TypeError
        If an operand is not `Quantized`.

    Notes
    -----
    1. Each split's chains are summed in float32 from +0: ``T = fma(s, chain, T)`` with scales at promotion,
       ``T = T + chain`` with scales at the end or inside the instruction.
    2. Splits are added sequentially in float32. A `lowprec.GemmLibrary` may specify another order of steps 1 and 2,
       and of k.
    3. ``D = fma(f, T, float32(beta * C))``, f being float32(alpha), times ``float32(scale_a * scale_b)`` if scales are
       applied at the end. With the library's `scales_one_by_one` and scales per row, B's multiply T before, and f has
       A's alone; with scales at promotion, A's multiply the chain before ``T = fma(scale_b, chain, T)``. Without C, or
       with beta = 0, ``D = fma(f, T, +0)``, in which an exact zero is +0, and D = T if f is 1. This is assumed for all
       libraries. cuBLAS documents that C need not be valid input if beta is 0, and CUTLASS's epilogues do not load it
       then. The functions of DeepGEMM take C without a factor.
    4. D is rounded to `out_format`, to nearest even: two roundings, as in the libraries.

    Scales per tensor are part of the epilogue's factor: alpha becomes ``float32(float32(t_a * t_b) * alpha)``, as
    PyTorch multiplies them before the product is scaled; with scales per row (row-scaled NVFP4) t_a and t_b are those
    of the result's row and column. TransformerEngine computes that factor from the amaxes,
    ``alpha * amax_a * amax_b * float32(1 / (6 * 6 * 448 * 448))``, which may differ in the last bit: to reproduce it,
    pass it as alpha, with a `tensor_scale` of None in both operands. For row-scaled operands TransformerEngine
    multiplies the finished product first by that constant and then by ``amax_a[i] * amax_b``, or by one after the
    other if both have scales per row: up to two more roundings.

    Inside the instruction, power-of-two scales add to the exponents of products (mxf8f6f4); for 4-bit operands, groups
    of 16 products are summed exactly before they are scaled (mxf4, mxf4nvf4). In blocks of several rows, such as
    weights in 32x32 or 16x16, each row has the scale of its block. A short last block of K is padded with zeros.

    Without promotion, the unit of the running sum changes where scales change along K. The sum is then multiplied by
    ``float32(s_before / s_now)`` and truncated to the accumulator's fraction bits. For power-of-two scales that equals
    hardware that applies the scales inside the instruction; for other scales no hardware does this.

    The accumulator ``float32`` without promotion multiplies the dequantized values in float32.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.random((64, 4096), np.float32), rng.random((128, 4096), np.float32)
    >>> qx, qw = lp.quantize(x, "e4m3fn tensor"), lp.quantize(w, "e4m3fn tensor")
    >>> exact = lp.gemm(qx, qw, accumulator="exact")
    >>> [f"{np.abs(lp.gemm(qx, qw, promote_every=n) / exact - 1).max():.2%}" for n in (128, None)]
    ['0.06%', '7.90%']

    Positive operands are the worst case of truncation: its errors have one sign and add up with K.
    """
    accumulator, library, target = accumulators.get(accumulator), gemm_libraries.get(library), formats.get(out_format)
    kept = None
    if isinstance(b, PackedB):
        kept = b.for_accumulator(accumulator)
        b = b.quantized
    check_quantized("a", a, accumulator)
    check_quantized("b", b, accumulator)
    a, b, factor = strip_tensor_scales(a, b, _factor("alpha", alpha))
    factor_of_c = _factor("beta", beta)
    if split_k is not None and library.stream_k:
        raise ValueError(f"gemm: split_k must be None with stream_k, which cuts K itself, got {split_k} with {library}")
    split_k = library.split_k if split_k is None else check_int("gemm", "split_k", split_k, 1)
    way = plan_for(accumulator, a.format, b.format)
    every = promotion_interval("gemm", a, b, way, library, promote_every)
    order = ProductOptions(way, library, every, split_k, target, kept)
    x, y = a.codes, b.codes
    if x.ndim == y.ndim == 3:
        pages_a, pages_b = split_batch(a), split_batch(b)
        if len(pages_a) != len(pages_b):
            raise ValueError(f"gemm: a and b must have the same number of matrices, got shapes {x.shape} and {y.shape}")
        result = np.empty((len(pages_a), x.shape[1], y.shape[1]), np.float32)
        addend = None if c is None else _addend(c, factor_of_c, result.shape)
        for i, (qa, qb) in enumerate(zip(pages_a, pages_b, strict=True)):
            own = factor.of_page(i, x.shape[1], y.shape[1])
            result[i] = _matrix(qa, qb, None if addend is None else addend[i], own, order._replace(kept=None))
    else:
        if x.ndim != 2 or y.ndim != 2:
            check_matmul("gemm", x.shape, y.shape)
        result = _matrix(a, b, None if c is None else _addend(c, factor_of_c, (len(x), len(y))), factor, order)
    if library.round_through != "float32" and target.bits >= 16:
        round_to(result, formats[library.round_through], out=result)
    if target is not _FLOAT32 and not target.same_codes(_FLOAT32):
        round_to(result, target, out=result)
    return result if like is None else to_like("gemm", result, like)


def _matrix(
    a: Quantized, b: Quantized, addend: Float32Matrix | None, factor: Factor, order: ProductOptions
) -> Float32Matrix:  # fmt: skip
    """Return the factor times the product of two matrices, plus the addend, which is overwritten."""
    (m, k), n, library, scales = a.codes.shape, len(b.codes), order.library, None
    if b.codes.shape[1] != k:
        check_matmul("gemm", a.codes.shape, b.codes.shape)
    if library.k_order == "interleaved":
        a, b, order = interleave_k(a, order.way.step), interleave_k(b, order.way.step), order._replace(kept=None)
        k = a.codes.shape[1]
    by_row = library.scales_one_by_one and a.granularity.rows is not None and b.granularity.rows is not None
    if library.apply_scales_at == "end" and order.way.accumulator.scale_format is None:
        (a, scale_a), (b, scale_b) = strip_row_scales("a", a, library), strip_row_scales("b", b, library)
        scales = scale_a, scale_b
    finished = functools.partial(_finished, scales=scales, addend=addend, factor=factor, one_by_one=by_row)
    if library.stream_k:
        _check_tiles(library, a, b)
    if m == 0 or n == 0:
        return np.zeros((m, n), np.float32)
    product = order.product(a, b)
    if library.stream_k:
        total, tiles = np.empty((m, n), np.float32), library.streamed_parts(m, n, k)
        check_parts(a, b, [part for *_, parts in tiles for part in parts], library)
        if all(tile[2] == tiles[0][2] for tile in tiles):
            return finished(product.sum(tuple(tiles[0][2]), "float32"))
        tiles.sort(key=lambda tile: tile[1].start)
        for columns, group in itertools.groupby(tiles, lambda tile: tile[1]):
            panel = product.with_columns(columns)
            for rows, _, parts in group:
                total[rows, columns] = panel.with_rows(rows).sum(tuple(parts), "float32")
        return finished(total)
    parts, reduction = library.parts(k, order.split_k), library.split_k_reduction
    if len(parts) == 1 or (reduction == "tree" and order.target.same_codes(_FLOAT32)):
        parts, reduction = [(0, k)], "float32"
    check_parts(a, b, parts, library)
    if reduction not in ("out", "serial"):
        return finished(product.sum(tuple(parts), reduction))
    finish = None
    if scales is not None or addend is not None or not factor.is_one:
        is_one = factor.is_one and (scales is None or all((s == 1).all() for s in scales))
        one, zero = np.ones((m, n), np.float32), np.full((m, n), -0.0, np.float32)
        finish = None if is_one else finished(one, addend=zero), addend
    total = product.sum(tuple(parts), reduction, finish)
    return round_to(total, order.target, out=total)


def _check_tiles(library: GemmLibrary, a: Quantized, b: Quantized) -> None:
    """Raise ValueError unless the tiles of stream-K consist of whole blocks of the operands' rows."""
    for name, q, tile in zip("ab", (a, b), library.stream_k[1:], strict=True):
        rows = q.granularity.rows
        if rows is not None and len(q.codes) > tile and tile % rows:
            raise ValueError(
                f"gemm: rows and columns of stream_k's tiles must be multiples of the {rows} rows with one scale in "
                f"{name}, got stream_k={library.stream_k} of {library}"
            )


class _Codes(NamedTuple):
    """Matrices of codes, and the sum of their product's parts of K."""

    a: Quantized
    b: Quantized
    order: ProductOptions

    def with_columns(self, columns: slice) -> Self:
        """Return these columns of the product, without B as it is packed for all columns."""
        return self._replace(b=self.b[columns], order=self.order._replace(kept=None))

    def with_rows(self, rows: slice) -> Self:
        """Return these rows of the product."""
        return self._replace(a=self.a[rows])

    def sum(self, parts: Parts, reduction: SplitKReduction, finish: _Finish = None) -> Float32Matrix:
        """Return the float32 sum of parts of K; with `finish`, each has an epilogue with these factors and addend."""
        a, b, (way, library, every, *_) = self
        accumulator, k, block = way.accumulator, a.codes.shape[1], way.accumulator.scale_block or 1
        for length in dict.fromkeys([stop - start for start, stop in parts]):
            check_chains(way, a, b, length or 1, every)
        spans = max(k, 1), max(k, 1)
        if block == 1:
            spans = min(a.granularity.columns or k, k) or 1, min(b.granularity.columns or k, k) or 1
        kernel = way.engine is not None and way.engine.whole and way.fa.has_zero and way.fb.has_zero
        align = math.lcm(way.step, block) if kernel else block
        cut = Cut(library.slices, library.slice_length, library.split_tile, library.fma_promotion, every, spans,
                  way.step, align, block)  # fmt: skip
        split, joins = _split(parts, reduction, cut, self.order.target, finish)
        if library.scales_one_by_one and library.apply_scales_at == "promotion":
            joins = joins._replace(scales_one_by_one=True, fits_kernels=False)
        found = solve(way, build_problem(way, a, b, split, joins), self.order.kept if split.runs is None else None)
        is_canonical = accumulator.has_canonical_nan and found.dtype == np.float32
        return found if is_canonical else canonical_nan(found.astype(np.float32, copy=False))


class _Values(NamedTuple):
    """Matrices of float32 values, with the methods of `_Codes`."""

    x: Float32Matrix
    y: Float32Matrix
    order: ProductOptions
    panels: Float32Matrix | None = None

    def with_columns(self, columns: slice) -> Self:
        """Return these columns of the product, with B packed for them."""
        return self._replace(y=self.y[columns], panels=pack_f32(self.y[columns]))

    def with_rows(self, rows: slice) -> Self:
        """Return these rows of the product."""
        return self._replace(x=self.x[rows])

    def sum(self, parts: Parts, reduction: SplitKReduction, finish: _Finish = None) -> Float32Matrix:
        """Return the sum as `_Codes.sum`."""
        (m, k), library, joins, runs = self.x.shape, self.order.library, None, None
        if len(parts) > 1 or library.slices > 1:
            cut = Cut(library.slices, library.slice_length, library.split_tile, False, None, (max(k, 1),) * 2,
                      self.order.way.step, 1, 1)  # fmt: skip
            split, joins = _split(parts, reduction, cut, self.order.target, finish)
            runs = split.runs
        out = np.zeros((m, len(self.y)), np.float32)
        accumulate_f32(self.x, self.y, out, joins=joins, runs=runs, panels=self.panels)
        return out


def _split(
    parts: Parts, reduction: SplitKReduction, cut: Cut, target: Format, finish: _Finish
) -> tuple[Split, Joins]:  # fmt: skip
    """Return the chains of parts of K, and their joins with an epilogue's factors and addend."""
    factors, onto = finish or (None, None)
    split = split_of(parts, reduction, cut, finish is not None, factors is not None)
    return split, split.joins_to(target, factors, onto) if split.rounds or finish else split.joins


def _finished(
    total: Float32Matrix, scales: tuple[Float32Matrix, Float32Matrix] | None, addend: Float32Matrix | None,
    factor: Factor, one_by_one: bool = False,
) -> Float32Matrix:  # fmt: skip
    """Return the result of the epilogue: scales at the end, the factor, and the addend, which is overwritten.

    If `one_by_one`, B's scales multiply the total, and A's are part of the factor.
    """
    if scales is None and addend is None and factor.is_one:
        return total
    if scales is None:
        scales = np.ones(total.shape[0], np.float32), np.ones(total.shape[1], np.float32)
    if one_by_one:
        total, scales = times(total, scales[1]), (scales[0], np.ones_like(scales[1]))
    result = np.zeros_like(total) if addend is None else addend
    if factor.a is None:
        epilogue.finish(total, *scales, factor.alpha, result)
    else:  # the kernel takes only one of row scales and end scales: pass their products row by row
        one = np.ones(1, np.float32)
        for i in range(total.shape[0]):
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                each = (scales[0][i] * scales[1]) * factor.of_row(i)
            epilogue.finish(total[i : i + 1], one, each, one[0], result[i : i + 1])
    return canonical_nan(result)


def _factor(name: str, value: float) -> np.float32:
    return _ONE if type(value) is float and value == 1 else check_float32("gemm", name, value)


def _addend(c: ArrayLike, beta: np.float32, shape: tuple[int, ...]) -> Float32Matrix | None:
    """Return beta * C in float32, or None if beta is 0."""
    array = as_addend("gemm", c, shape)
    if beta == 0:
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.multiply(array.astype(np.float32), beta, order="C")
