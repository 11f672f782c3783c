"""The checks anybody can run: what they count, that they find a wrong rule, and what the command prints."""

import json
import re

import numpy as np
import pytest
from tools import command

import lowprec as lp
from lowprec.measure import selftest


def test_quick_checks_of_one_format_find_nothing() -> None:
    checks = list(selftest.self_tests(names=("float8_e5m2",)))
    assert len(checks) == 3
    for check in checks:
        worked: list[int] = []
        assert check.run(worked.append) == 0
        assert sum(worked) == check.inputs > 0


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x, name, **options):
        return lp.encode(x, name, **{**options, "rounding": "nearest_away"})

    x = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    assert selftest.differences(x, "e4m3fn") == 0
    monkeypatch.setattr(selftest, "encode", wrong)
    assert selftest.differences(x, "e4m3fn") == 128  # half of all ties have an even code below them; 464


def test_critical_inputs_have_ties_and_specials() -> None:
    x = selftest.critical("e2m1fn")
    assert {0.25, 0.75, 5.0, 9.0, np.inf, -np.inf} <= set(x[~np.isnan(x)].tolist())
    assert np.isnan(x).any()
    assert np.signbit(x[x == 0]).tolist() == [False, True]


def test_the_command() -> None:
    rows = json.loads(command("selftest", "--format", "e2m1fn", "--json"))
    assert [row["differences"] for row in rows] == [0, 0, 0]
    assert [row["inputs"] for row in rows][:2] == [65536, 16]
    wrong = command("selftest", "--exhaustive", "--format", "e5m6", code=2)
    assert re.search("selftest: formats must be among e4m3fn.*, got e5m6", wrong)


def test_cast_takes_rounding_policy_and_seed() -> None:
    def codes(*options: str) -> list[str]:
        return [row["code"] for row in json.loads(command("cast", "500", "1.01", "--to", "e4m3fn", "--json", *options))]

    assert codes() == ["0x7e", "0x38"]
    assert codes("--rounding", "up", "--policy", "torch_2_11") == ["0x7f", "0x39"]
    assert codes("--rounding", "stochastic", "--seed", "3")[0] == "0x7e"
    assert "seed must be an integer" in command("cast", "1", "--to", "e4m3fn", "--rounding", "stochastic", code=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", selftest.EXHAUSTIVE)
def test_every_float32(name: str) -> None:
    """All 2^32 inputs against ml_dtypes, codes of NaN included."""
    (check,) = selftest.self_tests(exhaustive=True, names=(name,))
    assert check.run(lambda n: None) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", selftest.EXHAUSTIVE)
def test_every_float32_saturates_and_rounds_alike(name: str) -> None:
    """On all 2^32 inputs: saturating codes are the others cut to the maximum, and round_to is decode of encode."""
    f, chunk = lp.formats[name], 1 << 24
    for start in range(0, 1 << 32, chunk):
        x = np.arange(start, start + chunk, dtype=np.int64).astype(np.uint32).view(np.float32)
        codes, free = lp.encode(x, f, policy="ocp_sat"), lp.encode(x, f, policy="ocp_nonsat")
        magnitude = np.abs(x)
        beyond = (lp.decode(free, f) != lp.decode(codes, f)) & ~np.isnan(x)
        assert np.all(magnitude[beyond] > f.max)
        assert np.all((codes[beyond] & ~np.array(f.sign_mask, codes.dtype)) == f.max_code)
        assert np.array_equal(codes[~beyond], free[~beyond])
        rounded, values = lp.round_to(x, f, policy="ocp_sat"), lp.decode(codes, f)
        assert np.array_equal(rounded.view(np.uint32), values.view(np.uint32))
