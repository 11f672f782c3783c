"""Norms and softmax of PyTorch on this computer have the bits of their formulas, forward and backward."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
EPS = 1e-5


def llama_rms_norm(x, weight, bias):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


FUNCTIONS = {
    "torch_cpu_rms_norm": lambda x, w, b: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
    "llama_rms_norm_cpu": llama_rms_norm,
    "torch_cpu_layer_norm": lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, EPS),
    "torch_cpu_softmax": lambda x, w, b: torch.softmax(x, -1),
    "torch_cpu_log_softmax": lambda x, w, b: torch.log_softmax(x, -1),
}
CASES = [(name, key, dtype) for key in FUNCTIONS for name in lp.norms if name.startswith(key)
         for dtype in lp.norms[name].dtypes]  # fmt: skip


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name)).requires_grad_()


def differing(name, key, dtype, x, dy, weight, bias):
    """Return the number of outputs and gradients, and of those with other bits than PyTorch's."""
    x, dy, *parameters = (v if v is None else v.astype("f4").astype(DTYPES[dtype]) for v in (x, dy, weight, bias))
    norm, inputs = lp.norms[name], [v if v is None else tensor(v) for v in (x, *parameters)]
    out = FUNCTIONS[key](*inputs)
    out.backward(tensor(dy))
    given = parameters[: 0 if "soft" in name else 1 if "rms" in name else 2]
    found = (norm(x, *given, eps=EPS), *norm.gradient(dy, x, *given, eps=EPS))
    count = wrong = 0
    for mine, theirs in zip(found, (out, *(v if v is None else v.grad for v in inputs)), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            bits = theirs.detach().float().numpy().astype(mine.dtype).view(f"u{mine.itemsize}")
            count, wrong = count + mine.size, wrong + int((mine.view(bits.dtype) != bits).sum())
    return np.array([count, wrong])


@pytest.fixture
def avx512():
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs a CPU with AVX-512")


@pytest.mark.slow
@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize(("name", "key", "dtype"), CASES)
def test_all_bits_are_equal(name, key, dtype):
    rng = np.random.default_rng(0)
    for n in (1, 5, 17, 31, 80, 400):
        for rows in (1, 40):
            x, dy = rng.standard_normal((2, rows, n))
            x = x * 2.0 ** rng.integers(-6, 4, x.shape) + rng.choice([0, 3])
            weight, bias = rng.standard_normal((2, n))
            assert differing(name, key, dtype, x, dy, weight, bias)[1] == 0, (n, rows)
            if "layer" in name:
                for given in ((None, bias), (weight, None), (None, None)):
                    assert differing(name, key, dtype, x, dy, *given)[1] == 0, (n, rows)


LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 80, 100, 255, 400, 512, 1000, 2048, 4096)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("avx512")
def test_28_million_outputs_and_gradients_are_equal():
    rng, total = np.random.default_rng(7), np.zeros(2, np.int64)
    for name, key, dtype in CASES:
        for n, rows, kind in itertools.product(LENGTHS, (1, 2, 3, 8, 20), range(3)):
            x, dy = rng.standard_normal((2, rows, n))
            spread, centre = ((0, 1), 0) if kind == 0 else ((-6, 4), 0) if kind == 1 else ((-20, 6), 3)
            x = x * 2.0 ** rng.integers(*spread, x.shape) + centre
            total += differing(name, key, dtype, x, dy, *rng.standard_normal((2, n)))
    assert total.tolist() == [28_298_160, 0]
