"""Attention of a kernel in functions of JAX, with a straight-through gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..attn.catalogue import attentions
from ..attn.kernel import AttentionKernel
from ..attn.masks import check_mask, masked_attention
from .products import DTYPES, dtype_name, to_float32

_NAME = "lowprec.jax.attention"


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _attention(q: Any, k: Any, v: Any, mask: Any, kernel: AttentionKernel, causal: bool, scale: float) -> Any:
    return _attention_forward(q, k, v, mask, kernel, causal, scale)[0]


def attend(kernel: AttentionKernel, causal: bool, scale: float, *arrays: Any) -> tuple[Any, Any]:
    """Compute the output and the log-sum-exp in NumPy, from q, k, v and perhaps a mask."""
    mask = np.asarray(arrays[3]) if len(arrays) > 3 else None
    return masked_attention(
        _NAME, to_float32(*arrays[:3]), kernel, causal=causal, mask=mask, scale=scale, out_format="float32"
    )


def _attention_forward(
    q: Any, k: Any, v: Any, mask: Any, kernel: AttentionKernel, causal: bool, scale: float
) -> tuple[Any, Any]:
    call = functools.partial(attend, kernel, causal, scale)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*q.shape[:3], v.shape[3]), q.shape[:3])]
    arrays = (q, k, v) if mask is None else (q, k, v, mask)
    out, lse = jax.pure_callback(call, shapes, *arrays, vmap_method="sequential")
    return out.astype(q.dtype), (q, k, v, mask, out, lse)


def _attention_backward(kernel: AttentionKernel, causal: bool, scale: float, kept: Any, d_out: Any) -> Any:
    q, k, v, mask, out, lse = kept
    groups, (m, n) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    keys, values = (jnp.repeat(x.astype(jnp.float32), groups, 1) for x in (k, v))
    queries, d_out = q.astype(jnp.float32), d_out.astype(jnp.float32)
    seen = jnp.tri(m, n, n - m if causal else n, dtype=bool) if mask is None else mask
    scores = queries @ keys.mT * scale
    if kernel.plain_gradient:
        lse = jax.nn.logsumexp(jnp.where(seen, scores, -jnp.inf), -1)
    p = jnp.where(seen, jnp.exp(scores - lse[..., None]), 0)
    out = p @ values if kernel.plain_gradient else out
    d_scores = p * (d_out @ values.mT - (d_out * out).sum(-1, keepdims=True)) * scale
    d_k, d_v = (
        x.reshape(len(x), -1, groups, *x.shape[2:]).sum(2) for x in (d_scores.mT @ queries, p.mT @ d_out)
    )  # fmt: skip
    return (d_scores @ keys).astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), None


_attention.defvjp(_attention_forward, _attention_backward)


def attention(
    q: Any, k: Any, v: Any, kernel: str | AttentionKernel = "fa3_fp8", *, causal: bool = False, mask: Any = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Compute attention with a kernel; operands are quantized for it, with one scale per sequence and key head.

    The gradient is a straight-through estimate in XLA's float32: probabilities are recomputed from q, k and the
    kernel's log-sum-exp, and the softmax gradient uses the kernel's output, as in the trainer. With
    `plain_gradient`, the backward pass computes the softmax and the output of q, k and v in float32.

    Parameters
    ----------
    q, k, v : array, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Queries, keys and values, float32 or bfloat16. H must be a multiple of Hk.
    kernel : str or AttentionKernel
        Kernel in `lowprec.attentions`, or a custom one.
    causal : bool
        Whether query i sees keys up to ``i + N - M`` only.
    mask : array of bool, shape (B or 1, 1, M, N), optional
        Keys that each query sees; columns after the N keys are ignored. Per sequence, it must be consecutive queries
        and keys, all visible, causal, or causal with a sliding window. Padding on either side is omitted, as in varlen
        kernels; the output of a query without keys is zero. PyTorch's kernels, such as ``sdpa_math``, accept any mask.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(D)`` by default.

    Returns
    -------
    array, shape (B, H, M, Dv)
        Output in the dtype of q.

    Raises
    ------
    ValueError
        If an array has another dtype or shape, or both `causal` and `mask` are given.
    jax.errors.JaxRuntimeError
        If the kernel does not compute such a mask; the message has its first row that differs.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lowprec.jax import attention
    >>> x = jnp.ones((1, 2, 4, 8))
    >>> attention(x, x, x, causal=True).shape
    (1, 2, 4, 8)
    """
    for name, a in (("q", q), ("k", k), ("v", v)):
        if getattr(a, "dtype", None) not in DTYPES or a.ndim != 4:
            raise ValueError(
                f"{_NAME}: {name} must be a float32 or bfloat16 array (batch, heads, rows, columns), got "
                f"{dtype_name(a)} {np.shape(a)}"
            )
    if mask is not None and causal:
        raise ValueError(f"{_NAME}: mask must be None with causal=True, got both")
    if mask is not None:
        check_mask(_NAME, np.shape(mask), dtype_name(mask), q.shape[0], q.shape[2], k.shape[2])
        mask = mask[..., : k.shape[2]]
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return _attention(q, k, v, mask, attentions.get(kernel), causal, factor)
