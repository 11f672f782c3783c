"""Attention of any mask that a kernel computes: padding is left out, and the rest is a rule of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .attention import attention
from .kernel import AttentionKernel
from .operands import quantize_operands

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


class _Visible(NamedTuple):
    """Rows that see keys, the keys that they see, and the mask, as arguments of `attention`."""

    rows: slice
    keys: slice
    causal: bool = False
    window: tuple[int, int] | None = None


def masked_attention(
    caller: str, operands: Sequence[Floats], kernel: AttentionKernel, *, causal: bool = False,
    mask: Mask | None = None, scale: float | None = None, out_format: str | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Quantize q, k and v [B, H, M, D] in float32 for a kernel, and return its output and log-sum-exp.

    Parameters
    ----------
    caller : str
        Function that error messages name.
    mask : ndarray of bool, shape (B or 1, 1, M, N), optional
        Keys that each query sees. Unless the kernel takes any mask, each sequence must be consecutive queries and keys,
        all visible, causal, or causal with a window; the output of a query without keys is zero.

    Raises
    ------
    ValueError
        If the kernel does not compute such a mask; the message has its first row that differs.
    """
    (batch, heads, m, _), (_, _, n, channels) = operands[0].shape, operands[2].shape
    parts = [[_Visible(slice(0, m), slice(0, n), causal)]] * batch
    given = None if mask is None else np.broadcast_to(mask[:, 0], (batch, m, n))
    if given is not None and not kernel.schedule.takes_masks:
        parts = [_visible(caller, b, rows) for b, rows in enumerate(given)]
        given = None
    out = np.zeros((batch, heads, m, channels), np.float32)
    lse = np.full((batch, heads, m), -np.inf, np.float32)
    for b, (rows, keys, is_causal, window) in ((b, part) for b, some in enumerate(parts) for part in some):
        q, k, v = (x[b : b + 1, :, part] for x, part in zip(operands, (rows, keys, keys), strict=True))
        *quantized, descale = quantize_operands(q, k, v, kernel)
        found = attention(
            *quantized, kernel=kernel, causal=is_causal, window=window, scale=scale, descale=descale,
            mask=None if given is None else given[b], out_format=out_format,
        )  # fmt: skip
        factor = q.shape[3] ** -0.5 if scale is None else scale
        out[b, :, rows], lse[b, :, rows] = found.out[0], kernel.lse_in_nats(found.lse, q, k, factor)[0]
    return out, lse


def check_mask(caller: str, shape: tuple[int, ...], dtype: str, batch: int, m: int, n: int) -> None:
    """Raise ValueError unless a mask is bool, of shape (batch or 1, 1, m, n or more)."""
    if dtype != "bool" or len(shape) != 4 or shape[0] not in (1, batch) or shape[1:3] != (1, m) or shape[3] < n:
        raise ValueError(
            f"{caller}: mask must be bool of shape ({batch}, 1, {m}, {n}), one for all heads, got {dtype} of shape "
            f"{shape}"
        )


def _visible(caller: str, b: int, mask: Mask) -> list[_Visible]:
    """Return how to compute one sequence's mask [M, N]: rows and keys without padding, and the rule of the mask."""
    rows, keys = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return []
    first, stop, end = int(rows[0]), int(rows[-1]) + 1, int(keys[-1]) + 1
    for start in (0, int(keys[0])):  # padding, or keys before a window
        seen = mask[first:stop, start:end]
        found = _Visible(slice(first, stop), slice(start, end))
        if (fields := _rule(seen)) is not None:
            return [found._replace(**fields)]
        partial = int(np.flatnonzero(~seen.all(1))[-1]) + 1
        for after in (partial + 1, partial):  # queries of padding on the right see all keys; a last one before, perhaps
            if after < len(seen) and (fields := _rule(seen[:after])) is not None:
                border = first + after
                return [found._replace(rows=slice(first, border), **fields), found._replace(rows=slice(border, stop))]
    n = seen.shape[1]
    odd = max(
        int(np.flatnonzero((seen != rule).any(1))[0]) for rule, _ in _rules(seen)
    )  # of the rule that comes nearest
    raise ValueError(
        f"{caller}: mask must be full, causal or a causal window of consecutive tokens in each sequence, got row "
        f"{first + odd} of sequence {b} with {int(seen[odd].sum())} of {n} keys visible, first at "
        f"{start + int(seen[odd].argmax())}"
    )


def _rule(seen: Mask) -> dict[str, Any] | None:
    """Return the arguments of a mask that equals `seen`, or None."""
    return next((fields for rule, fields in _rules(seen) if np.array_equal(seen, rule)), None)


def _rules(seen: Mask) -> list[tuple[Mask, dict[str, Any]]]:
    """Return the full mask, the causal mask and the window as wide as the last row of `seen`, with their arguments."""
    (m, n), width = seen.shape, int(seen[-1].sum())
    causal = np.tri(m, n, n - m, dtype=bool)
    window = causal & ~np.tri(m, n, n - m - width, dtype=bool)
    return [
        (np.ones_like(seen), {}), (causal, {"causal": True}), (window, {"causal": True, "window": (width - 1, 0)}),
    ]  # fmt: skip
