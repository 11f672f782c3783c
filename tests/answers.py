"""Answers that the oracle has given before: their digests stand in a file, so that fractions are not computed again.

The oracle is slow, and what it says of given operands never changes. ``once(check, *parts)`` runs a check whose outcome
depends on the oracle's sources and on `parts` alone (the operands *and* the result under test), unless the digest of
both is on file. A wrong result has another digest, so it is always checked, and shown. ``--oracle=ask``, or
LOWPREC_ASK_ORACLE in the environment as in CI, runs all checks.

``pytest --oracle=write`` makes the file anew; it is stale, which costs time and nothing else, once the oracle changed.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec

FILE = Path(__file__).with_name("oracle_digests.txt")
_asked: list[bool] = [False]
_found: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that asks the oracle."""
    parser.addoption(
        "--oracle", choices=("ask", "write"), help="ask the oracle again; write: keep its answers' digests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Note whether answers on file count."""
    _asked[0] = config.getoption("--oracle") is not None or "LOWPREC_ASK_ORACLE" in os.environ


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the digests that a worker found; one that crashed has none, and pytest names its test."""
    _found.update(getattr(node, "workeroutput", {}).get("digests", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the digests of all answers that were right, if all tests ran; a worker hands them on."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["digests"] = sorted(_found)
    elif session.config.getoption("--oracle") == "write" and exitstatus in (0, 1):
        FILE.write_text("\n".join(sorted(_found)) + "\n")


@functools.cache
def known() -> frozenset[str]:
    """Return the digests on file."""
    return frozenset(FILE.read_text().split()) if FILE.exists() else frozenset()


@functools.cache
def sources(*more: str) -> bytes:
    """Return a digest of what the oracle's answers follow from: its room, that of formats, and `more`."""
    digest = hashlib.sha256()
    package = Path(lowprec.__file__).parent
    for room in ("oracle", "format", *more):
        for path in sorted((package / room).rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def _add(digest: Any, part: Any) -> None:
    if isinstance(part, np.ndarray):
        digest.update(f"{part.dtype.str}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    elif isinstance(part, tuple | list):
        digest.update(f"({len(part)}".encode())
        for each in part:
            _add(digest, each)
    else:
        digest.update(f"{part!r}\0".encode())


def once(check: Callable[[], object], *parts: Any, also: tuple[str, ...] = ()) -> None:
    """Run a check unless it has passed before, with the same oracle and the same parts.

    Parameters
    ----------
    check : callable
        Raises AssertionError where the result is not the oracle's.
    *parts
        All that decides the outcome beside the oracle: arrays, tuples of them, and what a `repr` says in full.
    also : tuple of str
        Rooms of the package whose sources decide it, too.
    """
    digest = hashlib.sha256(sources(*also))
    _add(digest, parts)
    key = digest.hexdigest()[:16]
    if _asked[0] or key not in known():
        check()
    _found.add(key)
