"""Gradients of one batch on several ranks: each has some of its sequences, and an all-reduce adds what they found."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lowprec.codec.reductions import all_reduce
from lowprec.moe.model.model import Model
from lowprec.recipe.reduction import Reduction

Array = npt.NDArray[Any]


class Ranks(Protocol):
    """What turns a batch into a loss and gradients."""

    def loss_and_grads(self, model: Model, tokens: Array) -> tuple[float, dict[str, Array]]:
        """Return the mean loss of a batch and the gradient of every parameter."""


class OneRank:
    """The whole batch in one place."""

    def loss_and_grads(self, model: Model, tokens: Array) -> tuple[float, dict[str, Array]]:
        """Return what the model says."""
        return model.loss_and_grads(tokens)


class DataParallel:
    """Ranks with the same weights, each with its share of the sequences.

    Each rank computes forward and backward by itself: routing and its balance loss, quantization and all rounding are
    its own. Gradients are divided by the number of ranks before they are sent, as means of means. Loads of experts are
    added, losses averaged. Random bits of a recipe that rounds stochastically are the same on every rank.

    Parameters
    ----------
    reduction : Reduction
        Ranks, algorithm and codec.
    batch : int
        Sequences of a batch.

    Raises
    ------
    ValueError
        If the ranks cannot share the sequences evenly.
    """

    def __init__(self, reduction: Reduction, batch: int) -> None:
        if batch % reduction.ranks:
            raise ValueError(f"all_reduce: {reduction.ranks} ranks cannot share {batch} sequences evenly")
        self.reduction = reduction

    def loss_and_grads(self, model: Model, tokens: Array) -> tuple[float, dict[str, Array]]:
        """Return the mean loss and the reduced gradients; the model's loads and losses are of all ranks."""
        ranks = self.reduction.ranks
        losses, balance, further = [], [], []
        shards: dict[str, Array] = {}
        loads: dict[str, Array] = {}
        for rank, part in enumerate(np.split(tokens, ranks)):
            loss, gradients = model.loss_and_grads(part)
            losses.append(loss)
            balance.append(model.balance_loss)
            further.append(model.mtp_loss)
            for gate, load in model.loads.items():
                loads[gate] = loads.get(gate, 0) + load
            for name, gradient in gradients.items():
                if name not in shards:
                    shards[name] = np.empty((ranks, *gradient.shape), gradient.dtype)
                shards[name][rank] = gradient * gradient.dtype.type(1 / ranks)
        model.loads, model.balance_loss, model.mtp_loss = loads, sum(balance) / ranks, sum(further) / ranks
        return sum(losses) / ranks, {name: self._reduced(shard) for name, shard in shards.items()}

    def _reduced(self, shards: Array) -> Array:
        """Return the sum over ranks [ranks, ...] of a parameter's gradients; a vector is one row."""
        rows = shards if shards.ndim > 2 else shards[:, None]
        found: Array = all_reduce(rows, self.reduction.codec, self.reduction.algorithm)
        return found.reshape(shards.shape[1:]).astype(shards.dtype, copy=False)


def ranks_of(all_reduce: str, batch: int) -> Ranks:
    """Return what computes gradients as a recipe's `all_reduce` says, of batches of so many sequences.

    Raises
    ------
    ValueError
        If the ranks cannot share the sequences evenly.
    """
    reduction = Reduction.parse(all_reduce)
    return OneRank() if reduction is None else DataParallel(reduction, batch)
