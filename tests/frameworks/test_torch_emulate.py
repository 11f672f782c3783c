"""Operations and whole models of PyTorch on this CPU, computed from the stack's rules: 0 outputs differ."""

import copy
import functools
import itertools

import pytest

import lowprec as lp

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tiny_models import DTYPES, deepseek, gemma2, gpt2, llama, mixtral, neox, qwen3, qwen3_moe  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from lowprec.parity.operations import Bounded, ReciprocalRoot  # noqa: E402
from lowprec.parity.sums import Product, Sum  # noqa: E402
from lowprec.special.cpu import CpuGelu  # noqa: E402
from lowprec.torch import convert, emulate  # noqa: E402
from lowprec.torch.emulation.comparison import check_bound  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread", "avx512")]


def normal(*shape, dtype="float32", seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DTYPES[dtype])


def check(function, *kept):
    """Assert that no output of a function differs; `kept` are the operations whose bits may be PyTorch's own."""
    with torch.no_grad():
        expected = function()
        with emulate() as run:
            found = function()
    assert not run.first
    assert {name for name, count in run.counts.items() if count.kept} <= set(kept)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert any(count.outputs for name, count in run.counts.items() if name not in kept)
    return run


def test_a_result_beyond_its_bound_is_refused():
    """The bound is that of float32; bfloat16 adds one rounding."""
    bounded, x = Bounded("sin"), torch.tensor([float("inf"), 1.0, 0.5])
    for dtype in (torch.float32, torch.bfloat16):
        out = x.double().sin().to(dtype)
        check_bound("sin", bounded, x, out)
        for i, wrong in ((1, float("nan")), (0, 0.0), (1, float(out[1]) * (1 + 2.0**-6))):
            changed = out.clone()
            changed[i] = wrong
            with pytest.raises(ValueError, match="sin must be within"):
                check_bound("sin", bounded, x, changed)
    nearer = torch.tensor([0.84375]).bfloat16()  # sin 1 = 0.84147; bfloat16 has 0.83984 and 0.84375
    with pytest.raises(ValueError, match="sin must be within"):
        check_bound("sin", bounded, torch.ones(1), nearer)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_on_rows(dtype):
    """33 rows of 50: the vectors' rest, and PyTorch's loop over strided memory."""
    x = normal(33, 50, dtype=dtype) * 4
    weight, bias = normal(50, dtype=dtype, seed=1), normal(50, dtype=dtype, seed=2)
    for function in (
        lambda: F.silu(x) + torch.sigmoid(x[:, 1:31]).sum(),
        lambda: x.softmax(-1) - x[:, :7].softmax(-1).sum(-1, keepdim=True),
        lambda: F.layer_norm(x, (50,), weight, bias) + F.layer_norm(x, (50,)),
        lambda: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype),
        lambda: x.sum(0) + x.pow(3).sum(0),
        lambda: torch.rsub(x, 0.1) + torch.rsub(x, x[:1]) + (2 - x),
        lambda: x.reciprocal() + 0.3 / x,
        lambda: x.log_softmax(-1) + x[:, :7].log_softmax(-1).sum(-1, keepdim=True),
    ):
        check(function)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 20, 33), (2, 7, 40), (5, 33, 50)])
def test_products(m, n, k, dtype):
    a, w, bias = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1), normal(n, dtype=dtype, seed=2)
    check(lambda: F.linear(a, w))
    check(lambda: F.linear(a, w, bias))
    check(lambda: torch.bmm(a.expand(3, m, k), w.T.expand(3, k, n)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 8, 33])
def test_products_that_are_subnormal_or_negative_zeros(k, dtype):
    a, b = (normal(*shape, dtype=dtype, seed=1) * 2.0**-64 for shape in ((5, k), (k, 7)))
    check(lambda: a @ b)
    zeros, ones = torch.full((3, k), -0.0, dtype=DTYPES[dtype]), torch.ones(k, 4, dtype=DTYPES[dtype])
    check(lambda: zeros @ ones)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_few_terms(dtype):
    """Cancelling probes of 2 or 3 terms give 0 in every order."""
    for m, n, k in itertools.product((1, 5), (7,), (2, 3, 5)):
        a, w, bias = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1), normal(n, dtype=dtype, seed=2)
        check(lambda a=a, w=w: F.linear(a, w))
        check(lambda a=a, w=w, bias=bias: F.linear(a, w, bias))


@pytest.mark.slow
def test_a_bias_in_bfloat16_does_not_hide_the_order_of_products():
    a, w, bias = (normal(*shape, dtype="bfloat16", seed=i) for i, shape in enumerate(((14, 96), (800, 96), (800,))))
    check(lambda: F.linear(a, w, bias * 0.1))


GELU = {"none": F.gelu, "tanh": lambda x: F.gelu(x, approximate="tanh")}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", GELU)
def test_gelu_of_all_layouts(dtype, form):
    """All bfloat16 values in vector steps, scalar code and oneDNN; rests of rows, and float32 numbers between them."""
    gelu, half = GELU[form], torch.ops.aten.gelu_
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(DTYPES[dtype])
    between = every * normal(every.numel(), dtype=dtype, seed=1)
    x = normal(33, 50, dtype=dtype) * 3
    for function in (
        lambda: gelu(every), lambda: gelu(every.view(2, -1).t()), lambda: gelu(every.repeat_interleave(2)[::2]),
        lambda: gelu(between), lambda: gelu(between[1:].view(5, -1).t()), lambda: gelu(between[::3]),
        lambda: gelu(x[:, 1:31]), lambda: gelu(x[:, :1]), lambda: gelu(x[0, 0]), lambda: half(x + 0, approximate=form),
    ):  # fmt: skip
        check(function)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", GELU)
def test_gelu_of_millions_of_numbers(dtype, form):
    for seed in range(4):
        words = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=torch.Generator().manual_seed(seed))
        for x in (words.int().view(torch.float32), normal(1 << 20, seed=seed) * 4):
            x = x.to(DTYPES[dtype])
            for layout in (x, x.view(2, -1).t(), x.repeat_interleave(2)[::2]):
                check(functools.partial(GELU[form], layout))


def test_gelu_that_pytorch_computes_otherwise_is_an_error():
    x, out = normal(5, 40), torch.zeros(40, 5).t()
    with pytest.raises(ValueError, match=r"must have a contiguous result, got \(1, 5\)"), emulate():
        torch.ops.aten.gelu.out(x, out=out)
    rule = lp.stacks["torch_cpu"].rule("gelu")
    for wrong, words in (
        ({"dense": (CpuGelu("aten"),)}, "aten in dense code"), ({"scalar": CpuGelu("aten")}, "aten in scalar code"),
        ({"vector": CpuGelu("onednn")}, "onednn in vector code"),
    ):  # fmt: skip
        stack = lp.stacks["torch_cpu"].with_rules("wrong", {"gelu": rule.with_(**wrong)})
        with pytest.raises(ValueError, match=f"gelu must have the bits of {words}"), emulate(stack):
            [F.gelu(y) for y in (x, x.t())]
        given = stack.with_rules("given", {"gelu": rule.with_(**wrong, probed=False)})
        with emulate(given) as run:
            [F.gelu(y) for y in (x, x.t())]
        assert run.counts["gelu"].differing
    torch.set_num_threads(2)
    x = normal(100, 200)
    with pytest.raises(ValueError, match="gelu with threads must have at most 16384 elements, got 20000"), emulate():
        F.gelu(x.t())
    check(lambda: F.gelu(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_converted_model_with_gelu_has_the_bits_of_pytorch(dtype):
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 33), torch.nn.GELU(), torch.nn.Linear(33, 9), torch.nn.GELU(approximate="tanh")
    ).to(DTYPES[dtype])
    x = normal(7, 20, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(convert(copy.deepcopy(model), stack="torch_cpu", strict=True)(x), model(x))


def test_a_buffer_that_is_four_bytes_off_has_another_order():
    a, w = normal(2, 50), normal(32, 50, seed=1)
    off = torch.empty(2 * 50 + 1)[1:].view(2, 50).copy_(a)
    check(lambda: F.linear(off, w))
    check(lambda: F.linear(a, w))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype, causal):
    q, k, v = (normal(1, 2, 33, 24, dtype=dtype, seed=i) for i in range(3))
    check(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal))


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), [(1, 12), (1, 35), (35, 35), (40, 40)])
def test_attention_of_blocks_of_few_rows(m, n):
    """The last block of 32 queries has 1, 3 or 8 rows; products of few rows are added in other orders."""
    q, k, v = (normal(1, 2, size, 64, dtype="bfloat16", seed=i) for i, size in enumerate((m, n, n)))
    check(lambda: F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_attention_that_see_no_key_or_nan(dtype):
    q, k, v = (normal(1, 2, 5, 8, dtype=dtype, seed=i) for i in range(3))
    mask = torch.zeros(5, 5, dtype=q.dtype)
    mask[1], mask[2, 3] = -torch.inf, -torch.inf
    q[0, 1, 3, 0], q[0, 1, 4, 0] = torch.nan, torch.inf
    check(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


def test_threads_and_cpu_capability(monkeypatch):
    torch.set_num_threads(4)
    q, k, v = (normal(2, 2, 40, 32, seed=i) for i in range(3))
    check(lambda: F.scaled_dot_product_attention(q, k, v))
    assert torch.get_num_threads() == 4
    with pytest.raises(ValueError, match="silu with threads must have at most 32767 elements, got 32768"), emulate():
        F.silu(torch.zeros(1 << 15))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(ValueError, match="capability must be AVX512 for stack 'torch_cpu', got AVX2"), emulate():
        pass


def test_only_given_orders_replace_those_of_pytorch(tmp_path):
    x = normal(33, 50)
    product = lp.stacks["torch_cpu"].rule("mm").with_(orders=(lp.orders["halving"],))
    stacks = [lp.stacks["torch_cpu"].with_rules("halving", {"mm": product})]
    for i, row in enumerate(('source = "mine"', 'orders = ["halving"]')):
        (tmp_path / f"{i}.toml").write_text(f'base = "torch_cpu"\n[rules.sum]\n{row}\n[rules.mm]\n{row}\n')
        stacks.append(str(tmp_path / f"{i}.toml"))
    found = []
    for stack in stacks:
        with torch.no_grad(), emulate(stack) as run:
            x.sum(0)
            x @ x.T
        found.append([run.counts[name].differing > 0 for name in ("sum", "mm")])
    assert found == [[False, True], [False, False], [True, True]]


def test_operands_that_are_overwritten():
    x = normal(4, 3)
    for function in (lambda x: x.add_(x), lambda x: torch.mul(x, x, out=x), lambda x: x[:2].sub_(x[2:])):
        check(lambda f=function: f(x + 0))


def test_what_a_stack_does_not_know_is_an_error():
    x = normal(4, 600)
    with pytest.raises(ValueError, match="'torch_cpu': unknown operation 'elu'"), emulate():
        F.elu(x)
    y = x.clone()
    with pytest.raises(ValueError, match="unknown operation 'exp'"), emulate():
        y.exp_()
    assert torch.equal(x, y)
    with pytest.raises(ValueError, match=r"_to_copy must be in float32 or bfloat16, got torch\.float64"), emulate():
        x.double()
    with pytest.raises(ValueError, match="flash attention must have at most 512 keys, got 600"), emulate():
        F.scaled_dot_product_attention(*[x.view(1, 1, 600, 4)] * 3)
    with pytest.raises(ValueError, match="exponent must be 2 or 3, got 4"), emulate():
        x**4


def test_an_addmm_with_factors_or_another_addend_is_an_error():
    c, matrix, a, b = normal(5), normal(3, 5), normal(3, 8), normal(8, 5)
    with pytest.raises(ValueError, match=r"addmm must have beta 1, got 0\.5"), emulate():
        torch.addmm(c, a, b, beta=0.5)
    with pytest.raises(ValueError, match="addmm must have alpha 1, got 2"), emulate():
        torch.addmm(c, a, b, alpha=2)
    for function in (torch.addmm, torch.Tensor.addmm_):
        with pytest.raises(ValueError, match=r"addmm_? must have an addend \[N\], got shape \(3, 5\)"), emulate():
            function(matrix, a, b)


def test_parameters_of_another_dtype_than_the_rows_are_an_error():
    x, weight, bias = normal(3, 50, dtype="bfloat16"), normal(50), normal(50, seed=1)
    match = r"layer_norm must have parameters in torch\.bfloat16, got torch\.float32"
    with pytest.raises(ValueError, match=match), emulate():
        F.layer_norm(x, (50,), weight, bias)
    check(lambda: F.layer_norm(x, (50,)))


def test_means_of_bfloat16_are_rounded_once():
    x = normal(33, 50, dtype="bfloat16")
    for function in (
        lambda: x.mean(-1), lambda: x.mean(0), lambda: x.sum(-1, dtype=torch.float32), lambda: x.mean(),
        lambda: x.mean(-1, dtype=torch.float32), lambda: x.float().sum(-1, dtype=torch.bfloat16),
    ):  # fmt: skip
        check(function)


def test_attention_whatever_the_default_dtype_is():
    q, k, v = (normal(1, 1, 3, 8, dtype="bfloat16", seed=i) for i in range(3))
    torch.set_default_dtype(torch.float64)
    try:
        check(lambda: F.scaled_dot_product_attention(q, k, v))
    finally:
        torch.set_default_dtype(torch.float32)


def test_numbers_and_0d_operands_are_rounded_where_pytorch_rounds_them():
    x, s = normal(5, 37, dtype="bfloat16"), normal(1, seed=3)[0]
    for function in (
        lambda: x + 0.1, lambda: x - 0.1, lambda: x * 0.1, lambda: x / 0.1, lambda: x + s, lambda: s - x,
        lambda: x * s, lambda: s * x, lambda: x / s, lambda: s / x, lambda: x.clone().mul_(x), lambda: x + x.float(),
    ):  # fmt: skip
        check(function)


def test_vector_steps_of_sigmoid_follow_the_memory_of_input_and_output():
    for dtype in DTYPES:
        b = normal(33, 50, dtype=dtype) * 4
        out = torch.empty(50, 33, dtype=b.dtype).t()
        row = b[0, 1:2].expand(33, 50)
        for function in (
            lambda b=b: F.silu(b.clone()[:, 1:31], inplace=True),
            lambda b=b: torch.sigmoid(b.t()),
            lambda b=b: torch.sigmoid(b[::2].t()),
            lambda b=b, out=out: torch.sigmoid(b, out=out),
            lambda row=row: torch.sigmoid(row),
            lambda b=b: F.silu(b.view(3, 11, 50).transpose(0, 1)),
        ):
            check(function)


def test_empty_and_broadcast_operands():
    x, row, row16 = normal(5, 37), normal(37, seed=1), normal(37, seed=1, dtype="bfloat16")
    check(lambda: torch.zeros(5, 37).copy_(row))
    check(lambda: torch.zeros(5, 37).copy_(row16))
    check(lambda: x[:, :0].sum(-1))
    check(lambda: x[:, :0] @ x[:0])
    check(lambda: torch.addmm(row, x[:, :0], x[:0]))
    with torch.no_grad(), emulate() as run:
        assert x[:0].mean().isnan()
    assert not run.first


def test_what_a_rule_does_not_cover_is_an_error_that_names_the_operation():
    x, z = normal(5, 37), torch.zeros(3, 3, dtype=torch.complex64)
    base, index, threes = torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.tensor(3.0)
    for function, match in (
        (lambda: x**threes, "pow must be of a tensor and a number, got Tensor, Tensor"),
        (lambda: 2**x, "pow must be of a tensor and a number, got int, Tensor"),
        (lambda: torch.div(x, x, rounding_mode="floor"), "rounding_mode of div must be None, got 'floor'"),
        (lambda: z @ z, r"mm must be in float32 or bfloat16, got torch\.complex64"),
        (lambda: base.scatter(0, index, x[0, :2], reduce="add"), "scatter must only move values, got a reduction"),
        (lambda: x[:, :1].expand(5, 37).sum(-1), "sum must be over axes with nonzero strides"),
        (lambda: x[:, :1].expand(5, 37) @ x.t(), "product must be over an axis with a nonzero stride"),
        (lambda: torch._foreach_add_([base], 1.0), "unknown operation '_foreach_add'"),
    ):
        with pytest.raises(ValueError, match=match), torch.no_grad(), emulate():
            function()


def test_a_product_that_is_no_sum_is_named(monkeypatch):
    def random(*args):
        return torch.randn(args[0].shape[0], args[1].shape[1])

    monkeypatch.setattr(torch, "matmul", random)
    a, b = normal(3, 5), normal(5, 4)
    with pytest.raises(ValueError, match=r"mm must be a sum in one order, got operands \(3, 5\), \(5, 4\)"), emulate():
        torch.mm(a, b)


#: Runs of the ci lane; all others are exhaustive.
OFTEN = {
    (llama, "float32", "eager", (2, 33)), (llama, "bfloat16", "sdpa", (2, 33)), (llama, "float32", "sdpa", (1, 7)),
    (qwen3, "float32", "eager", (1, 7)), (qwen3, "bfloat16", "sdpa", (2, 33)),
    (qwen3_moe, "float32", "sdpa", (2, 33)), (qwen3_moe, "bfloat16", "eager", (1, 7)),
    (gpt2, "float32", "eager", (1, 7)), (gpt2, "bfloat16", "sdpa", (1, 7)),
    (deepseek, "float32", "sdpa", (2, 33)), (deepseek, "bfloat16", "eager", (2, 33)),
    (mixtral, "float32", "sdpa", (1, 7)), (mixtral, "bfloat16", "eager", (1, 7)),
    (neox, "float32", "sdpa", (1, 7)), (neox, "bfloat16", "eager", (2, 33)),
    (gemma2, "float32", "eager", (2, 33)), (gemma2, "bfloat16", "eager", (1, 7)),
}  # fmt: skip
RUNS = itertools.product(
    (llama, qwen3, qwen3_moe, gpt2, deepseek, mixtral, neox, gemma2), DTYPES, ("eager", "sdpa"), ((1, 7), (2, 33))
)


@pytest.mark.parametrize(
    ("make", "dtype", "attention", "shape"),
    [
        pytest.param(*run, marks=pytest.mark.ci if run in OFTEN else pytest.mark.exhaustive)
        for run in RUNS
        if (run[0], run[2]) != (gemma2, "sdpa")  # transformers refuses this pair
    ],
)
def test_no_logit_of_a_model_differs(make, dtype, attention, shape):
    model = make(dtype, attention)
    tokens = torch.randint(0, 250, shape, generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[: shape[0] - 1, :3] = 0  # the first row of a batch is padded on the left
    check(lambda: model(tokens, attention_mask=mask, use_cache=False).logits, "sin", "cos", "tanh")


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")  # transformers renamed the argument
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_logit_differs_with_a_cache(dtype):
    model = llama(dtype, "sdpa")
    tokens = torch.arange(11)[None]

    def decode():
        found = [out := model(tokens, use_cache=True)]
        for _ in range(4):
            next_token = found[-1].logits[:, -1:].argmax(-1)
            found.append(model(next_token, past_key_values=out.past_key_values, use_cache=True))
        return torch.cat([out.logits for out in found], 1)

    check(decode, "sin", "cos")


@pytest.mark.ci
def test_the_page_shows_what_its_code_prints(shows_what_it_prints):
    shows_what_it_prints(r"import emulate")


SEQUENTIAL = (lp.orders["sequential"],)
WRONG = {
    "mm": Product(SEQUENTIAL), "bmm": Product((lp.orders["halving"],)), "rsqrt": ReciprocalRoot(once=True),
    "mean": lp.stacks["torch_cpu"].rule("mean").with_(mean="reciprocal"), "sum": Sum(SEQUENTIAL, mean="division"),
    "silu": lp.stacks["torch_cpu"].rule("silu").with_(step=1 << 20),
}  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize("operation", WRONG)
def test_a_wrong_rule_is_named(operation):
    stack = lp.stacks["torch_cpu"].with_rules("wrong", {operation: WRONG[operation]})
    model = mixtral("float32", "eager")
    with torch.no_grad(), emulate(stack) as run:
        model(torch.arange(14).reshape(2, 7))
    differing = {name for name, count in run.counts.items() if count.differing}
    assert differing == {operation}
    assert run.first.startswith(operation)
