"""Attention of torch models by a kernel of `lowprec.attentions`: a function, and an implementation for transformers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from lowprec.attn.attention import check_shapes
from lowprec.attn.catalogue import attentions
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.masks import check_mask, masked_attention

from .arrays import check
from .folder import transformers_module

_NAME = "lowprec.torch.attention"
#: Arguments of transformers' attention functions that change the result and have no counterpart here.
_REFUSED = ("softcap", "s_aux", "position_bias", "output_attentions")


def attention(
    q: Tensor, k: Tensor, v: Tensor, kernel: str | AttentionKernel = "fa3_fp8", *, causal: bool = False,
    mask: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Compute attention with a kernel; operands are quantized for it, with one scale per sequence and key head.

    The gradient is a straight-through estimate in float32: probabilities are recomputed from q, k and the kernel's
    log-sum-exp, and the softmax gradient uses the kernel's output, as in the trainer. With `plain_gradient`,
    the backward pass computes the softmax and the output of q, k and v in float32.

    Parameters
    ----------
    q, k, v : Tensor, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Queries, keys and values, float32 or bfloat16. H must be a multiple of Hk.
    kernel : str or AttentionKernel
        Kernel in `lowprec.attentions`, or a custom one.
    causal : bool
        Whether query i sees keys up to ``i + N - M`` only.
    mask : Tensor of bool, shape (B or 1, 1, M, N), optional
        Keys that each query sees; columns after the N keys are ignored. Per sequence, it must be consecutive queries
        and keys, all visible, causal, or causal with a sliding window. Padding on either side is omitted, as in varlen
        kernels; the output of a query without keys is zero. PyTorch's kernels, such as ``sdpa_math``, also compute
        hidden keys, and accept any mask.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(D)`` by default.

    Returns
    -------
    Tensor, shape (B, H, M, Dv)
        Output in the dtype of q.

    Raises
    ------
    TypeError
        If q, k or v is neither float32 nor bfloat16.
    ValueError
        If shapes do not match, or the kernel does not compute such a mask; the message has its first row that differs.

    Examples
    --------
    >>> q, k, v = torch.ones(3, 1, 2, 4, 8, requires_grad=True)
    >>> out = attention(q, k, v, "fa3_fp8", causal=True)
    >>> out.sum().backward()
    """
    if mask is not None and causal:
        raise ValueError("lowprec.torch.attention: mask must be None with causal=True, got both")
    kernel = attentions.get(kernel)
    _check_operands(q, k, v, kernel)
    if mask is not None:
        check_mask(_NAME, tuple(mask.shape), str(mask.dtype).removeprefix("torch."), q.shape[0], q.shape[2], k.shape[2])
        mask = mask[..., : k.shape[2]]
    out: Tensor = _Attention.apply(q, k, v, kernel, causal, mask, scale)
    return out.to(q.dtype)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: AttentionKernel, causal: bool, mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:  # fmt: skip
        out, lse = masked_attention(
            _NAME, [x.detach().float().numpy() for x in (q, k, v)], kernel, causal=causal,
            mask=None if mask is None else mask.numpy(), scale=scale,
            out_format="float32" if q.dtype == torch.float32 else None,
        )  # fmt: skip
        result = torch.from_numpy(out)
        if causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        ctx.save_for_backward(q, k, v, result, torch.from_numpy(lse), mask)
        ctx.scale = q.shape[3] ** -0.5 if scale is None else scale
        ctx.plain_gradient = kernel.plain_gradient
        return result

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> Any:
        q, k, v, out, lse, mask = ctx.saved_tensors
        (d_out,), groups = d_outs, q.shape[1] // k.shape[1]
        queries, d_out = q.float(), d_out.float()
        keys, values = (x.float().repeat_interleave(groups, 1) for x in (k, v))
        scores = queries @ keys.mT * ctx.scale
        if ctx.plain_gradient:
            lse = torch.logsumexp(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1)
        p = torch.exp(scores - lse[..., None])
        if mask is not None:
            p = p.masked_fill(~mask, 0)
        out = p @ values if ctx.plain_gradient else out
        d_scores = p * (d_out @ values.mT - (d_out * out).sum(-1, keepdim=True)) * ctx.scale
        d_k, d_v = (x.unflatten(1, (k.shape[1], groups)).sum(2) for x in (d_scores.mT @ queries, p.mT @ d_out))
        return (d_scores @ keys).to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, None, None, None


def _check_operands(q: Tensor, k: Tensor, v: Tensor, kernel: AttentionKernel) -> None:
    """Raise an error unless q, k and v have four axes that match, of float32 or bfloat16."""
    shapes = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    if any(len(shape) != 4 for shape in shapes):
        raise ValueError(
            "lowprec.torch.attention: q, k and v must have 4 axes, (batch, heads, tokens, channels), got "
            f"{', '.join(map(str, shapes))}"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        check(name, x)
    check_shapes(*shapes, kernel)


def register_attention(kernel: str | AttentionKernel) -> str:
    """Make a kernel an attention implementation of transformers, and return its name: ``"lowprec:fa3_fp8"``.

    The name is for ``from_pretrained(..., attn_implementation=name)`` and ``model.set_attn_implementation(name)``. It
    has "Flash" for "flash", for which transformers would import flash_attn. Softcap, sinks, position biases and dropout
    raise a ValueError, as do masks that the kernel cannot compute.

    Raises
    ------
    ImportError
        If transformers is missing.
    """
    kernel = attentions.get(kernel)
    transformers_module()
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    name = f"lowprec:{kernel.name.replace('flash', 'Flash')}"
    AttentionInterface.register(name, functools.partial(_of_transformers, kernel))
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _of_transformers(
    kernel: AttentionKernel, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute attention in the form of transformers' attention functions."""
    refused = [name for name in _REFUSED if more.get(name) is not None and more[name] is not False]
    if dropout or refused:
        what = f"dropout={dropout:g}" if dropout else refused[0]
        raise ValueError(f"lowprec.torch.attention: {kernel} must have no dropout, {', '.join(_REFUSED)}, got {what}")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = attention_mask is None and query.shape[2] > 1 and bool(causal)
    out = attention(query, key, value, kernel, causal=causal, mask=attention_mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None
