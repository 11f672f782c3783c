"""Norms, softmax and sums of PyTorch and Triton have the bits of an H200, where these are decided."""

import ml_dtypes
import numpy as np
import pytest
from recordings import h200, inputs_of_h200

import lowprec as lp
from lowprec.special.mufu import CudaFunction, MufuFunction

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
#: Norms of PyTorch; the bits of their special functions on the H200 are known.
TORCH = ["torch_cuda_softmax", "torch_cuda_log_softmax", "torch_cuda_rms_norm", "llama_rms_norm_cuda",
         "torch_cuda_layer_norm"]  # fmt: skip
EPS = {"torch_cuda_layer_norm": 1e-5}


def operands(name, dtype, n):
    """Return dy, and the arguments of a norm of two rows."""
    bell = inputs_of_h200().bell
    x, dy, weight, bias = bell(1, 2, n, scale=3), bell(2, 2, n), bell(3, n) + np.float32(1), bell(4, n)
    x, dy, weight, bias = (v.astype(DTYPES[dtype]) for v in (x, dy, weight, bias))
    return dy, ((x,) if "softmax" in name else (x, weight, bias) if "layer" in name else (x, weight))


def bits(x):
    return np.ascontiguousarray(x).view(f"i{x.itemsize}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*TORCH, "liger_rms_norm"])
def test_norms_of_an_h200(name, dtype):
    norm, eps = lp.norms[f"{name}_16" if name.startswith("liger") and dtype != "float32" else name], EPS.get(name, 1e-6)
    sizes = [n for n in inputs_of_h200().NORM_SIZES if norm.unaligned or norm.order.is_defined_for(n)]
    compared = 0
    for n in sizes:
        dy, given = operands(name, dtype, n)
        unknown = norm.undecided(*given, eps=eps)[0]
        right = h200()[f"{name}/{dtype}/{n}/y"]
        assert (bits(norm(*given, eps=eps)[0]) == right)[~unknown].all(), n
        compared += (~unknown).sum()
        if name not in TORCH and norm.backward:
            right = h200()[f"{name}/{dtype}/{n}/dx"]
            assert (bits(norm.gradient(dy, *given, eps=eps).dx[0]) == right).all(), n
    assert dtype == "float32" or compared > 0.99 * sum(sizes)


HOPPER = (("exp", CudaFunction("exp")), ("log", CudaFunction("log")), ("rsqrt", MufuFunction("rsqrt", flush=False)))


@pytest.mark.sampled(1, default=2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TORCH)
def test_with_hopper_s_functions_all_outputs_are_those_of_an_h200(name, dtype):
    norm, eps = lp.norms[name], EPS.get(name, 1e-6)
    used = {function for function, _ in norm.functions}
    norm = norm.with_(functions=tuple(pair for pair in HOPPER if pair[0] in used))
    for n in (n for n in inputs_of_h200().NORM_SIZES if norm.unaligned or norm.order.is_defined_for(n)):
        dy, given = operands(name, dtype, n)
        assert not norm.undecided(*given, eps=eps).any()
        assert (bits(norm(*given, eps=eps)[0]) == h200()[f"{name}/{dtype}/{n}/y"]).all(), n
        has_gradient = norm.unaligned or (norm.backward_order or norm.order).is_defined_for(n)
        if f"{name}/{dtype}/{n}/dx" in h200() and has_gradient:
            assert (bits(norm.gradient(dy, *given, eps=eps).dx[0]) == h200()[f"{name}/{dtype}/{n}/dx"]).all(), n


@pytest.mark.slow
def test_sums_of_an_h200():
    program, norm = inputs_of_h200(), lp.norms["llama_rms_norm_cuda"]  # it has the orders of the sums
    for n in program.SUM_SIZES:
        for rows in program.SUM_ROWS if n < 2000 else (1, 17):  # long orders take time to build
            order = norm.order_for(rows)(n)
            assert (bits(order.sum(program.bell(5, rows, n, scale=3))) == h200()[f"sum/{rows}/{n}"]).all(), (rows, n)


def test_few_bits_of_bfloat16_are_undecided_and_most_of_float32():
    x = inputs_of_h200().bell(1, 4, 512)
    assert lp.norms["vllm_rms_norm"].undecided(x).mean() > 0.5
    for name in ("vllm_rms_norm_16", "batch_invariant_rms_norm_16"):
        assert lp.norms[name].undecided(x.astype(ml_dtypes.bfloat16)).mean() < 0.01
