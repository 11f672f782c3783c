"""Fixtures and helpers that tests of PyTorch's bits share."""

import re
from pathlib import Path

import pytest


@pytest.fixture
def one_thread():
    """Give PyTorch one thread: with more, its sums have other orders."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def avx512():
    """Skip a test if PyTorch does not use AVX-512, as the stack `torch_cpu` does."""
    import torch

    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs a CPU with AVX-512")


@pytest.fixture
def shows_what_it_prints(capsys):
    """Return a check that the code of docs/parity.md with a phrase prints what the page shows after it."""

    def check(phrase):
        page = (Path(__file__).parents[2] / "docs" / "parity.md").read_text()
        code, printed = re.search(rf"```python\n([^`]*{phrase}[^`]*)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
        exec(code, {})
        assert capsys.readouterr().out == printed

    return check
