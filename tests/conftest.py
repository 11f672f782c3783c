"""Fixtures and settings that all tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from peers import SAMPLE

import lowprec as lp

# A kernel's first call compiles it, so a time limit on single examples would say nothing.
settings.register_profile("lowprec", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("lowprec")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--peers-share", type=float, default=1.0, metavar="SHARE",
        help="share of the cases beside other packages (-m peers) that run: 0.1 takes every tenth diagonal of them",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
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
    if SAMPLE.cases:
        terminalreporter.write_line(SAMPLE.summary())


@pytest.fixture
def keep_threads() -> Iterator[None]:
    """Put the thread count back afterwards."""
    before = lp.get_num_threads()
    yield
    lp.set_num_threads(before)
