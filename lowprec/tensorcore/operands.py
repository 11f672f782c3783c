"""Preparation of operands for accumulators: scales are checked, arranged by block, or converted to codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_real, check_shape, matrix_shape, repeat_tiles
from .._checks import check_optional_int
from ..cast.casts import decode, encode, round_to
from ..format.catalogue import Format
from ..kernels.tensorcore import epilogue
from ..scaling.quantize import Granularity, Quantized
from .accumulator import FLOAT16, FLOAT32, TF32, Accumulator
from .catalogue import accumulators
from .engines.selection import ProductPlan
from .library import GemmLibrary
from .problem import Float32Matrix, GemmProblem, Joins
from .splits import Split


def check_quantized(name: str, q: Quantized, accumulator: Accumulator) -> None:
    """Raise unless an operand is `Quantized` and each scale is positive and finite, or the NaN of a block with NaN.

    Zero scales are allowed if the accumulator's scale format has a zero.
    """
    check_is_quantized("gemm", name, q)
    scale = q.scale
    if epilogue.all_positive(np.ascontiguousarray(scale)):
        return
    zero = accumulator.scale_format is not None and accumulator.scale_format.has_zero
    wrong = ~(np.isnan(scale) | (((scale > 0) | ((scale == 0) & zero)) & (scale < np.inf)))
    if wrong.any():
        raise ValueError(f"gemm: scales of {name} must be finite and > 0, or NaN for NaN blocks, got {scale[wrong][0]}")


def check_is_quantized(caller: str, name: str, q: Any) -> None:
    """Raise unless an operand is `Quantized`."""
    if not isinstance(q, Quantized):
        raise TypeError(f"{caller}: {name} must be Quantized (see lowprec.quantize), got {type(q).__name__}")


def as_addend(caller: str, c: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return C as an array of real numbers of the result's shape."""
    array = as_real(f"{caller}: c", c)
    check_shape(caller, "c", array, shape)
    return array


def instruction_codes(codes: NDArray[Any], fmt: Format, accumulator: Accumulator) -> tuple[NDArray[Any], Format]:
    """Return the codes and format that are multiplied: TF32 units ignore the low 13 bits of float32 operands."""
    found = accumulator.multiplied(fmt)
    return codes if found is fmt else codes >> np.uint32(FLOAT32.mantissa_bits - TF32.mantissa_bits), found


def build_problem(way: ProductPlan, a: Quantized, b: Quantized, split: Split, joins: Joins) -> GemmProblem:
    """Build the problem of two matrices; with scales inside the instruction, a single chain starts from a C of zeros.

    Raises
    ------
    ValueError
        If scales inside the instruction are not values of its format, or their blocks are incompatible with it.
    """
    accumulator = way.accumulator
    if accumulator.scale_format is not None:
        x, fa, inside_a = instruction_operand("a", a, accumulator)
        y, fb, inside_b = instruction_operand("b", b, accumulator)
        inside_a, inside_b = (split.gather_blocks(s, accumulator.scale_block) for s in (inside_a, inside_b))
        p = GemmProblem(split.gather(x), split.gather(y), fa, fb, None, inside_a, inside_b)
        if len(joins.plan) > 1:
            return p._replace(joins=joins)
        return p._replace(c=np.zeros((len(x), len(y)), accumulator.dtype))
    x, y = np.ascontiguousarray(a.codes), np.ascontiguousarray(b.codes)
    if way.fa is not a.format or way.fb is not b.format:
        (x, _), (y, _) = instruction_codes(x, a.format, accumulator), instruction_codes(y, b.format, accumulator)
    if split.runs is not None:
        x, y = split.gather(x), split.gather(y)
    return GemmProblem(x, y, way.fa, way.fb, None, None, None, _by_block(a, split), _by_block(b, split), joins)


def instruction_operand(
    name: str, q: Quantized, accumulator: Accumulator
) -> tuple[NDArray[Any], Format, NDArray[Any] | None]:
    """Return the codes and format that an accumulator multiplies, and the codes of scales inside the instruction."""
    codes, fmt = instruction_codes(np.ascontiguousarray(q.codes), q.format, accumulator)
    if accumulator.scale_format is None:
        return codes, fmt, None
    scale = scale_codes(name, q, accumulator)
    if missing := -codes.shape[1] % accumulator.scale_block:
        codes = np.pad(codes, [(0, 0), (0, missing)])
    return codes, fmt, scale


class Factor(NamedTuple):
    """Factor of the epilogue: ``float32(float32(a[i] * b[j]) * alpha)``, or alpha alone.

    Attributes
    ----------
    alpha : float32
        Alpha, multiplied by the tensor scales if neither operand has scales per row.
    a, b : ndarray of float32, shapes (M,) and (N,), optional
        Scales of the operands' rows, both or neither; a tensor scale is broadcast to the rows.
    """

    alpha: np.float32
    a: NDArray[np.float32] | None = None
    b: NDArray[np.float32] | None = None

    @property
    def is_one(self) -> bool:
        """Whether all factors are 1."""
        return self.a is None and bool(self.alpha == 1)

    def of_page(self, i: int, m: int, n: int) -> Factor:
        """Return the factor of matrix `i` of a batch of matrices with m and n rows."""
        if self.a is None or self.b is None:
            return self
        return self._replace(a=self.a[i * m : (i + 1) * m], b=self.b[i * n : (i + 1) * n])

    def of_row(self, i: int) -> NDArray[np.float32]:
        """Return the factors [N] of a row of the result; rows must have scales."""
        assert self.a is not None
        assert self.b is not None
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            found: NDArray[np.float32] = (self.a[i] * self.b) * self.alpha
        return found


def strip_tensor_scales(a: Quantized, b: Quantized, alpha: np.float32) -> tuple[Quantized, Quantized, Factor]:
    """Remove the scales per tensor or row from two operands; return them with the epilogue's factor.

    Raises
    ------
    ValueError
        If an operand has scales per column, which change along K.
    """
    if a.tensor_scale is None and b.tensor_scale is None:
        return a, b, Factor(alpha)
    given = [q.tensor_scale for q in (a, b) if q.tensor_scale is not None]
    if any(isinstance(scale, np.ndarray) for scale in given):
        factor = Factor(alpha, *(row_scales(name, q) for name, q in (("a", a), ("b", b))))
    else:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            factor = Factor(np.multiply.reduce(np.array(given, np.float32)) * alpha)
    return replace(a, tensor_scale=None), replace(b, tensor_scale=None), factor


def row_scales(name: str, q: Quantized) -> NDArray[np.float32]:
    """Return the scale per row in addition to the block scales; leading axes count as rows.

    Raises
    ------
    ValueError
        If the operand has scales per column.
    """
    scale: Any = np.float32(1) if q.tensor_scale is None else q.tensor_scale
    rows = matrix_shape(q.shape)[0]
    if np.ndim(scale) and scale.shape[1] != 1:
        raise ValueError(f"gemm: tensor_scale of {name} must be a number or one per row, got shape {scale.shape}")
    found: NDArray[np.float32] = np.broadcast_to(np.reshape(scale, -1), rows)
    return found


def promotion_interval(
    caller: str, a: Quantized, b: Quantized, way: ProductPlan, library: GemmLibrary, promote_every: Any
) -> int | None:
    """Return the chain length; "auto" is the accumulator's or the library's, limited to the length of scale blocks.

    A chain consists of whole instructions, even if a library's interval does not. If the running sum cannot be
    rescaled, chains must end where scales change.
    """
    if promote_every != "auto":
        return check_optional_int(caller, "promote_every", promote_every, 1)
    accumulator, step = way.accumulator, way.step
    own = accumulator.promote_every
    if accumulator.scale_format is not None:
        return own
    every, k = library.promote_every if own is None else own, a.codes.shape[-1] or 1
    span = min(a.granularity.columns or k, b.granularity.columns or k)
    if library.apply_scales_at == "end" or span >= k:  # constant along K
        return every if own is not None or every is None or every % step == 0 else max(every // step, 1) * step
    if every is None:
        return None if _can_rescale(accumulator) else span
    longest = max(min(every, span) // step, 1) * step
    if span % longest == 0:
        return longest
    return next((n for n in range(longest, 0, -step) if span % n == 0), every)


def _can_rescale(accumulator: Accumulator) -> bool:
    """Return whether a chain may continue where scales change.

    Rescaling a float16 sum would round it again, which no hardware does.
    """
    return accumulator.has_running_sum and accumulator.output_format != FLOAT16


def check_parts(a: Quantized, b: Quantized, parts: Sequence[tuple[int, int]], library: GemmLibrary) -> None:
    """Raise ValueError if a part begins inside a block of scales, or if slices have several scales."""
    for q in (a, b):
        columns = q.granularity.columns
        if columns is None or columns >= q.codes.shape[1]:
            continue
        for start, stop in parts:
            if start % columns:
                raise ValueError(f"gemm: a range of K must begin at a block of {columns}, got {start}")
            if min(library.slices, -(-(stop - start) // library.slice_length)) > 1 and columns < stop - start:
                raise ValueError(
                    f"gemm: scales must be constant along K if the library has slices of K, got {q.granularity}"
                )


def check_chains(way: ProductPlan, a: Quantized, b: Quantized, k: int, every: int | None) -> None:
    """Raise ValueError if scales, promotion and the accumulator's groups are incompatible in a part of length k."""
    step, accumulator = way.step, way.accumulator
    if accumulator.scale_format is not None:
        for name, number in (("group_size", accumulator.group_size), ("scale_block", accumulator.scale_block)):
            if every is not None and every % number:
                raise ValueError(
                    f"gemm: promote_every must be a multiple of {accumulator}'s {name}, {number}, got {every}"
                )
        return
    extent_a, extent_b = min(a.granularity.columns or k, k), min(b.granularity.columns or k, k)
    span, widest = min(extent_a, extent_b), max(extent_a, extent_b)
    if widest < k and widest % span:
        raise ValueError(f"gemm: blocks along K of a and b must divide each other, got {extent_a} and {extent_b}")
    if span < k and span % step:
        raise ValueError(f"gemm: blocks along K must be multiples of {accumulator.name}'s group of {step}, got {span}")
    if every is None:
        if span < k and not _can_rescale(accumulator):
            raise ValueError(
                f"gemm: promote_every must be given with {accumulator.name}, as scales change every {span} along K, "
                f"got None"
            )
    elif every % step:
        raise ValueError(f"gemm: promote_every must be a multiple of {accumulator.name}'s group of {step}, got {every}")
    elif span < k and span % every:
        raise ValueError(
            f"gemm: promote_every must divide {span}, the length of blocks along K, got {every}{_takers(a, b, span)}"
        )


def _takers(a: Quantized, b: Quantized, span: int) -> str:
    """Return a phrase with the accumulators that take the operands' scales inside the instruction, or ""."""
    names = []
    for name in accumulators:
        known = accumulators[name]
        if not (known.scale_format is not None and known.scale_block and span % known.scale_block == 0):
            continue
        fmt = known.scale_format
        held = all(bool((round_to(q.scale, fmt) == q.scale).all()) for q in (a, b))
        if held and known.accepts(a.format) and known.accepts(b.format):
            names.append(name)
    return f"; these accumulators take such scales inside: {', '.join(names)}" if names else ""


def _by_block(q: Quantized, split: Split) -> Float32Matrix:
    """Return scales [blocks, rows] for the blocks of a split; one block if scales are constant along K."""
    rows, scale, starts, columns = len(q.codes), q.scale, split.starts, q.granularity.columns
    blocks = 1 if starts is None else len(starts)
    if scale.size == 0:
        return np.ones((blocks, rows), np.float32)
    if starts is not None and columns is not None and (split.each, blocks) != (columns, scale.shape[1]):
        scale = scale[:, np.minimum(starts // columns, scale.shape[1] - 1)]
    laid_out = np.empty((blocks, rows), np.float32)
    if 1 < scale.shape[0] != rows:
        scale = repeat_tiles(scale, q.granularity.block((rows, q.codes.shape[1]))[0], rows, 0)
    laid_out[...] = scale.T  # a single row or column of scales is broadcast
    return laid_out


def strip_row_scales(name: str, q: Quantized, library: GemmLibrary) -> tuple[Quantized, Float32Matrix]:
    """Split a matrix into one without scales and one scale per row; scales must be constant along K."""
    if q.scale.shape[1] > 1:
        raise ValueError(
            f"gemm: scales of {name} must be constant along K, as {library} multiplies them in last, got "
            f"{q.granularity}"
        )
    if q.scale.size == 0:
        return q, np.ones(q.shape[0], np.float32)
    rows = q.granularity.block((q.shape[0], q.shape[1]))[0]
    by_row = np.ascontiguousarray(q.scale[np.arange(q.shape[0]) // rows, 0])
    return replace(q, scale=np.ones((1, 1), np.float32), granularity=Granularity(None, None)), by_row


def scale_codes(name: str, q: Quantized, accumulator: Accumulator) -> NDArray[Any]:
    """Return scales as codes [rows, K / block] for the instruction, equal to the operand's scales."""
    fmt, block = accumulator.scale_format, accumulator.scale_block
    assert fmt is not None
    codes = encode(q.scale, fmt, overflow="nonsaturate")
    same = (decode(codes, fmt) == q.scale) | np.isnan(q.scale)
    if not same.all():
        raise ValueError(f"gemm: scales of {name} must be values of {accumulator}'s {fmt}, got {q.scale[~same][0]}")
    rows, columns = q.granularity.block((q.shape[0], q.shape[1]))
    if columns < q.shape[1] and columns % block:
        raise ValueError(
            f"gemm: blocks of {name} along K must be multiples of {accumulator}'s scale_block={block}, got {columns}"
        )
    at = np.minimum(np.arange(0, max(q.shape[1], 1), block) // columns, max(codes.shape[1] - 1, 0))
    if q.shape[1] == 0:
        return np.zeros((q.shape[0], 0), fmt.code_dtype)
    return np.ascontiguousarray(codes[np.arange(q.shape[0]) // rows][:, at])


def slice_k(q: Quantized, start: int, stop: int) -> Quantized:
    """Return the part of a matrix in a range of k that begins at a scale boundary."""
    codes = np.ascontiguousarray(q.codes[:, start:stop])
    columns = q.granularity.columns
    if start == stop:
        return replace(q, codes=codes, scale=q.scale[:, :0])
    if columns is None or columns >= q.shape[1]:
        return replace(q, codes=codes, granularity=Granularity(q.granularity.rows, None))
    if start % columns:
        raise ValueError(f"gemm: a range of K must begin at a block of {columns}, got {start}")
    return replace(q, codes=codes, scale=np.ascontiguousarray(q.scale[:, start // columns : -(-stop // columns)]))


def take_k(q: Quantized, some: NDArray[np.bool_]) -> Quantized:
    """Return the columns of a matrix at the given k; scales must be constant along K."""
    if q.granularity.columns is not None and q.granularity.columns < q.shape[1]:
        raise ValueError(f"gemm: scales must be constant along K if the library has slices of K, got {q.granularity}")
    codes = np.ascontiguousarray(q.codes[:, some])
    return replace(q, codes=codes, granularity=Granularity(q.granularity.rows, None))


def interleave_k(q: Quantized, step: int) -> Quantized:
    """Return a matrix in which the columns of every two instructions, padded with zeros, are ordered by k % 4 // 2.

    `step` is the number of products per instruction: the first takes k % 4 in {0, 1}, the second the others.
    """
    (rows, k), columns = q.shape, q.granularity.columns
    if step % 2:
        raise ValueError(
            f"gemm: k_order='interleaved' must have an even number of products per instruction, got {step}"
        )
    if columns is not None and columns < k and columns % (2 * step):
        raise ValueError(
            f"gemm: blocks along K must be multiples of two interleaved instructions of {step}, got {columns}"
        )
    wide = np.zeros((rows, -(-k // (2 * step)) * 2 * step), q.codes.dtype)
    wide[:, :k] = q.codes
    ordered = wide.reshape(rows, wide.shape[1] // (2 * step), step // 2, 2, 2).swapaxes(2, 3)
    granularity = q.granularity if columns is None or columns < k else Granularity(q.granularity.rows, None)
    return replace(q, codes=np.ascontiguousarray(ordered).reshape(wide.shape), granularity=granularity)


def split_batch(q: Quantized) -> list[Quantized]:
    """Return the matrices of a batch [batch, R, C].

    Raises
    ------
    ValueError
        If a scale is shared by rows of two matrices, unless one scale is shared by all.
    """
    count, rows, _ = q.shape
    block = q.granularity.rows
    if block is not None and rows % block:
        raise ValueError(
            f"gemm: blocks of {block} rows must divide the matrices of a batch, got {rows} rows each in {q.shape}"
        )
    each = 0 if block is None else rows // block
    return [
        replace(
            q, codes=q.codes[i], scale=q.scale if block is None else q.scale[i * each : (i + 1) * each],
            tensor_scale=take_tensor_scale(q, slice(i * rows, (i + 1) * rows)),
        )
        for i in range(count)
    ]  # fmt: skip


def take_tensor_scale(q: Quantized, rows: slice | NDArray[np.intp]) -> Any:
    """Return the tensor scale of a selection of rows: the scales of these rows, or the single one."""
    scale = q.tensor_scale
    if isinstance(scale, np.ndarray) and scale.shape == (matrix_shape(q.shape)[0], 1):
        return scale[rows]
    return scale
