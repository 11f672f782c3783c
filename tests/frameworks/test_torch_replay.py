"""Two steps of the NumPy trainer, every call of a linear layer again through torch's operators: the same bits."""

import numpy as np
import pytest
from floats import bits
from golden_runs import golden
from recorded_trainer import recorded

import lowprec as lp

torch = pytest.importorskip("torch")
from lowprec.recipe import LayerPrecision, LayerState  # noqa: E402
from lowprec.torch import ops  # noqa: E402

pytestmark = pytest.mark.torch
RECIPES = ("bf16", "float32", "dsv3", "dsv3_ue8m0", "te_delayed", "te_current", "mxfp8", "nvfp4")


class Replay:
    """The operators of a model's layers, each with its key and state."""

    def __init__(self, recipe, layers, seed):
        self.recipe, self.layers, self.seed = recipe, layers, seed
        self.of = {}

    def layer(self, name):
        if name not in self.of:
            precision = LayerPrecision.of(self.recipe, name, self.layers)
            state = [LayerState(name, self.seed)] if precision.spec.stateful else []
            self.of[name] = precision.key, ops.add_slot(ops.ModuleState(state)) if state else None
        return self.of[name]

    def forward(self, call):
        key, slot = self.layer(call.layer)
        x = torch.from_numpy(call.x).to(ops.input_dtype(key)).requires_grad_()
        w = torch.from_numpy(call.w).requires_grad_()
        y = ops.product(x, w, None, slot, 0, key, True)
        return x, w, y


def differing(name, config, monkeypatch):
    """Return how many values were compared, and the calls that differ."""
    recipe = lp.recipes[name].with_(saved_swiglu_input="bf16")  # which would change what w2's Wgrad reads
    layers, events = recorded(recipe, config, monkeypatch)
    replay, open_, compared, odd = Replay(recipe, layers, seed=1), {}, 0, []
    for what, call in events:
        if what == "forward":
            x, w, y = open_[id(call)] = replay.forward(call)
            pairs = [(y.detach(), call.y)]
        else:
            x, w, y = open_.pop(id(call))
            y.backward(torch.from_numpy(call.dy).to(y.dtype))
            pairs = [(x.grad, call.results["dgrad"]), (w.grad, call.results["wgrad"])]
        odd += [(what, call.layer) for ours, theirs in pairs if not np.array_equal(bits(ours.float()), bits(theirs))]
        compared += sum(theirs.size for _, theirs in pairs)
    assert not open_
    return compared, odd


@pytest.mark.parametrize(
    "config", [golden.MICRO, pytest.param("nano", marks=pytest.mark.exhaustive)], ids=["micro", "nano"]
)
@pytest.mark.parametrize("name", RECIPES)
def test_every_product_of_two_steps_is_the_trainers(name, config, monkeypatch):
    compared, odd = differing(name, config, monkeypatch)
    assert not odd
    assert compared == 49_131_520 if config == "nano" else compared > 100_000


def always(self, training, again=False):
    self._ended = True
    BEGIN(self, training)


def never(self, training, again=False):
    BEGIN(self, training, again=True)


BEGIN = LayerState.begin_forward


@pytest.mark.parametrize(("name", "wrong"), [("nvfp4", always), ("nvfp4", never), ("te_delayed", never)])
def test_steps_counted_wrongly_are_seen(name, wrong, monkeypatch):
    monkeypatch.setattr(LayerState, "begin_forward", wrong)
    assert differing(name, golden.MICRO, monkeypatch)[1]
