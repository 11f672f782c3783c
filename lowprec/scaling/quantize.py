"""Block scaling: one scale for a tile, a block, a row or a whole tensor, and codes relative to it.

`quantize` gives codes and scales, `quantize_dequantize` their values in one pass. What happens is said by a
`Quantizer` (`lowprec.quantizers`). Sources: the DeepSeek-V3 report, 3.3.2; each quantizer names its own.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import apart, as_float32, as_matrix, output, returned
from .._ieee import standard
from ..format.catalogue import Format, formats
from ..format.rounding import Rounding
from .granularity import Granularity as Granularity
from .job import BlockJob, fit_one_pass, in_one_pass
from .passes import PassesJob, has_kernel
from .quantized import Quantized as Quantized
from .quantizer import Quantizer, quantizers
from .rules import Division


@standard
def quantize(
    x: ArrayLike,
    fmt: str | Format | None = None,
    granularity: str | Granularity | None = None,
    *,
    quantizer: str | Quantizer | None = None,
    scale_format: str | Format | None = None,
    arithmetic: str | None = None,
    division: Division | None = None,
    amax_floor: float | None = None,
    rounding: str | Rounding | None = None,
    seed: int | None = None,
    offset: int = 0,
    tensor_amax: float | None = None,
    multiplier: float | None = None,
    out: Quantized | None = None,
) -> Quantized:
    """Quantize a matrix in blocks that share a scale.

    By default ``s = amax / max``, ``codes = encode(x / s)``, saturating, to nearest even. A block of zeros gets the
    scale 1. A block with NaN or Inf gets the scale NaN, so that all of it decodes to NaN: nothing is lost silently.
    NaN has one code, the positive one, and one value, 0x7FC00000, whatever its sign was.
    Ragged edges form smaller blocks: 576 columns are four blocks of 128 and one of 64. A named quantizer
    (``lowprec.quantizers``) fixes all of it; options given beside it win.

    Parameters
    ----------
    x : array_like, shape (..., R, C)
        Values, taken as float32: float64 is rounded to it first, beyond its range to infinity. Leading axes count as
        rows; a vector is one row.
    fmt : str or Format, optional
        Element format of at most 16 bits; needed where no quantizer says it.
    granularity : str or Granularity, optional
        ``"1x128"`` (the default), ``"128x1"``, ``"128x128"``, any other ``"RxC"``, ``"row"``, ``"column"`` or
        ``"tensor"``.
    quantizer : str or Quantizer, optional
        A named quantizer, or one of your own.
    scale_format : str or Format, optional
        Format that scales are stored in.
    arithmetic : str, optional
        How a scale comes from amax, see `lowprec.scaling.rules`.
    division : {"divide", "reciprocal", "max/amax"}, optional
        ``x / s`` (the default), ``x * float32(1 / s)``, or ``x * float32(max / amax)``.
    amax_floor : float, optional
        Lower bound on amax, 0 by default.
    rounding : str or Rounding, optional
        How elements are rounded, as for `lowprec.encode`; the quantizer's way by default, to nearest even for all but
        DeepGEMM's FP4, in HiF8, too, whose own is ``nearest_away``. Scales are always rounded as their arithmetic says.
    seed, offset : int
        For stochastic rounding: element i of `x` in C order is rounded by the random word of (seed, offset + i),
        whatever the blocks and the number of threads.
    tensor_amax : float, optional
        The amax, a number >= 0, that a two-level quantizer's tensor scale is computed from, where it was calibrated
        elsewhere; with scales of rows, every row's.
    multiplier : float, optional
        What every value is multiplied with, in place of a scale from its block's amax; the scale is 1 / multiplier.
    out : Quantized, optional
        An earlier result of the same call on a matrix of the same shape, whose arrays are overwritten.

    Returns
    -------
    Quantized

    Raises
    ------
    ValueError
        For an unknown format, granularity, scale format, arithmetic or quantizer, or an `out` that does not fit.
    TypeError
        If `x` is not numeric.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.linspace(-3, 3, 576, dtype=np.float32).reshape(1, 576)
    >>> q = lp.quantize(x, "e4m3fn")
    >>> q
    Quantized(e4m3fn 1x576, 1x128 with float32 scales, 8.278 bits per value)
    >>> q.scale.shape, float(q.dequantize().max())
    ((1, 5), 3.0)
    >>> lp.quantize(x, quantizer="nvfp4_te")
    Quantized(nvfp4_te: e2m1fn 1x576, 1x16 with e4m3fn scales times 0.001116, 4.556 bits per value)
    """
    q = resolve(
        fmt,
        granularity,
        quantizer,
        scale_format=scale_format,
        arithmetic=arithmetic,
        division=division,
        amax_floor=amax_floor,
    )
    values = as_float32("quantize", x)
    job = _job(
        q, as_matrix(values), tensor_amax=tensor_amax, multiplier=multiplier, rounding=rounding, seed=seed,
        offset=offset,
    )  # fmt: skip
    if out is None:
        codes, scales = np.empty(values.shape, job.format.code_dtype), np.empty(job.scale_shape, np.float32)
    else:
        codes, scales = _reused(out, values.shape, job)
        job.x = apart(apart(job.x, codes), scales)
    if values.size:
        job.codes(as_matrix(codes), scales)
    return Quantized(codes, scales, job.format, job.granularity, q.scale_format, job.tensor_scale, q)


@standard
def quantize_dequantize(
    x: ArrayLike,
    fmt: str | Format | None = None,
    granularity: str | Granularity | None = None,
    *,
    quantizer: str | Quantizer | None = None,
    scale_format: str | Format | None = None,
    arithmetic: str | None = None,
    division: Division | None = None,
    amax_floor: float | None = None,
    rounding: str | Rounding | None = None,
    seed: int | None = None,
    offset: int = 0,
    tensor_amax: float | None = None,
    multiplier: float | None = None,
    out: NDArray[np.float32] | None = None,
    like: Any = None,
) -> NDArray[np.float32]:
    """Return ``quantize(...).dequantize()`` in one pass, without the codes ("fake quantization").

    Parameters
    ----------
    x, fmt, granularity, quantizer, scale_format, arithmetic, division, amax_floor
        As for `quantize`.
    rounding, seed, offset, tensor_amax, multiplier
        As for `quantize`.
    out : ndarray of float32, optional
        Where to put the values: C-contiguous, of `x`'s shape.
    like : array or str, optional
        Whose arrays to return: NumPy's, torch's or JAX's, by one of them or by name.

    Returns
    -------
    ndarray of float32, shape of `x`

    Raises
    ------
    ValueError, TypeError
        As for `quantize`.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.quantize_dequantize([[1.0, 0.3, -0.004]], quantizer="dsv3_inference")
    array([[ 1.        ,  0.2857143 , -0.00390625]], dtype=float32)
    """
    q = resolve(
        fmt,
        granularity,
        quantizer,
        scale_format=scale_format,
        arithmetic=arithmetic,
        division=division,
        amax_floor=amax_floor,
    )
    values = as_float32("quantize_dequantize", x)
    result = output("quantize_dequantize", out, values.shape, np.float32)
    values = apart(values, result, in_place=True)
    job = _job(
        q, as_matrix(values), tensor_amax=tensor_amax, multiplier=multiplier, rounding=rounding, seed=seed,
        offset=offset,
    )  # fmt: skip
    if values.size:
        job.values(as_matrix(result))
    return result if like is None else returned("quantize_dequantize", result, like)


@standard
def quantize_both(
    x: ArrayLike,
    fmt: str | Format | None = None,
    granularity: str | Granularity | None = None,
    **options: Any,
) -> tuple[Quantized, Quantized]:
    """Quantize a matrix and its transpose, each in blocks along its own columns.

    A training step needs both: x for Fprop, x.T for Wgrad. Both come from the same values and, where the quantizer
    has one, the same scale of the tensor; square blocks are quantized once.

    Parameters
    ----------
    x : array_like, shape (R, C)
        Values.
    fmt, granularity, **options
        As for `quantize`, except `out`. Stochastic rounding uses an element's word for both.

    Returns
    -------
    rows : Quantized, shape (R, C)
    columns : Quantized, shape (C, R)

    Raises
    ------
    ValueError, TypeError
        As for `quantize`; for anything but a matrix.

    Examples
    --------
    >>> import lowprec as lp
    >>> rows, columns = lp.quantize_both(np.ones((200, 300)), quantizer="mxfp8")
    >>> rows.scale.shape, columns.scale.shape
    ((200, 10), (300, 7))
    """
    values = as_float32("quantize_both", x)
    if values.ndim != 2:
        raise ValueError(f"quantize_both: a matrix is needed, not shape {values.shape}")
    if (both := _in_one_pass(values, fmt, granularity, **options)) is not None:
        return both
    rows = quantize(values, fmt, granularity, **options)
    block = rows.granularity
    transforms = options.get("quantizer") is not None and quantizers.get(options["quantizer"]).hadamard is not None
    if block.rows == block.columns and not transforms:
        return rows, rows.T
    return rows, quantize(values, fmt, block.T, **options).T


def _in_one_pass(
    x: NDArray[np.float32],
    fmt: str | Format | None,
    granularity: str | Granularity | None,
    *,
    quantizer: str | Quantizer | None = None,
    tensor_amax: float | None = None,
    multiplier: float | None = None,
    **options: Any,
) -> tuple[Quantized, Quantized] | None:
    """Return what `quantize_both` does where strips of rows can serve both, None elsewhere."""
    if not x.size or not options.keys() <= {"scale_format", "arithmetic", "division", "amax_floor"}:
        return None
    q = resolve(fmt, granularity, quantizer, **options)
    if not has_kernel(q):
        return None
    turned = resolve(None, q.granularity.T, q)
    jobs = [BlockJob(each, x, tensor_amax=tensor_amax, multiplier=multiplier) for each in (q, turned)]
    if not fit_one_pass(*jobs):
        return None
    (codes, scales), (turned_codes, turned_scales) = in_one_pass(*jobs)
    rows, columns = jobs
    return (
        Quantized(codes, scales, rows.format, rows.granularity, q.scale_format, rows.tensor_scale, q),
        Quantized(
            turned_codes,
            turned_scales,
            rows.format,
            columns.granularity.T,
            q.scale_format,
            columns.tensor_scale,
            turned,
        ),
    )


@standard
def requantize(q: Quantized, granularity: str | Granularity, **options: Any) -> Quantized:
    """Quantize the values of a quantized matrix in other blocks: 1x128 to 128x1 for Wgrad's operand.

    Parameters
    ----------
    q : Quantized
        Its values are decoded to float32 first.
    granularity : str or Granularity
        The new blocks.
    **options
        As for `quantize`; by default the quantizer that made `q`, with all that was said beside it; else its format.

    Returns
    -------
    Quantized

    Raises
    ------
    TypeError
        If `q` is not `Quantized`.
    ValueError
        As for `quantize`.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> q = lp.quantize(np.ones((256, 256), np.float32), quantizer="mxfp8")
    >>> lp.requantize(q, "32x1")
    Quantized(mxfp8_rceil: e4m3fn 256x256, 32x1 with e8m0fnu scales, 8.25 bits per value)
    """
    if not isinstance(q, Quantized):
        raise TypeError(f"requantize: {type(q).__name__} is not Quantized; see lowprec.quantize")
    if q.quantizer is not None:
        options.setdefault("quantizer", q.quantizer)
    elif "quantizer" not in options:
        options = {"fmt": q.format, "scale_format": q.scale_format, **options}
    return quantize(q.dequantize(), options.pop("fmt", None), granularity, **options)


def _job(q: Quantizer, x: NDArray[np.float32], **options: Any) -> BlockJob | PassesJob:
    return BlockJob(q, x, **options) if has_kernel(q) else PassesJob(q, x, **options)


_PLAIN = Quantizer()


def resolve(
    fmt: str | Format | None,
    granularity: str | Granularity | None,
    quantizer: str | Quantizer | None,
    **options: Any,
) -> Quantizer:
    """Return the quantizer that a call's options mean.

    Raises
    ------
    ValueError
        For anything unknown or contradictory.
    """
    if quantizer is None:
        if fmt is None:
            raise ValueError("quantize: fmt or quantizer is needed: an element format such as 'e4m3fn', or a quantizer")
        q = _PLAIN
    else:
        q = quantizers.get(quantizer)
    changes = {key: value for key, value in options.items() if value is not None}
    if fmt is not None:
        changes["format"] = fmt
    for field in ("format", "scale_format"):
        if field in changes:  # before the cache, whose keys are values: a name may mean something else tomorrow
            changes[field] = formats.get(changes[field])
    if granularity is not None:
        changes["granularity"] = Granularity.parse(granularity)
    if changes:
        q = _changed(q, tuple((name, type(changes[name]), changes[name]) for name in sorted(changes)))
    if q.history is not None:
        raise ValueError(f"quantizer {q.name!r} has a state: lowprec.DelayedScaling({q.name!r}) keeps it")
    return q


def _changed(q: Quantizer, changes: tuple[tuple[str, type, Any], ...]) -> Quantizer:
    """Return a quantizer with fields changed, under the name of the one that is changed."""
    found = _made(q, changes)
    return found if found.name == q.name else replace(found, name=q.name, source=q.source, note=q.note)


@functools.lru_cache(maxsize=256)
def _made(q: Quantizer, changes: tuple[tuple[str, type, Any], ...]) -> Quantizer:
    """Return a quantizer with fields changed; types are in the key, as True is equal to 1 and no number here."""
    about = {"name": q.name, "source": q.source, "note": q.note}
    return q.with_(**about, **{name: value for name, _, value in changes})


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
            f"quantize: out is {out!r}, needed are {job.format.code_dtype} codes {shape} and scales {job.scale_shape}"
        )
    arrays = (out.codes, out.scale)
    codes, scales = (output("quantize", array, array.shape, array.dtype) for array in arrays)
    return codes, scales
