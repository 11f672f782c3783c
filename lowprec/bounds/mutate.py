"""Mutation testing: runs of a suite in which a pytest plugin replaces its kernel by faulty ones.

The plugin (``-p lowprec.bounds.mutate``) reads its job from the environment, wraps the kernel before tests are
collected, records which tests call it and which fail, and restores it at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from .._checks import brief_repr, check_positive
from .faults import Fault, faults

_JOB = "LOWPREC_MUTATE"  # environment variable: target, fault and file of the record, as JSON


class Survival(NamedTuple):
    """Result of a suite under one fault.

    Attributes
    ----------
    fault : str
        Name of the fault.
    outcome : {"seen", "lived", "no change"}
        ``seen``: a test that calls the kernel failed; ``lived``: all passed; ``no change``: the fault has no effect.
    failed, passed : tuple of str
        Tests that call the kernel, by outcome; tests that passed did not detect the fault.
    """

    fault: str
    outcome: str
    failed: tuple[str, ...]
    passed: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    code: int
    calls: dict[str, bool]
    changed: bool
    output: str


def mutate(
    target: str, command: Sequence[str], names: Sequence[str] = (), *, timeout: float = 600.0
) -> Iterator[Survival]:  # fmt: skip
    """Run a test suite once per fault, with a kernel replaced by the faulty one, and yield the results.

    Parameters
    ----------
    target : str
        Kernel to replace, ``package.module:function`` or ``package.module:Class.method``.
    command : sequence of str
        Command of the suite: ``pytest`` and its arguments.
    names : sequence of str
        Names of faults; default: all faults that change outputs or one operand.
    timeout : float
        Time limit of one run in seconds; a fault with a longer run counts as seen.

    Yields
    ------
    Survival
        Result of one fault; a run without a fault comes first and has no result.

    Raises
    ------
    ValueError
        If the target cannot be imported, or the suite fails without a fault or never calls the kernel.
    """
    timeout = check_positive("mutate", "timeout", timeout)
    if not command or Path(command[0]).name not in ("pytest", "py.test"):
        raise ValueError(f"mutate: command must begin with pytest, got {' '.join(command)!r}")
    if target.count(":") != 1:
        raise ValueError(f"mutate: target must be package.module:function, got {target!r}")
    applicable = [name for name in faults if faults[name].output or faults[name].operand]
    chosen = [faults[name].name for name in names] or applicable
    if other := [name for name in chosen if name not in applicable]:
        raise ValueError(f"mutate: faults must need only outputs or an operand, got {other[0]!r}")
    clean = _run(target, "", command, timeout)
    last = next((line for line in reversed(clean.output.splitlines()) if line.strip()), "no output")
    if clean.code != 0:
        raise ValueError(f"mutate: the suite must pass without a fault, got exit code {clean.code}: {last}")
    if not clean.calls:
        raise ValueError(f"mutate: the suite must call {target}, got no test that does: {last}")
    for name in chosen:
        found = _run(target, name, command, timeout)
        failed = tuple(test for test in clean.calls if not found.calls.get(test, False))
        outcome = "seen" if failed else "lived" if found.changed else "no change"
        yield Survival(name, outcome, failed, tuple(test for test in clean.calls if test not in failed))


def _run(target: str, fault: str, command: Sequence[str], timeout: float) -> _Run:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record")
        job = json.dumps({"target": target, "fault": fault, "record": str(record)})
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, _JOB: job, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        # With a cache of results, a test could pass without running.
        whole = [sys.executable, "-m", "pytest", "-p", __name__, "-p", "no:cacheprovider", *command[1:]]
        try:
            done = subprocess.run(whole, env=env, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return _Run(-1, {}, True, f"stopped after {timeout:g} s")
        parts = [json.loads(part.read_text()) for part in record.parent.iterdir()]
        calls = {test: passed for calls, _ in parts for test, passed in calls.items()}
        return _Run(done.returncode, calls, any(changed for _, changed in parts), done.stdout + done.stderr)


# --- the plugin ------------------------------------------------------------------------------------------------------


class _Plugin:
    """Pytest plugin that wraps the kernel, and records the tests that call it."""

    def __init__(self, target: str, fault: str, record: str) -> None:
        self.record, self.test, self.calls, self.changed = record, "", dict[str, bool](), False
        module, path = target.split(":")
        self.owner: Any = importlib.import_module(module)
        *owners, self.name = path.split(".")
        for name in owners:
            self.owner = getattr(self.owner, name)
        self.original = getattr(self.owner, self.name)
        if not callable(self.original):
            raise TypeError(f"mutate: target must be a function, got {brief_repr(self.original)}")
        setattr(self.owner, self.name, self.wrapped(faults[fault] if fault else None))

    def wrapped(self, fault: Fault | None) -> Callable[..., Any]:
        """Return the kernel with a fault."""

        @wraps(self.original)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            if self.test:
                self.calls.setdefault(self.test, False)
            if fault is not None and fault.operand is not None:
                at = next((i for i, x in enumerate(args) if _is_array(x) and len(x.shape) > 1), None)
                if at is not None:
                    args = (*args[:at], self.noted(fault.operand(args[at]), args[at]), *args[at + 1 :])
            found = self.original(*args, **kwargs)
            return found if fault is None or fault.output is None else self.with_fault(found, fault.output)

        return kernel

    def with_fault(self, found: Any, output: Callable[[Any], Any]) -> Any:
        """Return a result with a fault, which is applied to each array of a tuple."""
        if isinstance(found, tuple | list):
            return type(found)(self.with_fault(x, output) for x in found)
        if not _is_array(found) or len(found.shape) == 0 or 0 in found.shape:
            return found
        return self.noted(output(found), found)

    def noted(self, wrong: Any, right: Any) -> Any:
        """Return a wrong array in the dtype of the right one, and record whether they differ."""
        wrong = wrong.to(right.dtype) if hasattr(wrong, "detach") else wrong.astype(right.dtype)
        both_nan = (wrong != wrong) & (right != right)
        self.changed = self.changed or bool(((wrong != right) & ~both_nan).any())
        return wrong

    def pytest_runtest_setup(self, item: Any) -> None:
        """Record which test is running."""
        self.test = item.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record whether a test that calls the kernel passes."""
        if report.when == "call" and report.nodeid in self.calls:
            self.calls[report.nodeid] = bool(report.passed)

    def pytest_unconfigure(self) -> None:
        """Restore the kernel, and write the record of this process; pytest-xdist has several."""
        setattr(self.owner, self.name, self.original)
        Path(f"{self.record}.{os.getpid()}").write_text(json.dumps([self.calls, self.changed]))


def pytest_configure(config: Any) -> None:
    """Replace the kernel that the environment names, if any."""
    if _JOB not in os.environ:
        return
    import pytest

    job = json.loads(os.environ[_JOB])
    try:
        plugin = _Plugin(**job)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"mutate: target must be importable, got {job['target']}: {error}") from error
    except TypeError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(plugin)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and "bool" not in str(x.dtype)
