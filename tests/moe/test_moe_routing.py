"""The router against a plain-Python rendering of its rules, its invariants, the trip to the experts, their runs."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_models import layer_weights, random_bytes

import lowprec as lp
from lowprec.kernels.model.routing import order_by_expert
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.model.model import Model
from lowprec.moe.model.routing import MixtureOfExperts, route, update_bias
from lowprec.recipe import BoundRecipe, recipes


def make(experts=8, top_k=4, groups=4, kept=2, **changes):
    return MoEConfig(
        "small", dim=6, layers=1, dense_layers=0, heads=1, nope_dim=2, rope_dim=2, value_dim=2, q_rank=2, kv_rank=2,
        experts=experts, top_k=top_k, expert_groups=groups, topk_groups=kept, expert_width=5, dense_width=4, **changes,
    )  # fmt: skip


def best(values, count, allowed):
    """Indices of the highest values, the first of equals."""
    return sorted(allowed, key=lambda i: (-values[i], i))[:count]


def reference(scores, bias, config):
    """Chosen experts and gates of one token, by the report's equations 13 to 16 and its group limit."""
    scores = [float(s) for s in scores]
    biased = [s + float(b) for s, b in zip(scores, bias, strict=True)]
    size = config.experts // config.expert_groups
    members = [range(g * size, (g + 1) * size) for g in range(config.expert_groups)]
    judges = config.top_k // config.topk_groups
    group_score = [sum(biased[e] for e in best(biased, judges, group)) for group in members]
    kept = best(group_score, config.topk_groups, range(config.expert_groups))
    chosen = best(biased, config.top_k, [e for g in kept for e in members[g]])
    total = sum(scores[e] for e in chosen)
    return chosen, [scores[e] / total * config.route_scale for e in chosen]


shapes = st.sampled_from(
    [(8, 4, 4, 2), (8, 2, 2, 1), (8, 2, 1, 1), (6, 2, 3, 2), (4, 4, 2, 2), (16, 4, 4, 2), (5, 5, 1, 1)]
)
logit_values = st.floats(-12, 12, width=32)


@st.composite
def cases(draw):
    experts, top_k, groups, kept = draw(shapes)
    tokens = draw(st.integers(1, 6))
    logits = draw(hnp.arrays(np.float64, (tokens, experts), elements=logit_values))
    bias = draw(hnp.arrays(np.float32, experts, elements=st.floats(-0.5, 0.5, width=32)))
    return logits, bias, make(experts, top_k, groups, kept, route_scale=2.5)


@settings(deadline=None, max_examples=150)
@given(cases())
def test_choice_and_gates_follow_the_rules(case):
    logits, bias, config = case
    routing = route(logits, bias, config, sequence=1)
    np.testing.assert_allclose(routing.scores, 1 / (1 + np.exp(-logits)), rtol=1e-14)
    for t, scores in enumerate(routing.scores):
        chosen, gates = reference(scores, bias, config)
        assert routing.chosen[t].tolist() == chosen
        np.testing.assert_allclose(routing.gates[t], gates, rtol=1e-12)
    assert routing.loads.tolist() == np.bincount(routing.chosen.ravel(), minlength=config.experts).tolist()
    assert np.isfinite(routing.d_logits).all()


def test_very_negative_scores_and_biases_stay_finite():
    config = make(8, 4, 4, 2, balance_alpha=1.0)
    routing = route(np.full((3, 8), -80.0, np.float32), np.full(8, -100, np.float32), config, sequence=3)
    assert routing.chosen.tolist() == [[0, 1, 2, 3]] * 3
    assert np.isfinite(routing.gates).all()
    assert np.isfinite(routing.d_logits).all()


def test_nan_logits_still_give_experts_that_exist():
    routing = route(np.full((2, 8), np.nan, np.float32), np.zeros(8, np.float32), make(), sequence=2)
    assert all(len(set(row)) == 4 and set(row) <= set(range(8)) for row in routing.chosen.tolist())
    assert np.isnan(routing.gates).all()


@pytest.mark.parametrize("bias", [np.zeros(8), np.linspace(0, 1, 8)], ids=["none", "biased"])
def test_balance_loss_is_the_formula_of_the_report_whatever_the_bias(bias):
    config = make(8, 2, 1, 1, balance_alpha=0.7)
    logits = np.random.default_rng(4).standard_normal((3 * 10, 8))
    routing = route(logits, bias.astype(np.float32), config, sequence=10)
    losses = []
    for s in (1 / (1 + np.exp(-logits))).reshape(3, 10, 8):
        uses = np.bincount(np.argsort(-s, axis=1)[:, :2].ravel(), minlength=8)
        losses.append(0.7 * (8 / (2 * 10) * uses * (s / s.sum(axis=1, keepdims=True)).mean(axis=0)).sum())
    np.testing.assert_allclose(routing.balance_loss, np.mean(losses), rtol=1e-13)


@pytest.mark.parametrize("idle", [1, 3])
def test_tokens_that_do_not_count_change_no_balance(idle):
    config = make(8, 2, 1, 1, balance_alpha=0.7)
    logits = np.random.default_rng(4).standard_normal((3, 10, 8))
    bias = np.linspace(0, 0.3, 8, dtype=np.float32)
    whole = route(logits.reshape(-1, 8), bias, config, sequence=10)
    some = route(logits.reshape(-1, 8), bias, config, sequence=10, idle=idle)
    alone = route(np.ascontiguousarray(logits[:, :-idle]).reshape(-1, 8), bias, config, sequence=10 - idle)
    assert all(np.array_equal(getattr(whole, name), getattr(some, name)) for name in ("scores", "chosen", "gates"))
    assert (some.balance_loss, some.loads.tolist()) == (alone.balance_loss, alone.loads.tolist())
    d_logits = some.d_logits.reshape(3, 10, 8)
    assert np.array_equal(d_logits[:, :-idle].reshape(-1, 8), alone.d_logits)
    assert not d_logits[:, -idle:].any()


def test_a_sequence_of_which_no_token_counts_has_no_balance():
    routing = route(np.ones((2, 8), np.float32), np.zeros(8, np.float32), make(balance_alpha=1.0), sequence=1, idle=1)
    assert (routing.balance_loss, routing.loads.any(), routing.d_logits.any()) == (0.0, False, False)


def test_update_bias_moves_by_the_sign_of_the_exact_difference():
    bias = np.zeros(3, dtype=np.float32)
    for loads in ([2, 1, 1], [1, 1, 1]):  # their means are 4/3 and 1
        update_bias(bias, np.array(loads), 0.5)
        assert bias.tolist() == [-0.5, 0.5, 0.5]
    assert bias.dtype == np.float32


@settings(deadline=None, max_examples=50)
@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 20), st.integers(1, 3)), elements=st.integers(0, 4)))
def test_rows_stand_by_expert_and_in_order_of_tokens(chosen):
    loads, token_of_row = np.empty(5, np.int64), np.empty(chosen.size, np.int64)
    row_of_slot = np.empty_like(chosen)
    order_by_expert(chosen, loads, token_of_row, row_of_slot)
    flat = np.argsort(chosen.ravel(), kind="stable")
    assert token_of_row.tolist() == (flat // chosen.shape[1]).tolist()
    assert row_of_slot.ravel()[flat].tolist() == list(range(chosen.size))
    assert loads.tolist() == np.bincount(chosen.ravel(), minlength=5).tolist()


# --- the layer ------------------------------------------------------------------------------------------------------


def layer_and_inputs(config, tokens):
    rng = np.random.default_rng(0)
    params = layer_weights(config, "layers.0.ffn", rng, np.float64, 0.7)
    layer = MixtureOfExperts("layers.0.ffn", config, recipes["float64"].bind())
    return layer, params, rng.standard_normal((tokens, config.dim))


@pytest.mark.parametrize("shared", [0, 2])
def test_output_is_shared_expert_plus_gated_experts(shared):
    config = make(shared_experts=shared, route_scale=1.5)
    layer, params, x = layer_and_inputs(config, 9)
    bias = np.random.default_rng(1).standard_normal(8).astype(np.float32) * 0.1
    y, saved = layer.forward(params, x, bias, 9)

    def network(name, x):
        a, b = x @ params[f"layers.0.ffn.{name}.w1"].T, x @ params[f"layers.0.ffn.{name}.w3"].T
        return (a / (1 + np.exp(-a)) * b) @ params[f"layers.0.ffn.{name}.w2"].T

    for t, row in enumerate(x):
        chosen, gates = reference(saved.routing.scores[t], bias, config)
        want = sum(gate * network(f"experts.{e}", row) for e, gate in zip(chosen, gates, strict=True))
        want = want + (network("shared", row) if shared else 0)
        assert saved.routing.chosen[t].tolist() == chosen
        np.testing.assert_allclose(y[t], want, rtol=1e-12)


def test_each_wire_carries_what_it_should(monkeypatch):
    config, bias, seen, grads = make(shared_experts=0), np.zeros(8, np.float32), {}, {}

    def noted(wire, x):
        seen[wire] = x.copy()
        return 2 * x if wire == "combine" else x

    layer, params, x = layer_and_inputs(config, 6)
    plain, _ = layer.forward(params, x, bias, 6)
    monkeypatch.setattr(BoundRecipe, "codec", lambda self, wire: SimpleNamespace(round_trip=partial(noted, wire)))
    layer, params, x = layer_and_inputs(config, 6)
    y, saved = layer.forward(params, x, bias, 6)
    np.testing.assert_allclose(y, 2 * plain, rtol=1e-12)  # gates weigh what arrives
    np.testing.assert_array_equal(seen["dispatch"], x[saved.token_of_row])
    assert seen.keys() == {"dispatch", "combine"}

    d_y = np.random.default_rng(2).standard_normal(x.shape)
    d_x = layer.backward(grads, d_y, saved)
    weighted = saved.routing.gates[:, :, None] * d_y[:, None]  # gates weigh before the wire rounds
    np.testing.assert_array_equal(seen["combine_grad"][saved.row_of_slot], weighted)
    # The input's gradient is what the experts sent back and what came through the gate, whose weight's gradient is
    # d_logits^T x; as many tokens as channels here, so that it can be solved for d_logits.
    d_logits = np.linalg.solve(x.T, grads["layers.0.ffn.gate"].T)
    returned = seen["dispatch_grad"][saved.row_of_slot].sum(axis=1)
    np.testing.assert_allclose(d_x, returned + d_logits @ params["layers.0.ffn.gate"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("wire", ["dispatch", "combine_grad"])
def test_what_arrives_at_the_experts_is_stored_as_activations_are(wire):
    recipe, seen, off_grid = recipes["bf16"].with_(name="mine", **{wire: "fp8_1x128"}).bind(), [], []
    config, rng = dataclasses.replace(make(), dim=128, expert_width=128), np.random.default_rng(0)
    layer = MixtureOfExperts("layers.0.ffn", config, recipe)
    params = layer_weights(config, "layers.0.ffn", rng)
    codec, store = recipe.codec(wire).round_trip, layer.store
    setattr(layer, wire, lambda x: seen.append(codec(x)) or seen[-1])
    layer.store = lambda rows: (off_grid.append((rows.view(np.uint32) & 0xFFFF).any()), store(rows))[1]
    x = recipe.store(rng.standard_normal((24, 128), dtype=np.float32))
    y, saved = layer.forward(params, x, np.zeros(8, np.float32), 24)
    layer.backward({}, y, saved)
    assert any(off_grid)
    (arrived,) = seen
    assert not (arrived.view(np.uint32) & 0xFFFF).any()


# --- runs of an expert's tokens ---------------------------------------------------------------------------------------

# DeepGEMM's and Megatron's grouped products need each expert's run padded with zero rows to a multiple of 128. Here a
# run's last tile is as short as it happens to be, which costs nothing: this is the proof that it is the same.

LAYERS = ("layers.1.ffn.experts.0.w1", "layers.1.ffn.experts.0.w2")


def bf16(rng, *shape):
    return lp.round_to(rng.standard_normal(shape).astype(np.float32) * np.float32(0.01), "bfloat16")


def deterministic(name):
    spec = lp.recipes[name].spec(LAYERS[0], 3)
    return name != "float64" and "stochastic" not in str(spec)


def linear(recipe, layer=LAYERS[0]):
    return lp.recipes[recipe].bind(seed=0, layers=3).linear(layer)


@pytest.mark.sampled(31)
@pytest.mark.parametrize("tokens", [1, 127, 200])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("recipe", [name for name in lp.recipes.names() if deterministic(name)])
def test_zero_rows_up_to_whole_tiles_change_no_bit(recipe, layer, tokens):
    rng, found = np.random.default_rng(tokens), []
    x, dy, w = bf16(rng, tokens, 128), bf16(rng, tokens, 128), rng.standard_normal((128, 128), dtype=np.float32)
    for zeros in (np.zeros((0, 128), np.float32), np.zeros((-tokens % 128, 128), np.float32)):
        ops, x_rows, dy_rows = linear(recipe, layer), np.concatenate([x, zeros]), np.concatenate([dy, zeros])
        y, saved = ops.fprop(x_rows, w)
        dx, dw = ops.dgrad(dy_rows, saved), ops.wgrad(dy_rows, saved)
        assert not y[tokens:].any()
        assert not dx[tokens:].any()
        found.append([a.tobytes() for a in (y[:tokens], dx[:tokens], dw)])
    assert found[0] == found[1]


def test_a_run_that_does_not_begin_a_tile_has_other_bits():
    """The reason that tiles must begin with the run: tokens of two experts would share scales."""
    rng = np.random.default_rng(0)
    x, dy = bf16(rng, 200, 128), bf16(rng, 200, 128)
    dy[:70] = 0  # another expert's

    def wgrad(x, dy):
        ops = linear("dsv3")
        return ops.wgrad(dy, ops.fprop(x, np.eye(128, dtype=np.float32))[1])

    assert (wgrad(x, dy) != wgrad(x[70:], dy[70:])).any()


def test_every_expert_works_on_its_own_run(monkeypatch):
    """The layer hands an expert its rows and nothing else, so that its tiles begin with its first token."""
    seen, model = {}, Model("nano", "dsv3")
    moe = next(block.ffn for block in model._blocks if isinstance(block.ffn, MixtureOfExperts))
    for e, expert in enumerate(moe.experts):

        def fprop(x, w, cached=None, *, e=e, plain=expert.w1.ops.fprop):
            seen[e] = len(x)
            return plain(x, w, cached)

        monkeypatch.setattr(expert.w1.ops, "fprop", fprop)
    model.loss_and_grads(random_bytes(2, 64))
    loads = model.loads["layers.1.ffn.gate"]
    assert [seen[e] for e in range(configs["nano"].experts)] == loads.tolist()
    assert any(load % 128 for load in loads)
