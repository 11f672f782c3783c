"""Matrix instructions of emulated tensor cores on raw codes: `mma`.

Both operands are contiguous in K: a is [M, K], b is [N, K], and the product is ``D = A @ B.T + C``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import check_matmul, to_like
from .._checks import brief_repr
from .._fpenv import with_default_fpenv
from ..cast.arrays import as_codes, format_from_dtype
from ..format.catalogue import Format, formats
from .accumulator import FLOAT64, Accumulator
from .catalogue import accumulators
from .engines.chain import sequential_f64
from .engines.selection import plan_for, solve, solve_promoted
from .operands import as_addend, instruction_codes
from .problem import GemmProblem


@with_default_fpenv
def mma(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    accumulator: str | Accumulator = "hopper_fp8",
    a_format: str | Format | None = None,
    b_format: str | Format | None = None,
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    like: Any = None,
) -> NDArray[Any]:
    """Multiply raw codes with one matrix instruction of a tensor core: ``D = A @ B.T + C``, bit for bit.

    If K is longer than one instruction, instructions are chained in increasing k, each with the previous D as its C. A
    short last instruction is padded with zeros, as in software.

    Parameters
    ----------
    a : array_like of unsigned integers, shape (M, K)
        Codes of `a_format`.
    b : array_like of unsigned integers, shape (N, K)
        Codes of `b_format`.
    c : array_like, shape (M, N), optional
        First addend, of the dtype of the result; +0 by default. Accumulators with float32 results accept any values
        that float32 represents exactly.
    accumulator : str or Accumulator
        Summation rule, see ``lowprec.accumulators``.
    a_format, b_format : str or Format, optional
        Formats of the codes; default: the accumulator's first, or e4m3fn if it accepts any format. TF32 accumulators
        take ``float32``, ignoring the low 13 bits, and ``tf32`` in 19 bits. For ``fp64``, codes are float64 numbers
        or their bits as uint64.
    a_scale, b_scale : array_like of uint8, shapes (M, K / block) and (N, K / block), optional
        Scales inside the instruction, as codes of the accumulator's ``scale_format``, one per ``scale_block`` along K:
        E8M0, or E4M3 with an ignored sign bit. Required if the accumulator has a scale format, else not allowed.
    like : array or str, optional
        Array package of the result (NumPy, torch or JAX): one of its arrays, or its name.

    Returns
    -------
    ndarray of float32, shape (M, N); float16 or float64 for accumulators with such results
        NaN is the canonical 0x7FFFFFFF (0x7FFF in float16; the default quiet NaN in float64), and a zero is +0, as on
        NVIDIA's tensor cores. Sums that follow IEEE 754 preserve -0: those of ``float32``, ``fp64`` and CDNA2, and
        negative results that CDNA1 and CDNA3 round to 0.

    Raises
    ------
    ValueError
        If shapes do not match, a code is out of range, or the accumulator does not support a format or scales.
    TypeError
        If codes or scales are not unsigned integers, or C does not have the dtype of the accumulator's results.

    Notes
    -----
    The rules are those of arXiv:2511.10909 and arXiv:2512.07004; DeepSeek (ISCA 2025, section 3.1) uses the name FP22
    for the registers of Hopper's FP8 accumulation.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> ones = np.full((1, 32), lp.encode(1.0, "e4m3fn"), np.uint8)
    >>> lp.mma(ones, ones).item(), lp.mma(ones, ones, [[2.0**14]]).item()     # all 32 products are lost below C
    (32.0, 16384.0)
    >>> two, half = np.full((1, 1), 128, np.uint8), np.full((1, 1), 126, np.uint8)     # E8M0: 2^(code - 127)
    >>> lp.mma(ones, ones, accumulator="blackwell_mxf8", a_scale=two, b_scale=half).item()
    32.0
    """
    accumulator = accumulators.get(accumulator)
    if like is not None:
        options: dict[str, Any] = {"accumulator": accumulator, "a_format": a_format, "b_format": b_format}
        found: NDArray[Any] = to_like("mma", mma(a, b, c, **options, a_scale=a_scale, b_scale=b_scale), like)
        return found
    if accumulator.output_format == FLOAT64:
        _refuse_scales(accumulator, a_scale, b_scale)
        return _mma64(a, b, c, accumulator, a_format, b_format)
    fa, fb = (
        formats.get((format_from_dtype(x) or accumulator.default_format) if f is None else f)
        for x, f in ((a, a_format), (b, b_format))
    )
    way = plan_for(accumulator, fa, fb)
    x, y = as_codes(a, fa), as_codes(b, fb)
    check_matmul("mma", x.shape, y.shape)
    start = _addend(c, (x.shape[0], y.shape[0]), accumulator)
    scales = _block_scales(accumulator, a_scale, b_scale, x, y)
    if start.size == 0:
        return start
    (x, fa), (y, fb) = instruction_codes(x, fa, accumulator), instruction_codes(y, fb, accumulator)
    p, every = GemmProblem(x, y, fa, fb, start, *scales), accumulator.promote_every
    return solve(way, p) if every is None else solve_promoted(way, p, every)


def _mma64(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None, accumulator: Accumulator,
    a_format: str | Format | None, b_format: str | Format | None,
) -> NDArray[np.float64]:  # fmt: skip
    """Multiply float64 matrices with sequential fused multiply-adds."""
    for name in (a_format, b_format):
        if name not in (None, FLOAT64.name, FLOAT64):
            raise ValueError(f"{accumulator}: operands must be {FLOAT64}, got {name}")
    x, y = (np.asarray(operand) for operand in (a, b))
    for operand in (x, y):
        if operand.dtype not in (np.dtype(np.uint64), np.dtype(np.float64)):
            raise TypeError(f"{accumulator}: operands must be float64 or their bits as uint64, got {operand.dtype}")
    x, y = (np.ascontiguousarray(operand).view(np.float64) for operand in (x, y))
    check_matmul("mma", x.shape, y.shape)
    return sequential_f64(x, y, _addend(c, (x.shape[0], y.shape[0]), accumulator))


def _refuse_scales(accumulator: Accumulator, a_scale: ArrayLike | None, b_scale: ArrayLike | None) -> None:
    for name, scale in (("a_scale", a_scale), ("b_scale", b_scale)):
        if scale is not None:
            raise ValueError(f"mma: {name} must be None, as {accumulator} takes no scales, got {brief_repr(scale)}")


def _block_scales(
    accumulator: Accumulator, a_scale: ArrayLike | None, b_scale: ArrayLike | None, x: NDArray[Any], y: NDArray[Any]
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return the scale codes of both operands, or None if the instruction takes no scales."""
    given = {"a_scale": (a_scale, x), "b_scale": (b_scale, y)}
    if accumulator.scale_format is None:
        _refuse_scales(accumulator, a_scale, b_scale)
        return None, None
    block, k, checked = accumulator.scale_block, x.shape[1], []
    if k % block:
        raise ValueError(f"mma: K must be a multiple of {accumulator}'s scale_block={block}, got {k}")
    for name, (scale, codes) in given.items():
        needed = (codes.shape[0], k // block)
        if scale is None:
            raise ValueError(
                f"mma: {name} must be codes of {accumulator.scale_format} of shape {needed} with {accumulator}, got "
                "None"
            )
        found = as_codes(scale, accumulator.scale_format)
        if found.shape != needed:
            raise ValueError(f"mma: {name} must have shape {needed}, one code per {block} along K, got {found.shape}")
        checked.append(found)
    return checked[0], checked[1]


def _addend(c: ArrayLike | None, shape: tuple[int, int], accumulator: Accumulator) -> NDArray[Any]:
    dtype = accumulator.dtype
    if c is None:
        return np.zeros(shape, dtype)
    array = as_addend("mma", c, shape)
    if dtype != np.float32 and array.dtype != dtype:
        raise TypeError(f"mma: c must be {dtype}, as {accumulator}'s results are, got {array.dtype}")
    return np.ascontiguousarray(array, dtype)
