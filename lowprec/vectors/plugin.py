"""pytest plugin with fixtures of vector sets and tolerances. It imports nothing until a test uses a fixture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


@pytest.fixture(scope="session")
def lowprec_product() -> Callable[..., None]:
    """Return `lowprec.testing.assert_product`: ``lowprec_product(got, a, b, accumulator="hopper_fp8")``."""
    import lowprec

    found: Callable[..., None] = lowprec.testing.assert_product
    return found


@pytest.fixture(scope="session")
def lowprec_tolerance() -> Callable[..., Any]:
    """Return `lowprec.tolerance`: ``lowprec_tolerance(a, b, out_format="bfloat16").atol_rtol()``."""
    import lowprec

    found: Callable[..., Any] = lowprec.tolerance
    return found
