"""Conditions that occur in large models and not in small ones, created on purpose to make formats differ.

A condition is data. It changes the weights before a measurement, the weight of each token in the loss, or both.
Reference and arms are measured under the same one. `ChannelOutliers` does not change the function of the model, only
the tensors that are quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parameters = dict[str, Array]

#: Linear layers that read the output of each norm.
CONSUMERS = {
    "attn_norm": ("attn.wq_a", "attn.wkv_a"),
    "ffn_norm": ("ffn.gate", "ffn.w1", "ffn.w3", "ffn.shared.w1", "ffn.shared.w3", "ffn.experts.*.w1",
                 "ffn.experts.*.w3"),
}  # fmt: skip


class Condition:
    """Base class of conditions; its methods change nothing."""

    name: str
    """Name in tables and files."""

    def change(self, parameters: Mapping[str, Array]) -> Parameters:
        """Return the weights to measure with, as new arrays where they change."""
        return dict(parameters)

    def token_weights(self, tokens: int) -> NDArray[np.float32] | None:
        """Return the factor of each token's cross-entropy, shape (tokens,); None if all are 1."""
        return None

    @property
    def balance_weight(self) -> float:
        """Factor of the balance loss."""
        return 1.0


@dataclass(frozen=True)
class Healthy(Condition):
    """No change: the trained model itself."""

    name: str = "healthy"


@dataclass(frozen=True)
class ChannelOutliers(Condition):
    """Outliers in some channels of every normalised activation, compensated by smaller weights.

    The gain of the norm is multiplied by 2^octaves, the columns of its consumers by 2^-octaves. These are powers of
    two, so without quantization all products of the forward pass keep their bits, and only the ranges of operands
    change.

    Parameters
    ----------
    octaves : int
        log2 of the factor.
    every : int
        Interval n: every n-th channel is affected.
    name : str
        Name in tables and files.

    Examples
    --------
    >>> changed = ChannelOutliers(octaves=3, every=2).change(
    ...     {"layers.0.attn_norm": np.ones(2, np.float32), "layers.0.attn.wq_a": np.ones((1, 2), np.float32)})
    >>> changed["layers.0.attn_norm"].tolist(), changed["layers.0.attn.wq_a"].tolist()
    ([8.0, 1.0], [[0.125, 1.0]])
    """

    octaves: int = 8
    every: int = 64
    name: str = "channel outliers"

    def change(self, parameters: Mapping[str, Array]) -> Parameters:
        """Return the rescaled weights."""
        changed = dict(parameters)
        for norm, gain in parameters.items():
            prefix, _, kind = norm.rpartition(".")
            if kind not in CONSUMERS:
                continue
            factor = np.ones(gain.size, gain.dtype)
            factor[:: self.every] = 2.0**self.octaves
            changed[norm] = gain * factor
            for pattern in CONSUMERS[kind]:
                for name in parameters:
                    if fnmatchcase(name, f"{prefix}.{pattern}"):
                        changed[name] = parameters[name] / factor
        return changed


@dataclass(frozen=True)
class UnevenTokens(Condition):
    """Gradients of very different size between tokens, a stress test of blocks that share a scale across tokens.

    The weights of the tokens' losses are log-normal with mean 1, rounded to powers of two so that they cause no
    rounding errors.

    Parameters
    ----------
    sigma : float
        Standard deviation of ln(weight): 4.6 spreads the middle 68 % of the tokens over a factor of 10^4.
    seed : int
        Seed of the weights.
    name : str
        Name in tables and files.

    Examples
    --------
    >>> weights = UnevenTokens().token_weights(2048)
    >>> float(weights.max() / np.median(weights)) > 1e4
    True
    """

    sigma: float = 4.6
    seed: int = 0
    name: str = "uneven tokens"

    def token_weights(self, tokens: int) -> NDArray[np.float32] | None:
        """Return the factor of each token."""
        normal = np.random.default_rng([self.seed, tokens]).standard_normal(tokens)
        mean = self.sigma * self.sigma / 2  # ln of the mean for median 1
        octaves = np.rint((self.sigma * normal - mean) / 0.6931471805599453).astype(np.int64)
        return np.ldexp(np.float32(1), np.clip(octaves, -60, 60)).astype(np.float32)


@dataclass(frozen=True)
class ScaledLoss(Condition):
    """Loss, including the balance loss, multiplied by 2^octaves, as with more tokens per step or loss scaling.

    Powers of two commute with every rounding above the smallest normal number. Without a lower limit of amax only the
    exponents of the gradients change.

    Parameters
    ----------
    octaves : int
        log2 of the factor.
    name : str
        Name in tables and files.

    Examples
    --------
    >>> ScaledLoss(-10).token_weights(2).tolist()
    [0.0009765625, 0.0009765625]
    """

    octaves: int = -10
    name: str = "scaled loss"

    def token_weights(self, tokens: int) -> NDArray[np.float32] | None:
        """Return the factor of each token."""
        return np.full(tokens, 2.0**self.octaves, np.float32)

    @property
    def balance_weight(self) -> float:
        """Factor of the balance loss, equal to that of the tokens."""
        return 2.0**self.octaves


@dataclass(frozen=True)
class AlignedSwiGLU(Condition):
    """Hidden channels in which both inputs of SwiGLU read the same direction, so that their product is a square.

    Long training under weight decay leads to this state (arXiv:2409.12517, section 4): rows of w3 align with those of
    w1, and a token in that direction has an outlier in the channel.

    Parameters
    ----------
    factor : float
        Factor of the rows of w1, a power of two.
    every : int
        Interval n: every n-th hidden channel is affected.
    name : str
        Name in tables and files.

    Examples
    --------
    >>> w = np.arange(4, dtype=np.float32).reshape(2, 2)
    >>> AlignedSwiGLU(factor=2.0, every=2).change({"f.w1": w, "f.w3": -w})["f.w3"].tolist()
    [[0.0, 2.0], [-2.0, -3.0]]
    """

    factor: float = 8.0
    every: int = 64
    name: str = "aligned SwiGLU"

    def change(self, parameters: Mapping[str, Array]) -> Parameters:
        """Return the weights with aligned rows."""
        changed = dict(parameters)
        for name, w1 in parameters.items():
            if name.endswith(".w1"):
                other = f"{name[:-1]}3"
                rows = w1[:: self.every] * w1.dtype.type(self.factor)
                for target in (name, other):
                    changed[target] = parameters[target].copy()
                    changed[target][:: self.every] = rows
        return changed
