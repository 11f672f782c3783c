"""Communication of experts: bytes and time of dispatch and combine, and the speed of decoding that they allow.

The model of arXiv 2505.09343, section 2.3.2: each of T tokens of a GPU is sent to its experts and returned, so one
exchange of a layer takes

    t = (b_dispatch + b_combine) T copies dim / bandwidth                  copies = routed + shared experts of a token

and, with two micro-batches that hide computation behind communication, TPOT = 2 layers t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowprec._checks import check_int, check_positive

from .hardware import Hardware, find_hardware
from .models import ModelShape, find_model

if TYPE_CHECKING:
    from lowprec.codec import Codec

Bits: TypeAlias = "Codec | str | float"

#: Bytes before each token in DeepEP's low-latency dispatch: its index, padded to one load.
DEEPEP_HEADER = 16


def bits_per_value(codec: Bits) -> float:
    """Return the number of bits per value of a codec, scales included, given as an object, by name, or as a number.

    Raises
    ------
    ValueError
        If the name is unknown, or the number is not positive.

    Examples
    --------
    >>> bits_per_value("fp8_1x128"), bits_per_value(16)
    (8.25, 16.0)
    """
    if isinstance(codec, (int, float, np.integer, np.floating)):
        return check_positive("codec", "bits per value", codec)
    return float(_codec(codec).bits_per_value)


def row_bytes(codec: Bits, columns: int) -> float:
    """Return the number of bytes of a row of `columns` values, including short last tiles and padding."""
    columns = check_int("row_bytes", "columns", columns, 1)
    if isinstance(codec, (int, float, np.integer, np.floating)):
        return bits_per_value(codec) * columns / 8
    found = _codec(codec)
    if hasattr(found, "row_bytes"):
        return float(found.row_bytes(columns))
    return float(math.ceil(found.bits_per_value * columns / 8))


def _codec(codec: Any) -> Codec:
    from lowprec.codec import codecs  # imports the kernels' compiler, which numbers do not need

    return codecs.get(codec)


@dataclass(frozen=True)
class DecodeLimit:
    """Speed of decoding if only communication takes time.

    Attributes
    ----------
    dispatch_bytes, combine_bytes : float
        Number of bytes that one GPU sends per layer for its tokens.
    dispatch_s, combine_s, all_to_all_s : float
        Duration of dispatch, of combine, and of both, in seconds.
    layer_s : float
        Seconds per layer for two micro-batches.
    tpot_s : float
        Seconds per output token.
    tokens_per_s : float
        Output tokens per second.
    """

    dispatch_bytes: float
    combine_bytes: float
    dispatch_s: float
    combine_s: float
    all_to_all_s: float
    layer_s: float
    tpot_s: float
    tokens_per_s: float


def decode_limit(
    model: str | ModelShape | Mapping[str, Any] = "deepseek_v3",
    machine: str | Hardware | Mapping[str, Any] = "h800_ib400",
    dispatch: Bits = "fp8_1x128",
    combine: Bits = "bf16",
    *,
    tokens: int = 32,
    dim: int | None = None,
    layers: int | None = None,
    use_effective_bandwidth: bool = False,
) -> DecodeLimit:
    """Return the limit that expert parallelism imposes on decoding speed (arXiv 2505.09343, section 2.3.2).

    Parameters
    ----------
    model : str, ModelShape or mapping
        Shape of a model with experts.
    machine : str, Hardware or mapping
        GPU and its links.
    dispatch, combine : Codec, str or float
        Codecs of both directions: a codec, its name, or bits per value.
    tokens : int
        Number of tokens of one micro-batch on a GPU.
    dim, layers : int, optional
        Replacements of the model's values. The paper computes with dim=7000 ("7K"); 58 of V3's 61 layers have experts.
    use_effective_bandwidth : bool
        Whether to compute with the bandwidth that is reached in practice.

    Returns
    -------
    DecodeLimit
        Bytes and times.

    Raises
    ------
    ValueError
        If the model has no experts, or a number is out of range.

    Examples
    --------
    >>> paper = decode_limit(dispatch=8, combine=16, dim=7000)
    >>> f"{paper.all_to_all_s * 1e6:.2f} us, {paper.tpot_s * 1e3:.2f} ms, {paper.tokens_per_s:.1f} tokens/s"
    '120.96 us, 14.76 ms, 67.8 tokens/s'
    """
    shape, gpu = find_model(model), find_hardware(machine)
    if not shape.experts:
        raise ValueError(f"decode_limit: model must have experts, got {shape.name!r} without")
    dim = shape.dim if dim is None else dim
    layers = shape.layers if layers is None else layers
    tokens, dim, layers = (
        check_int("decode_limit", name, value, 1)
        for name, value in (("tokens", tokens), ("dim", dim), ("layers", layers))
    )
    bandwidth = gpu.effective_bandwidth if use_effective_bandwidth else gpu.bandwidth
    assert bandwidth is not None
    values = tokens * shape.experts_per_token * dim
    there, back = (values * bits_per_value(codec) / 8 for codec in (dispatch, combine))
    dispatch_s, combine_s = (gpu.latency + sent / bandwidth for sent in (there, back))
    exchange = dispatch_s + combine_s
    return DecodeLimit(
        there, back, dispatch_s, combine_s, exchange, 2 * exchange, 2 * layers * exchange, 1 / (2 * layers * exchange)
    )


def deepep_message_bytes(dim: int = 7168, codec: Bits = "fp8_1x128", header: int = DEEPEP_HEADER) -> float:
    """Return the number of bytes per token in DeepEP's low-latency kernels.

    Dispatch sends a header of 16 bytes, the FP8 codes and a float32 scale per 128 values; combine sends only values.

    Examples
    --------
    >>> deepep_message_bytes(), deepep_message_bytes(codec="bf16", header=0)
    (7408.0, 14336.0)
    """
    header = check_int("deepep_message_bytes", "header", header, 0)
    return header + row_bytes(codec, dim)


def deepep_bandwidth(
    seconds: float, codec: Bits, header: int, *, tokens: int = 128, top_k: int = 8, dim: int = 7168
) -> float:
    """Return the bandwidth in bytes per second that DeepEP would report for a kernel of the given duration.

    Examples
    --------
    >>> round(deepep_bandwidth(77e-6, "fp8_1x128", 16) / 1e9, 1)
    98.5
    """
    seconds = check_positive("deepep_bandwidth", "seconds", seconds)
    tokens = check_int("deepep_bandwidth", "tokens", tokens, 1)
    top_k = check_int("deepep_bandwidth", "top_k", top_k, 1)
    return tokens * top_k * deepep_message_bytes(dim, codec, header) / seconds
