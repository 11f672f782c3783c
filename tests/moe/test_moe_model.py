"""The whole model: gradients against finite differences, bits that depend on nothing but the inputs, and its errors."""

import dataclasses
import hashlib

import numpy as np
import pytest

from lowprec import _threads
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.model.model import Model, initial_parameters

SMALL = MoEConfig(
    "small", dim=12, layers=3, dense_layers=1, heads=2, nope_dim=6, rope_dim=4, value_dim=5, q_rank=7, kv_rank=9,
    experts=8, top_k=4, groups=4, kept_groups=2, expert_width=6, dense_width=10, vocabulary=11, balance_alpha=0.3,
    route_scale=1.7,
)  # fmt: skip


def text(batch, sequence, vocabulary=256, seed=0):
    return np.random.default_rng(seed).integers(0, vocabulary, (batch, sequence + 1), dtype=np.uint8)


def perturbed(config, seed=1):
    """A float64 model away from its start: gains not one, biases not zero."""
    model = Model(config, "float64", seed=0)
    rng = np.random.default_rng(seed)
    for name, value in model.params.items():
        model.params[name] = value + 0.2 * rng.standard_normal(value.shape)
    for bias in model.biases.values():
        bias[:] = 0.1 * rng.standard_normal(bias.shape)
    return model


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "batch", "sequence"),
    [
        (SMALL, 3, 9),
        (dataclasses.replace(SMALL, dense_layers=0, layers=1, shared_experts=0), 1, 1),
        (dataclasses.replace(SMALL, dense_layers=2, layers=2), 2, 18),
        (dataclasses.replace(SMALL, mtp_depth=1, layers=2), 3, 9),
        (dataclasses.replace(SMALL, mtp_depth=1, layers=1, shared_experts=0), 2, 1),
    ],
    ids=["dense and experts", "experts alone", "dense alone", "a byte further", "a byte further and no room for it"],
)
def test_gradients_against_finite_differences(config, batch, sequence):
    model, tokens = perturbed(config), text(batch, sequence, 11)
    _, grads = model.loss_and_grads(tokens)
    chosen = {name: loads.copy() for name, loads in model.loads.items()}
    rng = np.random.default_rng(2)

    def objective(name, value):
        before, model.params[name] = model.params[name], value
        loss, _ = model.loss_and_grads(tokens)
        model.params[name] = before
        # a differentiable point: nobody changed experts
        assert all((model.loads[gate] == loads).all() for gate, loads in chosen.items())
        return loss + model.balance_loss + model.mtp_weight * model.mtp_loss

    assert list(grads) == list(model.params)
    for name, value in model.params.items():
        assert grads[name].shape == value.shape
        direction = rng.standard_normal(value.shape)
        step = 1e-6
        numeric = (objective(name, value + step * direction) - objective(name, value - step * direction)) / (2 * step)
        analytic = (grads[name] * direction).sum()
        assert abs(analytic - numeric) < 1e-7 * max(1, abs(numeric)), (name, analytic, numeric)


def test_a_byte_further_is_predicted_from_what_precedes_the_next_byte():
    config = dataclasses.replace(SMALL, mtp_depth=1, balance_alpha=0.0)
    model, tokens = perturbed(config), text(2, 8, 11)
    plain = Model(SMALL, "float64")
    plain.params, plain.biases = model.params, model.biases
    loss, grads = model.loss_and_grads(tokens)
    assert loss == plain.loss(tokens) == model.loss(tokens)  # the main model's own, with or without the module
    assert model.loads.keys() == model.biases.keys() == {f"layers.{i}.ffn.gate" for i in (1, 2, 3)}

    # One sequence of two bytes read: only its first position has a byte after the next, its last byte.
    losses = []
    for last in range(11):
        model.loss_and_grads(np.array([[3, 5, last]], np.uint8))
        losses.append(model.mtp_loss * 2)  # the mean over both positions
    assert abs(np.exp(-np.array(losses)).sum() - 1) < 1e-12
    model.mtp_weight = 0.0
    indifferent = model.loss_and_grads(tokens)[1]
    assert not indifferent["layers.3.projection"].any()
    assert grads["layers.3.projection"].any()
    assert (grads["embed"] != indifferent["embed"]).any()


def test_the_last_position_of_the_module_for_a_byte_further_balances_nothing():
    config = dataclasses.replace(SMALL, mtp_depth=1, balance_alpha=0.3, mtp_weight=0.0)
    model, tokens = perturbed(config), text(3, 8, 11)
    seen = []
    for last in range(11):  # the last byte is what the last position reads; no other one does
        tokens[:, -1] = last
        _, grads = model.loss_and_grads(tokens)
        seen.append((model.loads["layers.3.ffn.gate"].tolist(), grads["layers.3.ffn.gate"].tobytes()))
    assert all(loads == seen[0][0] for loads, _ in seen)
    assert sum(seen[0][0]) == 3 * 7 * config.top_k
    model.loss_and_grads(tokens[:, :2])  # with one byte read, no position of the module predicts anything
    assert not model.loads["layers.3.ffn.gate"].any()
    assert model.max_violation >= 0


def test_the_module_for_a_byte_further_leaves_other_initial_parameters_alone():
    config = dataclasses.replace(configs["nano"], mtp_depth=1)
    params, others = initial_parameters(config, 5), initial_parameters(configs["nano"], 5)
    assert all(params[name].tobytes() == value.tobytes() for name, value in others.items())


def test_loss_is_cross_entropy_alone_and_changes_no_record():
    model, tokens = perturbed(SMALL), text(2, 8, 11)
    loss, _ = model.loss_and_grads(tokens)
    assert model.balance_loss > 0.1
    loads = {name: value.copy() for name, value in model.loads.items()}
    assert model.loss(tokens) == loss
    model.loss(text(4, 5, 11, seed=3))
    assert all((model.loads[name] == loads[name]).all() for name in loads)
    indifferent = Model(dataclasses.replace(SMALL, balance_alpha=0.0), "float64")
    indifferent.params, indifferent.biases = model.params, model.biases
    assert indifferent.loss_and_grads(tokens)[0] == loss
    assert indifferent.balance_loss == 0.0


def test_loads_count_every_slot():
    model = Model("nano", "bf16")
    model.loss_and_grads(text(2, 16))
    assert list(model.loads) == ["layers.1.ffn.gate", "layers.2.ffn.gate"] == list(model.biases)
    assert all(loads.sum() == 2 * 16 * 2 for loads in model.loads.values())
    assert model.max_violation == max(loads.max() / 8.0 - 1 for loads in model.loads.values())
    assert Model("nano", "bf16").max_violation == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "dsv3"])
def test_threads_do_not_change_a_bit(recipe):
    tokens = text(16, 128)
    before = _threads.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            _threads.set_num_threads(threads)
            model = Model("nano", recipe, seed=3)
            loss, grads = model.loss_and_grads(tokens)
            results.append((loss, {name: grad.tobytes() for name, grad in grads.items()}))
    finally:
        _threads.set_num_threads(before)
    assert results[0][0] == results[1][0]
    assert [name for name in results[0][1] if results[0][1][name] != results[1][1][name]] == []


@pytest.mark.parametrize(
    ("recipe", "loss", "gradients"),
    [
        ("bf16", "0x1.6d3820999d2bep+2", "68b8d607523ca5da"),
        ("dsv3", "0x1.6d9c46c0a68dap+2", "1962e6d1345112d9"),
    ],
)
def test_recorded_bits(recipe, loss, gradients):
    # The same with vectors of 128, 256 and 512 bits; a change says that some definition changed, here or below.
    got, grads = Model("nano", recipe, seed=0).loss_and_grads(text(2, 64, seed=1))
    assert got.hex() == loss
    assert hashlib.sha256(b"".join(grad.tobytes() for grad in grads.values())).hexdigest()[:16] == gradients


def test_the_same_call_gives_the_same_bits_and_leaves_the_model_alone():
    model, tokens = Model("nano", "bf16"), text(2, 33)
    before = {name: value.tobytes() for name, value in model.params.items()}
    first = {name: grad.tobytes() for name, grad in model.loss_and_grads(tokens)[1].items()}
    again = {name: grad.tobytes() for name, grad in model.loss_and_grads(tokens)[1].items()}
    assert first == again
    assert before == {name: value.tobytes() for name, value in model.params.items()}


@pytest.mark.slow
def test_sequences_do_not_see_each_other():
    model = Model("nano", "float64")
    tokens = text(3, 16)
    apart = np.mean([model.loss(tokens[b : b + 1]) for b in range(3)])
    np.testing.assert_allclose(model.loss(tokens), apart, rtol=1e-12)


def test_a_new_model_knows_nothing():
    loss = Model("nano", "bf16").loss(text(4, 64))
    assert abs(loss - np.log(256)) < 0.4


def test_initial_parameters_depend_on_seed_and_name_only():
    nano, wider = configs["nano"], dataclasses.replace(configs["nano"], experts=16)
    params, others = initial_parameters(nano, 5), initial_parameters(wider, 5)
    assert all(params[name].tobytes() == others[name].tobytes() for name in params if not name.endswith(".gate"))
    matrices = {name: value for name, value in params.items() if value.ndim == 2}
    assert len({value.tobytes() for value in matrices.values()}) == len(matrices)
    assert params["head"].tobytes() != initial_parameters(nano, 6)["head"].tobytes()
    drawn = np.concatenate([value.ravel() for value in matrices.values()])
    assert drawn.dtype == np.float32
    assert abs(drawn.std() / nano.init_std - 1) < 0.005
    assert abs(drawn.mean()) < 0.005 * nano.init_std * 5
    assert all((value == 1).all() for value in params.values() if value.ndim == 1)


@pytest.mark.slow
def test_another_recipe_shares_parameters_and_biases():
    model, tokens = Model("nano", "bf16"), text(1, 32)
    other = model.with_recipe("float64")
    assert other.recipe.name == "float64"
    assert model.recipe.name == "bf16"
    exact, rounded = other.loss(tokens), model.loss(tokens)
    assert exact != rounded
    assert abs(exact - rounded) < 0.02
    model.params["head"] *= np.float32(2)
    assert other.loss(tokens) != exact
    other.biases["layers.1.ffn.gate"][0] = 1.0
    assert model.biases["layers.1.ffn.gate"][0] == 1.0
    other.loss_and_grads(tokens)
    assert model.loads == {}


@pytest.mark.slow
def test_gradients_in_bf16_are_close_to_those_in_float64():
    # Every token uses every expert here: one that changes experts would move its gradients by far more than rounding.
    config = dataclasses.replace(configs["nano"], top_k=8, groups=1)
    model, tokens = Model(config, "bf16"), text(2, 64)
    _, rounded = model.loss_and_grads(tokens)
    _, exact = model.with_recipe("float64").loss_and_grads(tokens)
    for name, grad in rounded.items():
        assert grad.dtype == np.float32
        assert exact[name].dtype == np.float64
        error = np.linalg.norm(grad - exact[name]) / np.linalg.norm(exact[name])
        assert 1e-4 < error < (0.1 if name.endswith(".gate") else 0.025), (name, error)


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([[1, 2]], TypeError, r"tokens: list; a uint8 array \[batch, sequence \+ 1\] is needed"),
        (np.zeros((1, 3)), TypeError, r"tokens: float64 array; a uint8 array"),
        (np.zeros(3, np.uint8), ValueError, r"tokens: shape \(3,\); \[batch >= 1, sequence \+ 1 >= 2\] is needed"),
        (np.zeros((0, 3), np.uint8), ValueError, r"tokens: shape \(0, 3\)"),
        (np.zeros((2, 1), np.uint8), ValueError, r"tokens: shape \(2, 1\)"),
        (np.array([[3, 11]], np.uint8), ValueError, r"tokens: byte 11; the vocabulary has 11"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, error, message):
    model = Model(SMALL, "float64")
    for call in (model.loss, model.loss_and_grads):
        with pytest.raises(error, match=message):
            call(tokens)


def test_unknown_names_get_the_close_ones():
    with pytest.raises(KeyError, match="did you mean 'nano'"):
        Model("nanno", "bf16")
    with pytest.raises(KeyError, match="did you mean 'bf16'"):
        Model("nano", "bf61")
