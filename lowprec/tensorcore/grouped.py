"""Grouped products for experts: each row or range of rows has its own matrix, or each range of K its own product."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import brief_repr, check_int
from .._fpenv import with_default_fpenv
from ..scaling.quantize import Granularity, Quantized
from .gemm import gemm
from .operands import as_addend, check_is_quantized, row_scales, slice_k, split_batch, take_tensor_scale
from .packed import PackedB
from .problem import Float32Matrix


@with_default_fpenv
def grouped_gemm(
    a: Quantized,
    b: Quantized | Sequence[Quantized | PackedB],
    *,
    expert: ArrayLike | None = None,
    counts: ArrayLike | None = None,
    c: ArrayLike | None = None,
    **options: Any,
) -> Float32Matrix:
    """Multiply rows by the matrix of their expert: ``D[i] = a[i] @ b[expert[i]].T``.

    Parameters
    ----------
    a : Quantized, shape (M, K) or (experts, M, K)
        Rows of all experts concatenated ("contiguous"), or M slots per expert ("masked").
    b : Quantized, shape (experts, N, K), or a sequence of Quantized or PackedB, shape (N, K)
        One matrix per expert.
    expert : array_like of int, shape (M,)
        Contiguous layout: the expert of each row, -1 for padding; the rows of an expert need not be adjacent.
    counts : array_like of int, shape (experts,)
        Masked layout: number of rows of each expert.
    c : array_like, shape of the result, optional
        Addend.
    **options
        Options of `lowprec.gemm`.

    Returns
    -------
    ndarray of float32, shape (M, N) or (experts, M, N)
        Product; rows of padding and rows beyond an expert's count are +0.

    Raises
    ------
    ValueError
        If shapes do not match, an expert or a count is out of range, or not exactly one of `expert` and `counts` is
        given.

    Notes
    -----
    The bits of a row do not depend on the other rows of the call, as in DeepGEMM's ``m_grouped_gemm_fp8``.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> from lowprec.tensorcore.grouped import grouped_gemm
    >>> x, w = np.ones((3, 128), np.float32), np.ones((2, 128, 128), np.float32)
    >>> w[1] *= 2
    >>> qx, qw = (lp.quantize(v, "e4m3fn 1x128 ue8m0") for v in (x, w))
    >>> grouped_gemm(qx, qw, expert=[0, 1, -1])[:, 0]
    array([128., 256.,   0.], dtype=float32)
    """
    check_is_quantized("grouped_gemm", "a", a)
    weights = split_batch(b) if isinstance(b, Quantized) and len(b.shape) == 3 else b
    matrices = (Quantized, PackedB)
    if isinstance(weights, matrices) or not all(isinstance(w, matrices) and len(w.shape) == 2 for w in weights):
        raise ValueError(
            f"grouped_gemm: b must be a Quantized of shape (experts, N, K) or a sequence of (N, K), got {brief_repr(b)}"
        )
    if (expert is None) == (counts is None):
        raise ValueError(
            "grouped_gemm: one of expert (for rows [M, K]) and counts (for [experts, M, K]) must be given, got "
            f"{'none' if expert is None else 'both'}"
        )
    if len({w.shape for w in weights}) != 1:
        raise ValueError(f"grouped_gemm: b must be matrices of one shape, got {sorted({w.shape for w in weights})}")
    count, n = len(weights), weights[0].shape[0]
    groups: list[tuple[Quantized, NDArray[np.intp], int | None]]  # rows of `a` and their destination, per expert
    if expert is not None:
        if len(a.shape) != 2:
            raise ValueError(f"grouped_gemm: a must have shape [M, K] with expert, got {a.shape}")
        of_row = _whole(expert, "expert", (a.shape[0],), -1, count - 1)
        groups = [(a, np.flatnonzero(of_row == e), None) for e in range(count)]
        shape: tuple[int, ...] = (a.shape[0], n)
    else:
        if len(a.shape) != 3 or a.shape[0] != count:
            raise ValueError(f"grouped_gemm: a must have shape [{count} experts, M, K] with counts, got {a.shape}")
        limits = _whole(counts, "counts", (count,), 0, a.shape[1])
        groups = [(q, np.arange(limits[e]), e) for e, q in enumerate(split_batch(a))]
        shape = (count, a.shape[1], n)
    addend = None if c is None else as_addend("grouped_gemm", c, shape)
    out = np.zeros(shape, np.float32)
    for w, (q, rows, page) in zip(weights, groups, strict=True):
        into, more = (x if x is None or page is None else x[page] for x in (out, addend))
        if rows.size and into is not None:
            into[rows] = gemm(_rows(q, rows), w, None if more is None else more[rows], **options)
    if not any(rows.size for _, rows, _ in groups):
        gemm(_rows(groups[0][0], groups[0][1]), weights[0], **options)  # to raise for unsupported options
    return out


def group_offsets(counts: ArrayLike, align: int = 128) -> NDArray[np.int64]:
    """Return the start of each expert's tokens along K, followed by the end of the last expert's slots.

    Parameters
    ----------
    counts : array_like of int, shape (experts,)
        Tokens of each expert.
    align : int
        Alignment of every start, so that no two experts share a scale.

    Returns
    -------
    ndarray of int64, shape (experts + 1,)

    Examples
    --------
    >>> group_offsets([130, 0, 5], align=128).tolist()
    [0, 256, 256, 384]
    """
    array = np.asarray(counts)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ValueError(f"group_offsets: counts must be integers >= 0, one per expert, got {brief_repr(array)}")
    align = check_int("group_offsets", "align", align, 1)
    starts = [0, *itertools.accumulate(-(-count // align) * align for count in array.tolist())]
    if starts[-1] >= 1 << 62:
        raise ValueError(f"group_offsets: runs must end below 2^62, got counts {array.tolist()} with align={align}")
    return np.array(starts, np.int64)


@with_default_fpenv
def grouped_wgrad(
    dy: Quantized, x: Quantized, counts: ArrayLike, *, c: ArrayLike | None = None, align: int = 128, **options: Any
) -> Float32Matrix:
    """Compute the weight gradients of all experts in one call: ``D[e] = dy[:, run e] @ x[:, run e].T``.

    Parameters
    ----------
    dy : Quantized, shape (N, K)
        Output gradients, transposed: K runs over the tokens of the first expert, then of the second, and so on. The
        `counts[e]` tokens of run e start at ``group_offsets(counts, align)[e]``; values between runs are not read.
    x : Quantized, shape (M, K)
        Inputs, transposed, in the same order of tokens.
    counts : array_like of int, shape (experts,)
        Tokens of each expert.
    c : array_like, shape (experts, N, M), optional
        Addend: the gradients accumulated so far.
    align : int
        Alignment of the runs, a multiple of the block length of both operands' scales.
    **options
        Options of `lowprec.gemm`.

    Returns
    -------
    ndarray of float32, shape (experts, N, M)
        Weight gradients; an expert without tokens gets `c`, or +0.

    Raises
    ------
    ValueError
        If shapes do not match, runs exceed K, or a run begins inside a block of scales.

    Notes
    -----
    The bits are those of one `lowprec.gemm` per expert: a run's short last tile is padded with zeros, as in DeepGEMM's
    ``k_grouped_fp8_gemm_tn_contiguous``.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> from lowprec.tensorcore.grouped import grouped_wgrad
    >>> ones = lp.quantize(np.ones((4, 256), np.float32), "e4m3fn 1x128 ue8m0")
    >>> grouped_wgrad(ones, ones, [3, 100])[:, 0, 0]
    array([  3., 100.], dtype=float32)
    """
    check_is_quantized("grouped_wgrad", "dy", dy)
    check_is_quantized("grouped_wgrad", "x", x)
    starts = group_offsets(counts, align)
    sizes = np.asarray(counts, np.int64)
    if len(dy.shape) != 2 or len(x.shape) != 2 or dy.shape[1] != x.shape[1]:
        raise ValueError(
            f"grouped_wgrad: dy and x must be matrices [N, K] and [M, K], got shapes {dy.shape} and {x.shape}"
        )
    ends = starts[:-1] + sizes
    if ends.max(initial=0) > dy.shape[1]:
        raise ValueError(f"grouped_wgrad: runs must end within K={dy.shape[1]}, got {ends.max()} with align={align}")
    for name, q in (("dy", dy), ("x", x)):
        row_scales(name, q)  # rejects scales of columns
        columns = q.granularity.block((q.shape[0], q.shape[1]))[1]
        if (starts[:-1][sizes > 0] % columns).any() and columns < q.shape[1]:
            raise ValueError(f"grouped_wgrad: runs must begin at {name}'s blocks of {columns}, got align={align}")
    shape = (sizes.size, dy.shape[0], x.shape[0])
    addend = None if c is None else as_addend("grouped_wgrad", c, shape)
    out = np.zeros(shape, np.float32)
    for e, (start, end) in enumerate(zip(starts[:-1].tolist(), ends.tolist(), strict=True)):
        more = None if addend is None else addend[e]
        out[e] = gemm(slice_k(dy, start, end), slice_k(x, start, end), more, **options)
    return out


def _rows(q: Quantized, rows: NDArray[np.intp]) -> Quantized:
    """Return a selection of a matrix's rows with their scales."""
    block = q.granularity.block((q.shape[0], q.shape[1]))[0]
    columns = q.granularity.columns
    scale, top = q.scale[rows // block], take_tensor_scale(q, rows)
    return replace(q, codes=q.codes[rows], scale=scale, granularity=Granularity(1, columns), tensor_scale=top)


def _whole(values: ArrayLike | None, name: str, shape: tuple[int, ...], low: int, high: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape != shape:
        raise ValueError(f"grouped_gemm: {name} must be integers of shape {shape}, got {array.dtype} {array.shape}")
    if array.size and (array.min() < low or array.max() > high):
        raise ValueError(f"grouped_gemm: {name} must be from {low} to {high}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)
