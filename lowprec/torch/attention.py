"""Attention of torch models by a kernel of `lowprec.attentions`: a function, and an implementation for transformers."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lowprec.attn.attention import attention as attend
from lowprec.attn.attention import check_shapes
from lowprec.attn.catalogue import attentions
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.operands import quantize_operands

from .arrays import check
from .folder import transformers_module

Mask = NDArray[np.bool_]
#: Arguments of transformers' attention functions that change the result and have no counterpart here.
_REFUSED = ("softcap", "s_aux", "position_bias", "output_attentions")


class _Visible(NamedTuple):
    """Rows that see keys, the keys that they see, and the mask, as arguments of `lowprec.attention`."""

    rows: slice
    keys: slice
    causal: bool = False
    window: tuple[int, int] | None = None


def attention(
    q: Tensor, k: Tensor, v: Tensor, kernel: str | AttentionKernel = "fa3_fp8", *, causal: bool = False,
    mask: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Compute attention with a kernel; operands are quantized for it, with one scale per sequence and key head.

    The gradient is a straight-through estimate in float32: probabilities are recomputed from q, k and the kernel's
    log-sum-exp, and the softmax gradient uses the kernel's output, as in the trainer.

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
        mask = _checked(mask, q.shape[0], q.shape[2], k.shape[2])
    out: Tensor = _Attention.apply(q, k, v, kernel, causal, mask, scale)
    return out.to(q.dtype)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: AttentionKernel, causal: bool, mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:  # fmt: skip
        arrays = [x.detach().float().numpy() for x in (q, k, v)]
        (batch, heads, m, d), n = q.shape, k.shape[2]
        visible = [[_Visible(slice(0, m), slice(0, n), causal)]] * batch
        given = None if mask is None else np.broadcast_to(mask[:, 0].numpy(), (batch, m, n))
        if given is not None and not kernel.schedule.takes_masks:
            visible = [_visible(b, rows) for b, rows in enumerate(given)]
        out = np.zeros((batch, heads, m, v.shape[3]), np.float32)
        lse = np.full((batch, heads, m), -np.inf, np.float32)
        for b, (rows, keys, is_causal, window) in ((b, part) for b, parts in enumerate(visible) for part in parts):
            qs, ks, vs = (x[b : b + 1, :, part] for x, part in zip(arrays, (rows, keys, keys), strict=True))
            *operands, descale = quantize_operands(qs, ks, vs, kernel)
            found = attend(
                *operands, kernel=kernel, causal=is_causal, window=window, scale=scale, descale=descale,
                mask=given[b] if given is not None and kernel.schedule.takes_masks else None,
                out_format="float32" if q.dtype == torch.float32 else None,
            )  # fmt: skip
            out[b, :, rows], lse[b, :, rows] = found.out[0], found.lse[0]
        result = torch.from_numpy(out)
        if causal:
            mask = torch.ones(m, n, dtype=torch.bool).tril(n - m)
        ctx.save_for_backward(q, k, v, result, torch.from_numpy(lse), mask)
        ctx.scale = d**-0.5 if scale is None else scale
        return result

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> Any:
        q, k, v, out, lse, mask = ctx.saved_tensors
        (d_out,), groups = d_outs, q.shape[1] // k.shape[1]
        queries, d_out = q.float(), d_out.float()
        keys, values = (x.float().repeat_interleave(groups, 1) for x in (k, v))
        p = torch.exp(queries @ keys.mT * ctx.scale - lse[..., None])
        if mask is not None:
            p = p.masked_fill(~mask, 0)
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


def _checked(mask: Tensor, batch: int, m: int, n: int) -> Tensor:
    """Check a mask and return its part [B or 1, 1, M, N]."""
    shape = tuple(mask.shape)
    fits = len(shape) == 4 and shape[0] in (1, batch) and shape[1:3] == (1, m) and shape[3] >= n
    if mask.dtype != torch.bool or not fits:
        raise ValueError(
            f"lowprec.torch.attention: mask must be bool of shape ({batch}, 1, {m}, {n}), one for all heads, got "
            f"{str(mask.dtype).removeprefix('torch.')} of shape {shape}"
        )
    return mask[..., :n]


def _visible(b: int, mask: Mask) -> list[_Visible]:
    """Return how to compute one sequence's mask [M, N]: rows and keys without padding, and the rule of the mask."""
    rows, keys = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return []
    first, stop, end = int(rows[0]), int(rows[-1]) + 1, int(keys[-1]) + 1
    for start in (0, int(keys[0])):  # padding, or keys before a window
        seen = mask[first:stop, start:end]
        found = _Visible(slice(first, stop), slice(start, end))
        if seen.all():
            return [found]
        if (fields := _rule(seen)) is not None:
            return [found._replace(**fields)]
        after = first + end - start  # queries of padding on the right see all keys
        if after < stop and seen[end - start :].all() and (fields := _rule(seen[: end - start])) is not None:
            return [found._replace(rows=slice(first, after), **fields), found._replace(rows=slice(after, stop))]
    m, n = seen.shape
    odd = int(np.flatnonzero((seen != np.tri(m, n, n - m, dtype=bool)).any(1))[0])
    raise ValueError(
        "lowprec.torch.attention: mask must be full, causal or a causal window of consecutive tokens in each sequence, "
        f"got row {first + odd} of sequence {b} with {int(seen[odd].sum())} of {n} keys visible, first at "
        f"{start + int(seen[odd].argmax())}"
    )


def _rule(seen: Mask) -> dict[str, Any] | None:
    """Return the arguments of a causal mask or window that equals `seen`, or None."""
    m, n = seen.shape
    causal, width = np.tri(m, n, n - m, dtype=bool), int(seen[-1].sum())
    if np.array_equal(seen, causal):
        return {"causal": True}
    window = causal & ~np.tri(m, n, n - m - width, dtype=bool)
    return {"causal": True, "window": (width - 1, 0)} if np.array_equal(seen, window) else None


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
