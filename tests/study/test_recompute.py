"""What is published follows from the CSVs beside it, by code that shares nothing with the package."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "recompute.py"


@pytest.fixture
def recompute():
    spec = importlib.util.spec_from_file_location("recompute", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_mean_interval_and_table_follows_from_the_pairs(recompute):
    assert "lowprec" not in {name.partition(".")[0] for name in vars(recompute)}
    assert list(recompute.differences()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "where"),
    [("-0.003 % [-0.032, +0.027]", "fp8_vs_bf16: (-0.005, "), ("-0.008 % [-0.055, +0.040]", "nvfp4_ingredients: ")],
)
def test_a_digit_that_was_changed_is_found(recompute, tmp_path, what, where):
    text = recompute.FINDINGS.read_text(encoding="utf-8")
    assert what in text
    recompute.FINDINGS = tmp_path / "findings.md"
    recompute.FINDINGS.write_text(text.replace(what, what.replace("-0.003 %", "-0.005 %").replace("-0.008", "-0.080")))
    (found,) = recompute.differences()
    assert found.startswith(where)


@pytest.mark.slow
def test_a_pair_that_was_changed_is_found(recompute):
    read = recompute.rows

    def changed(name):
        rows = read(name)
        if name == "fp8_vs_bf16_pairs.csv":
            rows[0]["r"] = str(float(rows[0]["r"]) + 1e-4)
        return rows

    recompute.rows = changed
    assert next(line.partition(":")[0] for line in recompute.differences()) == "fp8_vs_bf16 fp4_naive forward"
