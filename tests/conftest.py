"""Fixtures and settings that all tests share; `lanes`, `answers` and `peers` are their plugins."""

import os
from collections.abc import Iterator

import answers
import lanes
import peers
import pytest
from hypothesis import settings

import lowprec as lp

pytest.register_assert_rewrite("contract", "toys")  # here, as more than one room imports them

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: threads of each would take turns
    os.environ.setdefault("LOWPREC_NUM_THREADS", "1")

# A kernel's first call compiles it, so a time limit on single examples would say nothing.
settings.register_profile("lowprec", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("lowprec")


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugins early enough for their options."""
    for plugin in (answers, lanes, peers):
        pluginmanager.register(plugin)


#: Examples in docstrings that compute by the stack `torch_cpu`.
_OF_AVX512 = ("lowprec.torch.emulation.emulate.emulate", "lowprec.torch.emulation.parity.parity")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the examples of an AVX-512 stack on CPUs without AVX-512."""
    some = [item for item in items if item.name in _OF_AVX512]
    if some:
        import torch

        if torch.backends.cpu.get_cpu_capability() != "AVX512":
            for item in some:
                item.add_marker(pytest.mark.skip(reason="needs a CPU with AVX-512"))


@pytest.fixture
def keep_threads() -> Iterator[None]:
    """Put the thread count back afterwards."""
    before = lp.get_num_threads()
    yield
    lp.set_num_threads(before)
