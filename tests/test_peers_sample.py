"""The sample of cases beside other packages: fixed, with every value and every combination of the shorter axes."""

import itertools
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import peers
import pytest


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> peers.Sample:
    fresh = peers.Sample()
    monkeypatch.setattr(peers, "SAMPLE", fresh)
    return fresh


SIZES = [(1,), (7,), (20, 5), (5, 20), (3, 20), (2, 4, 20, 4), (1, 4, 20, 4), (20, 1), (2, 2)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.001])
def test_every_value_keeps_a_case(sizes: tuple[int, ...], share: float, sample: peers.Sample) -> None:
    sample.share = share
    axes = [range(size) for size in sizes]
    every = list(itertools.product(*axes))
    period = min(round(1 / share), min(max(sizes), len(every) // max(sizes)) if len(sizes) > 1 else max(sizes))
    phases = [peers.sampled("it", *axes, phase=phase) for phase in range(period)]
    assert sorted(itertools.chain(*phases)) == every  # each case is in one diagonal
    longest = sizes.index(max(sizes))
    for cases in phases:
        for i, size in enumerate(sizes if len(sizes) > 1 else ()):
            assert {case[i] for case in cases} == set(range(size))
        assert len(sizes) == 1 or {(*c[:longest], *c[longest + 1 :]) for c in cases} == {
            (*c[:longest], *c[longest + 1 :]) for c in every
        }
        assert cases
    assert peers.sampled("it", *axes, phase=period) == phases[0]
    assert sample.ran["it"] == len(every) + len(phases[0])
    assert sample.cases["it"] == (period + 1) * len(every)


def test_what_ran_is_said(sample: peers.Sample) -> None:
    sample.ran, sample.cases = Counter(a=2, b=3), Counter(a=20, b=3)
    assert sample.summary() == "peers: ran 5 of 23 cases (a 2 of 20, b 3 of 3); skipped packages: none"
    with pytest.raises(pytest.skip.Exception, match="needs nowhere: pip install"):
        peers.peer("nowhere.in_it")
    assert sample.summary().endswith("skipped packages: nowhere")


@pytest.mark.slow
def test_the_option() -> None:
    here = Path(__file__).parent
    test = f"{here}/cast/test_peers_casts.py::test_gfloat[e2m1]"
    command = [sys.executable, "-m", "pytest", "-m", "peers", "--peers-share=0.1", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "peers: ran 1 of 1 cases (other tests 1 of 1); skipped packages: none" in done.stdout


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_outside_of_0_to_1_is_refused(share: float, sample: peers.Sample) -> None:
    with pytest.raises(pytest.UsageError, match=f"--peers-share must be above 0 and at most 1, got {share}"):
        peers.pytest_configure(types.SimpleNamespace(getoption=lambda _: share))  # type: ignore[arg-type]
