"""Memory and operations of a model: bytes of KV cache, training FLOPs per token, utilization.

The formulas are those that reproduce tables 1, 2 and 4 of "Insights into DeepSeek-V3" (arXiv 2505.09343). With
N matrix elements that multiply a token (`ModelShape.matmul_parameters`), sequence length S, L layers, and heads with
queries of width d_qk and values of width d_v, training takes this number of operations per token:

    6 N  +  6 L S heads (d_qk + d_v)        attention over all S tokens ("non-causal", as Megatron counts)
    6 N  +  3 L S heads (d_qk + d_v)        over the lower triangle ("causal", as FlashAttention counts)

The paper counts its two dense models differently (`method="paper"`): 6 (12 L h^2 + V h) operations for width h and
vocabulary size V, without any attention scores, and as if their feed-forward networks were 4 h wide and their attention
not grouped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lowprec._checks import check_choice, check_int, check_positive

from .models import ModelShape, find_model
from .traffic import Bits, row_bytes

SECONDS_PER_DAY = 86400


def kv_cache_bytes(model: str | ModelShape | Mapping[str, Any], codec: Bits = 16) -> float:
    """Return the number of bytes of KV cache per token.

    Parameters
    ----------
    model : str, ModelShape or mapping
        Shape of the model.
    codec : Codec, str or float
        Storage of the cache: a codec, its name, or bits per value.

    Returns
    -------
    float
        Number of bytes for all layers, including scales of short last tiles.

    Examples
    --------
    >>> kv_cache_bytes("deepseek_v3"), kv_cache_bytes("deepseek_v3", "fp8_1x128")
    (70272.0, 36356.0)
    """
    shape = find_model(model)
    return float(shape.layers * sum(row_bytes(codec, columns) for columns in shape.attention.kv_widths))


def training_flops(
    model: str | ModelShape | Mapping[str, Any],
    sequence: int = 4096,
    *,
    causal: bool = True,
    method: Literal["consistent", "paper"] = "consistent",
) -> float:
    """Return the number of operations that training requires per token.

    Parameters
    ----------
    model : str, ModelShape or mapping
        Shape of the model.
    sequence : int
        Length S of the training sequences.
    causal : bool
        Whether to count only the lower triangle of the attention matrix.
    method : {"consistent", "paper"}
        One formula for all models, or the paper's shortcut for dense ones.

    Returns
    -------
    float
        FLOPs, counting two for a multiply-add.

    Examples
    --------
    >>> round(training_flops("deepseek_v3") / 1e9, 2)
    249.81
    >>> [round(training_flops("qwen2.5_72b", method=m) / 1e9, 1) for m in ("paper", "consistent")]
    [394.0, 444.9]
    """
    shape = find_model(model)
    sequence = check_int("training_flops", "sequence", sequence, 1)
    method = check_choice("training_flops", "method", method, ("consistent", "paper"))
    if method == "paper" and not shape.experts:
        return 6.0 * (12 * shape.layers * shape.dim**2 + shape.vocabulary * shape.dim)
    pairs = sequence * shape.layers * shape.attention.score_width
    return 6.0 * shape.matmul_parameters + (3.0 if causal else 6.0) * pairs


def achieved_flops(flops_per_token: float, tokens_per_day: float, gpus: int) -> float:
    """Return the number of operations per second of one GPU in a training run.

    Examples
    --------
    >>> from lowprec.costs import hardware, training_flops
    >>> rate = achieved_flops(training_flops("deepseek_v3", causal=False), 272.80e9, 2048)
    >>> f"{rate / 1e12:.1f} TFLOPS, MFU {100 * rate / hardware['h800_ib400'].peak_flops:.2f} %"
    '432.5 TFLOPS, MFU 43.73 %'
    """
    flops_per_token = check_positive("achieved_flops", "flops_per_token", flops_per_token)
    tokens_per_day = check_positive("achieved_flops", "tokens_per_day", tokens_per_day)
    gpus = check_int("achieved_flops", "gpus", gpus, 1)
    return flops_per_token * tokens_per_day / SECONDS_PER_DAY / gpus
