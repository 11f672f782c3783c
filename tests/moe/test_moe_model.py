"""The whole model: gradients against finite differences, bits that depend on nothing but the inputs, and its errors."""

import dataclasses
import math

import numpy as np
import pytest
from refusals import refusals
from small_models import check_gradients, held_out_bytes, in_bytes, loss_and_bytes, random_bytes

import lowprec as lp
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.model.model import Model, initial_parameters

SMALL = MoEConfig(
    "small", dim=12, layers=3, dense_layers=1, heads=2, nope_dim=6, rope_dim=4, value_dim=5, q_rank=7, kv_rank=9,
    experts=8, top_k=4, expert_groups=4, topk_groups=2, expert_width=6, dense_width=10, vocabulary=11,
    balance_alpha=0.3, route_scale=1.7,
)  # fmt: skip


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
    ("changes", "batch", "sequence"),
    [
        ({}, 8, 9),  # 72 tokens: sums over tokens run in blocks of 64
        ({"dense_layers": 0, "layers": 1, "shared_experts": 0}, 1, 1),
        ({"dense_layers": 2, "layers": 2}, 2, 20),
        ({"mtp_depth": 1, "layers": 2}, 3, 9),
        ({"mtp_depth": 1, "layers": 1, "shared_experts": 0}, 2, 1),
        ({"swiglu_limit": 0.4, "shared_experts": 2}, 3, 9),
    ],
    ids=["both", "experts alone", "dense alone", "a byte further", "no room for a byte further", "SwiGLU cut"],
)
def test_gradients_against_finite_differences(changes, batch, sequence):
    model, tokens = perturbed(dataclasses.replace(SMALL, **changes)), random_bytes(batch, sequence, 11)
    _, grads = model.loss_and_grads(tokens)
    chosen, params = {name: loads.copy() for name, loads in model.loads.items()}, model.params

    def objective(values):
        model.params = values
        loss, _ = model.loss_and_grads(tokens)
        # a differentiable point: nobody changed experts
        assert all((model.loads[gate] == loads).all() for gate, loads in chosen.items())
        return loss + model.balance_loss + model.mtp_weight * model.mtp_loss

    assert list(grads) == list(params)
    check_gradients(objective, params, grads, np.random.default_rng(2), 1e-7)


def test_weights_multiply_the_losses_of_their_bytes():
    model, tokens = perturbed(SMALL), random_bytes(2, 5, 11)
    loss, grads = model.loss_and_grads(tokens, np.ones((2, 5)))
    assert loss_and_bytes(model, tokens) == (loss, in_bytes(grads))
    weights = np.array([[0, 0, 1, -2, 0.5], [3, 0, 0, 0, 1]])
    loss, grads = model.loss_and_grads(tokens, weights)
    assert loss == math.fsum((weights * model.token_losses(tokens)).ravel()) / 10
    chosen, params = {name: loads.copy() for name, loads in model.loads.items()}, model.params

    def objective(values):
        model.params = values
        loss, _ = model.loss_and_grads(tokens, weights)
        assert all((model.loads[gate] == loads).all() for gate, loads in chosen.items())
        return loss + model.balance_loss

    check_gradients(objective, params, grads, np.random.default_rng(2), 1e-7)


@pytest.mark.parametrize(
    ("weights", "words"),
    [(np.ones(5), r"weights must have shape \(2, 5\), got \(5,\)"), (np.full((2, 5), np.nan), "must be finite")],
)
def test_weights_that_do_not_fit(weights, words):
    with pytest.raises(ValueError, match=f"loss_and_grads: .*{words}"):
        perturbed(SMALL).loss_and_grads(random_bytes(2, 5, 11), weights)
    further = dataclasses.replace(SMALL, mtp_depth=1)
    with pytest.raises(ValueError, match="weights must be None for a model with a prediction module"):
        perturbed(further).loss_and_grads(random_bytes(2, 5, 11), np.ones((2, 5)))


def test_a_byte_further_is_predicted_from_what_precedes_the_next_byte():
    model, plain = perturbed(dataclasses.replace(SMALL, mtp_depth=1, balance_alpha=0.0)), Model(SMALL, "float64")
    plain.params, plain.biases, tokens = model.params, model.biases, random_bytes(2, 8, 11)
    loss, grads = model.loss_and_grads(tokens)
    assert loss == plain.loss(tokens) == model.loss(tokens)  # the main model's own, with or without the module
    assert model.loads.keys() == model.biases.keys() == {f"layers.{i}.ffn.gate" for i in (1, 2, 3)}

    # One sequence of two bytes read: only its first position has a byte after the next, its last byte.
    chances = []
    for last in range(11):
        model.loss_and_grads(np.array([[3, 5, last]], np.uint8))
        chances.append(np.exp(-2 * model.mtp_loss))  # the mean over both positions
    assert abs(sum(chances) - 1) < 1e-12
    model.mtp_weight = 0.0
    indifferent = model.loss_and_grads(tokens)[1]
    assert grads["layers.3.projection"].any()
    assert not indifferent["layers.3.projection"].any()
    assert (grads["embed"] != indifferent["embed"]).any()


def test_the_last_position_of_the_module_for_a_byte_further_balances_nothing():
    model = perturbed(dataclasses.replace(SMALL, mtp_depth=1, balance_alpha=0.3, mtp_weight=0.0))
    tokens, gate, seen = random_bytes(3, 8, 11), "layers.3.ffn.gate", set()
    for last in range(11):  # the last byte is what the last position reads; no other one does
        tokens[:, -1] = last
        model.loss_and_grads(tokens)
        seen.add(model.loads[gate].tobytes())
    assert len(seen) == 1
    assert model.loads[gate].sum() == 3 * 7 * model.config.top_k
    model.loss_and_grads(tokens[:, :2])  # with one byte read, no position of the module predicts anything
    assert not model.loads[gate].any()
    assert model.max_violation >= 0


def test_loss_is_cross_entropy_alone_and_changes_no_record():
    model, tokens = perturbed(SMALL), random_bytes(2, 8, 11)
    loss, _ = model.loss_and_grads(tokens)
    assert model.balance_loss > 0.1
    loads = in_bytes(model.loads)
    assert model.loss(tokens) == loss
    model.loss(random_bytes(4, 5, 11, seed=3))
    assert in_bytes(model.loads) == loads
    indifferent = Model(dataclasses.replace(SMALL, balance_alpha=0.0), "float64")
    indifferent.params, indifferent.biases = model.params, model.biases
    assert (indifferent.loss_and_grads(tokens)[0], indifferent.balance_loss) == (loss, 0.0)


def test_loads_count_every_slot():
    model = Model("nano", "bf16")
    assert model.max_violation == 0.0
    model.loss_and_grads(random_bytes(2, 16))
    assert list(model.loads) == ["layers.1.ffn.gate", "layers.2.ffn.gate"] == list(model.biases)
    assert all(loads.sum() == 2 * 16 * 2 for loads in model.loads.values())
    assert model.max_violation == max(loads.max() / 8.0 - 1 for loads in model.loads.values())


def test_the_same_call_gives_the_same_bits_and_leaves_the_model_alone():
    model, tokens = Model("nano", "bf16"), random_bytes(2, 33)
    before = in_bytes(model.params)
    assert loss_and_bytes(model, tokens) == loss_and_bytes(model, tokens)
    assert in_bytes(model.params) == before


@pytest.mark.parametrize("changes", [{"experts": 16}, {"mtp_depth": 1}])
def test_initial_parameters_depend_on_seed_and_name_only(changes):
    nano = configs["nano"]
    params, others = initial_parameters(nano, 5), initial_parameters(dataclasses.replace(nano, **changes), 5)
    differing = {name for name, value in params.items() if value.tobytes() != others[name].tobytes()}
    assert differing == ({name for name in params if name.endswith(".gate")} if "experts" in changes else set())
    matrices = {name: value for name, value in params.items() if value.ndim == 2}
    assert len(set(in_bytes(matrices).values())) == len(matrices)
    assert params["head"].tobytes() != initial_parameters(nano, 6)["head"].tobytes()
    drawn = np.concatenate([value.ravel() for value in matrices.values()])
    assert drawn.dtype == np.float32
    assert abs(drawn.std() / nano.init_std - 1) < 0.005
    assert abs(drawn.mean()) < 0.005 * nano.init_std * 5
    assert all((value == 1).all() for value in params.values() if value.ndim == 1)


@pytest.mark.slow
def test_another_recipe_shares_parameters_and_biases():
    model, tokens = Model("nano", "bf16"), random_bytes(1, 32)
    other = model.with_recipe("float64")
    assert (model.recipe.name, other.recipe.name) == ("bf16", "float64")
    exact = other.loss(tokens)
    assert 0 < abs(exact - model.loss(tokens)) < 0.02
    model.params["head"] *= np.float32(2)
    assert other.loss(tokens) != exact
    other.biases["layers.1.ffn.gate"][0] = 1.0
    assert model.biases["layers.1.ffn.gate"][0] == 1.0
    other.loss_and_grads(tokens)
    assert model.loads == {}


@pytest.mark.slow
def test_gradients_in_bf16_are_close_to_those_in_float64():
    # Every token uses every expert here: one that changes experts would move its gradients by far more than rounding.
    model, tokens = Model(dataclasses.replace(configs["nano"], top_k=8, expert_groups=1), "bf16"), random_bytes(2, 64)
    (_, rounded), (_, exact) = model.loss_and_grads(tokens), model.with_recipe("float64").loss_and_grads(tokens)
    for name, grad in rounded.items():
        assert (grad.dtype, exact[name].dtype) == (np.float32, np.float64)
        error = np.linalg.norm(grad - exact[name]) / np.linalg.norm(exact[name])
        assert 1e-4 < error < (0.1 if name.endswith(".gate") else 0.025), (name, error)


BAD_TOKENS = [
    ("[[1, 2]]", TypeError, r"tokens must be a uint8 array \[batch, sequence \+ 1\], got list"),
    ("np.zeros((1, 3))", TypeError, r"tokens must be a uint8 array \[batch, sequence \+ 1\], got float64 array"),
    ("np.zeros(3, 'u1')", ValueError, r"tokens must have shape \[batch >= 1, sequence \+ 1 >= 2\], got \(3,\)"),
    ("np.zeros((0, 3), 'u1')", ValueError, r"tokens must have shape \[batch >= 1, sequence \+ 1 >= 2\], got \(0, 3\)"),
    ("np.zeros((2, 1), 'u1')", ValueError, r"tokens must have shape \[batch >= 1, sequence \+ 1 >= 2\], got \(2, 1\)"),
    ("np.array([[3, 11]], 'u1')", ValueError, "tokens must be below vocabulary=11, got 11"),
]
test_refused = refusals(
    [(f"model.{call}({tokens})", *rest) for call in ("loss", "loss_and_grads") for tokens, *rest in BAD_TOKENS]
    + [
        ("Model('nanno', 'bf16')", KeyError, "did you mean 'nano'"),
        ("Model('nano', 'bf61')", KeyError, "did you mean 'bf16'"),
        ("Model('nano', 'bf16', recompute='norm')", KeyError, "did you mean 'norms'"),
    ],
    lambda: {"Model": Model, "model": Model(SMALL, "float64")},
)


# --- a codec on what a block adds to the residual stream --------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return Model("nano", "bf16", seed=1)


@pytest.mark.parametrize("part", [0, 1])
def test_a_branch_passes_its_codec_before_it_is_added(model, part):
    name, added = ("attn_branch", "ffn_branch")[part], []
    model = model.with_recipe(lp.recipes["bf16"].with_(storage={f"layers.*.{name}": "e5m2_1x128"}))
    block = model._blocks[0]
    block.branches = [lambda x, kept=kept: added.append(x.copy()) or kept(x) for kept in block.branches]
    x = model._embed.forward(model.params, held_out_bytes(1)[0, :128])
    after, _, _ = block.forward(model.params, model.biases, x, 128)
    arrived = [lp.codecs["e5m2_1x128"].round_trip(a) if i == part else a for i, a in enumerate(added)]
    middle = lp.round_to(x + arrived[0], "bfloat16")
    assert np.array_equal(after, lp.round_to(middle + arrived[1], "bfloat16"))
    assert not np.array_equal(arrived[part], added[part])


def test_a_codec_that_loses_nothing_and_no_codec_give_the_same_bits(model):
    kept = model.with_recipe(lp.recipes["bf16"].with_(storage={"layers.*_branch": "float32"}))
    assert loss_and_bytes(kept, held_out_bytes(2)) == loss_and_bytes(model, held_out_bytes(2))


def test_what_only_passes_is_left_alone():
    x = np.array([[1.001]], np.float32)
    bound = lp.recipes["bf16"].bind()
    assert bound.storage("layers.0.ffn_branch", passing=True)(x) is x
    assert x == np.float32(1.001)
    assert bound.storage("layers.0.ffn_norm")(x) == 1.0
