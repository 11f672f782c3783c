"""pytest plugin with a fixture of vector sets. It imports nothing until a test uses the fixture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .vectors import VectorSet


@pytest.fixture(scope="session")
def lowprec_vectors() -> Callable[..., VectorSet]:
    """Return `lowprec.testing.vectors`, which makes a set by its name, cached for the session.

    ``lowprec_vectors("cast/e4m3fn")["x"]`` are the inputs. Pass ``.labels`` to ``assert_bits_equal(..., labels=)``.
    """
    import functools

    from .catalogue import vectors

    return functools.cache(vectors)
