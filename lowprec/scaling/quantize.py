"""Block scaling: one scale for a tile, a block, a row or a whole tensor, and codes relative to it.

`quantize` returns codes and scales, `quantize_dequantize` their values in one pass. One specification defines the
quantization: words (`lowprec.scaling.spec`), the name or the object of an entry of `lowprec.quantizers`, or a custom
`Quantizer`. Sources: the DeepSeek-V3 report, 3.3.2; each quantizer names its source.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _threads
from .._arrays import as_float32, as_matrix, copy_if_overlapping, prepare_out, to_like
from .._checks import MAX_SEED, check_int
from .._fpenv import with_default_fpenv
from ..format.rounding import Rounding
from .eden import quantize_eden
from .granularity import Granularity as Granularity
from .job import BlockJob
from .passes import PassesJob, has_kernel
from .quantized import Quantized as Quantized
from .quantizer import Quantizer
from .spec import TensorSpec

_STRIP = 1 << 20  # largest number of codes of a strip that is transposed


@with_default_fpenv
def quantize(
    x: ArrayLike,
    spec: str | Quantizer | TensorSpec,
    *,
    rounding: str | Rounding | None = None,
    seed: int | None = None,
    offset: int = 0,
    tensor_amax: float | None = None,
    inverse_scale: float | None = None,
    out: Quantized | None = None,
) -> Quantized:
    """Quantize a matrix in blocks that share a scale.

    With a format and a block, ``s = amax / max`` and ``codes = encode(x / s)``, saturating, rounded to nearest even. A
    block of zeros gets the scale 1. A block with NaN or Inf gets the scale NaN and decodes to NaN, so that nothing is
    lost silently. NaN has one code, the positive one, and one value, 0x7FC00000, whatever the input's sign. Ragged
    edges form smaller blocks: 576 columns are four blocks of 128 and one of 64.

    Parameters
    ----------
    x : array_like, shape (..., R, C)
        Values, taken as float32: float64 is rounded to it first, beyond its range to infinity. Leading axes count as
        rows; a vector is one row.
    spec : str, Quantizer or TensorSpec
        Words such as ``"e4m3fn 1x128"``, ``"e4m3fn 128x128 ue8m0"`` or ``"mxfp8 32x1"``, see `lowprec.scaling.spec`; a
        name in `lowprec.quantizers`; or an object. A block is ``"RxC"``, ``"row"``, ``"column"`` or ``"tensor"``.
    rounding : str or Rounding, optional
        Rounding of elements, as for `lowprec.encode`; by default that of `spec`. The rule of the scales defines their
        rounding.
    seed, offset : int
        Seed and offset of stochastic rounding: element i of `x` in C order is rounded with the random word of
        (seed, offset + i), whatever the blocks and the number of threads. ``"eden"`` rounds block scales with the words
        of `seed`.
    tensor_amax : float, optional
        Amax, a number >= 0, from which a two-level quantizer computes the tensor scale, for scales calibrated
        elsewhere; default: that of `x`. With row scales, it is the amax of every row.
    inverse_scale : float, optional
        Factor that multiplies every value, instead of one computed from its block's amax; the scale is 1 /
        inverse_scale.
    out : Quantized, optional
        Earlier result of the same call on a matrix of the same shape; its arrays are overwritten.

    Returns
    -------
    Quantized
        Codes and scales.

    Raises
    ------
    ValueError
        If a word is unknown, a format has no block, options contradict each other, or `out` does not fit.
    TypeError
        If `x` is not numeric, or `spec` is neither a string nor one of these objects.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.linspace(-3, 3, 576, dtype=np.float32).reshape(1, 576)
    >>> q = lp.quantize(x, "e4m3fn 1x128")
    >>> q
    <Quantized e4m3fn 1x576, 1x128 with float32 scales, 8.278 bits per value>
    >>> q.scale.shape, float(q.dequantize().max())
    ((1, 5), 3.0)
    >>> lp.quantize(x, "nvfp4_te")
    <Quantized nvfp4_te: e2m1fn 1x576, 1x16 with e4m3fn scales times 0.001116, 4.556 bits per value>
    >>> rule = lp.AmaxRule("block_scale_only")
    >>> own = lp.Quantizer(format="e2m1fn", granularity="1x16", scale_format="ue5m3", rule=rule)
    >>> lp.quantize(x, own)
    <Quantized e2m1fn 1x576, 1x16 with ue5m3 scales, 4.5 bits per value>
    """
    made = resolve_spec("quantize", spec)
    q = stateless("quantize", made)
    values = as_float32("quantize", x)
    if made.eden:
        given = {"rounding": rounding, "tensor_amax": tensor_amax, "inverse_scale": inverse_scale, "out": out}
        return _eden(values, made, q, seed, **given, offset=offset or None)
    rounding = "stochastic" if rounding is None and made.stochastic else rounding
    job = _job(
        q, as_matrix(values), tensor_amax=tensor_amax, inverse_scale=inverse_scale, rounding=rounding, seed=seed,
        offset=offset,
    )  # fmt: skip
    if out is None:
        codes, scales = np.empty(values.shape, job.format.code_dtype), np.empty(job.scale_shape, np.float32)
    else:
        codes, scales = _reused(out, values.shape, job)
        job.x = copy_if_overlapping(copy_if_overlapping(job.x, codes), scales)
    if values.size:
        job.codes(as_matrix(codes), scales)
    return Quantized(codes, scales, job.format, job.granularity, q.scale_format, job.tensor_scale, q)


@with_default_fpenv
def quantize_dequantize(
    x: ArrayLike,
    spec: str | Quantizer | TensorSpec,
    *,
    rounding: str | Rounding | None = None,
    seed: int | None = None,
    offset: int = 0,
    tensor_amax: float | None = None,
    inverse_scale: float | None = None,
    out: NDArray[np.float32] | None = None,
    like: Any = None,
) -> NDArray[np.float32]:
    """Return ``quantize(...).dequantize()`` in one pass, without the codes ("fake quantization").

    Parameters
    ----------
    x, spec, rounding, seed, offset, tensor_amax, inverse_scale
        See `quantize`.
    out : ndarray of float32, optional
        Destination of the values: C-contiguous, of `x`'s shape.
    like : array or str, optional
        Package of the returned array (NumPy, torch or JAX): one of its arrays, or its name.

    Returns
    -------
    ndarray of float32, shape of `x`

    Raises
    ------
    ValueError, TypeError
        See `quantize`.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.quantize_dequantize([[1.0, 0.3, -0.004]], "dsv3_inference")
    array([[ 1.        ,  0.2857143 , -0.00390625]], dtype=float32)
    """
    made = resolve_spec("quantize_dequantize", spec)
    q = stateless("quantize_dequantize", made)
    values = as_float32("quantize_dequantize", x)
    result = prepare_out("quantize_dequantize", out, values.shape, np.float32)
    if made.eden:
        given = {"rounding": rounding, "tensor_amax": tensor_amax, "inverse_scale": inverse_scale}
        _eden(values, made, q, seed, **given, offset=offset or None).dequantize(result)
        return result if like is None else to_like("quantize_dequantize", result, like)
    rounding = "stochastic" if rounding is None and made.stochastic else rounding
    values = copy_if_overlapping(values, result, in_place=True)
    job = _job(
        q, as_matrix(values), tensor_amax=tensor_amax, inverse_scale=inverse_scale, rounding=rounding, seed=seed,
        offset=offset,
    )  # fmt: skip
    if values.size:
        job.values(as_matrix(result))
    return result if like is None else to_like("quantize_dequantize", result, like)


@with_default_fpenv
def quantize_with_transpose(
    x: ArrayLike, spec: str | Quantizer | TensorSpec, *, tensor_amax: float | None = None, **options: Any
) -> tuple[Quantized, Quantized]:
    """Quantize a matrix and its transpose, each in blocks along the columns of its result.

    A training step needs both: x for Fprop, x.T for Wgrad. Both come from the same values and, where the quantizer
    has one, the same scale of the tensor; square blocks are quantized once.

    Parameters
    ----------
    x : array_like, shape (R, C)
        Values.
    spec, tensor_amax, **options
        See `quantize`; `out` is not accepted. Stochastic rounding uses an element's word in both results.

    Returns
    -------
    rows : Quantized, shape (R, C)
    columns : Quantized, shape (C, R)

    Raises
    ------
    ValueError, TypeError
        See `quantize`; also a ValueError if `x` is not a matrix.

    Examples
    --------
    >>> import lowprec as lp
    >>> rows, columns = lp.quantize_with_transpose(np.ones((200, 300)), "mxfp8")
    >>> rows.scale.shape, columns.scale.shape
    ((200, 10), (300, 7))
    """
    values = as_float32("quantize_with_transpose", x)
    if values.ndim != 2:
        raise ValueError(f"quantize_with_transpose: x must be a matrix, got shape {values.shape}")
    made = resolve_spec("quantize_with_transpose", spec)
    q = stateless("quantize_with_transpose", made)
    if values.size and not options and not made.random and has_kernel(q):
        jobs = [BlockJob(each, values, tensor_amax=tensor_amax) for each in (q, made.T.resolved)]
        if _fit_one_pass(*jobs):
            return _in_one_pass(q, *jobs)
    rows = quantize(values, made, tensor_amax=tensor_amax, **options)
    block = q.granularity
    if block.rows == block.columns and q.hadamard_size is None:
        return rows, rows.T
    columns = quantize(values, made.T, tensor_amax=tensor_amax, **options).T
    return rows, replace(columns, quantizer=rows.quantizer)  # blocks run along each result's own columns


def _fit_one_pass(rows: BlockJob, columns: BlockJob) -> bool:
    """Return whether `_in_one_pass` can compute the results of two jobs of one matrix."""
    simple = not any(
        job.by_words or job.choice is not None or job.q.hadamard_size is not None or job.quotients is not None
        for job in (rows, columns)
    )
    across = rows.rows == columns.width == 1 and columns.rows == rows.width > 1
    return simple and across and columns.rows * columns.x.shape[1] <= _STRIP


def _in_one_pass(q: Quantizer, rows: BlockJob, columns: BlockJob) -> tuple[Quantized, Quantized]:
    """Return the results of `quantize_with_transpose`, computed together for strips of rows.

    A strip of rows is read from memory once: its blocks along rows and along columns are quantized, and the codes of
    the latter are transposed, while it is in a cache.
    """
    from ..kernels.scaling.turn import turn_rows

    x, high, kind = rows.x, columns.rows, rows.format.code_dtype
    codes, turned = np.empty(x.shape, kind), np.empty(x.shape[::-1], kind)
    scales, across = np.empty(rows.scale_shape, np.float32), np.empty(columns.scale_shape, np.float32)

    def piece(start: int, stop: int) -> None:
        own = _threads.scratch("turned", high * x.shape[1], kind).reshape(high, x.shape[1])
        for strip in range(start, stop):
            first, last = strip * high, min(strip * high + high, x.shape[0])
            rows.strips(x, codes, scales, first, last)
            part = own[: last - first]
            columns.strips(x[first:last], part, across[strip : strip + 1], 0, 1)
            turn_rows(part, turned, first)

    _threads.run_chunks(piece, columns.scale_shape[0], max(1, (1 << 16) // (high * x.shape[1])))
    turned_scales, form = np.ascontiguousarray(across.T), rows.format
    return (
        Quantized(codes, scales, form, rows.granularity, q.scale_format, rows.tensor_scale, q),
        Quantized(turned, turned_scales, form, columns.granularity.T, q.scale_format, columns.tensor_scale, q),
    )


def _eden(x: NDArray[np.float32], spec: TensorSpec, q: Quantizer, seed: int | None, **others: Any) -> Quantized:
    """Return a matrix quantized by MS-EDEN."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"quantize: {name} must be left out with eden, which sets scales and codes, got {value!r}")
    if x.ndim != 2 or seed is None:
        raise ValueError(f"quantize: eden must have a matrix and a seed, got shape {x.shape} and seed {seed!r}")
    return quantize_eden(x, q, check_int("quantize", "seed", seed, 0, MAX_SEED))


def _job(q: Quantizer, x: NDArray[np.float32], **options: Any) -> BlockJob | PassesJob:
    return BlockJob(q, x, **options) if has_kernel(q) else PassesJob(q, x, **options)


def resolve_spec(caller: str, spec: Any) -> TensorSpec:
    """Return the specification of a tensor with scales.

    Raises
    ------
    ValueError
        If `spec` names no block, or has signs that are drawn in every step, which only recipes may have.
    TypeError
        If `spec` is neither a string of words nor an object that defines a quantization.
    """
    made = TensorSpec.parse(spec)
    if made.plain:
        raise ValueError(
            f"{caller}: spec must name the block of a scale, as '{made.format} 1x128' or '{made.format} tensor' "
            f"does (lowprec.encode casts without scales), got {str(spec)!r}"
        )
    if made.resample_signs:
        raise ValueError(f"{caller}: spec must have fixed signs ('resample_signs' is for recipes), got {str(spec)!r}")
    return made


def stateless(caller: str, spec: TensorSpec) -> Quantizer:
    """Return the quantizer of a specification, whose scales must depend on the values only."""
    if spec.delayed:
        name = spec.resolved.name
        raise ValueError(f"{caller}: spec must have no state, got {name!r}: lowprec.DelayedScaling({name!r}) keeps it")
    return spec.resolved


def _reused(
    out: Quantized, shape: tuple[int, ...], job: BlockJob | PassesJob
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    fits = (
        isinstance(out, Quantized)
        and (out.codes.shape, out.codes.dtype) == (shape, job.format.code_dtype)
        and out.scale.shape == job.scale_shape
    )
    if not fits:
        raise ValueError(
            f"quantize: out must have {job.format.code_dtype} codes {shape} and scales {job.scale_shape}, got {out!r}"
        )
    arrays = (out.codes, out.scale)
    codes, scales = (prepare_out("quantize", array, array.shape, array.dtype) for array in arrays)
    return codes, scales
