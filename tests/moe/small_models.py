"""What tests of the model share: tokens, weights of one layer, bytes to compare, gradients by differences."""

import numpy as np

from lowprec.moe.data.sources import load_corpus


def random_bytes(batch, sequence, vocabulary=256, seed=0):
    return np.random.default_rng(seed).integers(0, vocabulary, (batch, sequence + 1), dtype=np.uint8)


def held_out_bytes(batch, sequence=128):
    return load_corpus("stdlib").held_out[: batch * (sequence + 1)].reshape(batch, sequence + 1).copy()


def layer_weights(config, layer, rng, dtype=np.float32, size=1.0):
    """Draw the weights of a layer; `layer` is how their names begin."""
    shapes = config.parameter_shapes().items()
    return {name: (size * rng.standard_normal(s)).astype(dtype) for name, s in shapes if name.startswith(f"{layer}.")}


def in_bytes(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def loss_and_bytes(model, tokens):
    """Return the loss and every bit of the gradients."""
    loss, grads = model.loss_and_grads(tokens)
    return loss, in_bytes(grads)


def check_gradients(objective, values, grads, rng, within):
    """Compare each gradient with differences of the objective along a random direction of its value."""
    assert grads.keys() == values.keys()
    step = 1e-6
    for name, grad in grads.items():
        assert grad.shape == values[name].shape
        direction = rng.standard_normal(grad.shape)
        up, down = (objective(values | {name: values[name] + sign * step * direction}) for sign in (1, -1))
        numeric = (up - down) / (2 * step)
        assert abs((grad * direction).sum() - numeric) < within * max(1, abs(numeric)), name
