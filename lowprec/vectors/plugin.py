"""A plugin of pytest: vector sets as a fixture. Nothing happens, and nothing is imported, unless a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .vectors import VectorSet


@pytest.fixture(scope="session")
def lowprec_vectors() -> Callable[..., VectorSet]:
    """Return what makes a set of test vectors by its name, `lowprec.testing.vectors`; each is made once a session.

    ``lowprec_vectors("cast/e4m3fn")["x"]`` are the inputs; ``.labels`` go to ``assert_bits_equal(..., labels=)``.
    """
    import functools

    from .catalogue import vectors

    return functools.cache(vectors)
