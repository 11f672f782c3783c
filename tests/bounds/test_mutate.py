"""Suites under faults."""

import sys
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec.bounds import mutate as plugin
from lowprec.bounds.mutate import mutate

KERNEL = "def mm(a, b):\n    return a @ b\n"
SUITE = """
import numpy as np
from mutated_kernel import mm
rng = np.random.default_rng(0)
A, B = rng.standard_normal((8, 64)), rng.standard_normal((64, 8))
def test_loose():
    assert np.allclose(mm(A, B), A @ B, rtol=0.5, atol=0.1)
def test_shape():
    assert mm(A, B).shape == (8, 8)
def test_other():
    assert A.shape == (8, 64)
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    (tmp_path / "mutated_kernel.py").write_text(KERNEL)
    file = tmp_path / "test_suite.py"
    file.write_text(SUITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return file


@pytest.mark.ci
def test_faults_that_a_suite_lets_live_are_reported(suite):
    command = ["pytest", "-q", "--rootdir", str(suite.parent), str(suite)]
    found = {each.fault: each for each in mutate("mutated_kernel:mm", command, ("0.72x", "zeros", "NaN swallowed"))}
    assert {name: each.outcome for name, each in found.items()} == {
        "0.72x": "lived", "zeros": "seen", "NaN swallowed": "no change"
    }  # fmt: skip
    assert [name.rpartition("::")[2] for name in found["0.72x"].passed] == ["test_loose", "test_shape"]
    assert [name.rpartition("::")[2] for name in found["zeros"].failed] == ["test_loose"]


@pytest.mark.ci
def test_a_suite_may_run_in_several_processes(suite):
    command = ["pytest", "-q", "-n", "2", "--rootdir", str(suite.parent), str(suite)]
    (zeros,) = mutate("mutated_kernel:mm", command, ["zeros"])
    assert [name.rpartition("::")[2] for name in (*zeros.failed, *zeros.passed)] == ["test_loose", "test_shape"]


@pytest.mark.ci
def test_a_suite_that_cannot_be_judged_is_refused(suite):
    command = ["pytest", "-q", "--rootdir", str(suite.parent), str(suite)]
    with pytest.raises(ValueError, match="got no test that does"):
        next(mutate("numpy.linalg:qr", command))
    with pytest.raises(ValueError, match=r"must pass without a fault.*target must be importable"):
        next(mutate("mutated_kernel:nothing", command))
    suite.write_text("def test_fails():\n    assert False\n")
    with pytest.raises(ValueError, match="the suite must pass without a fault, got exit code 1"):
        next(mutate("mutated_kernel:mm", command))


def test_calls_that_name_no_suite_are_refused():
    with pytest.raises(ValueError, match="command must begin with pytest, got 'make test'"):
        next(mutate("a:b", ["make", "test"]))
    with pytest.raises(ValueError, match=r"target must be package\.module:function, got 'numpy\.dot'"):
        next(mutate("numpy.dot", ["pytest"]))
    with pytest.raises(TypeError, match=r"mutate: target must be a function, got 3\.14"):
        plugin._Plugin("math:pi", "", "")
    with pytest.raises(ValueError, match="faults must need only outputs or an operand, got 'never promoted'"):
        next(mutate("numpy:dot", ["pytest"], ["never promoted"]))


def test_the_kernel_is_wrapped_and_restored(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(tmp_path, "mutated_kernel.py").write_text(KERNEL)
    x = np.arange(512.0, dtype=np.float32).reshape(2, 256)
    y = x.T.copy()  # NumPy multiplies a matrix by its own transpose in another order
    for name in lp.testing.faults:
        fault = lp.testing.faults[name]
        if fault.output is None and fault.operand is None:
            continue
        wrapped = plugin._Plugin("mutated_kernel:mm", name, str(tmp_path / "record.json"))
        module = sys.modules["mutated_kernel"]
        got = module.mm(x, y)
        assert got.dtype == np.float32
        assert wrapped.changed == (name not in ("NaN swallowed", "NaN read as zero")), name
        assert (got != x @ y).any() == wrapped.changed
        wrapped.pytest_unconfigure()
        assert (module.mm(x, y) == x @ y).all()
