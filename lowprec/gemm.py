"""Matrix products on emulated machines: `mma` on raw codes, `gemm` on quantized operands with their scales.

Both operands are contiguous in K: a is [M, K], b is [N, K], and the product is ``D = A @ B.T``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accumulate import Accumulator, accumulators
from .cast import as_codes, round_to
from .engines import Float32Matrix, Plan, accumulate_f32, engine
from .formats import Format, formats
from .scaling import Quantized


def mma(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    accumulator: str | Accumulator = "hopper_fp8",
    a_format: str | Format = "e4m3fn",
    b_format: str | Format = "e4m3fn",
) -> Float32Matrix:
    """Multiply raw codes as a machine's matrix instruction does: ``D = A @ B.T + C``, bit for bit.

    K longer than one instruction means a chain of instructions in increasing k, each taking the previous D as its C.

    Parameters
    ----------
    a : array_like of unsigned integers, shape (M, K)
        Codes of `a_format`.
    b : array_like of unsigned integers, shape (N, K)
        Codes of `b_format`.
    c : array_like of float32, shape (M, N), optional
        First addend; +0 by default.
    accumulator : str or Accumulator
        The machine, see ``lowprec.accumulators``.
    a_format, b_format : str or Format
        What the codes mean.

    Returns
    -------
    ndarray of float32, shape (M, N)
        NaN is the canonical 0x7FFFFFFF and a zero is +0, as NVIDIA's units return them (``float32`` alone keeps the
        -0 that IEEE 754 gives for sums of nothing but -0).

    Raises
    ------
    ValueError
        If shapes do not fit together, a code lies outside its format, or the machine does not take a format.

    Notes
    -----
    Hopper's rule is that of arXiv:2511.10909 and arXiv:2512.07004; DeepSeek (ISCA 2025, section 3.1) calls its
    registers FP22.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> ones = np.full((1, 32), lp.encode(1.0, "e4m3fn"), np.uint8)
    >>> lp.mma(ones, ones).item(), lp.mma(ones, ones, [[2.0**14]]).item()     # all 32 products are lost below C
    (32.0, 16384.0)
    """
    machine = accumulators.get(accumulator)
    fa, fb = formats.get(a_format), formats.get(b_format)
    machine.check_inputs(fa, fb)
    x, y = as_codes(a, fa), as_codes(b, fb)
    _check_shapes("mma", x, y)
    start = _addend(c, (x.shape[0], y.shape[0]))
    if 0 in (x.shape[0], y.shape[0]):
        return np.zeros((x.shape[0], y.shape[0]), np.float32)
    return engine(machine, fa, fb).chain(x, y, start)


def gemm(
    a: Quantized,
    b: Quantized,
    *,
    accumulator: str | Accumulator = "hopper_fp8",
    promote_every: int | None = 128,
    out: str | Format = "float32",
) -> Float32Matrix:
    """Multiply two quantized matrices: ``D = A @ B.T`` with scales, promotion and a rounded result.

    Parameters
    ----------
    a : Quantized, shape (M, K)
        For example activations in tiles of 1x128.
    b : Quantized, shape (N, K)
        For example weights in blocks of 128x128.
    accumulator : str or Accumulator
        The machine, see ``lowprec.accumulators``.
    promote_every : int or None
        Length in k of one chain on the tensor core; its result is multiplied by ``s = float32(scale_a * scale_b)`` and
        added in float32: ``D = fma(s, chain, D)``, as DeepGEMM does it. None: one chain over all of K that never
        leaves the tensor core (see Notes).
    out : str or Format
        Format of the result, rounded once from float32: ``"float32"`` or ``"bfloat16"``, for example.

    Returns
    -------
    ndarray of float32, shape (M, N)
        Values of the format `out`.

    Raises
    ------
    ValueError
        If K differs, the machine does not take a format, or `promote_every` does not fit the machine's groups or the
        operands' scales; the message quotes what came.
    TypeError
        If an operand is not `Quantized`.

    Notes
    -----
    Without promotion, scales that change along K leave a running sum in the wrong units. It is then multiplied by
    ``float32(s_before / s_now)`` and truncated to the accumulator's fraction bits. For power-of-two scales that is
    exactly a machine that applies the scales inside the instruction; for others it is a what-if, no hardware.

    The machine ``float32`` without promotion multiplies the dequantized values in float32.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.random((64, 4096), np.float32), rng.random((64, 4096), np.float32)
    >>> qx, qw = lp.quantize(x, "e4m3fn", "1x128"), lp.quantize(w, "e4m3fn", "128x128")
    >>> exact = lp.gemm(qx, qw, accumulator="exact")
    >>> [f"{np.abs(lp.gemm(qx, qw, promote_every=n) / exact - 1).max():.2%}" for n in (128, None)]
    ['0.06%', '7.96%']
    """
    for name, q in (("a", a), ("b", b)):
        if not isinstance(q, Quantized):
            raise TypeError(f"gemm: {name} is {type(q).__name__}, not Quantized; see lowprec.quantize")
    machine = accumulators.get(accumulator)
    machine.check_inputs(a.format, b.format)
    _check_shapes("gemm", a.codes, b.codes)
    target = formats.get(out)
    shape = (a.shape[0], b.shape[0])
    if 0 in shape:
        return np.zeros(shape, np.float32)
    if machine.kind == "sequential" and promote_every is None:
        result = matmul_f32(a.dequantize(), b.dequantize())
    else:
        plan = _plan(a, b, machine, promote_every)
        result = engine(machine, a.format, b.format).scaled(a.codes, b.codes, plan)
    return result if target.name == "float32" else round_to(result, target, out=result)


def matmul_f32(a: ArrayLike, b: ArrayLike, out: Float32Matrix | None = None) -> Float32Matrix:
    """Multiply float32 matrices in one fixed order: ``acc = fma(a[i, k], b[j, k], acc)`` for k = 0, 1, ... from +0.

    The bits depend on nothing but the operands: not on threads, nor on the CPU, as those of BLAS do.

    Parameters
    ----------
    a : array_like, shape (M, K)
        Taken as float32.
    b : array_like, shape (N, K)
        Taken as float32; the product is ``A @ B.T``.
    out : ndarray of float32, shape (M, N), optional
        Where to put the result: C-contiguous.

    Returns
    -------
    ndarray of float32, shape (M, N)

    Raises
    ------
    ValueError
        If shapes do not fit together.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.matmul_f32([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    array([[11., 17.]], dtype=float32)
    """
    x, y = _float32_operand(a), _float32_operand(b)
    _check_shapes("matmul_f32", x, y)
    shape = (x.shape[0], y.shape[0])
    if out is None:
        out = np.zeros(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"matmul_f32: out is {out.dtype} {out.shape}, needed is contiguous float32 {shape}")
    else:
        out[...] = 0
    accumulate_f32(x, y, out)
    return out


def _plan(a: Quantized, b: Quantized, machine: Accumulator, promote_every: int | None) -> Plan:
    """Check that scales, promotion and the machine's groups fit together, and lay the scales out by block."""
    k = a.shape[1]
    group = machine.group if machine.kind == "fused" else 1
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
        if isinstance(promote_every, bool) or not isinstance(promote_every, (int, np.integer)) or promote_every < 1:
            raise ValueError(f"gemm: promote_every={promote_every!r}: a whole number >= 1 or None is needed")
        length = int(promote_every)
        if length % group:
            raise ValueError(f"gemm: promote_every={length} is not a multiple of {machine.name}'s group of {group}")
        if not constant and span % length:
            raise ValueError(
                f"gemm: promote_every={length} does not divide {span}, the k over which scales are constant"
            )
    blocks = np.arange(-(-max(k, 1) // length)) * length
    scales = []
    for q, extent in ((a, spans[0]), (b, spans[1])):
        rows = q.granularity.block((q.shape[0], k))[0]
        by_block = np.ones((blocks.size, q.shape[0]), np.float32) if q.scale.size == 0 else (
            q.scale[np.arange(q.shape[0]) // rows][:, blocks // extent].T
        )  # fmt: skip
        scales.append(np.ascontiguousarray(by_block))
    return Plan(length, scales[0], scales[1], promote_every is not None)


def _float32_operand(a: ArrayLike) -> Float32Matrix:
    """Return float32 that is contiguous, or the transposed view of something contiguous."""
    array = np.asarray(a, np.float32)
    return array if array.ndim == 2 and array.flags.f_contiguous else np.ascontiguousarray(array)


def _check_shapes(who: str, a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"{who}: a is {a.shape}, b is {b.shape}; needed are matrices [M, K] and [N, K]")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{who}: K differs: a is {a.shape}, b is {b.shape}; b is [N, K], not transposed")


def _addend(c: ArrayLike | None, shape: tuple[int, int]) -> Float32Matrix:
    if c is None:
        return np.zeros(shape, np.float32)
    array = np.asarray(c)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"mma: c is {array.dtype}, needed is float32")
    if array.shape != shape:
        raise ValueError(f"mma: c is {array.shape}, needed is {shape}")
    return np.ascontiguousarray(array, np.float32)
