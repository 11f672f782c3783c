"""Backward pass of an attention kernel: for each tile of keys, a loop over the tiles of queries."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import check_int
from .._fpenv import with_default_fpenv
from .._values import BitwiseEq
from ..cast.casts import decode, encode, round_to
from ..format.catalogue import Format
from ..kernels import attn as kernels
from ..tensorcore.mma import mma
from .attention import AttentionResult, attention, check_shapes, find_window, operand_codes, softmax_scale
from .catalogue import attentions
from .forward import scale_of_scores
from .kernel import AttentionKernel, GradientTile
from .sums import added, times
from .tiles import Call

Floats = NDArray[np.float32]
_LOG2_E = np.float32(math.log2(math.e))


@dataclass(eq=False)
class AttentionGradient(BitwiseEq):
    """Result of `attention_grad`.

    Attributes
    ----------
    dq : ndarray of float32, shape (B, H, M, D)
        Gradient of the queries.
    dk, dv : ndarray of float32, shapes (B, H, N, D) and (B, H, N, Dv), or with Hk heads
        Gradients of keys and values for each query head, which FlashAttention-2 adds outside of the kernel; for each
        key head in FlashAttention-3.
    forward : AttentionResult
        Result of the forward pass that was differentiated.
    """

    dq: Floats
    dk: Floats
    dv: Floats
    forward: AttentionResult = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        shapes = f"dq {self.dq.shape}, dk {self.dk.shape}, dv {self.dv.shape}"
        return f"<AttentionGradient of {self.forward.kernel}: {shapes}>"


@with_default_fpenv
def attention_grad(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    *,
    kernel: str | AttentionKernel = "flash2",
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    blocks: int = 108,
    out_format: str | Format | None = None,
) -> AttentionGradient:
    """Compute the gradients of attention with the arithmetic of a GPU kernel's deterministic backward pass.

    For a tile of keys, dK and dV accumulate in the tensor core over the tiles of queries: from the last to the first in
    FlashAttention-2, from the first in FlashAttention-3. FlashAttention-2 adds the contribution of each tile of keys to
    dQ in float32 to the buffer of the thread block that computed it, and then the buffers in increasing order.
    FlashAttention-3 has one sum; tiles of keys are added from the first, or from the last with a causal mask. In the
    other variant of both, additions to dQ are atomic: their order, and therefore the bits, differ from run to run.

    Parameters
    ----------
    q, k, v : array_like, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Queries, keys and values as in `attention`.
    dout : array_like, shape (B, H, M, Dv)
        Gradient of the output, on the grid of the operands' format.
    kernel : str or AttentionKernel
        Kernel with a backward pass.
    causal, window, scale
        As in `attention`.
    blocks : int
        Thread blocks of the GPU, for FlashAttention-2, which has ceil(blocks / (B H)) buffers of dQ; thread block i
        computes the tiles of keys i, i + buffers, ...; an A100 has 108.
    out_format : str or Format, optional
        Format of the gradients; default: the kernel's, which is always that of the forward pass.

    Returns
    -------
    AttentionGradient
        Gradients of q, k and v; FlashAttention-3 adds dK and dV of a group's heads in float32, in increasing order.

    Raises
    ------
    ValueError
        If shapes do not match, a value is not on the operands' grid, or the kernel has no backward pass.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> q, k, v, dout = (lp.round_to(rng.standard_normal((n, 32)), "bfloat16") for n in (4, 300, 300, 4))
    >>> grad = lp.attention_grad(q, k, v, dout)
    >>> grad.dq.shape, grad.dk.shape
    ((4, 32), (300, 32))
    """
    kernel = attentions.get(kernel)
    forward = attention(q, k, v, kernel=kernel, causal=causal, window=window, scale=scale)
    if not kernel.gradient_tiles:
        raise ValueError(f"attention_grad: kernel must have a backward pass, got {kernel}")
    arrays = [operand_codes("attention_grad", *pair, kernel.operands) for pair in zip("qkv", (q, k, v), strict=True)]
    arrays.append(operand_codes("attention_grad", "dout", dout, kernel.operands))
    if arrays[3].shape != forward.out.shape:
        raise ValueError(f"attention_grad: dout must have the output's shape {forward.out.shape}, got {np.shape(dout)}")
    blocks = check_int("attention_grad", "blocks", blocks, 1)
    lead = (0,) * (4 - arrays[0].ndim)
    queries, keys, values, douts = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in arrays)
    check_shapes(queries.shape, keys.shape, values.shape, kernel)
    (batch, heads, m, d), (_, key_heads, n, channels) = queries.shape, values.shape
    call = kernel.schedule.differentiated(
        Call(m, n, d, channels, heads // key_heads, causal, *find_window(causal, window))
    )
    buffers = 1 if kernel.schedule.has_one_gradient else -(-blocks // max(batch * heads, 1))
    run = Backward(kernel, kernel.gradient_tile_of(call), call, softmax_scale(d, scale), buffers)
    shapes = (m, d), (n, d), (n, channels)
    dq, dk, dv = (np.zeros((batch, heads, *shape), np.float32) for shape in shapes)
    for b in range(batch):
        for h in range(heads if m and n else 0):
            pair = keys[b, h * key_heads // heads], values[b, h * key_heads // heads]
            out, lse = (x.reshape(batch, heads, m, -1)[b, h] for x in (forward.out, forward.lse))
            with np.errstate(all="ignore"):
                dq[b, h], dk[b, h], dv[b, h] = run.head(queries[b, h], *pair, douts[b, h], out, lse[:, 0])
    if kernel.schedule.has_one_gradient and heads != key_heads:
        dk, dv = (_sum_of_heads(x, key_heads) for x in (dk, dv))
    target = kernel.output_format if out_format is None else out_format
    dq, dk, dv = (round_to(x, target, policy="ieee")[lead] for x in (dq, dk, dv))
    return AttentionGradient(dq, dk, dv, forward)


class Backward(NamedTuple):
    """Backward pass with the options of one call."""

    kernel: AttentionKernel
    tile: GradientTile
    call: Call
    scale: float
    buffers: int

    def head(self, q: Any, k: Any, v: Any, dout: Any, out: Floats, lse: Floats) -> tuple[Floats, Floats, Floats]:
        """Return dQ, dK and dV of one head, from codes and the forward pass' output and log-sum-exp."""
        rows, keys = self.tile.queries_of(self.call), self.tile.keys
        (m, d), (n, channels) = q.shape, v.shape
        padded, tiles = -(-m // rows) * rows, -(-n // keys)
        sums = np.zeros(padded, np.float32)
        flush = self.kernel.flush_subnormals
        # red.global.add.f32 flushes subnormal numbers, cp.reduce.async.bulk.add.f32 does not: results of an H200.
        adds_flush = flush and not self.kernel.schedule.has_one_gradient
        kernels.dot_rows(decode(dout, self.kernel.operands), out, self.tile.columns, flush, sums[:m])
        offsets = np.full(padded, np.inf, np.float32)  # rows after the last query have P = 0
        offsets[:m] = np.where(lse == -np.inf, np.float32(0), lse) * _LOG2_E  # flushed by `scale_and_shift`
        q, dout = (np.pad(x, ((0, padded - m), (0, 0))) for x in (q, dout))
        k, v = (np.pad(x, ((0, tiles * keys - n), (0, 0))) for x in (k, v))
        dq = np.zeros((min(self.buffers, tiles), padded, d), np.float32)
        dk, dv = np.zeros((tiles * keys, d), np.float32), np.zeros((tiles * keys, channels), np.float32)
        place = np.arange(padded) + n - m
        low = np.zeros(padded, np.int64) if self.call.left < 0 else np.maximum(place - self.call.left, 0)
        high = np.full(padded, n) if self.call.right < 0 else np.clip(place + self.call.right + 1, 0, n)
        for tile in self.key_tiles(tiles):
            part = slice(tile * keys, (tile + 1) * keys)
            for start in self.query_starts(tile):
                at = slice(start, start + rows)
                p, ds = self._tile(
                    q[at], k[part], v[part], dout[at], offsets[at], sums[at], (part.start, low[at], high[at])
                )
                dv[part] = self._product(p.T, dout[at].T, dv[part])
                buffer = dq[tile % self.buffers, at]
                buffer[:] = added(buffer, self._product(ds, k[part].T), adds_flush)
                dk[part] = self._product(ds.T, q[at].T, dk[part])
        total = np.zeros((padded, d), np.float32)
        for buffer in dq:
            total = added(total, buffer, flush)
        dq, dk = (times(x, np.float32(self.scale), flush) for x in (total[:m], dk[:n]))
        return dq, dk, dv[:n]

    def key_tiles(self, tiles: int) -> range:
        """Return the tiles of keys in the order in which they add to dQ."""
        return range(tiles)[:: -1 if self.kernel.schedule.has_one_gradient and self.call.is_causal else 1]

    def query_starts(self, tile: int) -> range:
        """Return the first rows of the tiles of queries that see a tile of keys, in the order of the kernel."""
        rows, keys, m, n = self.tile.queries_of(self.call), self.tile.keys, self.call.queries, self.call.keys
        last, first = -(-m // rows), 0
        if self.call.left >= 0:
            last = min(last, -(-((tile + 1) * keys + m - n + self.call.left) // rows))
        if self.call.right >= 0:
            first = max(0, (tile * keys + m - n - self.call.right) // rows)
        return range(first * rows, last * rows, rows)[:: 1 if self.kernel.schedule.has_one_gradient else -1]

    def _tile(
        self, q: Any, k: Any, v: Any, dout: Any, offsets: Floats, sums: Floats, visible: tuple[int, Any, Any]
    ) -> tuple[Any, Any]:
        """Return the codes of P and of dS = P (dP - row sum of dO O) of a tile."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        scores = self._product(q, k)
        kernels.mask_scores(scores, *visible)
        arguments = np.empty_like(scores)
        octaves = scale_of_scores(kernel, self.scale, np.float32(1))
        kernels.scale_and_shift(scores, octaves, offsets, kernel.fused_scores, flush, arguments)
        p = kernel.exp2(arguments)
        ds = times(p, added(self._product(dout, v), -sums[:, None], flush), flush)
        return encode(p, kernel.p_format, policy="ieee"), encode(ds, kernel.p_format, policy="ieee")

    def _product(self, a: Any, b: Any, c: Any = None) -> Floats:
        """Return A B^T + C from the codes of A and B."""
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        f = self.kernel.operands
        product: Floats = mma(a, b, c, accumulator=self.kernel.scores, a_format=f, b_format=f)
        return product


def _sum_of_heads(x: Floats, heads: int) -> Floats:
    """Return the sums [B, Hk, N, D] over the query heads of each group; bulk copies keep subnormal numbers."""
    groups = x.reshape(x.shape[0], heads, x.shape[1] // heads, *x.shape[2:])
    total = np.zeros_like(groups[:, :, 0])
    for i in range(groups.shape[2]):
        total = total + groups[:, :, i]
    return total
