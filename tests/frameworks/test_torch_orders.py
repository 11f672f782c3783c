"""Orders of PyTorch on this computer: revealed, computed, and the families that are named after them."""

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec.order.invariance import batch_invariance
from lowprec.order.rules import Tiles

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 5, 15, 33, 300, 1100])
def test_sums_are_those_of_the_source(n, dtype):
    found = lp.reveal(torch.sum, n, dtype=dtype, samples=80)
    expected = lp.orders["torch_cpu_sum"](n, dtype=dtype)
    assert found == (expected if n > 1 or dtype == "float64" else expected.with_(sum_format=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 192, 193, 400, 500, 1000])
def test_products_of_mkl_have_an_order_of_the_catalogue(n):
    """Blocks of 192 on AMD, of 384 on Intel, where two halves follow the first 384 of 1000."""
    if "mkl" not in torch.__config__.show().lower():
        pytest.skip("needs PyTorch with MKL")

    def output(a, b):
        rows, columns = torch.from_numpy(np.tile(a, (66, 1))), torch.from_numpy(np.tile(b, (80, 1)))
        return torch.nn.functional.linear(rows, columns)[0, 0]

    found = lp.reveal(output, n, operands=2, samples=60)
    if torch.cpu._is_amx_tile_supported() and n == 1000:
        assert str(found) == "(sum(x[0:384]) + sum(x[384:692])) + sum(x[692:1000])"
    else:
        assert found in [rule(n) for rule in lp.stacks["torch_cpu"].rule("mm").orders[:2]]


@pytest.mark.slow
def test_products_of_onednn_in_bfloat16_are_those_of_the_instruction():
    """Up to K = 512, where oneDNN's block ends; the order that is revealed flushes subnormals, as they do."""
    if not torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        pytest.skip("needs a CPU with AVX512_BF16 and without AMX")
    rng = np.random.default_rng(0)
    for k in (64, 511):
        x = rng.standard_normal((2, 32, k)) * 2.0 ** rng.integers(-68, -60, (2, 32, k))
        a, b = x.astype(ml_dtypes.bfloat16)
        mine = lp.round_to(lp.mma(a, b, accumulator="avx512_bf16"), "bfloat16")
        theirs = torch.nn.functional.linear(*(torch.tensor(y.astype("f4")).bfloat16() for y in (a, b)))
        assert (mine == theirs.float().numpy()).all()
        assert (mine == 0).mean() > 0.01

    def output(a, b):
        rows, columns = (torch.from_numpy(np.tile(y.astype("f4"), (32, 1))).bfloat16() for y in (a, b))
        return torch.nn.functional.linear(rows, columns)[0, 0].float().numpy().astype(a.dtype)

    found = lp.reveal(output, 64, dtype="bfloat16", operands=2)
    assert (found.flush, found.fma, found.sum_format) == (True, True, "float32")
    assert str(found).startswith("sum(x[0], x[1], x[3], x[2], x[5]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "first"), [(64, "(sum(x[0:32:2]) + sum(x[1:33:2]))"), (60, "(sum(x[0:30:2]) + sum(x[1:31:2]))")]
)
def test_products_of_amx_are_chains_of_tiles(k, first):
    """Two tiles: an even and an odd chain in each. Both halves of an element's pair are in one tile."""
    if not torch.cpu._is_amx_tile_supported():
        pytest.skip("needs a CPU with AMX")

    def output(a, b):
        rows, columns = (torch.from_numpy(np.tile(y.astype("f4"), (66, 1))).bfloat16() for y in (a, b))
        return torch.nn.functional.linear(rows, columns)[0, 0].float().numpy().astype(a.dtype)

    found = lp.reveal(output, k, dtype="bfloat16", operands=2)
    assert str(found).startswith(first)
    rules = [rule for rule in lp.stacks["torch_cpu"].rule("mm").orders if isinstance(rule, Tiles)]
    assert [found] == [rule(k, dtype="bfloat16") for rule in rules]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", [torch.sum, torch.dot])
def test_functions_of_torch_get_tensors(function, dtype):
    found = lp.reveal(function, 100, dtype=dtype, operands=1 + (function is torch.dot))
    assert found.out_format == dtype
    assert found.validated_against == f"0 of 200 sums of torch.{function.__name__} differ"


def order_of(m):
    def output(a, b):
        rows = torch.from_numpy(np.tile(a, (m, 1)))
        return torch.nn.functional.linear(rows, torch.from_numpy(np.tile(b, (64, 1))))[0, 0]

    return lp.reveal(output, 200, operands=2, samples=60)


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2, 4, 8])
def test_products_have_an_order(m):
    """Whatever it is here: MKL takes another one for few rows."""
    assert order_of(m).validated_against.startswith("0 of 60")


@pytest.mark.slow
def test_few_rows_change_bits_where_their_order_is_another():
    """Bits change between one row and eight where the orders differ, and nowhere else."""
    found = batch_invariance(torch.nn.functional.linear, 200, 64, sizes=(1, 8), dtype="float32")
    assert bool(found.changes) == (order_of(1) != order_of(8))
    assert all(change.before != change.after for change in found.changes)
