"""Fixtures and settings that all tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

import lowprec as lp

# A kernel's first call compiles it, so a time limit on single examples would say nothing.
settings.register_profile("lowprec", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("lowprec")


@pytest.fixture
def keep_threads() -> Iterator[None]:
    """Put the thread count back afterwards."""
    before = lp.get_num_threads()
    yield
    lp.set_num_threads(before)
