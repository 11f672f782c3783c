"""Distance between two precisions on the same weights and bytes: predictions, gradients, tokens, routes.

Sums are float64 sums by NumPy in a fixed order, and logarithms are the project's, so that the numbers have the same
bits on every run and for any number of threads.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..._files import to_jsonable
from .conditions import Condition, Healthy
from .measurement import Measurement, Row, relative_error
from .tensors import LinearRecord, keeps_rows, observed

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import Recipe

Array = NDArray[Any]


@dataclass(frozen=True)
class GradientComparison(Measurement):
    """Comparison of one forward and backward pass in the arm's precision and in the reference's, with the same weights.

    The measurement is deterministic and resolves differences between recipes that a branch study would take hours to
    resolve. It cannot show the final loss of a training.

    Parameters
    ----------
    conditions : tuple of Condition
        Conditions; every arm is measured under each.
    """

    conditions: tuple[Condition, ...] = (Healthy(),)
    metrics: ClassVar[Mapping[str, str]] = {
        "loss": "cross-entropy, nats per byte",
        "kl": "KL(reference || arm) of the predictions, nats per byte",
        "kl_percent": "KL(reference || arm) of the predictions, in per cent of the reference's loss",
        "gradient_error": "|g - g_ref| / |g_ref| over all linear layers",
        "one_minus_cos": "1 - cosine of the two gradients, all linear layers",
        "embedding_error": "|g - g_ref| / |g_ref| of the embedding",
        "token_error_median": "median over tokens of |d(dx)| / |dx|, over all linear layers with tokens as rows",
        "token_error_p99": "99th percentile of the same",
        "routing_flips": "share of tokens with another set of experts, over the layers with a router",
        "flushed": "share of non-zero values that quantization made 0",
        "saturated": "share of non-zero values that were cut to the largest magnitude",
        "tokens_flushed": "share of the rows of output gradients that became all 0",
        "kurtosis": "median over linear layers of the inputs' kurtosis",
        "tile_range": "median over linear layers of the inputs' range in a tile, octaves",
    }
    panels: ClassVar[tuple[str, ...]] = ("kl_percent", "gradient_error", "token_error_median")
    first_alone: ClassVar[bool] = True
    layer_metrics: ClassVar[tuple[str, ...]] = (
        "gradient_error", "token_error_median", "flushed", "saturated", "kurtosis", "tile_range",
    )  # fmt: skip

    def __post_init__(self) -> None:
        names = self.condition_names
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"GradientComparison: every condition must have a different name, got {[*names]}")

    def measure(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield one row per condition."""
        for condition in self.conditions:
            theirs, ours = (record(model, precision, condition, tokens, seed) for precision in (reference, recipe))
            layers = [(layer, kind, *values.values()) for layer, kind, values in compare_layers(ours, theirs)]
            yield Row(condition.name, compare(ours, theirs), layers)

    @property
    def condition_names(self) -> tuple[str, ...]:
        """Names of the conditions."""
        return tuple(condition.name for condition in self.conditions)

    def seed_of(self, checkpoint: int, batch: int) -> int:
        """Return the checkpoint's number, so that stochastic rounding uses the same random bits in every batch."""
        return checkpoint

    def describe(self) -> dict[str, Any]:
        """Return the kind and the conditions, in JSON types."""
        conditions = [{"kind": type(item).__name__, **to_jsonable(item)} for item in self.conditions]
        return {"kind": type(self).__name__, "conditions": conditions}


@dataclass(frozen=True, eq=False)
class Recording:
    """Results of one forward and backward pass.

    Attributes
    ----------
    loss : float
        Mean cross-entropy, nats per byte.
    gradients : dict of str to float32 array
        Gradients of all parameters.
    linears : dict of str to LinearRecord
        Records of the linear layers.
    chosen : dict of str to int64 array [T, K]
        Experts of each token, in ascending order, by name of the gate.
    """

    loss: float
    gradients: dict[str, Array]
    linears: dict[str, LinearRecord]
    chosen: dict[str, Array]

    @property
    def logits(self) -> Array:
        """Logits of the predictions [T, V]."""
        found = self.linears["head"].y
        assert found is not None
        return found


def record(model: Model, recipe: Recipe, condition: Condition, tokens: NDArray[np.uint8], seed: int = 0) -> Recording:
    """Run a model forward and backward and record everything that `compare` uses.

    Parameters
    ----------
    model : Model
        Model, which is not changed.
    recipe : Recipe
        Precision of the passes.
    condition : Condition
        Condition that changes the weights or the loss first.
    tokens : uint8 array [B, S + 1]
        Batch of tokens.
    seed : int
        Seed of the recipe's stochastic rounding.

    Returns
    -------
    Recording
        Loss, gradients, records of the linear layers, and choices of experts.
    """
    from lowprec.moe.model.routing import route

    factors = condition.token_weights(tokens.shape[0] * (tokens.shape[1] - 1))
    records: dict[str, LinearRecord] = {}
    bound = observed(recipe.bind(seed, layers=model.config.layers), records, factors)
    weighted = copy.copy(model)
    weighted.config = replace(model.config, balance_alpha=condition.balance_weight * model.config.balance_alpha)
    changed = weighted.with_bound(bound)
    changed.params = condition.change(model.params)
    loss, gradients = changed.loss_and_grads(tokens)
    chosen = {}
    for gate, bias in model.biases.items():
        logits = records[gate].y
        assert logits is not None
        chosen[gate] = np.sort(route(logits, bias, model.config, tokens.shape[1] - 1).chosen, axis=1)
    return Recording(float(loss), gradients, records, chosen)


def compare(arm: Recording, reference: Recording) -> dict[str, float]:
    """Return the metrics of one batch.

    Undefined numbers are nan: errors relative to 0, and fractions of no values.
    """
    linear = [name for name in arm.gradients if name in arm.linears]  # in a fixed order: experts compute in parallel
    kl = float(np.sum(kl_of_tokens(reference.logits, arm.logits)) / len(arm.logits))
    flips = [(arm.chosen[gate] != found).any(axis=1) for gate, found in reference.chosen.items()]
    gradients = [arm.linears[name].tensors["dy"] for name in linear if "dy" in arm.linears[name].tensors]
    return {
        "loss": arm.loss,
        "kl": kl,
        "kl_percent": 100.0 * kl / reference.loss,
        "one_minus_cos": one_minus_cos(arm, reference, linear),
        "embedding_error": gradient_error(arm, reference, ["embed"]),
        "routing_flips": float(np.mean(np.concatenate(flips))) if flips else float("nan"),
        "tokens_flushed": _share((t.rows_flushed, t.rows) for t in gradients),
        **_compare_parameters(arm, reference, linear),
    }


def compare_layers(arm: Recording, reference: Recording) -> list[tuple[int, str, dict[str, float]]]:
    """Return (layer, kind, `layer_metrics`) of every kind of parameter in every layer; layer is -1 outside of layers.

    Kinds are "attn.wq_a", "ffn.experts.w1" and so on.

    The experts of a layer count as one kind.
    """
    groups: dict[tuple[int, str], list[str]] = defaultdict(list)
    for name in arm.gradients:
        groups[layer_and_kind(name)].append(name)
    found = {key: _compare_parameters(arm, reference, names) for key, names in groups.items()}
    return [(*key, {name: found[key][name] for name in GradientComparison.layer_metrics}) for key in found]


def _compare_parameters(arm: Recording, reference: Recording, names: Sequence[str]) -> dict[str, float]:
    """Return the metrics that are defined for any group of parameters."""
    linears = [name for name in names if name in arm.linears]
    tensors = [record for name in linears for record in arm.linears[name].tensors.values()]
    inputs = [arm.linears[name].tensors["x"] for name in linears if "x" in arm.linears[name].tensors]
    errors = [token_errors(arm, reference, name) for name in linears if keeps_rows(name)]
    tokens = np.concatenate(errors) if errors else np.empty(0)
    return {
        "gradient_error": gradient_error(arm, reference, names),
        "token_error_median": float(np.quantile(tokens, 0.5)) if tokens.size else float("nan"),
        "token_error_p99": float(np.quantile(tokens, 0.99)) if tokens.size else float("nan"),
        "flushed": _share((t.flushed, t.nonzero) for t in tensors),
        "saturated": _share((t.saturated, t.nonzero) for t in tensors),
        "kurtosis": _median(t.kurtosis for t in inputs),
        "tile_range": _median(t.tile_range for t in inputs),
    }


def layer_and_kind(parameter: str) -> tuple[int, str]:
    """Return a parameter's layer, -1 outside of layers, and its kind; all experts of a layer have one kind.

    Examples
    --------
    >>> layer_and_kind("layers.2.ffn.experts.5.w1"), layer_and_kind("layers.0.attn_norm"), layer_and_kind("head")
    ((2, 'ffn.experts.w1'), (0, 'attn_norm'), (-1, 'head'))
    """
    found = re.fullmatch(r"layers\.(\d+)\.(.*)", parameter)
    if not found:
        return -1, parameter
    return int(found[1]), re.sub(r"\.experts\.\d+\.", ".experts.", found[2])


def kl_of_tokens(reference: Array, arm: Array) -> NDArray[np.float64]:
    """Return KL(reference || arm) of each row of logits [T, V], in nats.

    Examples
    --------
    >>> kl_of_tokens(np.zeros((1, 2), np.float32), np.array([[0.0, 1.0]], np.float32)).round(6)
    array([0.120115])
    """
    from lowprec.kernels.model.divergence import relative_entropy

    out = np.empty(len(reference))
    relative_entropy(reference, arm, out, 0, len(reference))
    return out


def losses_of_tokens(logits: Array, targets: Array) -> NDArray[np.float64]:
    """Return the cross-entropy of every byte in nats, given logits [..., V] and targets [...].

    Examples
    --------
    >>> losses_of_tokens(np.zeros((1, 2, 4), np.float32), np.array([[0, 3]], np.uint8)).round(6)
    array([[1.386294, 1.386294]])
    """
    from lowprec.kernels.model.nn import cross_entropy

    losses, flat = np.empty(targets.size), np.ascontiguousarray(logits).reshape(targets.size, -1)
    cross_entropy(flat, targets.reshape(-1).astype(np.int64), losses, np.empty_like(flat), 0, targets.size)
    return losses.reshape(targets.shape)


def gradient_error(arm: Recording, reference: Recording, names: Iterable[str]) -> float:
    """Return |g - g_ref| / |g_ref| over some parameters jointly; nan if the reference gradient is 0."""
    return relative_error((arm.gradients[name], reference.gradients[name]) for name in names)


def one_minus_cos(arm: Recording, reference: Recording, names: Iterable[str]) -> float:
    """Return 1 - cosine of two gradients; nan if one of them is 0."""
    product = ours = theirs = 0.0
    for name in names:
        a, b = (side.gradients[name].astype(np.float64) for side in (arm, reference))
        product += float(np.sum(a * b))
        ours += float(np.sum(np.square(a)))
        theirs += float(np.sum(np.square(b)))
    return 1.0 - product / float(np.sqrt(ours) * np.sqrt(theirs)) if ours and theirs else float("nan")


def token_errors(arm: Recording, reference: Recording, name: str) -> NDArray[np.float64]:
    """Return |dx - dx_ref| / |dx_ref| of each token at one linear layer; tokens with a gradient of 0 are left out."""
    ours, theirs = arm.linears[name].dx, reference.linears[name].dx
    if ours is None or theirs is None:
        return np.empty(0)
    wide = theirs.astype(np.float64)
    size = np.sqrt(np.sum(np.square(wide), axis=1))
    error = np.sqrt(np.sum(np.square(ours - wide), axis=1))
    found: NDArray[np.float64] = error[size > 0] / size[size > 0]
    return found


def _share(pairs: Iterable[tuple[int, int]]) -> float:
    counted = list(pairs)
    whole = sum(total for _, total in counted)
    return sum(part for part, _ in counted) / whole if whole else float("nan")


def _median(values: Iterable[float]) -> float:
    seen = [value for value in values if not np.isnan(value)]
    return float(np.median(seen)) if seen else float("nan")
