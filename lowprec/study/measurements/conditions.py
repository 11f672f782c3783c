"""Conditions that large models grow into and small healthy ones lack, planted so that formats can be seen to differ.

A stress is data. It changes the weights before a measurement, weights the loss of each token, or both; reference and
arms are measured under the same one. `ChannelOutliers` changes no function, only the tensors that are quantized.
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

#: Which linear layers read the output of which norm.
CONSUMERS = {
    "attn_norm": ("attn.wq_a", "attn.wkv_a"),
    "ffn_norm": ("ffn.gate", "ffn.w1", "ffn.w3", "ffn.shared.w1", "ffn.shared.w3", "ffn.experts.*.w1",
                 "ffn.experts.*.w3"),
}  # fmt: skip


class Stress:
    """A condition to measure under; what it does not override stays as it is."""

    name: str
    """How it is called in tables and files."""

    def change(self, parameters: Mapping[str, Array]) -> Parameters:
        """Return the weights to measure with; the given ones are left alone."""
        return dict(parameters)

    def token_weights(self, tokens: int) -> NDArray[np.float32] | None:
        """Return the factor of each token's cross-entropy, shape (tokens,); None for 1 everywhere."""
        return None

    @property
    def balance_weight(self) -> float:
        """The factor of the balance loss, which is no token's."""
        return 1.0


@dataclass(frozen=True)
class Healthy(Stress):
    """No stress: the model as it was trained."""

    name: str = "healthy"


@dataclass(frozen=True)
class ChannelOutliers(Stress):
    """Some channels of every normalised activation are larger, and the weights that read them smaller.

    The gain of the norm times 2^octaves and the columns of its consumers times 2^-octaves: powers of two, so without
    quantization every product of the forward pass keeps its bits, and only the operands' ranges change.

    Parameters
    ----------
    octaves : int
        log2 of the factor.
    every : int
        One channel in so many.
    name : str
        How it is called.

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
class UnevenTokens(Stress):
    """A few tokens have far larger gradients than the rest, as where a block shares one scale across tokens.

    The weights of the losses are log-normal, rounded to powers of two so that weighting adds no rounding of its own,
    with mean 1.

    Parameters
    ----------
    sigma : float
        Standard deviation of ln(weight): 4.6 spreads the middle 68 % of the tokens over a factor of 10^4.
    seed : int
        Which tokens.
    name : str
        How it is called.

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
        """Return the factors."""
        normal = np.random.default_rng([self.seed, tokens]).standard_normal(tokens)
        mean = self.sigma * self.sigma / 2  # of a log-normal with median 1, as ln
        octaves = np.rint((self.sigma * normal - mean) / 0.6931471805599453).astype(np.int64)
        return np.ldexp(np.float32(1), np.clip(octaves, -60, 60)).astype(np.float32)


@dataclass(frozen=True)
class ScaledLoss(Stress):
    """The whole loss times 2^octaves, the balance loss too, as more tokens a step, or loss scaling, would have it.

    Powers of two commute with every rounding above the smallest normal number: without a bound on amax all gradients
    keep their bits but for the exponent.

    Parameters
    ----------
    octaves : int
        log2 of the factor.
    name : str
        How it is called.

    Examples
    --------
    >>> ScaledLoss(-10).token_weights(2).tolist()
    [0.0009765625, 0.0009765625]
    """

    octaves: int = -10
    name: str = "scaled loss"

    def token_weights(self, tokens: int) -> NDArray[np.float32] | None:
        """Return the factors."""
        return np.full(tokens, 2.0**self.octaves, np.float32)

    @property
    def balance_weight(self) -> float:
        """The same factor."""
        return 2.0**self.octaves


@dataclass(frozen=True)
class AlignedSwiGLU(Stress):
    """In some hidden channels both inputs of SwiGLU read the same direction, so their product is a square.

    That is what long training under weight decay ends in (arXiv:2409.12517, section 4): rows of w3 become those of w1,
    and a token that points their way has an outlier in that channel.

    Parameters
    ----------
    factor : float
        The rows of w1 are taken so many times; a power of two.
    every : int
        One hidden channel in so many.
    name : str
        How it is called.

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
        """Return the aligned weights."""
        changed = dict(parameters)
        for name, w1 in parameters.items():
            if name.endswith(".w1"):
                other = f"{name[:-1]}3"
                rows = w1[:: self.every] * w1.dtype.type(self.factor)
                for target in (name, other):
                    changed[target] = parameters[target].copy()
                    changed[target][:: self.every] = rows
        return changed
