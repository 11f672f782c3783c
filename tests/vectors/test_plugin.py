"""The pytest plugin, in a process of its own: off unless used, and what its messages say."""

import tomllib
from pathlib import Path

import pytest

from lowprec._jit import cache_folder

pytest_plugins = ["pytester"]

SUITE = """
import sys
import numpy as np
import pytest

def test_first_nothing_is_imported():
    assert not [name for name in sys.modules if name.startswith(("numba", "lowprec.oracle", "lowprec.format"))]

def test_right(lowprec_vectors):
    import lowprec as lp
    from lowprec.testing import assert_bits_equal
    s = lowprec_vectors("cast/e4m3fn")
    assert lowprec_vectors("cast/e4m3fn") is s
    assert_bits_equal(lp.encode(s["x"].view(np.float32), "e4m3fn"), s["y"], fmt="e4m3fn")

def test_wrong(lowprec_vectors):
    from lowprec.testing import assert_bits_equal
    s = lowprec_vectors("cast/e4m3fn", level=1)
    mine = np.where(s["y"] % 128 < 8, s["y"] & 128, s["y"]).astype(np.uint8)
    assert_bits_equal(mine, s["y"], fmt="e4m3fn", labels=s.labels, inputs=s["x"].view(np.float32))
"""

PRODUCTS = """
import lowprec as lp

def operands():
    return [lp.quantize(x, "e4m3fn 1x128") for x in lp.testing.operands("normal", 8, 8, 256)]

def test_right(lowprec_product, lowprec_tolerance):
    a, b = operands()
    d = lp.gemm(a, b)
    lowprec_product(d, a, b)
    assert lowprec_tolerance(a, b).test(d)

def test_wrong(lowprec_product):
    a, b = operands()
    lowprec_product(-lp.gemm(a, b), a, b)
"""


@pytest.fixture(autouse=True)
def cached_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folder of kernels, although pytester moves the home folder."""
    if cache_folder is not None:
        monkeypatch.setenv("LOWPREC_CACHE_DIR", str(cache_folder.parent))


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(SUITE)
    return pytester


@pytest.mark.slow
def test_fixture_and_message(suite: pytest.Pytester) -> None:
    done = suite.runpytest_subprocess("-p", "no:lowprec", "-p", "lowprec.vectors.plugin", "-q")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines([
        "E*AssertionError: 110 of 2094 differ:",
        "E*index *actual *expected *codes apart *input *exercises",
        "E*10 *0x00 (0) *0x01 (0.001953125) *1 *0.00097656* zero, one source ulp above the tie",
        "E*and 100 more",
    ])  # fmt: skip


@pytest.mark.slow
def test_fixtures_of_tolerances_judge_products(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PRODUCTS)
    done = pytester.runpytest_subprocess("-p", "no:lowprec", "-p", "lowprec.vectors.plugin", "-q")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["E*AssertionError: impossible: *It is what this does: sign.", "*1 failed, 1 passed*"])


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"lowprec": "lowprec.vectors.plugin"}


@pytest.mark.slow
def test_without_the_plugin_there_is_no_fixture(suite: pytest.Pytester) -> None:
    done = suite.runpytest_subprocess("-p", "no:lowprec", "-q")
    done.assert_outcomes(passed=1, errors=2)
