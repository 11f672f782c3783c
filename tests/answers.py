"""Digests of checks that have passed, so that the oracle does not compute the same fractions in every test run.

The oracle is slow and deterministic. ``once(check, *parts)`` runs a check that depends only on the oracle's code, the
file of the check, and `parts` (the operands *and* the result under test), unless `FILE` contains the digest of all
three. A wrong result has another digest and is therefore always checked. ``--oracle=ask`` runs all checks;
``--oracle=sample`` runs an eighth of those that have passed before, another one every day, as CI does.

``pytest --oracle=write`` rewrites the file; ``--oracle=add``, for a part of the tests, adds to it. Docstrings and
comments do not count; when the oracle's code or a file of checks changes, the digests are stale, and the checks run
until they are rewritten.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec
from lowprec.definitions.code import without_docstrings

FILE = Path(__file__).with_name("oracle_digests.txt")
SAMPLE = 8  # of so many digests, one is checked again by --oracle=sample
_TODAY = int(time.time()) // 86400
_mode: list[str | None] = [None]
_found: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--oracle``."""
    parser.addoption(
        "--oracle",
        choices=("ask", "sample", "write", "add"),
        help="run all checks against the oracle; sample: an eighth of those that passed; write: also store digests; "
        "add: store them beside those in the file",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read which checks must run though they have passed before."""
    _mode[0] = config.getoption("--oracle")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the digests of a worker; one that crashed has none, and pytest reports its test."""
    _found.update(getattr(node, "workeroutput", {}).get("digests", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the digests of all checks that passed, if all tests ran; a worker sends them to the main process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["digests"] = sorted(_found)
    elif (mode := session.config.getoption("--oracle")) in ("write", "add") and exitstatus in (0, 1):
        FILE.write_text("\n".join(sorted(_found | (known() if mode == "add" else set()))) + "\n")


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
            digest.update(f"{path.relative_to(package).as_posix()}\0{code(path)}\0".encode())
    return digest.digest()


@functools.cache
def code(path: Path) -> str:
    """Return the code of a file without docstrings and comments."""
    return ast.unparse(without_docstrings(path))


def _add(digest: Any, part: Any) -> None:
    if isinstance(part, np.ndarray):
        digest.update(f"{part.dtype.name}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    elif isinstance(part, tuple | list):
        digest.update(f"({len(part)}".encode())
        for each in part:
            _add(digest, each)
    elif isinstance(part, dict | set):
        raise TypeError(f"once: parts must be arrays, tuples or objects with a full repr, got {type(part).__name__}")
    else:
        digest.update(f"{part!r}\0".encode())


def once(check: types.FunctionType, *parts: Any, also: tuple[str, ...] = ()) -> None:
    """Run a check unless it has passed before, with the same oracle and the same parts.

    Parameters
    ----------
    check : function
        Function without parameters that raises AssertionError if the result differs from the oracle's.
    *parts
        Everything else that determines the outcome: arrays, tuples of them, and objects with a complete `repr`.
    also : tuple of str
        Further rooms of the package that determine the outcome.
    """
    digest = hashlib.sha256(sources(*also) + code(Path(check.__code__.co_filename)).encode())
    _add(digest, parts)
    key = digest.hexdigest()[:16]
    again = _mode[0] in ("ask", "write", "add") or (_mode[0] == "sample" and (int(key, 16) + _TODAY) % SAMPLE == 0)
    if again or key not in known():
        check()
    _found.add(key)
