"""`attention`: scaled dot-product attention as a GPU kernel computes it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import to_like
from .._checks import brief_repr, check_float32, check_int, check_optional_int, check_positive_float32, check_real
from .._fpenv import with_default_fpenv
from .._values import BitwiseEq
from ..cast.arrays import format_from_dtype
from ..cast.casts import encode, round_to
from ..format.catalogue import Format, formats
from .catalogue import attentions
from .cpu import TorchMath
from .forward import Forward, Head, scale_of_scores
from .kernel import AttentionKernel
from .scales import Scales
from .sums import times
from .tiles import Call

Array = NDArray[Any]
Floats = NDArray[np.float32]
_MOST_SPLITS = 256  # limit of FlashAttention-3; other libraries have lower limits


@dataclass(eq=False)
class AttentionResult(BitwiseEq):
    """Result of `attention`.

    Attributes
    ----------
    out : ndarray of float32, shape (B, H, M, Dv)
        The output, rounded to the output format.
    lse : ndarray of float32, shape (B, H, M)
        Log-sum-exp of the scaled scores of each row as the kernel returns it; ``kernel.lse.unit`` converts it to nats.
    saturated, underflowed : ndarray of int64, shape (B, H, M)
        Number of probabilities of a row that exceed P's format, and number of positive ones that became zero.
    undecided : ndarray of bool, shape (B, H, M, Dv), or None
        Whether an output depends on bits of 2**x or 1/x that the documentation of the hardware leaves open; None if
        this was not requested.
    kernel : AttentionKernel
        Kernel that was emulated.
    """

    out: Floats
    lse: Floats
    saturated: NDArray[np.int64]
    underflowed: NDArray[np.int64]
    undecided: NDArray[np.bool_] | None = None
    kernel: AttentionKernel = dataclasses.field(kw_only=True, compare=False)

    def __repr__(self) -> str:
        lost = f"{int(self.saturated.sum())} saturated and {int(self.underflowed.sum())} underflowed probabilities"
        return f"<AttentionResult of {self.kernel}: out {self.out.shape}, {lost}>"


@with_default_fpenv
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: str | AttentionKernel = "fa3_fp8",
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: ArrayLike | None = None,
    scale: float | None = None,
    descale: tuple[ArrayLike, ...] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    splits: int = 1,
    page_size: int | None = None,
    out_format: str | Format | None = None,
    undecided: bool = False,
    progress: Callable[[int, int], None] | None = None,
    like: Any = None,
) -> AttentionResult:
    """Compute attention with the arithmetic of a GPU kernel: tiles, tensor cores, online softmax and the format of P.

    Parameters
    ----------
    q, k, v : array_like, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Queries, keys and values on the grid of the kernel's operand format: float32 numbers that it represents, or
        arrays of its dtype. Leading axes may be omitted. H must be a multiple of Hk: query head h uses key head
        ``h // (H / Hk)``.
    kernel : str or AttentionKernel
        Kernel in ``lowprec.attentions``, or a custom one.
    causal : bool
        Whether query i sees keys up to ``i + N - M`` only.
    window : tuple of int, optional
        Numbers of keys that query i sees to the left and to the right of position ``i + N - M``; -1: no limit.
    mask : array_like of bool, optional
        Keys that each query sees, of a shape that broadcasts to (B, H, M, N). Only PyTorch's kernels and
        ``flashmla_fp8`` take it: the former also compute the scores of hidden keys, and add -inf to them.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(D)`` by default.
    descale : tuple of array_like, optional
        Scales of q, k and v: numbers, or arrays of shape (B, Hk). Those of q and k multiply `scale`, that of v the
        output. Default: 1, which is all that kernels of 16 and 32 bits take. SageAttention's kernels have other shapes
        (`lowprec.attn.scales`); that of SageAttention 3 has a fourth array, the addends of the scores, 0 by default.
    softcap : float, optional
        Limit of the scaled scores: they become ``softcap * tanh(score / softcap)``.
    sinks : array_like of float, shape (H,), optional
        One logit per query head: its exponential is added to the sum of the softmax, without a value vector.
    splits : int
        Number of ranges of tiles that are computed separately and then combined, as in decoding.
    page_size : int, optional
        Number of keys in a page of the KV cache, which affects how a kernel copies keys, and therefore its tiles;
        default: keys are contiguous. `k` and `v` are always given in their logical order.
    out_format : str or Format, optional
        Format of the output; default: the kernel's.
    undecided : bool
        Whether to find the outputs that the public documentation of the hardware does not determine, which takes about
        four times as long.
    progress : callable, optional
        Function that is called with the numbers of finished rows and of all rows, at least once per 512 rows, and
        once if there are no rows or no keys.
    like : array or str, optional
        Array package of the output: NumPy, torch or JAX.

    Returns
    -------
    AttentionResult
        Output, log-sum-exp, and counts of probabilities that saturated or became zero.

    Raises
    ------
    TypeError
        If `progress` is not callable.
    ValueError
        If shapes do not match, a value is not on the operand format's grid, the kernel does not support the head size,
        mask (``sdpa_math``: with `causal`), scales, softcap, sinks, splits or pages (``flashmla_fp8``: sinks with
        splits), or, for a kernel with functions of unknown bits, `undecided` is combined with a softcap, with splits,
        or with `normalizes_p`, scales of blocks of P or tiles in pairs.

    Notes
    -----
    ``kernel.decided`` lists the operations with bits that no public source gives; here they are correctly rounded.
    With `undecided`, bounds on the output are computed for all functions within the documented errors of 2**x and of
    the reciprocal; the log-sum-exp and the counts are those of the correctly rounded functions.

    FlashAttention-3 copies pages by TMA only if they hold whole tiles and the queries of a group need more than one
    block; otherwise it uses other tiles. FlashAttention-4 does not use pairs of CTAs unless a page is one tile. Keys
    appended in the same call are not included.

    Examples
    --------
    In FlashAttention-3, Hopper's tensor core accumulates the output over all tiles, with sums of 14 bits; vLLM's fork
    adds each tile's result in float32:

    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (lp.round_to(rng.standard_normal((n, 64)), "e4m3fn") for n in (4, 4096, 4096))
    >>> v = np.abs(v)
    >>> exact = lp.attention(q, k, v, kernel="fa3_bf16", out_format="float32").out.mean()
    >>> for name in ("fa3_fp8", "vllm_fa3_fp8"):
    ...     print(f"{lp.attention(q, k, v, kernel=name, out_format='float32').out.mean() / exact - 1:.1%}")
    -7.0%
    -0.1%
    """
    kernel = attentions.get(kernel)
    _check_calls(kernel, causal, mask, progress)
    grids = kernel.operands, kernel.operands, kernel.values_format
    arrays = [operand_codes("attention", *operand) for operand in zip("qkv", (q, k, v), grids, strict=True)]
    given = arrays[0].ndim
    q, k, v = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in arrays)
    check_shapes(q.shape, k.shape, v.shape, kernel)
    (batch, heads, m, d), (_, key_heads, n, channels) = q.shape, v.shape
    left, right = find_window(False, window)
    splits = check_int("attention", "splits", splits, 1, _MOST_SPLITS)
    softcap = None if softcap is None else float(check_positive_float32("attention", "softcap", softcap))
    page_size = check_optional_int("attention", "page_size", page_size, 1)
    _check_options(kernel, softcap, sinks, splits, page_size, undecided)
    call = Call(m, n, d, channels, heads // key_heads, causal, left, right, softcap is not None, splits, page_size or 0)
    call = kernel.schedule.paged(kernel.schedule.normalized(call), kernel.key_tiles)
    low, high = visible_keys(m, n, call.left, call.right)
    tile, run_kernel = kernel.tile_of(call), kernel.with_(exp2=kernel.schedule.exp2(kernel.exp2, call))
    logits = None if sinks is None else sink_logits(sinks, heads)
    added = None if mask is None else _scores_of_mask(mask, (batch, heads, m, n), kernel)
    factor = softmax_scale(d, scale)
    cap = None if softcap is None else np.float32(np.float32(factor) / np.float32(softcap))
    descales = _kernel_scales(kernel, descale, q.shape, v.shape)
    out = np.zeros((batch, heads, m, channels), np.float32)
    lse = np.full((batch, heads, m), kernel.lse.empty, np.float32)
    saturated, underflowed = np.zeros((2, batch, heads, m), np.int64)
    lower, upper = (np.zeros_like(out), np.zeros_like(out)) if undecided else (out, out)
    advance = None if progress is None else _rows_counter(progress, lse.size * splits)
    if advance is not None and not (lse.size and n):
        advance(lse.size * splits)
    for b in range(batch):
        for h in range(heads if m and n else 0):
            group, member = divmod(h * key_heads, heads)
            sink = None if logits is None else logits[h]
            scales = kernel.scales.of_head(descales, (b, h, group), kernel.flush_subnormals)
            qk_scale, below, top = scales.scores, None, factor
            if cap is not None and softcap is not None:
                below, qk_scale, top = cap * qk_scale, np.float32(1), softcap
            nats = np.float32(times(np.float32(top), qk_scale, False))
            run = Forward(
                run_kernel, tile.keys_of(call), scale_of_scores(kernel, top, qk_scale), nats, scales.values, undecided,
                below, sink, advance=advance,
            )  # fmt: skip
            blocks = kernel.schedule.blocks(call, tile, member // key_heads)
            values, row_mask = np.ascontiguousarray(v[b, group].T), None if added is None else added[b, h]
            head = Head(q[b, h], k[b, group], values, low, high, blocks, row_mask, scales)
            found = run.head(head) if splits == 1 else run.split(head, splits)
            out[b, h], lse[b, h], saturated[b, h], underflowed[b, h] = found[:4]
            if undecided:
                lower[b, h], upper[b, h] = found.low, found.high
    target = formats.get(kernel.output_format if out_format is None else out_format)
    lead = (0,) * (4 - given)
    is_open = None
    if undecided:
        lower, upper = (round_to(x, target, policy="ieee") for x in (lower, upper))
        is_open = (lower.view(np.uint32) != upper.view(np.uint32))[lead]
    out = round_to(out, target, policy="ieee")[lead]
    if like is not None:
        out = to_like("attention", out, like)
    return AttentionResult(out, lse[lead], saturated[lead], underflowed[lead], is_open, kernel=kernel)


def softmax_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: bool = False, window: tuple[int, int] | None = None,
    mask: ArrayLike | None = None, scale: float | None = None, softcap: float | None = None,
    sinks: ArrayLike | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Compute attention in float64, as a reference; the arguments are those of `attention`, with values of any format.

    Examples
    --------
    >>> softmax_attention([[1.0]], [[0.0], [0.0]], [[1.0], [2.0]])
    array([[1.5]])
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    low, high = visible_keys(q.shape[-2], k.shape[-2], *find_window(causal, window))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    key, logits = np.arange(k.shape[-2]), None if sinks is None else np.asarray(sinks, np.float64)
    shown = np.broadcast_to(True if mask is None else mask, (*q.shape[:-1], k.shape[-2]))
    for i in np.ndindex(q.shape[:-2]):
        for row, (first, stop) in enumerate(zip(low, high, strict=True)):
            seen = shown[i][row] & (key >= first) & (key < stop)
            if seen.any():
                scores = k[i] @ q[i][row] * factor
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                scores = np.where(seen, scores, -np.inf)
                sink = -np.inf if logits is None else logits[i[-1] if i else 0]
                top = max(scores.max(), sink)
                p = np.exp(scores - top)
                out[i][row] = p @ v[i] / (p.sum() + np.exp(sink - top))
    return out


def operand_codes(caller: str, name: str, x: ArrayLike, fmt: Format) -> Array:
    """Return the codes of an operand, which must be on the grid of its format."""
    implied = format_from_dtype(x)
    array = np.asarray(x) if implied is None else x
    codes = encode(array, fmt, policy="ieee" if fmt.bits > 8 else None)
    if codes.ndim < 2 or codes.ndim > 4:
        raise ValueError(f"{caller}: {name} must have 2 to 4 axes, (batch, heads, tokens, channels), got {codes.shape}")
    if implied is None or not formats[implied].same_codes(fmt):
        with np.errstate(over="ignore"):  # beyond float32: Inf, which is refused
            values = np.asarray(array, np.float32)
        rounded = round_to(values, fmt)
        wrong = ~((rounded == values) | (np.isnan(rounded) & np.isnan(values)))
        if wrong.any():
            value = values[wrong][0]
            raise ValueError(
                f"{caller}: {name} must hold numbers of {fmt}, got {value}; round first: lp.round_to({name}, '{fmt}')"
            )
    return codes


def check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], kernel: AttentionKernel) -> None:
    """Raise ValueError if the shapes of q, k and v, four axes each, do not match."""
    if not q[0] == k[0] == v[0] or k[1:3] != v[1:3] or q[3] != k[3]:
        raise ValueError(f"attention: q, k, v must be (B, H, M, D), (B, Hk, N, D), (B, Hk, N, Dv), got {q}, {k}, {v}")
    if k[1] == 0 or q[1] % k[1]:
        raise ValueError(f"attention: heads of q must be a multiple of those of k, got {q[1]} and {k[1]}")
    if not q[3] or not v[3]:
        raise ValueError(f"attention: channels must be at least 1, got {q[3]} and {v[3]}")


def _check_options(
    kernel: AttentionKernel, softcap: Any, sinks: Any, splits: int, page_size: int | None, undecided: bool
) -> None:
    if softcap is not None and kernel.softcap is None:
        raise ValueError(f"attention: softcap must be None for {kernel}, got {softcap}")
    if sinks is not None and kernel.sink is None:
        raise ValueError(f"attention: sinks must be None for {kernel}, got {brief_repr(sinks)}")
    if splits > 1 and kernel.combine is None:
        raise ValueError(f"attention: splits must be 1 for {kernel}, got {splits}")
    if splits > 1 and sinks is not None and kernel.sink is not None and not kernel.sink.in_lse:
        raise ValueError(f"attention: splits must be 1 with sinks for {kernel}, got {splits}")
    multiple = kernel.schedule.page_multiple
    if page_size is not None and (not multiple or page_size % multiple):
        allowed = f"a multiple of {multiple}" if multiple else "None"
        raise ValueError(f"attention: page_size must be {allowed} for {kernel}, got {page_size}")
    is_capped = softcap is not None and kernel.softcap is not None and not kernel.softcap.is_published
    if undecided and (is_capped or ((softcap is not None or splits > 1) and not kernel.is_determined)):
        raise ValueError(f"attention: undecided must be False with softcap or splits, got {softcap} and {splits}")
    for holds, reason in (
        (kernel.normalizes_p, "normalizes P"),
        (kernel.schedule.is_paired, "computes tiles in pairs"),
        (kernel.has_block_scales, "scales blocks of P"),
    ):
        if undecided and holds and not kernel.is_determined:
            raise ValueError(f"attention: undecided must be False for {kernel}, which {reason}, got True")


def _check_calls(kernel: AttentionKernel, causal: bool, mask: Any, progress: Any) -> None:
    if progress is not None and not callable(progress):
        raise TypeError(f"attention: progress must be callable or None, got {brief_repr(progress)}")
    if mask is not None and causal and isinstance(kernel.schedule, TorchMath):
        raise ValueError(f"attention: mask must be None with causal=True for {kernel}, as in PyTorch, got both")


def _kernel_scales(kernel: AttentionKernel, descale: Any, q: tuple[int, ...], v: tuple[int, ...]) -> Scales:
    """Return the scales of q, k and v as the kernel reads them, given the shapes of q and v."""
    scales = kernel.scales.read(descale, q, v)
    if not kernel.takes_descale and any((x != 1).any() for x in scales):
        raise ValueError(f"attention: descale must be None or 1 for {kernel}, got {brief_repr(descale)}")
    return scales


def _rows_counter(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    """Return a function that takes a number of newly finished rows and reports the number of all finished rows."""
    finished = 0

    def advance(rows: int) -> None:
        nonlocal finished
        finished += rows
        progress(finished, total)

    return advance


def _scores_of_mask(mask: ArrayLike, shape: tuple[int, ...], kernel: AttentionKernel) -> Floats:
    """Return the addends of the scores [B, H, M, N] for a mask: 0, or -inf for hidden keys."""
    seen = np.asarray(mask)
    if not kernel.schedule.takes_masks:
        raise ValueError(f"attention: mask must be None for {kernel}, got {brief_repr(mask)}")
    if seen.dtype != bool:
        raise ValueError(f"attention: mask must be bool, got {seen.dtype}")
    try:
        return np.broadcast_to(np.where(seen, np.float32(0), np.float32(-np.inf)), shape)
    except ValueError:
        raise ValueError(f"attention: mask must broadcast to {shape}, got {seen.shape}") from None


def sink_logits(sinks: ArrayLike, heads: int) -> Floats:
    """Check the sinks of all query heads and return them in float32."""
    with np.errstate(over="ignore"):  # beyond float32: Inf
        found = np.asarray(sinks, np.float32)
    if found.shape != (heads,):
        raise ValueError(f"attention: sinks must be of shape {(heads,)}, got {found.shape}")
    return found


def softmax_scale(head_dim: int, scale: float | None) -> float:
    """Return the factor of the scores, 1 / sqrt(head_dim) by default."""
    found = float(head_dim**-0.5) if scale is None else check_real("attention", "scale", scale)
    if not np.isfinite(check_float32("attention", "scale", found * math.log2(math.e))):
        raise ValueError(f"attention: scale must be finite in float32, times log2(e), got {scale!r}")
    return found


def find_window(causal: bool, window: tuple[int, int] | None) -> tuple[int, int]:
    """Return the numbers of keys that a query sees to the left and to the right of its position; -1: all."""
    if window is None:
        return -1, 0 if causal else -1
    if np.shape(window) != (2,):
        raise ValueError(f"attention: window must be two integers, left and right, got {brief_repr(window)}")
    left, right = (check_int("attention", "window", side, -1) for side in window)
    return left, 0 if causal else right


def visible_keys(m: int, n: int, left: int, right: int) -> tuple[Array, Array]:
    """Return the first key that each row sees, and one past the last."""
    place = np.arange(m) + n - m
    low = np.zeros(m, np.int64) if left < 0 else np.maximum(place - left, 0)
    high = np.full(m, n) if right < 0 else np.minimum(place + right + 1, n)
    return np.minimum(low, n), np.clip(high, 0, n)
