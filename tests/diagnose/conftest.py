"""Clocks of searches: slow in all tests, counted in tests of a time limit."""

import time
from types import SimpleNamespace

import pytest
from dumps import Clock

from lowprec.diagnose import deadline
from lowprec.diagnose.check import search
from lowprec.diagnose.check.expected import Expected
from lowprec.diagnose.identify.candidate import GemmCandidate, MmaCandidate
from lowprec.diagnose.identify.identify import _answers
from lowprec.diagnose.identify.normal_form import NormalForms
from lowprec.diagnose.identify.readings import Reading


@pytest.fixture(autouse=True)
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give searches twenty times their time, so that what they find does not depend on the computer."""
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: time.monotonic() / 20))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that each output, proof, layout and prediction advances; no answers are remembered."""
    clock = Clock()
    monkeypatch.setattr(deadline, "time", clock)
    for stage, left in search._LEFT.items():
        monkeypatch.setitem(search._LEFT, stage, clock.counted(left))
    for owner, name in (
        (MmaCandidate, "outputs"), (GemmCandidate, "outputs"), (NormalForms, "_form"), (Reading, "of"),
        (Expected, "of"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, clock.counted(getattr(owner, name)))
    _answers().clear()
    return clock
