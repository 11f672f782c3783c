"""Packages that tests compare with: import one, or skip and say what is missing; a sample of the cases."""

import importlib
import importlib.util
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from machine_inputs import Codes


class Sample:
    """The share of the cases that run, and what ran."""

    def __init__(self) -> None:
        self.share = 1.0  # --peers-share
        self.ran: Counter[str] = Counter()
        self.cases: Counter[str] = Counter()
        self.missing: set[str] = set()

    def summary(self) -> str:
        """Return what ran of what there is."""
        each = ", ".join(f"{name} {self.ran[name]} of {count}" for name, count in sorted(self.cases.items()))
        skipped = ", ".join(sorted(self.missing)) or "none"
        return f"peers: ran {self.ran.total()} of {self.cases.total()} cases ({each}); skipped packages: {skipped}"


SAMPLE = Sample()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that samples."""
    parser.addoption(
        "--peers-share", type=float, default=1.0, metavar="SHARE",
        help="share of the cases beside other packages (-m peers) that run: 0.1 takes every tenth diagonal of them",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Note the share."""
    SAMPLE.share = config.getoption("--peers-share")
    if not 0 < SAMPLE.share <= 1:
        raise pytest.UsageError(f"--peers-share must be above 0 and at most 1, got {SAMPLE.share}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Count a test beside other packages that takes no sample as one case."""
    before = SAMPLE.cases.total()
    yield
    if item.get_closest_marker("peers") and SAMPLE.cases.total() == before:
        SAMPLE.cases["other tests"] += 1
        SAMPLE.ran["other tests"] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what ran."""
    if SAMPLE.cases:
        terminalreporter.write_line(SAMPLE.summary())


def missing(name: str, problem: object) -> None:
    """Skip the test, or the file, because a package is missing."""
    SAMPLE.missing.add(name)
    pytest.skip(f"needs {name}: {problem}", allow_module_level=True)


def peer(name: str) -> ModuleType:
    """Import a package or skip; torch's import warns, and mmasim's compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if importlib.util.find_spec("torch"):
                importlib.import_module("torch").set_num_threads(1)  # more threads make small tiles 40 times slower
            return importlib.import_module(name)
        except Exception as problem:  # a missing compiler is not an ImportError
            missing(name.partition(".")[0], f"pip install '.[peers]', and a C++ compiler for mmasim: {problem!r}")
            raise


def sampled(package: str, *axes: Iterable[Any], phase: int = 0) -> list[tuple[Any, ...]]:
    """Return the cases to run of all combinations of some axes: a fixed diagonal of them, all if the share is 1.

    The longest axis is one side, all combinations of the others are the other side, and every p-th diagonal is taken.
    Where there are two axes or more, p is cut to the shorter side, so that every value of the longest axis and every
    combination of the others keeps a case.

    Parameters
    ----------
    package : str
        What the cases are counted as.
    *axes : iterables
        Names of operands, shapes ...
    phase : int
        Which of the p diagonals is the first: of several calls each takes other ones.
    """
    values = [list(axis) for axis in axes]
    longest = max(range(len(values)), key=lambda i: len(values[i]))
    rest = [i for i in range(len(values)) if i != longest]
    sides = len(values[longest]), len(list(itertools.product(*(values[i] for i in rest))))
    period = max(1, min(round(1 / SAMPLE.share), min(sides) if rest else sides[0]))
    cases = []
    for row, others in enumerate(itertools.product(*(values[i] for i in rest))):
        for column, value in enumerate(values[longest]):
            if (row + column - phase) % period == 0:
                case = dict(zip(rest, others, strict=True)) | {longest: value}
                cases.append(tuple(case[i] for i in range(len(values))))
    SAMPLE.ran[package] += len(cases)
    SAMPLE.cases[package] += sides[0] * sides[1]
    return cases


def tensor(codes: Codes, name: str) -> Any:
    """Codes as mmasim takes them."""
    import torch

    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[codes.dtype.itemsize]
    bits = torch.from_numpy(np.array(codes).view(f"int{8 * codes.dtype.itemsize}" if wide != torch.uint8 else "uint8"))
    if name in ("e3m2fn", "e2m3fn", "e2m1fn"):
        return bits << 2 if name == "e2m1fn" else bits  # FP4 lies in bits 2 to 5 of its byte
    types = {"e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz",
             "e5m2fnuz": "float8_e5m2fnuz", "e8m0fnu": "float8_e8m0fnu"}  # fmt: skip
    return bits.view(getattr(torch, types.get(name, name)))


def bits_of(result: Any) -> Codes:
    array = result.numpy()
    return array.view(f"uint{8 * array.dtype.itemsize}")
