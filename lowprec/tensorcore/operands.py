"""Quantized operands as machines take them: their scales checked, laid out by block, or turned into codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode
from ..format.catalogue import Format, formats
from ..scaling.quantize import Granularity, Quantized
from .accumulator import Accumulator
from .engine import Float32Matrix, Plan
from .library import Library
from .mma import as_multiplied


def check_scales(name: str, scale: Float32Matrix, machine: Accumulator) -> None:
    """Raise a ValueError if a scale is neither positive and finite nor the NaN of a block that held one.

    A machine whose scale format has a zero takes zeros too.
    """
    zero = machine.scale_format is not None and formats[machine.scale_format].has_zero
    wrong = ~(np.isnan(scale) | (((scale > 0) | ((scale == 0) & zero)) & (scale < np.inf)))
    if wrong.any():
        raise ValueError(
            f"gemm: a scale of {name} is {scale[wrong][0]}: finite numbers above 0 are needed, or NaN for NaN blocks"
        )


def multiplied(name: str, q: Quantized, machine: Accumulator) -> tuple[NDArray[Any], Format, NDArray[Any] | None]:
    """Return codes and format as the machine multiplies them, and the codes of scales that it takes inside."""
    codes, fmt = as_multiplied(np.ascontiguousarray(q.codes), q.format, machine)
    if machine.scale_format is None:
        return codes, fmt, None
    scale = scale_codes(name, q, machine)
    if missing := -codes.shape[1] % machine.scale_block:
        codes = np.pad(codes, [(0, 0), (0, missing)])
    return codes, fmt, scale


def without_tensor_scales(a: Quantized, b: Quantized, alpha: float) -> tuple[Quantized, Quantized, np.float32]:
    """Take the scales per tensor off two operands; return the epilogue's factor with them."""
    factor, given = np.float32(alpha), [q.tensor_scale for q in (a, b) if q.tensor_scale is not None]
    if not given:
        return a, b, factor
    with np.errstate(over="ignore", under="ignore"):
        factor = np.multiply.reduce(np.array(given, np.float32)) * factor
    return replace(a, tensor_scale=None), replace(b, tensor_scale=None), factor


def plan(a: Quantized, b: Quantized, machine: Accumulator, promote_every: int | None) -> Plan:
    """Check that scales, promotion and the machine's groups fit together, and lay the scales out by block."""
    k = a.shape[1]
    group = {"sequential": 1, "exact": 1, "halves": 2 * machine.group}.get(machine.kind, machine.group)
    spans = [min(q.granularity.block((q.shape[0], k))[1], max(k, 1)) for q in (a, b)]
    span = min(spans)  # of k, over which both scales are constant
    constant = span >= k
    if max(spans) < k and max(spans) % span:
        raise ValueError(
            f"gemm: scales change every {spans[0]} in a and every {spans[1]} in b: one must divide the other"
        )
    if not constant and span % group:
        raise ValueError(f"gemm: scales change every {span} in k, inside {machine.name}'s groups of {group}")
    if promote_every is None:
        if machine.kind == "exact" and not constant:
            raise ValueError(f"gemm: the exact machine needs promote_every: scales change every {span} in k")
        length = span if not constant else -(-max(k, 1) // group) * group
    else:
        length = promote_every
        if length % group:
            raise ValueError(f"gemm: promote_every={length} is not a multiple of {machine.name}'s group of {group}")
        if not constant and span % length:
            raise ValueError(
                f"gemm: promote_every={length} does not divide {span}, the k over which scales are constant"
            )
    count = -(-max(k, 1) // length)
    scales = []
    for q, extent in ((a, spans[0]), (b, spans[1])):
        by_block = q.scale if q.scale.size else np.ones((q.shape[0], 1), np.float32)
        if by_block.shape[1] != count or extent != length:
            by_block = by_block[:, np.minimum(np.arange(count) * length // extent, by_block.shape[1] - 1)]
        rows = q.granularity.block((q.shape[0], k))[0]
        if by_block.shape[0] != q.shape[0]:
            by_block = np.repeat(by_block, rows, axis=0)[: q.shape[0]]
        scales.append(np.ascontiguousarray(by_block.T))
    return Plan(length, scales[0], scales[1], promote_every is not None)


def without_scale(name: str, q: Quantized, order: Library) -> tuple[Quantized, Float32Matrix]:
    """Take the scales, one per row, off a matrix; they must not change along K."""
    if q.scale.shape[1] > 1:
        raise ValueError(
            f"gemm: {order} multiplies scales in at the end: those of {name} ({q.granularity}) change in k"
        )
    if q.scale.size == 0:
        return q, np.ones(q.shape[0], np.float32)
    rows = q.granularity.block((q.shape[0], q.shape[1]))[0]
    by_row = np.ascontiguousarray(q.scale[np.arange(q.shape[0]) // rows, 0])
    return replace(q, scale=np.ones((1, 1), np.float32), granularity=Granularity(None, None)), by_row


def scale_codes(name: str, q: Quantized, machine: Accumulator) -> NDArray[Any]:
    """Return scales as the instruction takes them: codes [rows, K / block], exactly the operands' numbers."""
    fmt, block = formats[str(machine.scale_format)], machine.scale_block
    codes = encode(q.scale, fmt, overflow="nonsaturate")
    same = (decode(codes, fmt) == q.scale) | np.isnan(q.scale)
    if not same.all():
        raise ValueError(f"gemm: a scale of {name} is {q.scale[~same][0]}, no number of {machine}'s {fmt}")
    rows, columns = q.granularity.block((q.shape[0], q.shape[1]))
    if columns < q.shape[1] and columns % block:
        raise ValueError(f"gemm: scales of {name} change every {columns} in k, inside {machine}'s blocks of {block}")
    at = np.minimum(np.arange(0, max(q.shape[1], 1), block) // columns, max(codes.shape[1] - 1, 0))
    if q.shape[1] == 0:
        return np.zeros((q.shape[0], 0), fmt.code_dtype)
    return np.ascontiguousarray(codes[np.arange(q.shape[0]) // rows][:, at])


def along_k(q: Quantized, start: int, stop: int) -> Quantized:
    """Return the part of a matrix within a range of k that begins where a scale does."""
    codes = np.ascontiguousarray(q.codes[:, start:stop])
    columns = q.granularity.columns
    if columns is None or columns >= q.shape[1]:
        return replace(q, codes=codes, granularity=Granularity(q.granularity.rows, None))
    if start % columns:
        raise ValueError(f"gemm: a run of k begins at {start}, inside scales that hold for {columns}")
    return replace(q, codes=codes, scale=np.ascontiguousarray(q.scale[:, start // columns : -(-stop // columns)]))


def pages(q: Quantized) -> list[Quantized]:
    """Return the matrices of a batch [batch, R, C] one by one.

    Raises
    ------
    ValueError
        If a scale is shared by rows of two matrices, other than one for everything.
    """
    count, rows, _ = q.shape
    block = q.granularity.rows
    if block is not None and rows % block:
        raise ValueError(f"gemm: scales for {block} rows straddle the matrices of {q.shape}: {rows} rows each")
    each = 0 if block is None else rows // block
    return [
        replace(q, codes=q.codes[i], scale=q.scale if block is None else q.scale[i * each : (i + 1) * each])
        for i in range(count)
    ]
