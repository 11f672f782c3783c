"""Operands of an attention kernel, from queries, keys and values in higher precision or from a KV cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codec.catalogue import codecs
from ..codec.wire import Codec
from .kernel import AttentionKernel

Floats = NDArray[np.float32]


class AttentionOperands(NamedTuple):
    """Operands of `lowprec.attention`: q, k and v on the grids of the kernel's formats, and their scales."""

    q: Floats
    k: Floats
    v: Floats
    descale: tuple[Floats, ...]


def quantize_operands(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, kernel: AttentionKernel, *, cache: str | Codec | None = None
) -> AttentionOperands:
    """Quantize queries, keys and values for a kernel, by the rule of its field `scales`.

    `HeadScales`, the rule of most kernels, has one scale (amax / largest number) per sequence and key head: callers of
    FlashAttention-3's FP8 kernel pass such scales to it (``q_descale`` of shape (batch, heads of K), shared by the
    query heads of a group). The largest magnitude becomes the format's largest number, 448 for E4M3; a head of zeros
    has scale 1. If the format has 16 bits or more, values are rounded without a scale. `ThreadScales` and `WarpScales`
    are SageAttention 2's, `BlockScales` SageAttention 3's.

    Parameters
    ----------
    q, k, v : array_like, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Float32 numbers.
    kernel : AttentionKernel
        Kernel; its field `operands` is the format of q and k.
    cache : str or Codec, optional
        Codec of the KV cache from which keys and values are decoded, see `round_trip_cache`.

    Examples
    --------
    >>> import lowprec as lp
    >>> x = np.array([[[[0.5, -2.0]]]], np.float32)
    >>> made = quantize_operands(x, x, x, lp.attentions["fa3_fp8"])
    >>> made.k, made.descale[1]
    (array([[[[ 112., -448.]]]], dtype=float32), array([[0.00446429]], dtype=float32))
    """
    if cache is not None:
        k, v = round_trip_cache(k, cache), round_trip_cache(v, cache)
    values = [np.ascontiguousarray(x, np.float32) for x in (q, k, v)]
    operands, descale = kernel.scales.quantize(values[0], values[1], values[2], kernel.operands, kernel.values_format)
    return AttentionOperands(*operands, descale)


def round_trip_cache(x: ArrayLike, codec: str | Codec) -> Floats:
    """Encode and decode values as in a KV cache: one row per token and head, the last page padded with zeros.

    Parameters
    ----------
    x : array_like, shape (..., N, D)
        Keys, values, or the latents of multi-head latent attention, of N tokens.
    codec : str or Codec
        Codec in `lowprec.codecs`, or a custom one.

    Raises
    ------
    ValueError
        If the codec does not take tokens of D values.

    Examples
    --------
    >>> latents = np.ones((1, 1, 3, 512), np.float32)
    >>> round_trip_cache(latents, "flashmla_model1").shape
    (1, 1, 3, 512)
    """
    codec, values = codecs.get(codec), np.ascontiguousarray(x, np.float32)
    page = getattr(codec, "tokens", 1)
    if not values.size:
        return values
    if page == 1:
        return codec.round_trip(values)
    tokens = values.shape[-2]
    whole = np.zeros((*values.shape[:-2], -(-tokens // page) * page, values.shape[-1]), np.float32)
    whole[..., :tokens, :] = values
    decoded = codec.round_trip(whole.reshape(*whole.shape[:-2], -1, page * values.shape[-1])).reshape(whole.shape)
    return np.ascontiguousarray(decoded[..., :tokens, :])
