"""Mixture of Experts: router, dispatch of tokens to experts, combination of their outputs, and load balancing.

T = B * S tokens, E routed experts, K of them per token ("slots", best first). No token is dropped. Two methods balance
the load without a large auxiliary loss (arXiv 2412.19437, section 2.1.2): a bias on each expert's score that affects
only the choice of experts, updated after each batch (`update_bias`), and a small loss per sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowprec._threads import run_chunks
from lowprec.kernels.model import routing as kernels
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.layers import Array, FeedForward, Grads, Linear, Params, run_rows
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy

if TYPE_CHECKING:
    from lowprec.recipe import BoundRecipe


class Routing(NamedTuple):
    """Choice of experts for each token.

    Attributes
    ----------
    scores : float array [T, E]
        Sigmoid of the logits.
    chosen : int64 array [T, K]
        Chosen experts, sorted by score plus bias, best first; ties are in the order of the experts' numbers.
    gates : float array [T, K]
        Weights of the chosen experts, from the scores alone; they sum to the configuration's `route_scale`.
    loads : int64 array [E]
        Number of slots of each expert, counting only tokens that are not `idle`, see `route`.
    balance_loss : float
        Sequence-wise balance loss, mean over the sequences.
    d_logits : float array [T, E]
        Gradient of the balance loss.
    """

    scores: Array
    chosen: Array
    gates: Array
    loads: Array
    balance_loss: float
    d_logits: Array


def route(logits: Array, bias: Array, config: MoEConfig, sequence: int, idle: int = 0) -> Routing:
    """Choose experts: the best groups first, then the best experts in them, by score plus bias.

    Parameters
    ----------
    logits : float array [T, E]
        Logits of the tokens of whole sequences, one sequence after another.
    bias : float32 array [E]
        Bias added to the scores for the choice only.
    config : MoEConfig
        Configuration; its experts, top_k, expert_groups, topk_groups, route_scale and balance_alpha are used.
    sequence : int
        Number of tokens per sequence.
    idle : int
        Number of tokens at the end of each sequence that count neither for the loads nor for the balance loss.

    Returns
    -------
    Routing
        Chosen experts, their weights and the balance loss.

    Examples
    --------
    >>> from lowprec.moe.model.config import configs
    >>> logits = np.array([[0, 1, 2, 3, 4, -9, -9, -9]], np.float32)      # two groups of four; one is kept
    >>> route(logits, np.zeros(8, np.float32), configs["nano"], sequence=1).chosen
    array([[3, 2]])
    """
    tokens, experts = logits.shape
    scores, d_logits = np.empty_like(logits), np.empty_like(logits)
    chosen = np.empty((tokens, config.top_k), dtype=np.int64)
    gates = np.empty((tokens, config.top_k), dtype=logits.dtype)
    run_rows(
        kernels.route,
        tokens,
        logits,
        bias,
        config.expert_groups,
        config.topk_groups,
        config.route_scale,
        scores,
        chosen,
        gates,
    )
    balance, count = d_logits, sequence - idle
    counted, counted_scores = chosen, scores
    if idle:
        counted = _leading(chosen, sequence, count)
        counted_scores = _leading(scores, sequence, count).reshape(-1, experts)
        balance = np.empty_like(counted_scores)
    losses = np.zeros(tokens // sequence)
    if count:
        run_chunks(
            lambda a, b: kernels.balance(
                counted_scores, count, config.top_k, config.balance_alpha, losses, balance, a, b
            ),
            len(losses),
            4,
        )
    if idle:
        d_logits[:] = 0
        _leading(d_logits, sequence, count)[...] = balance.reshape(len(losses), count, experts)
    loads = np.bincount(counted.ravel(), minlength=experts).astype(np.int64)
    return Routing(scores, chosen, gates, loads, sum(losses.tolist()) / len(losses), d_logits)


def _leading(array: Array, sequence: int, count: int) -> Array:
    """Return the first tokens of each sequence of an array [T, ...]."""
    return array.reshape(-1, sequence, *array.shape[1:])[:, :count]


def update_bias(bias: Array, loads: Array, rate: float) -> None:
    """Move each expert's bias by `rate` towards an even load, in place: up if its load is below the mean, else down.

    Parameters
    ----------
    bias : float32 array [E]
        Biases, changed in place.
    loads : int64 array [E]
        Number of slots of each expert in the last batch.
    rate : float
        Step size, gamma in the report.

    Examples
    --------
    >>> bias = np.zeros(3, np.float32)
    >>> update_bias(bias, np.array([5, 3, 1]), 0.125)
    >>> bias
    array([-0.125,  0.   ,  0.125], dtype=float32)
    """
    # In integers: the mean may be a fraction, but sum < load * E is exact.
    bias += np.float32(rate) * np.sign(loads.sum() - loads * loads.size).astype(np.float32)


class _Saved(NamedTuple):
    routing: Routing
    gate: Any
    shared: Any
    experts: list[Any]
    token_of_row: Array
    row_of_slot: Array
    returned: Array


class MixtureOfExperts:
    """A shared expert plus the K routed experts of each token, weighted by their gates.

    The four transfers between tokens and experts are codecs of the recipe:

    ================== ========= ==================================================
    codec              pass      tensor
    ================== ========= ==================================================
    ``dispatch``       forward   tokens to their experts
    ``combine``        forward   experts' outputs back to their tokens
    ``combine_grad``   backward  of combine: a token's output gradient to its experts
    ``dispatch_grad``  backward  of dispatch: experts' input gradients back
    ================== ========= ==================================================

    Gates are applied where the token is: to the returned outputs in the forward pass, and to the gradient before it is
    sent in the backward pass. That gradient is therefore quantized only once: Dgrad uses the received tiles, whose
    scales are powers of two, so that requantizing them would change no value. DeepSeek-V3's report does this for "the
    activation gradient before MoE down-projections" and keeps both combines, ``combine`` and ``dispatch_grad``, in BF16
    (section 3.3.3); it does not specify where its gates are applied. Sums over a token's experts are computed in slot
    order in float32 and rounded to storage once.

    Parameters
    ----------
    name : str
        Prefix of the parameters' names.
    config : MoEConfig
        Sizes and routing constants.
    recipe : BoundRecipe
        Precision of the GEMMs, of stored activations, and codecs.
    recompute : RecomputePolicy
        Activations that the backward pass recomputes.
    idle : int
        Number of tokens at the end of each sequence that load balancing ignores, see `route`.
    """

    def __init__(
        self, name: str, config: MoEConfig, recipe: BoundRecipe, recompute: RecomputePolicy = SAVE_ALL, idle: int = 0
    ) -> None:
        self.config = config
        self.idle = idle
        self.store = recipe.store
        self.gate = Linear(f"{name}.gate", recipe)
        cache = recipe.cache("swiglu_input")

        def network(name: str) -> FeedForward:
            return FeedForward(name, recipe, recompute, cache, config.swiglu_limit)

        self.shared = network(f"{name}.shared") if config.shared_experts else None
        self.experts = [network(f"{name}.experts.{e}") for e in range(config.experts)]
        self.dispatch, self.combine, self.dispatch_grad, self.combine_grad = (
            recipe.codec(wire).round_trip for wire in ("dispatch", "combine", "dispatch_grad", "combine_grad")
        )

    def forward(
        self, params: Params, x: Array, bias: Array, sequence: int, *, keep_input: bool = True
    ) -> tuple[Array, _Saved]:
        """Map x [T, d] to y [T, d]; `bias` [E] affects the choice of experts.

        An x that is not saved must be passed to `backward`; its dispatched tokens are saved.
        """
        logits, gate = self.gate.forward(params, x)
        routing = route(logits, bias, self.config, sequence, self.idle)
        token_of_row = np.empty(routing.chosen.size, dtype=np.int64)
        row_of_slot = np.empty_like(routing.chosen)
        kernels.order_by_expert(routing.chosen, np.empty_like(routing.loads), token_of_row, row_of_slot)

        # Values with float32 scales are not numbers of the storage format of activations.
        rows = self.store(self.dispatch(self._rows(x, token_of_row)))
        outputs, runs = np.empty_like(rows), self._runs(routing)
        experts: list[Any] = [None] * len(runs)

        # Experts are too small to be split over threads, but many run in parallel.
        def forward(start: int, stop: int) -> None:
            for e in range(start, stop):
                outputs[runs[e]], experts[e] = self.experts[e].forward(params, rows[runs[e]])

        run_chunks(forward, len(runs), 1)
        returned = self.combine(outputs)

        y, shared = self.shared.forward(params, x, keep_input=keep_input) if self.shared else (np.zeros_like(x), None)
        if not keep_input:
            gate = self.gate.with_input(gate, None)
        run_rows(kernels.combine, len(x), returned, routing.gates, row_of_slot, y)
        return self.store(y), _Saved(routing, gate, shared, experts, token_of_row, row_of_slot, returned)

    def backward(self, grads: Grads, d_y: Array, saved: _Saved, x: Array | None = None) -> Array:
        """Return the gradient of x [T, d] from the loss and the balance loss."""
        routing = saved.routing
        d_rows = self._rows(d_y, saved.token_of_row)
        run_rows(kernels.weight_rows, len(d_y), d_rows, routing.gates, saved.row_of_slot)
        d_rows = self.store(self.combine_grad(self.store(d_rows)))
        d_inputs, runs = np.empty_like(d_rows), self._runs(routing)

        def backward(start: int, stop: int) -> None:
            for e in range(start, stop):
                d_inputs[runs[e]] = self.experts[e].backward(grads, d_rows[runs[e]], saved.experts[e])

        run_chunks(backward, len(runs), 1)
        d_inputs = self.dispatch_grad(d_inputs)

        d_gates = np.empty(routing.gates.shape)
        d_logits = routing.d_logits.copy()
        run_rows(kernels.gate_gradients, len(d_y), d_y, saved.returned, saved.row_of_slot, d_gates)
        run_rows(
            kernels.route_backward, len(d_y), d_gates, routing.scores, routing.chosen, self.config.route_scale, d_logits
        )
        gate = saved.gate if x is None else self.gate.with_input(saved.gate, x)
        d_x = self.gate.backward(grads, d_logits, gate)
        if self.shared:
            d_x += self.shared.backward(grads, d_y, saved.shared, x)
        run_rows(kernels.sum_rows, len(d_y), d_inputs, saved.row_of_slot, d_x)
        return self.store(d_x)

    @staticmethod
    def _rows(x: Array, token_of_row: Array) -> Array:
        """Return each token's vector once for each of its experts: [T, d] -> [T * K, d], sorted by expert."""
        rows = np.empty((len(token_of_row), x.shape[1]), dtype=x.dtype)
        run_rows(kernels.gather_rows, len(rows), x, token_of_row, rows)
        return rows

    @staticmethod
    def _runs(routing: Routing) -> list[slice]:
        """Return the rows of each expert."""
        stops = np.cumsum(np.bincount(routing.chosen.ravel(), minlength=routing.loads.size)).tolist()
        return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
