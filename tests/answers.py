"""Digests of checks that have passed, so that the oracle does not compute the same fractions in every test run.

The oracle is slow and deterministic. ``once(check, *parts)`` runs a check that depends only on the oracle's code and on
`parts` (the operands *and* the result under test), unless `FILE` contains the digest of both. A wrong result has
another digest and is therefore always checked. ``--oracle=ask``, or LOWPREC_ASK_ORACLE in the environment as in CI,
runs all checks.

``pytest --oracle=write`` rewrites the file. Docstrings and comments do not count; when the oracle's code changes, the
file is stale, and the checks run until it is rewritten.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec
from lowprec.definitions.code import without_docstrings

FILE = Path(__file__).with_name("oracle_digests.txt")
_asked: list[bool] = [False]
_found: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--oracle``."""
    parser.addoption(
        "--oracle", choices=("ask", "write"), help="run all checks against the oracle; write: also store their digests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read whether all checks must run."""
    _asked[0] = config.getoption("--oracle") is not None or "LOWPREC_ASK_ORACLE" in os.environ


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the digests of a worker; one that crashed has none, and pytest reports its test."""
    _found.update(getattr(node, "workeroutput", {}).get("digests", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the digests of all checks that passed, if all tests ran; a worker sends them to the main process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["digests"] = sorted(_found)
    elif session.config.getoption("--oracle") == "write" and exitstatus in (0, 1):
        FILE.write_text("\n".join(sorted(_found)) + "\n")


@functools.cache
def known() -> frozenset[str]:
    """Return the digests in the file."""
    return frozenset(FILE.read_text().split()) if FILE.exists() else frozenset()


@functools.cache
def sources(*more: str) -> bytes:
    """Return a digest of the code that determines the oracle's answers: its room, that of formats, and `more`."""
    digest = hashlib.sha256()
    package = Path(lowprec.__file__).parent
    for room in ("oracle", "format", *more):
        for path in sorted((package / room).rglob("*.py")):
            code = ast.unparse(without_docstrings(path))
            digest.update(f"{path.relative_to(package).as_posix()}\0{code}\0".encode())
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
        Function that raises AssertionError if the result differs from the oracle's.
    *parts
        Everything else that determines the outcome: arrays, tuples of them, and objects with a complete `repr`.
    also : tuple of str
        Further rooms of the package that determine the outcome.
    """
    digest = hashlib.sha256(sources(*also))
    _add(digest, parts)
    key = digest.hexdigest()[:16]
    if _asked[0] or key not in known():
        check()
    _found.add(key)
