"""What other suites import: reports of differences, strategies; and views of other packages' arrays."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from lowprec import interop, testing

F32 = np.float32


def test_equal_bits_pass() -> None:
    testing.assert_bits_equal(F32([1, -0.0, np.inf]), F32([1, -0.0, np.inf]))
    testing.assert_bits_equal(np.zeros((0, 3)), np.zeros((0, 3)))
    testing.assert_bits_equal(np.uint8([0x7F]), np.uint8([0xFF]), fmt="e4m3fn")
    testing.assert_bits_equal(np.array([1.0, np.nan], ml_dtypes.bfloat16), np.array([1.0, -np.nan], ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("a", "b", "options", "words"),
    [
        (F32([0.0]), F32([-0.0]), {}, r"index 0: 0x00000000 \(0\) is not 0x80000000 \(-0\)"),
        (F32([np.nan]), F32([-np.nan]), {"nan": "same_bits"}, "1 of 1 differ"),
        (F32([1.0]), np.float64([1.0]), {}, "float32 .* is not float64"),
        (F32([1.0, 2.0]), F32([1.0]), {}, "is not"),
        (np.uint8([[1, 2], [3, 4]]), np.uint8([[1, 2], [3, 6]]), {}, r"index \(1, 1\): 0x04 is not 0x06, 2 codes away"),
        (np.uint8([1]), np.uint8([2]), {"inputs": [0.003]}, "from 0.003"),
        (np.arange(9), np.arange(9) + 1, {"shown": 2}, "and 7 more"),
    ],
)
def test_differences_are_reported(a, b, options, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        testing.assert_bits_equal(a, b, **options)


def test_an_unknown_nan_policy() -> None:
    with pytest.raises(ValueError, match="nan='none'"):
        testing.assert_bits_equal([1.0], [1.0], nan="none")


@given(st.data(), st.sampled_from(["e4m3fn", "e5m2", "e2m1fn", "bfloat16", "int4", "p3109_k8p4se"]))
def test_strategies(data: st.DataObject, name: str) -> None:
    f = lp.formats[name]
    code = data.draw(testing.codes(f, allow_nan=False, allow_infinity=False))
    assert np.isfinite(f.value(code))
    x = data.draw(testing.values(f))
    assert np.isfinite(x)
    assert float(F32(x)) == x
    testing.assert_bits_equal(lp.round_to(F32(x), f), lp.decode(lp.encode(F32(x), f), f), fmt=None)


def test_values_hit_ties() -> None:
    """Among drawn numbers are midpoints and their neighbours: what tells one rounding from another."""
    seen = set()

    @given(testing.values("e2m1fn"))
    def collect(x: float) -> None:
        seen.add(abs(x))

    collect()
    assert {0.25, 2.5} & seen
    assert any(np.nextafter(F32(m), F32(9)) in seen for m in (0.25, 0.75, 2.5, 3.5, 5.0))


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2fnuz", "e8m0fnu", "e2m1fn", "bfloat16", "float16", "int4", "int8"])
def test_ml_dtypes_views(name: str) -> None:
    f = lp.formats[name]
    codes = np.arange(1 << min(f.bits, 8), dtype=f.code_dtype)
    there = interop.to_ml_dtypes(codes, name)
    assert np.shares_memory(there, codes)
    back, found = interop.from_ml_dtypes(there)
    assert np.shares_memory(back, codes)
    assert found is f
    with np.errstate(invalid="ignore"):
        assert np.array_equal(there.astype(np.float32), lp.decode(codes, name), equal_nan=True)


def test_what_has_no_type_there() -> None:
    with pytest.raises(ValueError, match="e5m6: no NumPy type has its codes; those of e4m3fn"):
        interop.to_ml_dtypes(np.zeros(1, np.uint16), "e5m6")
    with pytest.raises(TypeError, match="codes of e4m3fn are uint8, not int64"):
        interop.to_ml_dtypes(np.zeros(1, np.int64), "e4m3fn")
    with pytest.raises(ValueError, match="complex128"):
        interop.from_ml_dtypes(np.zeros(1, complex))


@pytest.mark.peers
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e8m0fnu", "bfloat16", "float16", "int8"])
def test_torch_views(name: str) -> None:
    pytest.importorskip("torch")
    f = lp.formats[name]
    codes = np.arange(256, dtype=f.code_dtype)
    tensor = interop.to_torch(codes, name)
    back, found = interop.from_torch(tensor)
    assert found is f
    codes[3] = 5
    assert back[3] == 5
    if name != "e8m0fnu":
        assert np.array_equal(tensor.float().numpy(), lp.decode(codes, name), equal_nan=True)
    with pytest.raises(ValueError, match="torch has no type"):
        interop.to_torch(np.zeros(1, np.uint16), "e5m6")
