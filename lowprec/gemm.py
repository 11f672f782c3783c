"""Matrix products of quantized operands with their scales: `gemm`, and `matmul_f32` in one fixed order.

Both operands are contiguous in K: a is [M, K], b is [N, K], and the product is ``D = A @ B.T``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accumulate import Accumulator, accumulators
from .cast import decode, encode, round_to
from .engines import Float32Matrix, Plan, accumulate_f32, engine
from .formats import Format, formats
from .instructions import as_multiplied, check_shapes, promoted
from .instructions import mma as mma
from .kernels import epilogue
from .kernels import promote as promotion
from .libraries import Library, libraries
from .reference_dots import BlockScales
from .scaling import Granularity, Quantized

_SPLIT_TILE = 128  # k that stay together when K is split


def gemm(
    a: Quantized,
    b: Quantized,
    c: ArrayLike | None = None,
    *,
    accumulator: str | Accumulator = "hopper_fp8",
    promote_every: int | Literal["auto"] | None = "auto",
    out: str | Format = "float32",
    library: str | Library = "deepgemm",
    alpha: float = 1.0,
    beta: float = 1.0,
    split_k: int = 1,
) -> Float32Matrix:
    """Multiply two quantized matrices: ``D = alpha * A @ B.T + beta * C`` with scales, promotion and a rounded result.

    Parameters
    ----------
    a : Quantized, shape (M, K) or (batch, M, K)
        For example activations in tiles of 1x128.
    b : Quantized, shape (N, K) or (batch, N, K)
        For example weights in blocks of 128x128. Transposed operands: ``b.T``.
    c : array_like, shape (M, N) or (batch, M, N), optional
        Addend, taken as float32: a gradient so far, for example.
    accumulator : str or Accumulator
        The machine, see ``lowprec.accumulators``. One that takes scales inside the instruction (``blackwell_mxf8``,
        ``blackwell_nvfp4``) is given the operands'; they must be numbers of its scale format.
    promote_every : int, None or "auto"
        Length in k of one chain on the tensor core; its result is multiplied by ``s = float32(scale_a * scale_b)`` and
        added in float32: ``D = fma(s, chain, D)``, as DeepGEMM does it. None: one chain over all of K that never
        leaves the tensor core (see Notes). "auto": the machine's own, else None where scales are inside the
        instruction, else the library's (128 for DeepGEMM).
    out : str or Format
        Format of the result, rounded once from float32: ``"float32"``, ``"bfloat16"`` or ``"float16"``, for example.
    library : str or Library
        Whose order of operations to follow: ``"deepgemm"``, ``"cublaslt"``, ``"cublaslt_fast"``, ``"cutlass_2xacc"``,
        or a `lowprec.libraries.Library` of one's own.
    alpha, beta : float
        Factors of the product and of C, taken as float32. Scales per tensor (NVFP4's) join alpha, see Notes.
    split_k : int
        K is split into so many runs of whole tiles of 128, summed one by one as far as the epilogue.

    Returns
    -------
    ndarray of float32, shape (M, N) or (batch, M, N)
        Values of the format `out`.

    Raises
    ------
    ValueError
        If shapes differ, the machine does not take a format, scales are not positive, or `promote_every` does not fit
        the machine's groups or the operands' scales; the message quotes what came.
    TypeError
        If an operand is not `Quantized`.

    Notes
    -----
    1. Each split's chains are summed in float32 from +0: ``T = fma(s, chain, T)`` with scales at promotion,
       ``T = T + chain`` with scales at the end or inside the instruction.
    2. Splits are added one after the other in float32.
    3. ``D = fma(f, T, float32(beta * C))``, f being float32(alpha), times ``float32(scale_a * scale_b)`` if they come
       at the end; without C, ``D = f * T``.
    4. D is rounded to `out`, to nearest even: two roundings, as the libraries have them.

    Scales per tensor are part of the epilogue's factor: alpha becomes ``float32(float32(t_a * t_b) * alpha)``, as
    PyTorch multiplies them before the product is scaled. TransformerEngine computes that factor from the amaxes,
    ``alpha * amax_a * amax_b * float32(1 / (6 * 6 * 448 * 448))``, which may differ in the last bit: to have it, pass
    it as alpha with operands whose `tensor_scale` is None.

    Inside the instruction, power-of-two scales add to the exponents of products (mxf8f6f4); for 4-bit operands runs
    of 16 products are summed exactly before they are scaled (mxf4, mxf4nvf4). Blocks of several rows, such as
    weights in 32x32 or 16x16, give each row its scale. A last short block of K is filled up with zeros.

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
    machine, order, target = accumulators.get(accumulator), libraries.get(library), formats.get(out)
    for name, q in (("a", a), ("b", b)):
        if not isinstance(q, Quantized):
            raise TypeError(f"gemm: {name} is {type(q).__name__}, not Quantized; see lowprec.quantize")
        if q.scale.size and not (q.scale.min() > 0 and q.scale.max() < np.inf):
            _check_scales(name, q.scale, machine)
    a, b, factor = _without_tensor_scales(a, b, alpha)
    if isinstance(split_k, bool) or not isinstance(split_k, (int, np.integer)) or split_k < 1:
        raise ValueError(f"gemm: split_k={split_k!r}: a whole number >= 1 is needed")
    options: dict[str, Any] = {"machine": machine, "order": order, "split_k": int(split_k)}
    options |= {"promote_every": _interval(machine, order, promote_every), "alpha": factor}
    if len(a.shape) == 3 and len(b.shape) == 3:
        pages_a, pages_b = pages(a), pages(b)
        if len(pages_a) != len(pages_b):
            raise ValueError(f"gemm: a is {a.shape}, b is {b.shape}: the number of matrices differs")
        result = np.empty((len(pages_a), a.shape[1], b.shape[1]), np.float32)
        addend = _addend(c, beta, result.shape)
        for i, (qa, qb) in enumerate(zip(pages_a, pages_b, strict=True)):
            result[i] = _multiply(qa, qb, None if addend is None else addend[i], **options)
    else:
        check_shapes("gemm", a.codes, b.codes)
        result = _multiply(a, b, _addend(c, beta, (a.shape[0], b.shape[0])), **options)
    return result if target.name == "float32" else round_to(result, target, out=result)


def _multiply(
    a: Quantized, b: Quantized, addend: Float32Matrix | None, *, machine: Accumulator, order: Library,
    promote_every: int | None, split_k: int, alpha: np.float32,
) -> Float32Matrix:  # fmt: skip
    """Return alpha times the product of two matrices, plus the addend, which is overwritten."""
    machine.check_inputs(a.format, b.format)
    check_shapes("gemm", a.codes, b.codes)
    if 0 in (a.shape[0], b.shape[0]):
        return np.zeros((a.shape[0], b.shape[0]), np.float32)
    k = a.shape[1]
    at_end = order.scales == "end" and machine.scale_format is None
    scales = None
    if at_end:
        (a, scale_a), (b, scale_b) = _without_scale("a", a, order), _without_scale("b", b, order)
        scales = scale_a, scale_b
    tiles = -(-k // _SPLIT_TILE)
    step = max(-(-tiles // split_k), 1) * _SPLIT_TILE
    total: Float32Matrix | None = None
    for start in range(0, max(k, 1), step):
        qa, qb = (q if step >= k else _along_k(q, start, min(start + step, k)) for q in (a, b))
        part = _product(qa, qb, machine, promote_every)
        with np.errstate(over="ignore", invalid="ignore"):
            total = part if total is None else total + part
    assert total is not None
    if scales is None and addend is None and alpha == 1:
        return total
    if scales is None:
        scales = np.ones(a.shape[0], np.float32), np.ones(b.shape[0], np.float32)
    result = np.zeros_like(total) if addend is None else addend
    epilogue.finish(total, *scales, alpha, result)
    promotion.canonical_nan(result)
    return result


def _product(a: Quantized, b: Quantized, machine: Accumulator, promote_every: int | None) -> Float32Matrix:
    """Return the float32 sum of the chains of one split."""
    if machine.kind == "sequential" and promote_every is None:
        return matmul_f32(*(replace(q, codes=np.ascontiguousarray(q.codes)).dequantize() for q in (a, b)))
    x, y = np.ascontiguousarray(a.codes), np.ascontiguousarray(b.codes)
    (x, fa), (y, fb) = as_multiplied(x, a.format, machine), as_multiplied(y, b.format, machine)
    if machine.scale_format is None:
        return engine(machine, fa, fb).scaled(x, y, _plan(a, b, machine, promote_every))
    scales = BlockScales(_inside("a", a, machine), _inside("b", b, machine))
    if missing := -x.shape[1] % machine.scale_block:
        x, y = (np.pad(codes, [(0, 0), (0, missing)]) for codes in (x, y))
    start = np.zeros((x.shape[0], y.shape[0]), machine.dtype)
    unit = engine(machine, fa, fb)
    if promote_every is None:
        return unit.chain(x, y, start, scales).astype(np.float32, copy=False)
    if promote_every % machine.group:
        raise ValueError(
            f"gemm: promote_every={promote_every} is not a multiple of {machine}'s group of {machine.group}"
        )
    return promoted(unit, x, y, start, scales, promote_every).astype(np.float32, copy=False)


def _check_scales(name: str, scale: Float32Matrix, machine: Accumulator) -> None:
    """Raise a ValueError if a scale is neither positive and finite nor the NaN of a block that held one.

    A machine whose scale format has a zero takes zeros too.
    """
    zero = machine.scale_format is not None and formats[machine.scale_format].has_zero
    wrong = ~(np.isnan(scale) | (((scale > 0) | ((scale == 0) & zero)) & (scale < np.inf)))
    if wrong.any():
        raise ValueError(
            f"gemm: a scale of {name} is {scale[wrong][0]}: finite numbers above 0 are needed, or NaN for NaN blocks"
        )


def _without_tensor_scales(a: Quantized, b: Quantized, alpha: float) -> tuple[Quantized, Quantized, np.float32]:
    """Take the scales per tensor off two operands; return the epilogue's factor with them."""
    factor, given = np.float32(alpha), [q.tensor_scale for q in (a, b) if q.tensor_scale is not None]
    if not given:
        return a, b, factor
    with np.errstate(over="ignore", under="ignore"):
        factor = np.multiply.reduce(np.array(given, np.float32)) * factor
    return replace(a, tensor_scale=None), replace(b, tensor_scale=None), factor


def _interval(machine: Accumulator, order: Library, asked: int | str | None) -> int | None:
    if asked == "auto":
        if machine.promote_every is not None or machine.scale_format is not None:
            return machine.promote_every
        return order.promote_every
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, (int, np.integer)) or asked < 1):
        raise ValueError(f"gemm: promote_every={asked!r}: a whole number >= 1 or None is needed")
    return None if asked is None else int(asked)


def _addend(c: ArrayLike | None, beta: float, shape: tuple[int, ...]) -> Float32Matrix | None:
    """Return beta * C in float32."""
    if c is None:
        return None
    array = np.asarray(c)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"gemm: c is {array.dtype}, needed is float32")
    if array.shape != shape:
        raise ValueError(f"gemm: c is {array.shape}, needed is {shape}")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.multiply(array.astype(np.float32), np.float32(beta), order="C")


def _without_scale(name: str, q: Quantized, order: Library) -> tuple[Quantized, Float32Matrix]:
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


def _inside(name: str, q: Quantized, machine: Accumulator) -> NDArray[Any]:
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


def _along_k(q: Quantized, start: int, stop: int) -> Quantized:
    """Return the part of a matrix within a range of k that starts at a multiple of the split's tile."""
    codes = np.ascontiguousarray(q.codes[:, start:stop])
    columns = q.granularity.columns
    if columns is None or columns >= q.shape[1]:
        return replace(q, codes=codes, granularity=Granularity(q.granularity.rows, None))
    if start % columns:
        raise ValueError(f"gemm: split_k cuts at k = {start}, inside scales that hold for {columns}")
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


def _float32_operand(a: ArrayLike) -> Float32Matrix:
    """Return float32 that is contiguous, or the transposed view of something contiguous."""
    array = np.asarray(a, np.float32)
    return array if array.ndim == 2 and array.flags.f_contiguous else np.ascontiguousarray(array)
