"""Every call of a linear layer in two steps of the NumPy trainer, with its operands and results."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowprec.moe.data.synthetic import synthetic
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import BoundRecipe


@dataclass
class Call:
    """One forward pass of a layer and, when it has come, its backward pass."""

    layer: str
    x: Any
    w: Any
    y: Any
    dy: Any = None
    results: dict = field(default_factory=dict)


class Recorder:
    """The multiplications of a layer; notes what passes, in the order of calls."""

    def __init__(self, layer, ops, events):
        self.layer, self.ops, self.events = layer, ops, events
        self.open = {}

    def __getattr__(self, name):
        return getattr(self.ops, name)

    def fprop(self, x, w, cached=None):
        y, saved = self.ops.fprop(x, w, cached)
        call = Call(self.layer, x.copy(), w.copy(), y.copy())
        self.events.append(("forward", call))
        self.open[id(saved.x.kept)] = call, saved  # kept, so that no other object gets the same id
        return y, saved

    def _backward(self, name, dy, saved):
        call = self.open[id(saved.x.kept)][0]
        result = getattr(self.ops, name)(dy, saved)
        if call.dy is None:
            call.dy = dy.copy()
            self.events.append(("backward", call))
        assert np.array_equal(call.dy, dy)
        call.results[name] = result.copy()
        return result

    def dgrad(self, dy, saved):
        return self._backward("dgrad", dy, saved)

    def wgrad(self, dy, saved):
        return self._backward("wgrad", dy, saved)


def recorded(recipe, config, monkeypatch, steps=2):
    """Return the model's number of layers and the events of so many training steps."""
    events, layers = [], []
    bind = BoundRecipe.linear

    def linear(self, layer):
        layers.append(self.layers)
        return Recorder(layer, bind(self, layer), events)

    monkeypatch.setattr(BoundRecipe, "linear", linear)
    trainer = Trainer(config, recipe, synthetic(0), seed=1, schedule=Schedule(1e-3, 0, 9))
    for _ in range(steps):
        trainer.step()
    return layers[0], events
