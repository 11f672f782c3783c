"""Attention kernels in torch: the bits of `lowprec.attention`, masks, gradients, transformers' interface."""

import copy
import pathlib
import pickle
import re
import threading
import weakref

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.operands import quantize_operands

torch = pytest.importorskip("torch")

import lowprec.torch as lpt  # noqa: E402
from lowprec.torch import sdpa  # noqa: E402
from lowprec.torch.convert import SlowPath  # noqa: E402
from lowprec.torch.switching import preserve_model  # noqa: E402

pytestmark = pytest.mark.torch


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def direct(q, k, v, kernel, **options):
    """Return the output of `lowprec.attention` for tensors."""
    *operands, descale = quantize_operands(q.numpy(), k.numpy(), v.numpy(), lp.attentions[kernel])
    return torch.from_numpy(
        lp.attention(*operands, kernel=kernel, descale=descale, out_format="float32", **options).out
    )


def is_recorded_cpu():
    """Return whether torch's products have the orders of `sdpa_math` and ``torch_cpu_flash_*``."""
    path = pathlib.Path("/proc/cpuinfo")
    is_amd = path.exists() and "AuthenticAMD" in path.read_text()
    return is_amd and torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.__version__.startswith("2.13.")


def seen(m, n, *, keys=slice(None), window=None):
    """Return a causal mask of one sequence [1, 1, M, N], with the keys that are no padding."""
    mask = torch.ones(m, n, dtype=torch.bool).tril(n - m)
    if window is not None:
        mask &= ~torch.ones(m, n, dtype=torch.bool).tril(n - m - window)
    kept = torch.zeros(n, dtype=torch.bool)
    kept[keys] = True
    return (mask & kept)[None, None]


@pytest.mark.parametrize("kernel", ["fa3_bf16", "fa3_fp8"])
def test_outputs_are_those_of_the_kernel_with_grouped_heads(kernel):
    q, k, v = drawn(2, 4, 5, 16), drawn(2, 2, 9, 16, seed=1), drawn(2, 2, 9, 8, seed=2)
    assert torch.equal(lpt.attention(q, k, v, kernel, causal=True), direct(q, k, v, kernel, causal=True))
    assert torch.equal(lpt.attention(q, k, v, kernel, mask=seen(5, 9)), direct(q, k, v, kernel, causal=True))
    window = lpt.attention(q, k, v, kernel, mask=seen(5, 9, window=3))
    assert torch.equal(window, direct(q, k, v, kernel, causal=True, window=(2, 0)))
    half = lpt.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), kernel)
    assert half.dtype == torch.bfloat16


def test_padding_is_left_out_sequence_by_sequence():
    q, k, v = drawn(2, 2, 6, 16), drawn(2, 2, 6, 16, seed=1), drawn(2, 2, 6, 16, seed=2)
    k[0, :, :2] = 100.0  # padding on the left would change the scales of keys
    left, right = seen(6, 6, keys=slice(2, None)), seen(6, 6, keys=slice(4))
    out = lpt.attention(q, k, v, mask=torch.cat([left, right]))
    assert torch.equal(out[:1, :, 2:], direct(q[:1, :, 2:], k[:1, :, 2:], v[:1, :, 2:], "fa3_fp8", causal=True))
    assert not out[0, :, :2].any()  # queries without keys
    assert torch.equal(out[1:, :, :4], direct(q[1:, :, :4], k[1:, :, :4], v[1:, :, :4], "fa3_fp8", causal=True))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.eye(4, dtype=torch.bool)[None, None].flip(-1), "row 0 of sequence 0 with 1 of 4 keys .* at 3"),
        (torch.zeros(1, 1, 4, 4), r"mask must be bool of shape \(1, 1, 4, 4\), one for all heads, got float32"),
        *(
            (torch.ones(shape, dtype=torch.bool), re.escape(f"one for all heads, got bool of shape {shape}"))
            for shape in ((1, 2, 4, 4), (1, 1, 3, 4), (1, 1, 1, 4), (1, 1, 4, 3))
        ),
    ],
)
def test_a_mask_that_no_kernel_computes_is_quoted(mask, message):
    with pytest.raises(ValueError, match=message):
        lpt.attention(*drawn(3, 1, 2, 4, 8), mask=mask)


def test_columns_after_the_keys_are_ignored():
    grads = []
    for columns in (4, 6):
        q = drawn(1, 1, 4, 16).requires_grad_()
        mask = torch.ones(1, 1, 4, columns, dtype=torch.bool).tril()
        lpt.attention(q, q, q, "sdpa_math", mask=mask).sum().backward()
        grads.append(q.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_straight_through(masked):
    """Nearly those of exact attention, from FP8's output and log-sum-exp; a query without keys has none."""
    q, k, v = drawn(1, 4, 6, 16), drawn(1, 2, 6, 16, seed=1), drawn(1, 2, 6, 16, seed=2)
    mask = seen(6, 6, keys=slice(2, None)) if masked else seen(6, 6)
    found, exact = [], []
    for grads, compute in (
        (found, lambda *x: lpt.attention(*x, "fa3_fp8", mask=mask)),
        (exact, lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=mask, enable_gqa=True)),
    ):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = compute(*inputs)[:, :, 2:]
        (out * drawn(*out.shape, seed=3)).sum().backward()
        grads += [x.grad for x in inputs]
    for ours, theirs in zip(found, exact, strict=True):
        assert 0 < torch.linalg.norm(ours - theirs) < 0.15 * torch.linalg.norm(theirs)
    assert not masked or not found[0][:, :, :2].any()
    inputs, plain = [x.clone().requires_grad_() for x in (q, k, v)], lp.attentions["fa3_fp8"].with_(plain_gradient=True)
    out = lpt.attention(*inputs, plain, mask=mask)[:, :, 2:]
    (out * drawn(*out.shape, seed=3)).sum().backward()
    for x, theirs in zip(inputs, exact, strict=True):
        torch.testing.assert_close(x.grad, theirs, rtol=1e-5, atol=1e-5)


def model_of(transformers, **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, bos_token_id=0, eos_token_id=1, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, **more,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.filterwarnings("ignore")
def test_transformers_models_run_a_kernel_by_its_name():
    transformers = pytest.importorskip("transformers")
    model, tokens = model_of(transformers), torch.arange(24).reshape(2, 12)
    plain = model(tokens).logits
    errors = {}
    for kernel in ("fa3_bf16", "fa3_fp8"):
        model.set_attn_implementation(lpt.register_attention(kernel))
        errors[kernel] = float((model(tokens).logits - plain).norm() / plain.norm())
    assert 0 < errors["fa3_bf16"] < 0.01 < 10 * errors["fa3_bf16"]
    assert errors["fa3_bf16"] < errors["fa3_fp8"] < 0.1
    ones = torch.ones_like(tokens)
    padded = ones.clone()
    padded[0, :3] = 0
    out = model(tokens, attention_mask=padded).logits
    alone = model(tokens[:1, 3:], position_ids=torch.arange(3, 12)[None]).logits
    torch.testing.assert_close(out[:1, 3:], alone, rtol=0, atol=1e-6)  # torch's products depend on the shape
    cached = model.generate(tokens[:1, :4], max_new_tokens=3, do_sample=False)
    assert cached.shape == (1, 7)
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with pytest.raises(ValueError, match=r"fa3_fp8 must have no dropout, softcap, .*, got dropout=0.5"):
        model(tokens)


@pytest.mark.filterwarnings("ignore")
def test_a_transformers_model_with_torchs_kernel_has_torchs_bits():
    """Two layers, sequences with padding on the left, BF16."""
    transformers = pytest.importorskip("transformers")
    if not is_recorded_cpu():
        pytest.skip("needs PyTorch 2.13 and an AMD CPU with AVX-512")
    model, tokens = model_of(transformers).bfloat16(), torch.arange(96).reshape(2, 48) % 62 + 2
    padding = torch.ones_like(tokens)
    padding[0, :13] = 0
    outputs = []
    for name in ("sdpa", lpt.register_attention("torch_cpu_flash_bf16")):
        model.set_attn_implementation(name)
        with torch.no_grad():
            outputs.append(model(tokens, attention_mask=padding).logits)
    assert torch.equal(*outputs)


@pytest.mark.filterwarnings("ignore")
def test_a_recipes_attention_is_converted_reported_and_restored():
    transformers = pytest.importorskip("transformers")
    model, tokens = model_of(transformers), torch.arange(24).reshape(2, 12)
    before, own = model(tokens).logits, model.config._attn_implementation
    recipe = lp.recipes["bf16"].with_(attention="fa3_fp8")
    lpt.convert(model, "bf16")
    without = model(tokens).logits
    lpt.convert(model, recipe)
    assert "attention: forward pass of fa3_fp8, straight-through backward pass" in lpt.report(model).notes
    assert model.config._attn_implementation == "lowprec:fa3_fp8"
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    assert not torch.equal(model(tokens).logits, without)
    rows = lpt.evaluate(model, tokens, [recipe, "bf16"], reference="bf16")
    assert [bool(row.kl.any()) for row in rows] == [False, True, False]
    assert model.config._attn_implementation == "lowprec:fa3_fp8"
    with pytest.raises(ValueError, match="train and rollout must have the same attention"):
        lpt.mismatch(model, tokens, "bf16", recipe)
    lpt.convert(model, "bf16")
    assert torch.equal(model(tokens).logits, without)
    lpt.restore(lpt.convert(model, recipe))
    assert model.config._attn_implementation == own
    assert torch.equal(model(tokens).logits, before)


def test_a_model_without_a_place_for_attention_is_not_silent():
    model, recipe = torch.nn.Sequential(torch.nn.Linear(8, 8)), lp.recipes["bf16"].with_(attention="fa3_fp8")
    with pytest.raises(ValueError, match=r"attention = fa3_fp8: apply it by lowprec.torch"):
        lpt.convert(model, recipe, roles=lambda name: "head", strict=True)


class Block(torch.nn.Module):
    """Attention by `scaled_dot_product_attention`, with the options of the call."""

    def __init__(self, **options):
        super().__init__()
        self.qkv, self.o, self.options = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32), options

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 16)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **self.options)
        return self.o(out.transpose(1, 2).flatten(-2))


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.block, self.reentrant = Block(is_causal=True), reentrant

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.reentrant)


FP8 = lp.recipes["bf16"].with_(attention="fa3_fp8", moment_m="float32", moment_v="float32")


def seeded(model):
    """Give all parameters numbers by a seed."""
    for i, parameter in enumerate(model.parameters()):
        parameter.data = drawn(*parameter.shape, seed=i) * 0.2
    return model


def test_scaled_dot_product_attention_is_replaced_while_a_converted_module_runs():
    function = torch.nn.functional.scaled_dot_product_attention
    x, model = drawn(2, 6, 32), seeded(Block(is_causal=True))
    lpt.convert(model, "bf16")
    plain = model(x)
    lpt.convert(model, FP8, strict=True, roles={"qkv": "attn.wq_a", "o": "attn.wo"})
    (note,) = lpt.report(model).notes
    assert note.startswith("attention: forward pass of fa3_fp8 in scaled_dot_product_attention of the model, ")
    calls = []
    model.qkv.register_forward_hook(lambda *_: calls.append(torch.nn.functional.scaled_dot_product_attention))
    out = model(x)
    q, k, v = (y.unflatten(-1, (2, 16)).transpose(1, 2) for y in model.qkv(x).chunk(3, -1))
    by_hand = model.o(lpt.attention(q, k, v, "fa3_fp8", causal=True).transpose(1, 2).flatten(-2))
    assert torch.equal(out, by_hand)
    assert not torch.equal(out, plain)
    assert torch.nn.functional.scaled_dot_product_attention is function is not calls[0]
    lpt.convert(model, "bf16")
    assert torch.equal(model(x), plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_with_the_kernel(reentrant):
    grads = []
    for model in (seeded(Block(is_causal=True)), seeded(Checkpointed(reentrant))):
        lpt.convert(model, FP8)
        x = drawn(2, 6, 32).requires_grad_()
        model(x).square().sum().backward()
        grads.append([x.grad, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_an_error_restores_the_function_and_other_threads_keep_it():
    function = torch.nn.functional.scaled_dot_product_attention
    x, plain, converted = drawn(1, 4, 32), seeded(Block()), lpt.convert(seeded(Block()), FP8)
    before, seen = plain(x), []
    converted.qkv.register_forward_hook(lambda *_: run(lambda: seen.append(plain(x))))
    converted(x)
    assert torch.equal(seen[0], before)
    dropping = lpt.convert(Block(dropout_p=0.5), FP8)
    with pytest.raises(ValueError, match=r"fa3_fp8 must have no dropout, got dropout_p=0\.5"):
        dropping(x)
    assert torch.nn.functional.scaled_dot_product_attention is function
    assert torch.equal(plain(x), before)


def run(function):
    """Call a function in another thread."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Call(torch.nn.Module):
    def forward(self, *operands, **options):
        return torch.nn.functional.scaled_dot_product_attention(*operands, **options)


def calling(kernel):
    model = Call()
    sdpa.use_attention(model, lp.attentions[kernel])
    return model


def test_masks_and_axes_of_torch_are_those_of_the_kernel():
    """A causal mask of torch starts at the first key; numbers of 0 and -inf are a mask."""
    q, k, v = drawn(2, 2, 4, 16), drawn(2, 2, 4, 16, seed=1), drawn(2, 2, 4, 16, seed=2)
    model, wanted = calling("fa3_bf16"), direct(q, k, v, "fa3_bf16", causal=True)
    mask = seen(4, 4)[0, 0]
    for options in ({"is_causal": True}, {"attn_mask": mask}, {"attn_mask": torch.where(mask, 0.0, -torch.inf)}):
        assert torch.equal(model(q, k, v, **options), wanted)
        assert torch.equal(model(*(x.flatten(0, 1) for x in (q, k, v)), **options), wanted.flatten(0, 1))
        assert torch.equal(model(q[1, 0], k[1, 0], v[1, 0], **options), wanted[1, 0])
    first = model(q[:, :, :2], k, v, is_causal=True)
    assert torch.equal(first, wanted[:, :, :2])
    grouped = model(q, k[:, :1], v[:, :1], enable_gqa=True)
    assert torch.equal(grouped, direct(q, k[:, :1], v[:, :1], "fa3_bf16"))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(q, k, v), model(q.bfloat16(), k.bfloat16(), v.bfloat16()))


@pytest.mark.parametrize(("options", "message"), [
    ({"attn_mask": torch.full((4, 4), 0.5)}, "attn_mask must be bool, or 0 and -inf, got other numbers"),
    ({"attn_mask": torch.arange(32).reshape(1, 2, 4, 4) > 3}, "attn_mask must be one for all heads"),
])  # fmt: skip
def test_masks_that_no_kernel_has_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        calling("fa3_bf16")(*drawn(3, 1, 2, 4, 16), **options)


def test_operands_that_do_not_match_are_refused():
    q, k = drawn(1, 2, 4, 16), drawn(1, 1, 4, 16)
    with pytest.raises(ValueError, match="same number of heads without enable_gqa, got 2 and 1"):
        calling("fa3_bf16")(q, k, k)
    with pytest.raises(ValueError, match="the same 2 to 4 axes"):
        calling("fa3_bf16")(q, k[0], k[0])
    with pytest.raises(ValueError, match="the same batch size, got 1, 3, 3"):
        calling("fa3_bf16")(q, *drawn(2, 3, 2, 4, 16))


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"q": torch.ones(1, 3, 4, 16)}, ValueError, "heads of q must be a multiple of those of k, got 3 and 2"),
    ({"q": torch.ones(4, 16)}, ValueError, r"must have 4 axes, \(batch, heads, tokens, channels\), got \(4, 16\), "),
    ({"v": torch.ones(1, 2, 4, 16).double()}, TypeError, "v must be float32 or bfloat16, got torch.float64"),
    ({"k": torch.ones(1, 2, 4, 16).int()}, TypeError, "k must be float32 or bfloat16, got torch.int32"),
])  # fmt: skip
def test_operands_that_no_kernel_takes_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        lpt.attention(**{name: torch.ones(1, 2, 4, 16) for name in "qkv"} | changes)


@pytest.mark.parametrize("queries", [4, 3])
def test_a_mask_and_is_causal_are_both_applied(queries):
    """As torch's flash kernel applies them; its math kernel refuses them together."""
    q, k, v = drawn(1, 2, queries, 16), drawn(1, 2, 4, 16, seed=1), drawn(1, 2, 4, 16, seed=2)
    window = ~torch.ones(queries, 4, dtype=torch.bool).tril(-2)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=window, is_causal=True)
    out = calling("fa3_bf16")(q, k, v, attn_mask=window, is_causal=True)
    torch.testing.assert_close(out, exact, rtol=0, atol=0.02)


@pytest.mark.parametrize(("kernel", "dtype"), [
    ("sdpa_math", torch.float32), ("torch_cpu_flash_f32", torch.float32), ("torch_cpu_flash_bf16", torch.bfloat16),
])  # fmt: skip
def test_kernels_of_torch_take_any_mask_and_have_its_bits(kernel, dtype):
    """Padding on the left of a causal mask; a random mask, queries that see nothing of a tile, or nothing at all."""
    if not is_recorded_cpu():
        pytest.skip("needs PyTorch 2.13 and an AMD CPU with AVX-512")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (drawn(2, 2, n, 16, seed=i).to(dtype) for i, n in enumerate((40, 600, 600)))
    mask = torch.cat([seen(40, 600, keys=slice(570, None)), drawn(1, 1, 40, 600, seed=3) < 0])
    mask[1, :, :5, :512] = mask[1, :, 3:5] = False
    with sdpa_kernel(SDPBackend.MATH if kernel == "sdpa_math" else SDPBackend.FLASH_ATTENTION):
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.equal(lpt.attention(q, k, v, kernel, mask=mask), exact)
    assert not exact[1, :, 3:5].any()
    nothing = lpt.attention(q, k, v, kernel, mask=torch.zeros_like(mask))
    assert not nothing.any()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupt_restores_the_function(error):
    function, x = torch.nn.functional.scaled_dot_product_attention, drawn(1, 4, 32)
    plain, model = seeded(Block()), lpt.convert(seeded(Block()), FP8)
    before = plain(x)

    def interrupt(*_):
        raise error

    model.qkv.register_forward_hook(interrupt)
    with pytest.raises(error):
        model(x)
    assert torch.nn.functional.scaled_dot_product_attention is function
    assert torch.equal(plain(x), before)


def test_copies_and_forwards_of_others_are_kept():
    """A copy runs by itself; a forward pass that another library has set is called, and restored."""
    operands = drawn(3, 1, 2, 4, 16)
    plain, model = Call(), Call()
    exact = plain(*operands)
    model.forward = own = lambda *x: 2 * plain.forward(*x)
    sdpa.use_attention(model, lp.attentions["fa3_fp8"])
    wanted = 2 * lpt.attention(*operands, "fa3_fp8")
    assert torch.equal(model(*operands), wanted)
    sdpa.use_attention(model, None)
    assert model.forward is own
    model = calling("fa3_fp8")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        sdpa.use_attention(model, lp.attentions["fa3_fp8"])
        assert twin.forward.module is twin
        sdpa.use_attention(model, None)
        assert torch.equal(twin(*operands), wanted / 2)
        sdpa.use_attention(twin, None)
        assert torch.equal(twin(*operands), exact)
    model = calling("fa3_fp8")
    inner = model.forward
    model.forward = lambda *x: inner(*x)
    sdpa.use_attention(model, None)
    assert torch.equal(model(*operands), exact)


def test_multi_head_attention_is_reached_without_its_weights():
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    seeded(layer).eval()
    lpt.convert(layer, "bf16")
    x = drawn(2, 5, 32)
    plain = layer(x)
    lpt.convert(layer, FP8)
    assert "scaled_dot_product_attention of self_attn" in " ".join(lpt.report(layer).notes)
    with torch.no_grad():
        assert not torch.equal(layer(x), plain)
    with pytest.warns(UserWarning, match="need_weights=True computes attention in torch, not by fa3_fp8"):
        layer.self_attn(x, x, x)


@pytest.mark.parametrize("before", [True, False])
def test_the_fast_path_is_restored_with_the_last_model(before, monkeypatch):
    fast, kinds = torch.backends.mha, (torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(2))
    first, second = map(torch.nn.Sequential, kinds)
    monkeypatch.setattr(SlowPath, "_held", weakref.WeakSet())
    monkeypatch.setattr(SlowPath, "_before", None)
    state = fast.get_fastpath_enabled()
    try:
        fast.set_fastpath_enabled(before)
        for recipe in ("bf16", FP8):
            lpt.convert(first, recipe)
        lpt.convert(second, "bf16")
        twin = copy.deepcopy(second)
        with preserve_model(first):
            lpt.convert(first, "dsv3")
        for model in (first, second, twin):
            assert not fast.get_fastpath_enabled()
            lpt.restore(model)
        assert fast.get_fastpath_enabled() == before
        lpt.convert(first, "bf16")
        with preserve_model(first):
            pass
        assert not fast.get_fastpath_enabled()
        lpt.restore(first)
        assert fast.get_fastpath_enabled() == before
    finally:
        fast.set_fastpath_enabled(state)
