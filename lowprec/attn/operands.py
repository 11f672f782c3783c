"""Operands of an attention kernel, from queries, keys and values in higher precision or from a KV cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..cast.casts import round_to
from ..codec.catalogue import codecs
from ..codec.wire import Codec
from ..format.catalogue import Format
from .kernel import AttentionKernel

Floats = NDArray[np.float32]


class AttentionOperands(NamedTuple):
    """Operands of `lowprec.attention`: q, k and v on the grid of the kernel's format, and their scales [B, Hk]."""

    q: Floats
    k: Floats
    v: Floats
    descale: tuple[Floats, Floats, Floats]


def quantize_operands(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, kernel: AttentionKernel, *, cache: str | Codec | None = None
) -> AttentionOperands:
    """Quantize queries, keys and values for a kernel, with one scale (amax / largest number) per sequence and key head.

    These are the scales that callers of FlashAttention-3's FP8 kernel pass to it (``q_descale`` of shape (batch, heads
    of K), shared by the query heads of a group). The largest magnitude becomes the format's largest number, 448 for
    E4M3; a head of zeros has scale 1. If the format has 16 bits or more, values are rounded without a scale.

    Parameters
    ----------
    q, k, v : array_like, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Float32 numbers.
    kernel : AttentionKernel
        Kernel; its field `operands` is the format.
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
    groups = values[1].shape[:2]
    (q, q_scale), (k, k_scale), (v, v_scale) = (_quantized(x, kernel.operands, groups) for x in values)
    return AttentionOperands(q, k, v, (q_scale, k_scale, v_scale))


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


def _quantized(x: Floats, fmt: Format, groups: tuple[int, ...]) -> tuple[Floats, Floats]:
    ones = np.ones(groups, np.float32)
    if fmt.bits > 8:
        return round_to(x, fmt), ones
    if not x.size:
        return x, ones
    with np.errstate(all="ignore"):  # inputs may be Inf or NaN: the head is then NaN, as on the GPU
        amax = np.abs(x).reshape(*groups, -1).max(-1)
        scale = np.where(amax == 0, ones, amax / np.float32(fmt.max))
        per_head = np.repeat(scale, x.shape[1] // groups[1], axis=1)[:, :, None, None]
        return round_to(x / per_head, fmt, policy="ocp_sat"), scale
