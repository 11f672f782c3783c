"""Norms and softmax of PyTorch on this computer have the bits of their formulas, forward and backward."""

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp

torch = pytest.importorskip("torch")
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
EPS = 1e-5


def llama_rms_norm(x, weight, bias):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


FUNCTIONS = {
    "torch_cpu_rms_norm": lambda x, w, b: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
    "llama_rms_norm_cpu": llama_rms_norm,
    "torch_cpu_layer_norm": lambda x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b, EPS),
    "torch_cpu_softmax": lambda x, w, b: torch.softmax(x, -1),
    "torch_cpu_log_softmax": lambda x, w, b: torch.log_softmax(x, -1),
}
CASES = [(name, key, dtype) for key in FUNCTIONS for name in lp.norms if name.startswith(key)
         for dtype in lp.norms[name].dtypes]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name)).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key", "dtype"), CASES)
def test_all_bits_are_equal(name, key, dtype):
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs a CPU with AVX-512")
    rng, norm = np.random.default_rng(0), lp.norms[name]
    for n in (1, 5, 17, 31, 80, 400):
        for rows in (1, 40):
            x, dy = (rng.standard_normal((rows, n)).astype("f4") for _ in range(2))
            x = (x * 2.0 ** rng.integers(-6, 4, x.shape) + rng.choice([0, 3])).astype(DTYPES[dtype])
            weight, bias = rng.standard_normal((2, n)).astype("f4").astype(DTYPES[dtype])
            dy, given = dy.astype(DTYPES[dtype]), {"weight": weight, "bias": bias} if "norm" in name else {}
            if "rms" in name:
                del given["bias"]
            inputs = [tensor(v) for v in (x, weight, bias)]
            out = FUNCTIONS[key](*inputs)
            out.backward(tensor(dy))
            found = (norm(x, **given, eps=EPS), *norm.gradient(dy, x, **given, eps=EPS))
            for mine, theirs in zip(found, (out, *(v.grad for v in inputs)), strict=True):
                if mine is not None:
                    bits = theirs.detach().float().numpy().astype(mine.dtype).tobytes()
                    assert mine.tobytes() == bits, (n, rows)
