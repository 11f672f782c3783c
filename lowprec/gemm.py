"""Matrix products on emulated machines: `mma` on raw codes, `gemm` on quantized operands with their scales.

Both operands are contiguous in K: a is [M, K], b is [N, K], and the product is ``D = A @ B.T``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _jit
from .accumulate import FLOAT64, Accumulator, accumulators
from .cast import as_codes, round_to
from .engines import Engine, Float32Matrix, Plan, accumulate_f32, engine
from .formats import Format, formats
from .kernels import promote as promotion
from .kernels.sequential import sequential64
from .reference_dots import BlockScales
from .scaling import Quantized


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
) -> NDArray[Any]:
    """Multiply raw codes as a machine's matrix instruction does: ``D = A @ B.T + C``, bit for bit.

    K longer than one instruction means a chain of instructions in increasing k, each taking the previous D as its C.
    A short last instruction is filled up with zeros, as software does.

    Parameters
    ----------
    a : array_like of unsigned integers, shape (M, K)
        Codes of `a_format`.
    b : array_like of unsigned integers, shape (N, K)
        Codes of `b_format`.
    c : array_like, shape (M, N), optional
        First addend, of the type of the result; +0 by default. Machines whose results are float32 take anything that
        float32 holds.
    accumulator : str or Accumulator
        The machine, see ``lowprec.accumulators``.
    a_format, b_format : str or Format, optional
        What the codes mean; by default what the machine names first, e4m3fn if it takes anything. TF32 machines take
        ``float32``, whose low 13 bits they drop, and ``tf32`` in 19 bits. For ``fp64``, codes are float64 numbers
        or their bits as uint64.
    a_scale, b_scale : array_like of uint8, shapes (M, K / block) and (N, K / block), optional
        Scales inside the instruction, as codes of the machine's ``scale_format`` for each ``scale_block`` along K:
        E8M0, or E4M3 whose sign bit is ignored. Machines with a scale format need both, others take none.

    Returns
    -------
    ndarray of float32, shape (M, N); float16 or float64 where the machine's results are
        NaN is the canonical 0x7FFFFFFF (0x7FFF) and a zero is +0, as NVIDIA's units return them. Where sums
        are IEEE 754's they keep its -0: ``float32``, ``fp64``, CDNA2, and what CDNA1 and CDNA3 round to zero from below.

    Raises
    ------
    ValueError
        If shapes do not fit together, a code lies outside its format, or the machine does not take a format or scales.
    TypeError
        If codes or scales are not unsigned integers, or C is of another type than the machine's.

    Notes
    -----
    The machines' rules are those of arXiv:2511.10909 and arXiv:2512.07004; DeepSeek (ISCA 2025, section 3.1) calls
    Hopper's FP8 registers FP22.

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
    machine = accumulators.get(accumulator)
    if machine.output == FLOAT64:
        return _mma64(a, b, c, machine, a_format, b_format)
    fa, fb = (formats.get(machine.default_format if f is None else f) for f in (a_format, b_format))
    machine.check_inputs(fa, fb)
    x, y = as_codes(a, fa), as_codes(b, fb)
    check_shapes("mma", x, y)
    start = _addend(c, (x.shape[0], y.shape[0]), machine)
    scales = _block_scales(machine, a_scale, b_scale, x, y)
    if start.size == 0:
        return start
    (x, fa), (y, fb) = _as_multiplied(x, fa, machine), _as_multiplied(y, fb, machine)
    unit = engine(machine, fa, fb)
    if machine.promote_every is None:
        return unit.chain(x, y, start, scales)
    return _promoted(unit, x, y, start, scales)


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
    check_shapes("gemm", a.codes, b.codes)
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
    check_shapes("matmul_f32", x, y)
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


def _promoted(
    unit: Engine, x: NDArray[Any], y: NDArray[Any], c: NDArray[Any], scales: BlockScales | None
) -> NDArray[Any]:
    """Add a machine's chains of `promote_every` products, each from +0, to C in float32 (in float16 for its C)."""
    step, block = int(unit.machine.promote_every or 0), unit.machine.scale_block
    if block and step % block:
        raise ValueError(f"{unit.machine}: promote_every={step} is not a multiple of the scales' {block}")
    total: Float32Matrix = c.astype(np.float32)
    for p in range(0, max(x.shape[1], 1), step):
        part = [np.ascontiguousarray(codes[:, p : p + step]) for codes in (x, y)]
        some = scales and BlockScales(*(s[:, p // block : -(-(p + step) // block)] for s in scales))
        with np.errstate(over="ignore", invalid="ignore"):
            total += unit.chain(part[0], part[1], np.zeros_like(c), some)
    promotion.canonical_nan(total)
    return total.astype(c.dtype)


def _as_multiplied(codes: NDArray[Any], fmt: Format, machine: Accumulator) -> tuple[NDArray[Any], Format]:
    """Return operands as the machine multiplies them: a TF32 machine drops the low 13 bits of float32."""
    tf32 = formats["tf32"]
    if fmt.name == "float32" and tf32.name in machine.inputs:
        return codes >> np.uint32(fmt.mantissa_bits - tf32.mantissa_bits), tf32
    return codes, fmt


def _mma64(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None, machine: Accumulator,
    a_format: str | Format | None, b_format: str | Format | None,
) -> NDArray[np.float64]:  # fmt: skip
    """Multiply float64 numbers by sequential fused multiply-adds."""
    for name in (a_format, b_format):
        if name not in (None, FLOAT64):
            raise ValueError(f"{machine} takes {FLOAT64}, not {name}")
    x, y = (np.asarray(operand) for operand in (a, b))
    for operand in (x, y):
        if operand.dtype not in (np.dtype(np.uint64), np.dtype(np.float64)):
            raise TypeError(f"{machine}: operands are float64 numbers or their bits as uint64, not {operand.dtype}")
    x, y = (np.ascontiguousarray(operand).view(np.float64) for operand in (x, y))
    check_shapes("mma", x, y)
    out = np.array(_addend(c, (x.shape[0], y.shape[0]), machine))
    turned = np.ascontiguousarray(y.T)
    _jit.run_chunks(lambda i, j: sequential64(x, turned, out, i, j), x.shape[0], max(1, (1 << 18) // max(y.size, 1)))
    out[np.isnan(out)] = np.nan
    return out


def _block_scales(
    machine: Accumulator, a_scale: ArrayLike | None, b_scale: ArrayLike | None, x: NDArray[Any], y: NDArray[Any]
) -> BlockScales | None:
    given = {"a_scale": (a_scale, x), "b_scale": (b_scale, y)}
    if machine.scale_format is None:
        for name, (scale, _) in given.items():
            if scale is not None:
                raise ValueError(f"mma: {machine} takes no scales inside the instruction, but {name} was given")
        return None
    block, k, checked = machine.scale_block, x.shape[1], []
    if k % block:
        raise ValueError(f"mma: K = {k} is not a multiple of {block}, the codes that share a scale of {machine}")
    for name, (scale, codes) in given.items():
        needed = (codes.shape[0], k // block)
        if scale is None:
            raise ValueError(f"mma: {machine} needs {name}: codes of {machine.scale_format}, shape {needed}")
        found = as_codes(scale, formats[machine.scale_format])
        if found.shape != needed:
            raise ValueError(f"mma: {name} is {found.shape}, needed is {needed}: one code for {block} along K")
        checked.append(found)
    return BlockScales(*checked)


def check_shapes(who: str, a: NDArray[Any], b: NDArray[Any]) -> None:
    """Raise a ValueError unless a is [M, K] and b is [N, K]."""
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"{who}: a is {a.shape}, b is {b.shape}; needed are matrices [M, K] and [N, K]")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{who}: K differs: a is {a.shape}, b is {b.shape}; b is [N, K], not transposed")


def _addend(c: ArrayLike | None, shape: tuple[int, int], machine: Accumulator) -> NDArray[Any]:
    dtype = np.dtype(machine.dtype)
    if c is None:
        return np.zeros(shape, dtype)
    array = np.asarray(c)
    if array.dtype.kind not in "fiu" or (dtype != np.float32 and array.dtype != dtype):
        raise TypeError(f"mma: c is {array.dtype}, needed is {dtype}, the type of {machine}'s results")
    if array.shape != shape:
        raise ValueError(f"mma: c is {array.shape}, needed is {shape}")
    return np.ascontiguousarray(array, dtype)
