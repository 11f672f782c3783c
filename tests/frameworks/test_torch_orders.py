"""Orders of PyTorch on this computer: revealed, computed, and the families that are named after them."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.order.invariance import batch_invariance

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 8, 33, 300, 1100])
def test_sums_are_those_of_the_source(n):
    found = lp.reveal(torch.sum, n, samples=80)
    assert found == lp.orders["torch_cpu_sum"](n)
    x = np.random.default_rng(n).standard_normal((400, n)).astype(np.float32)
    assert (found.sum(x) == [float(torch.from_numpy(row).sum()) for row in x]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", [torch.sum, torch.dot])
def test_functions_of_torch_get_tensors(function, dtype):
    found = lp.reveal(function, 100, dtype=dtype, operands=1 + (function is torch.dot))
    assert found.out_format == dtype
    assert found.validated_against == f"0 of 200 sums of torch.{function.__name__} differ"


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2, 4, 8])
def test_products_have_an_order(m):
    """Whatever it is here: MKL takes another one for few rows."""

    def output(a, b):
        rows = torch.from_numpy(np.tile(a, (m, 1)))
        return torch.nn.functional.linear(rows, torch.from_numpy(np.tile(b, (32, 1))))[0, 0]

    assert lp.reveal(output, 200, operands=2, samples=60).validated_against.startswith("0 of 60")


def test_few_rows_change_bits_where_their_order_is_another():
    """At each change, the orders before and after differ; BF16's is the same for all of these rows here or is told."""
    found = batch_invariance(torch.nn.functional.linear, 200, 64, sizes=(1, 2, 3, 4, 8), dtype="float32")
    assert all(change.before != change.after for change in found.changes)
