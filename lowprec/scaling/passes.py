"""Block scaling in three passes (amax, scales, cast): the slow path, which works for any scale rule.

`kernels.scaling` fuses the passes for an `AmaxRule`; here they are separate, for rules that are Python functions and as
the reference of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._arrays import repeat_tiles
from ..cast.casts import encode, round_to
from ..format.rounding import Rounding, policies
from ..kernels.scaling.scales import DIVIDE, block_scales
from .constants import NO_TENSOR, scale_rule, tensor_scale
from .granularity import Granularity
from .hadamard import transform
from .job import check_element_format, check_two_levels, dequantize, given_amax
from .quantizer import Quantizer
from .rules import E8M0, AmaxRule, are_powers

F32 = NDArray[np.float32]
_TINY, _INF = np.float32(2.0**-149), np.uint32(0x7F800000)
_ELEMENTS = policies["ocp_sat"].with_(nan="positive")


class Scales(NamedTuple):
    """Block scales of a matrix, the multipliers or divisors of values, and the scale on top of the block scales.

    The scale on top is None, one number for the tensor, or an array: [R, 1] for rows of the matrix, [1, C] for columns.
    """

    block: F32
    factor: F32
    divides: bool
    tensor: np.float32 | F32 | None


def amax_of(x: F32, granularity: Granularity) -> NDArray[np.uint32]:
    """Return the bits of each block's largest magnitude; a NaN compares above Inf, and Inf above all numbers."""
    rows, columns = granularity.block((x.shape[0], x.shape[1]))
    top = np.maximum.reduceat(np.abs(x).view(np.uint32), np.arange(0, x.shape[0], rows), 0)
    return np.ascontiguousarray(np.maximum.reduceat(top, np.arange(0, x.shape[1], columns), 1))


def blocks_of(x: F32, granularity: Granularity) -> F32:
    """Return a matrix [R, C] as blocks [R / r, C / c, r c], with ragged ends padded with zeros."""
    rows, columns = granularity.block((x.shape[0], x.shape[1]))
    r, c = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    padded = np.zeros((r * rows, c * columns), np.float32)
    padded[: x.shape[0], : x.shape[1]] = x
    return np.ascontiguousarray(padded.reshape(r, rows, c, columns).swapaxes(1, 2)).reshape(r, c, rows * columns)


def lines_axis(granularity: Granularity) -> int:
    """Return the axis along which the blocks of a matrix run, and along which its lines with their own scales run."""
    return 0 if granularity.columns == 1 and granularity.rows != 1 else 1


def line_amax_of(x: F32, granularity: Granularity) -> F32:
    """Return the largest magnitude, NaN ignored, of each row [R, 1], or column [1, C] if blocks run along columns."""
    bits = np.abs(x).view(np.uint32)
    bits = np.where(bits > _INF, np.uint32(0), bits)
    top: NDArray[np.uint32] = bits.max(axis=lines_axis(granularity), keepdims=True, initial=0)
    return top.view(np.float32)


def scales_by_amax(q: Quantizer, amax: NDArray[np.uint32], tensor_amax: np.float32 | F32 | None = None) -> Scales:
    """Return the scales that an `AmaxRule` computes from the largest magnitudes and, if it needs one, the tensor's.

    Lines with row or column scales are computed one by one, in about 50 us each, because the kernel takes one tensor
    scale.
    """
    assert isinstance(q.rule, AmaxRule)
    if isinstance(tensor_amax, np.ndarray):
        axis = 1 - lines_axis(q.granularity)
        alone = q.with_(tensor_scale="tensor")
        lines = [scales_by_amax(alone, *line) for line in _lines(amax, tensor_amax, axis)]
        block, factor = (np.concatenate([line[i] for line in lines], axis=axis) for i in (0, 1))
        top = np.array([line.tensor for line in lines], np.float32).reshape(tensor_amax.shape)
        return Scales(block, factor, lines[0].divides, top)
    tensor = NO_TENSOR
    if q.has_tensor_scale:
        assert tensor_amax is not None
        tensor = tensor_scale(q, q.format, tensor_amax)
    rule = scale_rule(q, q.format, tensor)
    block, factor = np.empty(amax.shape, np.float32), np.empty(amax.shape, np.float32)
    block_scales(amax.reshape(-1), rule, block.reshape(-1), factor.reshape(-1))
    if are_powers(q.scale_format) and not q.scale_format.same_codes(E8M0):  # the kernel has E8M0's range
        block = np.clip(block, np.float32(q.scale_format.smallest_subnormal), np.float32(q.scale_format.max))
        factor = np.float32(1) / block
    if q.rule.scale_application == "max/amax":  # codes use the multiplier, scales the quotient
        quotients = scale_rule(q.with_(scale_application="divide"), q.format, tensor)
        block_scales(amax.reshape(-1), quotients, block.reshape(-1), np.empty(amax.size, np.float32))
    return Scales(block, factor, rule[1] == DIVIDE, tensor.scale if q.has_tensor_scale else None)


def _lines(amax: NDArray[np.uint32], top: F32, axis: int) -> Iterator[tuple[NDArray[np.uint32], np.float32]]:
    """Yield for each line the amaxes of its blocks, as a matrix, and the amax of the line."""
    for i, line in enumerate(np.split(amax, amax.shape[axis], axis)):
        yield np.ascontiguousarray(line), top.flat[i]


def scales_by_function(q: Quantizer, blocks: F32) -> Scales:
    """Return the scales that a Python function gives for blocks: 1 for blocks of zeros, NaN for those with NaN or Inf.

    Raises
    ------
    ValueError
        If the function returns another shape, or a scale that is not positive and finite.
    """
    assert not isinstance(q.rule, AmaxRule)
    if lines_axis(q.granularity) == 0:  # rules see blocks along axis 1
        turned = scales_by_function(q.with_(granularity=q.granularity.T), np.ascontiguousarray(blocks.swapaxes(0, 1)))
        block, factor = np.ascontiguousarray(turned.block.T), np.ascontiguousarray(turned.factor.T)
        top = np.ascontiguousarray(turned.tensor.T) if isinstance(turned.tensor, np.ndarray) else turned.tensor
        return Scales(block, factor, turned.divides, top)
    finite: NDArray[np.bool_] = np.all(np.isfinite(blocks), axis=-1)
    given = q.rule(np.where(finite[..., None], blocks, np.float32(0)), q.format, q.scale_format)
    block, own = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    scale, tensor = _numbers(q, "block scales", block), None if own is None else _numbers(q, "a tensor scale", own)
    if scale.shape != blocks.shape[:-1]:
        raise ValueError(f"scale rule {q.rule} must return scales of shape {blocks.shape[:-1]}, got {scale.shape}")
    lines = None if tensor is None else _lines_of(q, tensor, scale.shape)
    counts = finite & np.any(blocks, axis=-1)
    if tensor is not None and lines is not None:  # a line of only zeros, NaN and Inf needs no scale
        tensor = np.where(counts.any(axis=lines, keepdims=True), tensor, np.float32(1))
    for values, count in ((scale, counts), *(() if tensor is None else ((tensor, np.True_),))):
        if (wrong := ~((values > 0) & np.isfinite(values)) & count).any():
            raise ValueError(f"scale rule {q.rule} must return positive, finite scales, got {values[wrong].flat[0]}")
    least = np.float32(q.scale_format.smallest_subnormal)  # a scale of 0 would lose all values
    scale = np.where(counts, np.maximum(scale, least), np.float32(1))
    scale = round_to(scale, q.scale_format, overflow="saturate")
    scale[~finite] = np.nan
    top = tensor if tensor is None or lines is not None else np.float32(tensor.reshape(())[()])
    with np.errstate(under="ignore", over="ignore"):
        return Scales(scale, np.maximum(scale if top is None else scale * top, _TINY), True, top)


def _lines_of(q: Quantizer, tensor: F32, blocks: tuple[int, ...]) -> int | None:
    """Return the axis along which lines of blocks have scales, or None for one tensor scale."""
    for axis, shape in ((1, (blocks[0], 1)), (0, (1, blocks[1]))):
        if tensor.shape == shape:
            return axis
    if tensor.size != 1:
        raise ValueError(
            f"scale rule {q.rule} must return one scale of the tensor, or scales of shape {(blocks[0], 1)} or "
            f"{(1, blocks[1])}, got shape {tensor.shape}"
        )
    return None


def _numbers(q: Quantizer, what: str, given: Any) -> F32:
    try:
        if not np.iscomplexobj(given):
            return np.array(given, np.float32)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"scale rule {q.rule} must return {what} as an array of real numbers, got {given!r:.200}")


def cast(x: F32, scales: Scales, q: Quantizer, out: NDArray[Any], **rounding: Any) -> None:
    """Write the codes of values; an element is rounded with the random word of its index in `x`, not in the block."""
    rows, columns = q.granularity.block((x.shape[0], x.shape[1]))
    each = repeat_tiles(repeat_tiles(scales.factor, rows, x.shape[0], 0), columns, x.shape[1])
    with np.errstate(all="ignore"):
        values = x / each if scales.divides else x * each
    encode(values, q.format, policy=_ELEMENTS.with_(negative_zero=q.negative_zero), out=out, **rounding)


def has_kernel(q: Quantizer) -> bool:
    """Return whether the kernels of `kernels.scaling` compute a quantizer's scales."""
    stored = not are_powers(q.scale_format) or q.scale_format.same_codes(E8M0)
    return isinstance(q.rule, AmaxRule) and stored and not q.has_row_scales


class PassesJob:
    """One matrix and a quantizer that no fused kernel supports.

    The rule is a Python function or has row scales, or scales are powers of two in a format other than E8M0.

    Parameters
    ----------
    q : Quantizer
        Quantizer.
    x : ndarray of float32, shape (R, C)
        Values.
    tensor_amax : float, optional
        Amax of every row, if rows have scales; otherwise an option of quantizers that have a kernel.
    inverse_scale : None
        Not supported: an option of quantizers that have a kernel.
    rounding, seed, offset
        See `lowprec.quantize`.

    Raises
    ------
    ValueError
        If an option needs a kernel, or the format cannot be an element format.
    """

    def __init__(
        self, q: Quantizer, x: F32, *, tensor_amax: float | None = None, inverse_scale: float | None = None,
        rounding: str | Rounding | None = None, seed: int | None = None, offset: int = 0,
    ) -> None:  # fmt: skip
        for name, value in (("tensor_amax", tensor_amax), ("inverse_scale", inverse_scale)):
            if value is not None and (name != "tensor_amax" or not q.has_row_scales):
                how = f"{q.scale_format} scales by {q.rule}"
                raise ValueError(f"quantize: {name} must be None with {how}, got {value!r}")
        check_element_format(q.format)
        self.q, self.format, self.granularity = q, q.format, q.granularity
        self.scale_shape = q.granularity.scale_shape((x.shape[0], x.shape[1]))
        self.x = transform(x, q, axis=lines_axis(q.granularity))
        self.options = {"rounding": q.rounding if rounding is None else rounding, "seed": seed, "offset": offset}
        self.tensor_scale: np.float32 | F32 | None = None
        #: Amaxes of lines with row or column scales.
        self.line_amax: F32 | None = None
        if q.has_row_scales:
            check_two_levels(q)
            found, amax = line_amax_of(self.x, q.granularity), given_amax(tensor_amax)
            self.line_amax = found if amax is None else np.full_like(found, amax)
            self.tensor_scale = np.ones_like(found)  # of a matrix without values

    def codes(self, codes: NDArray[Any], scales: F32) -> None:
        """Write codes and scales of the matrix."""
        if isinstance(self.q.rule, AmaxRule):
            found = scales_by_amax(self.q, amax_of(self.x, self.granularity), self.line_amax)
            self.tensor_scale = found.tensor
        else:
            found = scales_by_function(self.q, blocks_of(self.x, self.granularity))
            self.tensor_scale = self._spread(found.tensor)
        scales[...] = found.block
        cast(self.x, found, self.q, codes, **self.options)

    def _spread(self, tensor: np.float32 | F32 | None) -> np.float32 | F32 | None:
        """Return the scales of lines of blocks, repeated to one per row, or per column, of the matrix."""
        if not isinstance(tensor, np.ndarray):
            return tensor
        axis = int(tensor.shape != (self.scale_shape[0], 1))
        shape = int(self.x.shape[0]), int(self.x.shape[1])
        return np.ascontiguousarray(repeat_tiles(tensor, self.granularity.block(shape)[axis], shape[axis], axis))

    def values(self, values: F32) -> None:
        """Write the values that codes and scales decode to."""
        codes, scales = np.empty(values.shape, self.format.code_dtype), np.empty(self.scale_shape, np.float32)
        self.codes(codes, scales)
        block = self.granularity.block((values.shape[0], values.shape[1]))
        tensor = np.float32(1) if self.tensor_scale is None else self.tensor_scale
        dequantize(codes, scales, block, self.format, tensor, values)
