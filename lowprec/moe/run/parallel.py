"""Data-parallel gradients: each rank computes those of some sequences of a batch, and an all-reduce adds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lowprec.moe.model.model import Model
from lowprec.recipe.reduction import GradientAllReduce

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
#: Values per row of a bucket.
ROW = 128


class GradientBackend(Protocol):
    """Computation of the loss and the gradients of a batch."""

    def loss_and_grads(self, model: Model, tokens: Array) -> tuple[float, dict[str, Array]]:
        """Return the mean loss of a batch and the gradient of every parameter."""


class SingleRank:
    """A single rank with the whole batch."""

    def loss_and_grads(self, model: Model, tokens: Array) -> tuple[float, dict[str, Array]]:
        """Return the model's own loss and gradients."""
        return model.loss_and_grads(tokens)


class DataParallel:
    """Ranks with the same weights, each with its share of the sequences.

    Each rank computes forward and backward independently: routing and its balance loss, quantization and all rounding.
    Gradients are divided by the number of ranks before they are sent, all in one bucket. Loads of experts are added,
    losses averaged. Random bits of stochastic rounding are the same on every rank.

    Parameters
    ----------
    reduction : GradientAllReduce
        Ranks, algorithm and codec.
    batch : int
        Number of sequences in a batch.

    Raises
    ------
    ValueError
        If the batch does not divide evenly among the ranks.
    """

    def __init__(self, reduction: GradientAllReduce, batch: int) -> None:
        if batch % reduction.ranks:
            raise ValueError(f"all_reduce: ranks must divide the batch of {batch} sequences, got {reduction.ranks}")
        self.reduction = reduction

    def loss_and_grads(self, model: Model, tokens: Array) -> tuple[float, dict[str, Array]]:
        """Return the mean loss and the reduced gradients; the model's loads and losses are those of all ranks."""
        losses, balance, further, shards = [], [], [], []
        loads: dict[str, Array] = {}
        for part in np.split(tokens, self.reduction.ranks):
            loss, gradients = model.loss_and_grads(part)
            losses.append(loss)
            balance.append(model.balance_loss)
            further.append(model.mtp_loss)
            shards.append(flatten_gradients(gradients) / np.float32(self.reduction.ranks))
            for gate, load in model.loads.items():
                loads[gate] = loads.get(gate, 0) + load
        ranks = len(shards)
        model.loads, model.balance_loss, model.mtp_loss = loads, sum(balance) / ranks, sum(further) / ranks
        total = self.reduction.algorithm.all_reduce(np.stack(shards), self.reduction.codec)
        return sum(losses) / ranks, unflatten_gradients(total, gradients)


def flatten_gradients(gradients: Mapping[str, Array]) -> Floats:
    """Return gradients one after another in rows of 128, as frameworks send them; each gradient starts a new row.

    If the number of columns is a multiple of 128, a tile of a row is a tile of the parameter.

    Examples
    --------
    >>> flatten_gradients({"a": np.ones((2, 128), np.float32), "b": np.full(3, 2, np.float32)})[2, :4]
    array([2., 2., 2., 0.], dtype=float32)
    """
    rows = np.zeros((sum(-(-g.size // ROW) for g in gradients.values()), ROW), np.float32)
    at = 0
    for gradient in gradients.values():
        used = -(-gradient.size // ROW)
        rows[at : at + used].reshape(-1)[: gradient.size] = gradient.reshape(-1)
        at += used
    return rows


def unflatten_gradients(rows: Array, like: Mapping[str, Array]) -> dict[str, Array]:
    """Return the gradients of `flatten_gradients` by name, in the shapes and dtypes of `like`."""
    found, at = {}, 0
    for name, gradient in like.items():
        used = -(-gradient.size // ROW)
        values = rows[at : at + used].reshape(-1)[: gradient.size]
        found[name] = values.reshape(gradient.shape).astype(gradient.dtype)
        at += used
    return found


def gradient_backend(reduction: GradientAllReduce | None, batch: int) -> GradientBackend:
    """Return the `GradientBackend` for a recipe's `all_reduce` and batches of `batch` sequences.

    Raises
    ------
    ValueError
        If the batch does not divide evenly among the ranks.
    """
    return SingleRank() if reduction is None else DataParallel(reduction, batch)
