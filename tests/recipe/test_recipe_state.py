"""What of a recipe is not a pure function of its input: random bits, and scales that follow from earlier steps."""

import numpy as np
from recipe_operands import operands

import lowprec as lp
from lowprec.recipe import recipes


def test_random_bits_follow_from_seed_step_layer_and_tensor():
    bound = recipes["nvfp4"].bind(seed=7, layers=4)
    _, w, dy = operands(k=208)
    x = operands(k=208)[0]

    def gradient(layer, step, seed=7):
        run = recipes["nvfp4"].bind(seed=seed, layers=4)
        run.begin_step(step)
        ops = run.linear(layer)
        saved = ops.fprop(x, w)[1]
        return ops.dgrad(dy, saved), ops.wgrad(dy, saved)

    first = gradient("layers.0.attn.wo", 3)
    for i in range(2):
        assert np.array_equal(gradient("layers.0.attn.wo", 3)[i], first[i])
        for other in (("layers.0.attn.wo", 4), ("layers.1.attn.wo", 3), ("layers.0.attn.wo", 3, 8)):
            assert not np.array_equal(gradient(*other)[i], first[i])
    seeds = {bound.draw(f"layers.{i}.attn.wo/{gemm}.dy") for i in range(20) for gemm in ("dgrad", "wgrad")}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_nvfp4_operands_are_those_of_its_quantizers():
    x, w, dy = operands(rows=64, k=208, n=96)
    bound = recipes["nvfp4"].bind(seed=7, layers=4)
    bound.begin_step(2)
    ops = bound.linear("layers.0.attn.wo")
    y, saved = ops.fprop(x, w)
    qx, qw = lp.quantize(x, quantizer="nvfp4_te"), lp.quantize(w, quantizer="nvfp4_te_2d")
    assert np.array_equal(y, lp.gemm(qx, qw, accumulator="blackwell_nvfp4", promote_every=None, out="bfloat16"))
    turned = lp.quantizers["nvfp4_te_rht"].with_(granularity="16x1")
    seed = bound.draw("layers.0.attn.wo/wgrad.dy")
    column = lp.quantize(dy, quantizer=turned, rounding="stochastic", seed=seed).T
    source = lp.quantize(x, quantizer=turned).T
    dw = lp.gemm(column, source, accumulator="blackwell_nvfp4", promote_every=None)
    assert np.array_equal(ops.wgrad(dy, saved), dw)
    exact = dy.T.astype(float) @ x
    assert np.linalg.norm(dw - exact) < 0.25 * np.linalg.norm(exact)  # the transforms cancel


def test_hadamard_fills_the_last_block_with_zeros():
    x, w, dy = operands(rows=21, k=208, n=96)
    ops = recipes["nvfp4"].bind(seed=7, layers=4).linear("layers.0.attn.wo")
    dw = ops.wgrad(dy, ops.fprop(x, w)[1])
    exact = dy.T.astype(float) @ x
    assert np.linalg.norm(dw - exact) < 0.3 * np.linalg.norm(exact)


def test_delayed_scales_come_from_earlier_steps():
    bound = recipes["te_delayed"].with_(x="te_delayed history2").bind()
    x, w, dy = operands()
    ops = bound.linear("layers.0.attn.wo")
    scales = []
    for step in range(4):
        bound.begin_step(step)
        _, saved = ops.fprop(x * np.float32(2.0**-step), w)
        ops.wgrad(dy, saved)
        with bound.evaluating():
            ops.fprop(x * np.float32(1000), w)
        scales.append(float(saved.x.row.scale[0, 0]))
    amax = np.float32(np.abs(x).max())
    multipliers = [np.float32(448) / (amax * np.float32(2.0**-i)) for i in (0, 0, 1)]  # a history of 2: step and last
    assert scales == [1.0, *(float(np.float32(1) / m) for m in multipliers)]

    state = bound.state_dict()
    again = recipes["te_delayed"].with_(x="te_delayed history2").bind()
    again.load_state_dict(state)
    for run in (bound, again):
        run.begin_step(4)
    pair = [run.linear("layers.0.attn.wo").fprop(x, w) for run in (bound, again)]
    assert np.array_equal(pair[0][0], pair[1][0])
    assert float(pair[0][1].x.row.scale[0, 0]) != 1.0
