"""`attention_tolerance`: bounds and expected errors of an attention kernel; docs/tolerances.md has the proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import check_positive_float32
from .._fpenv import with_default_fpenv
from ..attn.attention import attention, find_window, operand_codes, softmax_scale, visible_keys
from ..attn.catalogue import attentions
from ..attn.cpu import block_length
from ..attn.kernel import AttentionKernel
from ..attn.paired import FlashMla
from ..attn.tiles import Call
from ..cast.casts import decode
from ..format.catalogue import Format, formats
from ..scaling.granularity import Granularity
from ..scaling.quantized import Quantized
from ..tensorcore.library import gemm_libraries
from .checksum import U, half_ulp
from .derived import Tolerance
from .named import named_output
from .product import Errors, Order, errors_of

_LEAST = 2.0**-125  # limit of flushed values, in units of the largest weight, with a margin for their roundings
_MORE = 1 + 2.0**-10  # margin for the products of the small errors below
_TANH = 2.0**-11 + U  # relative error of tanh.approx.f32 in NVIDIA's PTX ISA, plus that of the float64 reference


@with_default_fpenv
def attention_tolerance(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: str | AttentionKernel = "fa3_fp8",
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    out_format: str | Format | None = None,
) -> Tolerance:
    """Bound the error of an attention kernel's output.

    The bound holds for all implementations of 2**x, tanh and the reciprocal within their documented errors, and for any
    order of the row sums. It adds the worst cases of all operations, and is 2 to 250 times the largest measured error;
    the ratio is largest if a tensor core truncates sums of many tiles. `Tolerance.expected` is close to actual errors.

    Parameters
    ----------
    q, k, v : array_like, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Operands, see `lowprec.attention`; leading axes may be omitted.
    kernel : str or AttentionKernel
        Kernel in ``lowprec.attentions``, or a custom one.
    causal, window, scale, softcap
        As in `lowprec.attention`.
    out_format : str or Format, optional
        Format of the output; default: the kernel's.

    Returns
    -------
    Tolerance
        Exact output, proven bound and expected error of every output; `Tolerance.test` judges a result. Rows without
        keys are not judged.

    Raises
    ------
    ValueError
        If shapes do not match, a value is not on the operand format's grid, no error of the kernel's 2**x or
        reciprocal is documented, or Q and K have scales of threads or of blocks (SageAttention).

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (lp.round_to(rng.standard_normal((n, 64)), "bfloat16") for n in (16, 256, 256))
    >>> t = lp.attention_tolerance(q, k, v, kernel="fa3_bf16")
    >>> bool(t.test(lp.attention(q, k, v, kernel="flash2").out))
    True
    >>> bool(t.test(lp.attention(q, k, v, kernel="fa3_bf16", scale=0.12).out))
    False
    """
    kernel = attentions.get(kernel)
    if kernel.has_thread_scales or kernel.has_block_scales:
        raise ValueError(f"attention_tolerance: kernel must have scales of heads, got {kernel} with {kernel.scales}")
    if not math.isfinite(kernel.exp2.relative_error + kernel.reciprocal.relative_error):
        raise ValueError(
            f"attention_tolerance: kernel must have a 2**x and a reciprocal of documented error, got {kernel} with "
            f"{kernel.exp2} and {kernel.reciprocal}"
        )
    if np.ndim(k) > 1 and not np.shape(k)[-2]:
        raise ValueError(f"attention_tolerance: k must have at least 1 key, got shape {np.shape(k)}")
    target = formats.get(kernel.output_format if out_format is None else out_format)
    if softcap is not None:
        softcap = float(check_positive_float32("attention_tolerance", "softcap", softcap))
    options: dict[str, Any] = {"kernel": kernel, "causal": causal, "window": window, "scale": scale, "softcap": softcap}
    wide = attention(q, k, v, **options, out_format="float32").out
    right = attention(q, k, v, **options, out_format=target).out
    codes = [operand_codes("attention_tolerance", n, x, kernel.operands) for n, x in (("q", q), ("k", k), ("v", v))]
    queries, keys, values = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in codes)
    factor = softmax_scale(queries.shape[-1], scale)
    (m, d), (n, channels) = queries.shape[2:], values.shape[2:]
    sides = find_window(False, window)
    call = Call(m, n, d, channels, queries.shape[1] // keys.shape[1], causal, *sides, softcap is not None)
    call = kernel.schedule.normalized(call)
    low, high = visible_keys(m, n, call.left, call.right)
    tile = min(kernel.tile_of(call).keys_of(call), n)
    found = np.empty((3, *queries.shape[:3], values.shape[-1]))
    for b, h in np.ndindex(queries.shape[:2]):
        group = h * keys.shape[1] // queries.shape[1]
        head = _Head(kernel, tile, factor, softcap, queries[b, h], keys[b, group], values[b, group], low, high)
        with np.errstate(all="ignore"):
            found[:, b, h] = head.errors()
    errors = Errors(*(x.reshape(wide.shape) for x in found))
    return Tolerance.of(
        errors, target, [wide], [right], name=lambda got, expected, d: named_output(right, expected, d, target)
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Head:
    """Codes of Q [M, D], K [N, D] and V [N, Dv] of a head, and the range of keys that each row attends to."""

    kernel: AttentionKernel
    tile: int
    factor: float
    softcap: float | None
    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    low: NDArray[np.int64]
    high: NDArray[np.int64]

    def errors(self) -> Errors:
        """Return the exact output, the bound on its error, and an estimate of the mean square error."""
        kernel, n = self.kernel, len(self.v)
        scores, factor = self._scores(), self.factor
        if self.softcap is not None:
            scores, factor = self._capped(scores, self.softcap), self.softcap
        octaves = abs(factor) * math.log2(math.e)
        key = np.arange(n)
        sees = (key >= self.low[:, None]) & (key < self.high[:, None])
        x = np.where(sees, scores.exact * math.copysign(octaves, factor), -np.inf)
        off = np.where(sees, scores.most * octaves, 0.0)
        peak = x.max(axis=1, keepdims=True, initial=-np.inf)
        weights = np.exp2(x - peak)
        total = weights.sum(axis=1, keepdims=True)
        v = decode(self.v, kernel.operands).astype(np.float64)
        exact = weights @ v / total
        # Relative error of a weight, including its rescalings; it is the same in numerator and denominator.
        size = np.where(sees, np.abs(x), 0.0).max(axis=1, keepdims=True, initial=0.0) + off.max(axis=1, keepdims=True)
        tiles = -(-n // self.tile) + 1
        arguments = off + U * (26 * size + 4 * abs(kernel.p_offset)) * _MORE + _LEAST
        shared = np.expm1(arguments * math.log(2) + (tiles + 1) * math.log1p(kernel.exp2.relative_error))
        flushed = _LEAST * (tiles + 2)
        # Errors of the numerator only: rounding of P, rescaling of O, and the sums of the tensor core.
        p, unit = kernel.p_format, 2.0**-kernel.p_offset / kernel.p_scale
        largest_flushed = p.smallest_subnormal / 2 if p.has_subnormals else p.smallest_subnormal
        half = half_ulp(p) + (0 if kernel.p_scale == 1 else 2 * U)  # the product with `p_scale` is rounded
        small = largest_flushed * unit + flushed
        computed = weights * (1 + shared) + np.where(sees, flushed, 0.0)
        seen = sees.astype(np.float64)
        sizes = np.where(v == 0, 0.0, np.maximum(np.abs(v), kernel.operands.smallest_normal))
        stored = np.where(computed >= small / 2, computed * (1 + half) + p.smallest_normal * unit, 0.0)
        products = stored @ sizes
        step, steps = kernel.values.step_error(), self._steps()
        count = steps * (tiles if kernel.promote_every is None else min(kernel.promote_every, tiles))
        relative = count * step.relative + (3 * tiles + 2) * U
        growth = math.exp(relative * _MORE)
        alone = half * (computed @ np.abs(v)) + small * (seen @ np.abs(v))
        alone += growth * (relative * products + steps * tiles * step.absolute * unit + flushed)
        least = total - (weights * shared).sum(axis=1, keepdims=True) - flushed * seen.sum(axis=1, keepdims=True)
        changes = weights * shared + flushed * seen
        common = np.array([each @ np.abs(v - o) for each, o in zip(changes, exact, strict=True)]).reshape(exact.shape)
        sum_error, division = (n + 3 * tiles + 16) * U * _MORE, 1 + kernel.reciprocal.relative_error
        division **= 1 if kernel.p_scale == 1 else 2  # V's scale is divided too
        last = (1 + sum_error / (1 - sum_error)) * division * (1 + U) ** 3 - 1
        before = (common + alone) / least
        most = before + last * (np.abs(exact) + before) + 2.0**-149 + flushed
        slack = (n + self.q.shape[1] + 64) * 2.0**-51 * (1 + size)
        most += slack * ((weights @ np.abs(v)) / total + np.abs(exact))
        # P is at most 1 / unit, but for the rounding of its argument, in which the largest score is the computed one.
        highest = np.exp2(kernel.rescale_threshold + U * (4 * size + 4 * abs(kernel.p_offset)) * _MORE)
        highest *= (1 + kernel.exp2.relative_error) / unit
        bounded: NDArray[np.bool_] = (
            (least > 0)
            & (highest < p.max + p.ulp(p.max) / 2)
            & (products * growth / unit < kernel.values.largest_sum / 2)
            & (sum_error < 0.5)
        )
        share = weights / total
        variance = np.square(share) @ np.square(v) * (half**2 + kernel.exp2.relative_error**2) / 3
        variance += count * np.square(step.relative * products / total) / 3 + np.square(last * exact) / n
        return Errors(exact, np.where(bounded, most, np.inf), variance + 1e-300)

    def _steps(self) -> int:
        """Return the largest number of rounded additions in a tile's P V: of instructions, and of blocks."""
        kernel = self.kernel
        blocks = 0 if kernel.product_block is None else self.tile // kernel.product_block + 2
        return -(-self.tile // kernel.values.step()) + blocks

    def _capped(self, scores: Errors, softcap: float) -> Errors:
        """Return the errors of ``tanh(S * factor / cap)``: slope at most 1, and an argument with four roundings."""
        argument = scores.times(self.factor / softcap)
        exact = np.tanh(argument.exact)
        off = argument.most + 4 * U * _MORE * (np.abs(argument.exact) + argument.most)
        return Errors(exact, off + _TANH * (np.abs(exact) + off) + _LEAST, argument.variance)

    def _scores(self) -> Errors:
        """Return the errors of Q K^T."""
        kernel, depth = self.kernel, self.q.shape[1]
        every = None if kernel.product_block is None else block_length(depth, kernel.product_block)
        order = Order(kernel.scores, gemm_libraries["deepgemm"], every, 1, formats["float32"])
        found = errors_of(self._operand(self.q), self._operand(self.k), order)
        if isinstance(kernel.schedule, FlashMla):  # every second tile adds the channels in another order
            q, k = (kernel.schedule.rotated(x) for x in (self.q, self.k))
            found = found._replace(
                most=np.maximum(found.most, errors_of(self._operand(q), self._operand(k), order).most)
            )
        if kernel.scales_operands:  # two roundings of each operand
            q, k = (np.abs(decode(x, kernel.operands).astype(np.float64)) for x in (self.q, self.k))
            found = found._replace(most=found.most + 4 * U * _MORE * (q @ k.T + found.most))
        return found

    def _operand(self, codes: NDArray[Any]) -> Quantized:
        whole = Granularity(None, None)
        return Quantized(np.ascontiguousarray(codes), np.ones((1, 1), np.float32), self.kernel.operands, whole)
