"""Arrays of torch and JAX as operands, of every type that is a format."""

import ml_dtypes
import numpy as np
import pytest
from refusals import refusals

import lowprec as lp

VALUES = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)
TYPES = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


def of_torch(array):
    torch = pytest.importorskip("torch")
    if array.dtype in (np.float32, np.float16):
        return torch.from_numpy(array.copy())
    words = array.view(np.uint16 if array.itemsize == 2 else np.uint8).copy()
    return torch.from_numpy(words).view(getattr(torch, array.dtype.name))


def of_jax(array):
    return pytest.importorskip("jax").numpy.asarray(array)


def same(a, b):
    return a.dtype == b.dtype and np.array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("of", [of_torch, of_jax])
@pytest.mark.parametrize("name", TYPES)
def test_operands(of, name):
    dtype = getattr(ml_dtypes, name, np.float16)
    array = VALUES.astype(dtype)
    theirs = of(array)
    assert same(lp.encode(theirs, "e5m6"), lp.encode(array, "e5m6"))
    assert same(lp.round_to(theirs, "e2m1fn"), lp.round_to(array, "e2m1fn"))
    if name != "float16":  # NumPy's own type, whose numbers may be meant as values
        assert same(lp.decode(theirs, name), lp.decode(array, name))
    assert lp.quantize(theirs, "e4m3fn 1x128") == lp.quantize(array, "e4m3fn 1x128")
    assert lp.sqnr(theirs, VALUES) == lp.sqnr(array, VALUES)
    assert same(lp.matmul_f32(theirs, theirs), lp.matmul_f32(array, array))
    if name in ("float8_e4m3fn", "float8_e5m2"):
        assert same(lp.mma(theirs, theirs), lp.mma(array, array))
        scale = np.ones((16, 1), np.float32)
        made = lp.Quantized(theirs, of(scale), name, "1x128")
        assert made == lp.Quantized(array, scale, name, "1x128")
        assert same(lp.gemm(made, made), lp.gemm(made, made))


@pytest.mark.parametrize("of", [of_torch, of_jax])
def test_the_wrong_type_says_so(of):
    with pytest.raises(TypeError, match="codes must be of e4m3fn, got float8_e5m2"):
        lp.decode(of(VALUES.astype(ml_dtypes.float8_e5m2)), "e4m3fn")


def test_a_tensor_with_gradients_and_one_that_is_not_contiguous():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(VALUES.copy()).requires_grad_()
    assert same(lp.encode(x, "e4m3fn"), lp.encode(VALUES, "e4m3fn"))
    assert same(lp.encode(x.t(), "e4m3fn"), lp.encode(VALUES.T, "e4m3fn"))


# --- results as asked ------------------------------------------------------------------------------------------------


def back(result):
    """Return the bits of a result as NumPy has them."""
    if type(result).__module__.startswith("torch"):
        torch = pytest.importorskip("torch")
        words = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}[result.element_size()]
        return result.view(words).numpy()
    return np.asarray(result)


@pytest.mark.parametrize("package", ["torch", "jax", "numpy"])
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "like an array"])
def test_results_are_as_asked(package, by_name):
    pytest.importorskip(package)
    like = package if by_name else {"torch": of_torch, "jax": of_jax, "numpy": np.asarray}[package](VALUES[:1])
    codes = lp.encode(VALUES, "e4m3fn")
    q = lp.quantize(VALUES, "e4m3fn 1x128")
    pairs = [
        (lp.encode(VALUES, "e4m3fn", like=like), codes),
        (lp.encode(VALUES, "bfloat16", like=like), lp.encode(VALUES, "bfloat16")),
        (lp.encode(VALUES, "e5m6", like=like), lp.encode(VALUES, "e5m6")),
        (lp.decode(codes, "e4m3fn", like=like), lp.decode(codes, "e4m3fn")),
        (lp.round_to(VALUES, "e2m1fn", like=like), lp.round_to(VALUES, "e2m1fn")),
        (lp.quantize_dequantize(VALUES, "e4m3fn 1x128", like=like), q.dequantize()),
        (q.dequantize(like=like), q.dequantize()),
        (q.arrays(like)[0], q.codes),
        (q.arrays(like)[1], q.scale),
        (lp.gemm(q, q, like=like), lp.gemm(q, q)),
        (lp.gemm(q, q, out_format="bfloat16", like=like), lp.gemm(q, q, out_format="bfloat16")),
        (lp.matmul_f32(VALUES, VALUES, like=like), lp.matmul_f32(VALUES, VALUES)),
        (lp.mma(codes, codes, like=like), lp.mma(codes, codes)),
    ]
    for asked, plain in pairs:
        assert type(asked).__module__.partition(".")[0] in (package, package + "lib")
        assert back(asked).tobytes() == plain.tobytes()
    for (asked, _), name in zip(pairs, ("float8_e4m3fn", "bfloat16"), strict=False):
        assert name in str(asked.dtype)
    assert "float32" in str(pairs[3][0].dtype)


def test_a_result_shares_memory():
    torch = pytest.importorskip("torch")
    out = np.empty_like(VALUES)
    asked = lp.round_to(VALUES, "e4m3fn", out=out, like=torch.zeros(1))
    asked[0, 0] = 99.0
    assert out[0, 0] == 99.0


test_refused = refusals([
    (f"lp.encode(np.ones(3), 'e4m3fn', like={like})", TypeError,
     "like must be an array of NumPy, torch or JAX or ")
    for like in ("'tensorflow'", "[1.0]", "3", "dict")
])  # fmt: skip
