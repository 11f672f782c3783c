"""Matrix products on emulated machines: `mma` on raw codes, `gemm` on quantized operands with their scales.

Both operands are contiguous in K: a is [M, K], b is [N, K], and the product is ``D = A @ B.T``.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _jit
from .accumulate import Accumulator, accumulators
from .cast import as_codes, decode, round_to
from .formats import Format, formats
from .kernels import exact_dot, fused_dot, gemm_f32, gemm_fused
from .kernels import promote as promotion
from .scaling import Quantized

Float32Matrix = NDArray[np.float32]
_WORK = 1 << 21  # multiply-adds that are worth a thread
_MAX_EXACT_K = 1 << 20


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
        NaN is the canonical 0x7FFFFFFF and a zero is +0, as NVIDIA's units return them.

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
    return _engine(machine, fa, fb).chain(x, y, start)


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
        result = _engine(machine, a.format, b.format).scaled(a.codes, b.codes, plan)
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
    x, y = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    _check_shapes("matmul_f32", x, y)
    shape = (x.shape[0], y.shape[0])
    if out is None:
        out = np.zeros(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"matmul_f32: out is {out.dtype} {out.shape}, needed is contiguous float32 {shape}")
    else:
        out[...] = 0
    _accumulate_f32(x, y, out)
    return out


def _accumulate_f32(x: Float32Matrix, y: Float32Matrix, out: Float32Matrix) -> None:
    (m, k), n = x.shape, y.shape[0]
    if 0 in (m, n, k):
        return
    packed = _scratch("b32", -(-n // gemm_f32.PANEL) * gemm_f32.PANEL * k, np.float32)
    gemm_f32.pack_panels(y, packed)
    _jit.run_chunks(lambda i, j: gemm_f32.gemm_packed(x, packed, n, out, i, j), m, _row_grain(n, k))


@dataclass(frozen=True)
class _Plan:
    """Scales by block of K: block i spans ``k[i * length : (i + 1) * length]``."""

    length: int
    scale_a: Float32Matrix  # [blocks, M]
    scale_b: Float32Matrix  # [blocks, N]
    promote: bool


def _plan(a: Quantized, b: Quantized, machine: Accumulator, promote_every: int | None) -> _Plan:
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
    return _Plan(length, scales[0], scales[1], promote_every is not None)


class _Engine:
    """One way to compute chains; the parts around them are the same for all."""

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        self.machine, self.fa, self.fb = machine, fa, fb

    def chain(self, a: NDArray[Any], b: NDArray[Any], c: Float32Matrix) -> Float32Matrix:
        """Return one chain over all K, starting from C."""
        raise AssertionError("every engine has its own")

    def scaled(self, a: NDArray[Any], b: NDArray[Any], plan: _Plan) -> Float32Matrix:
        """Return the scaled sum of the blocks' chains, block by block."""
        result = np.zeros((a.shape[0], b.shape[0]), np.float32)
        state, keep = np.zeros_like(result), self.machine.output_bits
        for i, (sa, sb) in enumerate(zip(plan.scale_a, plan.scale_b, strict=True)):
            part = slice(i * plan.length, (i + 1) * plan.length)
            if plan.promote:
                state[...] = 0
            elif i:
                promotion.rescale(state, plan.scale_a[i - 1], plan.scale_b[i - 1], sa, sb, keep)
            state = self.chain(np.ascontiguousarray(a[:, part]), np.ascontiguousarray(b[:, part]), state)
            if plan.promote:
                promotion.promote(state, sa, sb, result)
        if not plan.promote:
            promotion.promote(state, plan.scale_a[-1], plan.scale_b[-1], result)
        promotion.canonical_nan(result)
        return result


class _Sequential(_Engine):
    """Float32 fused multiply-adds in increasing k."""

    def chain(self, a: NDArray[Any], b: NDArray[Any], c: Float32Matrix) -> Float32Matrix:
        out = c.copy()
        _accumulate_f32(decode(a, self.fa), decode(b, self.fb), out)
        promotion.canonical_nan(out)
        return out


class _Exact(_Engine):
    """The exact sum, rounded once."""

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        super().__init__(machine, fa, fb)
        if fa.smallest_subnormal * fb.smallest_subnormal < 2.0**-32 or fa.max * fb.max >= 2.0**32:
            raise ValueError(f"{machine.name}: products of {fa} and {fb} leave 2^-32 .. 2^32; FP8 and narrower fit")

    def chain(self, a: NDArray[Any], b: NDArray[Any], c: Float32Matrix) -> Float32Matrix:
        if a.shape[1] > _MAX_EXACT_K:
            raise ValueError(f"{self.machine.name}: K = {a.shape[1]} is beyond {_MAX_EXACT_K}")
        x, y, out = decode(a, self.fa), decode(b, self.fb), np.empty_like(c)
        grain = _row_grain(b.shape[0], 32 * max(a.shape[1], 1))
        _jit.run_chunks(lambda i, j: exact_dot.exact_dot(x, y, c, out, i, j), a.shape[0], grain)
        promotion.canonical_nan(out)
        return out


class _Fused(_Engine):
    """Tensor cores: the float32-lane kernel where its conditions hold, the integer reference for the rest."""

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        super().__init__(machine, fa, fb)
        self.a, self.b = _operand_tables(fa), _operand_tables(fb)
        self.fast = (
            machine.fraction_bits <= 13
            and machine.group % 4 == 0
            and machine.group <= 64
            and fa.mantissa_bits + fb.mantissa_bits <= 6
            and all(f.emin >= -16 and f.emax <= 15 for f in (fa, fb))
        )

    def chain(self, a: NDArray[Any], b: NDArray[Any], c: Float32Matrix) -> Float32Matrix:
        ones = np.ones((1, max(a.shape[0], b.shape[0])), np.float32)
        length = -(-max(a.shape[1], 1) // self.machine.group) * self.machine.group
        plan = _Plan(length, ones[:, : a.shape[0]], ones[:, : b.shape[0]], promote=False)
        field = (c.view(np.uint32) >> 23) & 0xFF
        usual = (c.view(np.uint32) << 1 == 0) | ((field >= 127 - 100) & (field <= 127 + 110))
        return self._patched(a, b, plan, c, ~usual.all(axis=1))

    def scaled(self, a: NDArray[Any], b: NDArray[Any], plan: _Plan) -> Float32Matrix:
        if not plan.promote and _spread(plan.scale_a) + _spread(plan.scale_b) > 50:
            return super().scaled(a, b, plan)  # a running sum could leave the fast kernel's exponents
        return self._patched(a, b, plan, None, np.zeros(a.shape[0], bool))

    def _patched(
        self, a: NDArray[Any], b: NDArray[Any], plan: _Plan, c: Float32Matrix | None, odd_rows: NDArray[np.bool_]
    ) -> Float32Matrix:
        """Run the fast kernel on everything, then the reference on rows and columns that hold NaN, Inf or an odd C."""
        if not self.fast:
            return self._reference(a, b, plan, c)
        out = self._run_fast(a, b, plan, c)
        rows = np.flatnonzero(odd_rows | _has_special(a, self.fa, self.a.kind))
        columns = np.flatnonzero(_has_special(b, self.fb, self.b.kind))
        if rows.size:
            part = _Plan(plan.length, np.ascontiguousarray(plan.scale_a[:, rows]), plan.scale_b, plan.promote)
            out[rows] = self._reference(a[rows], b, part, None if c is None else c[rows])
        if columns.size:
            part = _Plan(plan.length, plan.scale_a, np.ascontiguousarray(plan.scale_b[:, columns]), plan.promote)
            some = None if c is None else np.ascontiguousarray(c[:, columns])
            out[:, columns] = self._reference(a, b[columns], part, some)
        return out

    def _run_fast(self, a: NDArray[Any], b: NDArray[Any], plan: _Plan, c: Float32Matrix | None) -> Float32Matrix:
        (m, k), n = a.shape, b.shape[0]
        depth = -(-max(k, 1) // self.machine.group) * self.machine.group
        columns = -(-n // gemm_fused.PANEL) * gemm_fused.PANEL
        a_values = _scratch("a_values", m * depth, np.float32).reshape(m, depth)
        a_exponents = _scratch("a_exponents", m * depth, np.int8).reshape(m, depth)
        b_values = _scratch("b_values", columns * depth, np.float32)
        b_exponents = _scratch("b_exponents", columns * depth, np.int8)
        gemm_fused.pack_rows(a, self.a.value, self.a.fast_exponent, a_values, a_exponents)
        gemm_fused.pack_panels(b, self.b.value, self.b.fast_exponent, depth, b_values, b_exponents)
        out = np.zeros((m, n), np.float32)
        addend = out if c is None else c
        machine = self.machine

        def piece(start: int, stop: int) -> None:
            gemm_fused.gemm_fused(
                a_values, a_exponents, b_values, b_exponents,
                machine.group, machine.fraction_bits, machine.output_bits,
                plan.length, plan.promote, plan.scale_a, plan.scale_b, addend, c is not None, out, start, stop,
            )  # fmt: skip

        _jit.run_chunks(piece, m, _row_grain(n, depth))
        return out

    def _reference(self, a: NDArray[Any], b: NDArray[Any], plan: _Plan, c: Float32Matrix | None) -> Float32Matrix:
        engine = _FusedReference(self.machine, self.fa, self.fb)
        if c is not None:
            return engine.chain(np.ascontiguousarray(a), np.ascontiguousarray(b), np.ascontiguousarray(c))
        return engine.scaled(a, b, plan)


class _FusedReference(_Engine):
    """Tensor cores term by term in integers: any codes, any C, any accumulator."""

    def chain(self, a: NDArray[Any], b: NDArray[Any], c: Float32Matrix) -> Float32Matrix:
        x, y = _operand_tables(self.fa), _operand_tables(self.fb)
        out = np.empty_like(c)
        fused_dot.fused_dot_reference(
            a, b, x.significand, x.exponent, x.kind, y.significand, y.exponent, y.kind,
            self.fa.mantissa_bits + self.fb.mantissa_bits,
            self.machine.group, self.machine.fraction_bits, self.machine.output_bits, c, out,
        )  # fmt: skip
        return out


def _engine(machine: Accumulator, fa: Format, fb: Format) -> _Engine:
    kinds: dict[str, type[_Engine]] = {"fused": _Fused, "exact": _Exact, "sequential": _Sequential}
    return kinds[machine.kind](machine, fa, fb)


@dataclass(frozen=True)
class _OperandTables:
    """Per code of a format: what the fused kernels look up."""

    value: NDArray[np.float32]  # 0 for NaN and Inf
    fast_exponent: NDArray[np.int8]  # un-normalised; `ZERO_EXPONENT` for zeros
    significand: NDArray[np.int64]  # signed; +-1 for Inf
    exponent: NDArray[np.int64]
    kind: NDArray[np.int8]


@functools.lru_cache(maxsize=32)
def _operand_tables(fmt: Format) -> _OperandTables:
    if fmt.bits > 8:
        raise ValueError(f"tensor cores of this catalogue multiply formats of up to 8 bits, not {fmt}")
    values = fmt.values()
    codes = np.arange(values.size)
    magnitude = codes & ~fmt.sign_mask
    field, fraction = magnitude >> fmt.mantissa_bits, magnitude & ((1 << fmt.mantissa_bits) - 1)
    exponent = np.maximum(field, 1) - 1 + fmt.emin
    significand = fraction + np.where(field > 0, 1 << fmt.mantissa_bits, 0)
    kind = np.where(np.isnan(values), fused_dot.NOT_A_NUMBER, np.where(np.isinf(values), fused_dot.INFINITE, 0))
    finite = np.where(np.isfinite(values), values, np.float32(0)).astype(np.float32)
    significand = np.where(kind == fused_dot.INFINITE, 1, np.where(kind == fused_dot.NOT_A_NUMBER, 0, significand))
    return _OperandTables(
        finite,
        np.where(finite == 0, gemm_fused.ZERO_EXPONENT, np.clip(exponent, -100, 100)).astype(np.int8),
        np.where(codes & fmt.sign_mask, -significand, significand).astype(np.int64),
        exponent.astype(np.int64),
        kind.astype(np.int8),
    )


def _has_special(codes: NDArray[Any], fmt: Format, kind: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Tell which rows hold NaN or Inf."""
    if not kind.any():
        return np.zeros(codes.shape[0], bool)
    out = np.empty(codes.shape[0], np.bool_)
    fused_dot.rows_with_special(codes, kind, out)
    return out


def _spread(scale: Float32Matrix) -> int:
    """Return the binades that scales span; a large number if one of them is not finite or not positive."""
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return 1 << 10
    exponents = np.frexp(scale)[1]
    return int(exponents.max() - exponents.min()) + 1


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


def _row_grain(n: int, k: int) -> int:
    """Return how many rows make a piece of work: a multiple of the kernels' four."""
    return max(1, _WORK // max(n * k, 1) // 4) * 4


class _ScratchBuffers(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, NDArray[np.uint8]] = {}


_buffers = _ScratchBuffers()


def _scratch(name: str, size: int, dtype: Any) -> NDArray[Any]:
    """Return `size` uninitialised items on a 64-byte boundary from this thread's reusable memory.

    Fresh memory for every call would cost more in page faults than the packing that fills it.
    """
    needed = size * np.dtype(dtype).itemsize + 64
    raw = _buffers.buffers.get(name)
    if raw is None or raw.size < needed:
        raw = _buffers.buffers[name] = np.empty(needed, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size * np.dtype(dtype).itemsize].view(dtype)
