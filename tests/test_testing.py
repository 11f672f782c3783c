"""What other suites import: reports of differences, strategies; and views of other packages' arrays."""

import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import peer
from refusals import refusals

import lowprec as lp
from lowprec import interop, testing

F32 = np.float32


def test_equal_bits_pass() -> None:
    testing.assert_bits_equal(F32([1, -0.0, np.inf]), F32([1, -0.0, np.inf]))
    testing.assert_bits_equal(np.zeros((0, 3)), np.zeros((0, 3)))
    testing.assert_bits_equal(np.uint8([0x7F]), np.uint8([0xFF]), fmt="e4m3fn", nan="any")
    testing.assert_bits_equal(np.uint8([0x80]), np.uint8([0]), fmt="e4m3fn", zero="any")
    one, other = (np.array([1.0, x], ml_dtypes.bfloat16) for x in (np.nan, -np.nan))
    testing.assert_bits_equal(one, other, nan="any")
    q = lp.quantize(np.float32([[1.0, np.nan, 0.0]]), "nvfp4_te")
    testing.assert_bits_equal(q, q)


def quantized(codes: int = 0, scale: int = 1, fmt: str = "e4m3fn") -> lp.Quantized:
    return lp.Quantized(np.uint8([[0x38 + codes, 0x80]]), F32([[scale]]), fmt, "1x128")


test_differences_are_reported = refusals(
    (
        (f"equal({call})", AssertionError, words)
        for call, words in (
            ("F32([0.0]), F32([-0.0])", r"0x00000000 \(0\)  0x80000000 \(-0\)  2147483648"),
            ("F32([0.0]), F32([-0.0]), nan='any'", "1 of 1 differ"),
            ("F32([np.nan]), F32([-np.nan])", "1 of 1 differ"),
            ("F32([np.nan]), F32([-np.nan]), zero='any'", "1 of 1 differ"),
            ("F32([1.0]), np.float64([1.0])", "float32 .* is not float64"),
            ("F32([1.0, 2.0]), F32([1.0])", "is not"),
            ("np.uint8([[1, 2], [3, 4]]), np.uint8([[1, 2], [3, 6]])", r"\(1, 1\)  0x04    0x06      2"),
            ("np.uint8([1]), np.uint8([2]), inputs=[0.003]", "0.003"),
            ("np.uint8([1]), np.uint8([2]), labels=['a tie']", "exercises\n.* a tie"),
            ("np.arange(9), np.arange(9) + 1, max_shown=2", "and 7 more"),
            ("np.arange(19), np.arange(19) + 1", "and 9 more"),
            ("quantized(), quantized(scale=2)", "^scale: 1 of 1 differ"),
            ("quantized(), quantized(codes=2)", r"^codes: 1 of 2 differ[^$]*0x38 \(1\)  0x3a \(1.25\)"),
            ("quantized(), quantized().codes", "both sides or none must be Quantized, got a ndarray"),
            ("quantized(), quantized(fmt='e5m2')", "e4m3fn .* is not e5m2"),
        )
    ),
    lambda: {"equal": testing.assert_bits_equal, "F32": F32, "quantized": quantized},
)
test_what_is_refused = refusals(
    [
        (
            "testing.assert_bits_equal([1.0], [1.0], nan='none')",
            "assert_bits_equal: nan must be 'payload' or 'any', got 'none'",
        ),
        (
            "testing.assert_bits_equal([1.0], [1.0], zero='none')",
            "assert_bits_equal: zero must be 'signed' or 'any', got 'none'",
        ),
        (
            "interop.to_ml_dtypes(np.zeros(1, np.uint16), 'e5m6')",
            "fmt must be one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e4m3b11fnuz, e4m3, e3m4,",
        ),
        (
            "interop.to_ml_dtypes(np.zeros(1, np.int64), 'e4m3fn')",
            TypeError,
            "codes of e4m3fn must be uint8, got int64",
        ),
        ("interop.from_ml_dtypes(np.zeros(1, complex))", "complex128"),
    ],
    lambda: {"testing": testing, "interop": interop},
)


@pytest.mark.peers
def test_bits_of_torch_and_jax() -> None:
    torch, jnp = peer("torch"), peer("jax.numpy")
    for one in (torch.tensor([1.0, -0.0]), jnp.array([1.0, -0.0])):
        testing.assert_bits_equal(one, one)
        testing.assert_bits_equal(one, F32([1.0, -0.0]))
        for dtype in ("bfloat16", "float8_e4m3fn", "float16"):
            of, other = (
                x.to(getattr(torch, dtype)) if isinstance(x, torch.Tensor) else x.astype(dtype) for x in (one, -one)
            )
            testing.assert_bits_equal(of, of)
            with pytest.raises(AssertionError, match=r"^1 of 2 differ[^$]* \(1\) .* \(-1\)"):
                testing.assert_bits_equal(of, other, zero="any")


@pytest.mark.slow
@given(st.data(), st.sampled_from(["e4m3fn", "e5m2", "e2m1fn", "bfloat16", "int4", "p3109_k8p4se"]))
def test_strategies(data: st.DataObject, name: str) -> None:
    f = lp.formats[name]
    code = data.draw(testing.codes(f, allow_nan=False, allow_infinity=False))
    assert np.isfinite(f.value(code))
    x = data.draw(testing.values(f))
    assert np.isfinite(x)
    assert float(F32(x)) == x
    testing.assert_bits_equal(lp.round_to(F32(x), f), lp.decode(lp.encode(F32(x), f), f), fmt=None)


@pytest.mark.slow
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


@pytest.mark.peers
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e8m0fnu", "bfloat16", "float16", "int8"])
def test_torch_views(name: str) -> None:
    peer("torch")
    f = lp.formats[name]
    codes = np.arange(256, dtype=f.code_dtype)
    tensor = interop.to_torch(codes, name)
    back, found = interop.from_torch(tensor)
    assert found is f
    codes[3] = 5
    assert back[3] == 5
    if name != "e8m0fnu":
        assert np.array_equal(tensor.float().numpy(), lp.decode(codes, name), equal_nan=True)
    with pytest.raises(ValueError, match="to_torch: fmt must be one of"):
        interop.to_torch(np.zeros(1, np.uint16), "e5m6")


FAILING = """
import numpy as np
import pytest
import lowprec as lp
from lowprec.testing import assert_bits_equal

def q(x, fmt="e4m3fn"):
    return lp.quantize(np.float32([[x, 4]]), f"{fmt} 1x128")

CASES = [(np.uint8([56, 57]), np.uint8([56, 58]), "e4m3fn"), (np.uint8([56, 57]), np.uint8([56]), None),
         (np.zeros(1, complex), np.zeros(1, complex), None), (q(1), q(2), None), (q(1), np.zeros(1), None),
         (q(1), q(1, "e5m2"), None)]

@pytest.mark.parametrize("case", range(6))
def test_it(case):
    a, b, fmt = CASES[case]
    assert_bits_equal(a, b, fmt=fmt)
"""


@pytest.mark.slow
def test_pytest_shows_the_table_and_not_our_source(tmp_path) -> None:
    (tmp_path / "test_theirs.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "6 failed" in output
    assert "1      0x39 (1.125)  0x3a (1.25)  1" in output
    assert "codes: 1 of 2 differ" in output
    places = [line for line in output.splitlines() if re.match(r"\S+\.py:\d+: AssertionError", line)]
    assert len(places) == 6
    assert all(place.startswith("test_theirs.py:") for place in places)
    assert "testing.py" not in output
    assert "__tracebackhide__" not in output
