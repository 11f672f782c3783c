"""The lanes of the tests: which cases run when, what each costs, and that collecting them compiles nothing.

A test names its lane itself::

    @pytest.mark.slow          # not while one works: the default lane and CI
    @pytest.mark.ci            # CI alone
    @pytest.mark.sampled(6)    # six of its cases are fast, the others slow
    @pytest.mark.sampled(6, default=20)    # six are fast, fourteen more in the default lane, the others CI's

``pytest -m "not slow"`` is the fast lane, ``pytest`` the default one; ``--touched`` leaves out rooms that no change
reached. `costs.json` holds the processor seconds of each test function; ``pytest --costs=write`` measures them,
`test_lanes.py` adds them up, and ``--costs=check`` fails where a lane costs twice what it did. The sums come from the
file: no test reads a clock.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba.core.dispatcher
import numba.core.event
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import rooms

COSTS = Path(__file__).with_name("costs.json")
ROOT = COSTS.parents[1]
UNKNOWN = 0.3  # seconds of a function that costs.json does not list yet
OPTIONAL = ("torch", "jax")  # what needs them is skipped in the tests' own environment, and has no cost
HEAVIER = ("ci", "exhaustive", "peers", *OPTIONAL)  # marks that "not slow" leaves out as well


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that measure, and that choose."""
    parser.addoption(
        "--costs", choices=("write", "check"), help="measure processor seconds per test function: write them, or check"
    )
    parser.addoption(
        "--touched", nargs="?", const="HEAD", metavar="REV",
        help="only tests of rooms that changed since a revision, and of rooms that import them",
    )  # fmt: skip


# --- Which cases run ------------------------------------------------------------------------------------------------


def spread(cases: Sequence[Any], count: int) -> list[int]:
    """Return the places of `count` cases in which as many values of every parameter as possible occur.

    Each step takes the case with the most values not seen yet; ties go to the case that is next in an order that
    jumps by the golden ratio, so that values of the last parameter do not repeat in step with the others.
    """
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(len(cases)), key=lambda i: (i * golden) % 1)
    values = [set(case.callspec.indices.items()) for case in cases]
    seen: set[tuple[str, int]] = set()
    chosen: list[int] = []
    while order and len(chosen) < count:
        best = max(order, key=lambda i: len(values[i] - seen))
        seen |= values[best]
        chosen.append(best)
        order.remove(best)
    return sorted(chosen)


class Cases(NamedTuple):
    """How many cases of a test function are in the fast lane, in the default lane, and in CI."""

    fast: int
    default: int
    ci: int


collected: dict[str, Cases] = {}  # by function, of all that was collected, whatever is then deselected


def touched(root: Path, revision: str) -> set[str]:
    """Return the rooms with files that changed since a revision, of the package or of tests, and those above them."""
    git = ["git", "-C", str(root)]
    commands = ["diff", "--name-only", revision, "--"], ["ls-files", "--others", "--exclude-standard"]
    changed = [
        Path(name)
        for command in commands
        for name in subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    graph = rooms.room_graph()
    found = {path.parts[1].removesuffix(".py") for path in changed if path.parts[0] in ("lowprec", "tests")}
    while above := {room for room, used in graph.items() if used & found} - found:
        found |= above
    return found


def _of_rooms(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of rooms that did not change; folders of tests that are of no room are of all."""
    root, revision = config.rootpath, config.getoption("--touched")
    found, known = touched(root, revision), set(rooms.room_graph())
    left, out = [], []
    for item in items:
        parts = item.path.relative_to(root).parts
        room = parts[1].removesuffix(".py")
        (out if len(parts) > 1 and room in known and room not in found else left).append(item)
    items[:] = left
    config.hook.pytest_deselected(items=out)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that a sampled function leaves to slower lanes, and all of those lanes as slow."""
    if config.getoption("--touched"):
        _of_rooms(config, items)
    sampled: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            sampled.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in sampled.values():
        marker = cases[0].get_closest_marker("sampled")
        assert marker is not None
        fast = set(spread(cases, marker.args[0]))
        default = set(spread(cases, marker.kwargs.get("default", len(cases)))) | fast
        for place, case in enumerate(cases):
            if place not in default:
                case.add_marker(pytest.mark.ci)
            elif place not in fast:
                case.add_marker(pytest.mark.slow)
    for item in items:
        if any(item.get_closest_marker(name) for name in HEAVIER):
            item.add_marker(pytest.mark.slow)
        lane = 0 if item.get_closest_marker("slow") is None else 1
        if item.get_closest_marker("ci"):
            lane = 2
        if not any(item.get_closest_marker(name) for name in ("exhaustive", "peers", *OPTIONAL)):
            counts = list(collected.get(item.nodeid.split("[")[0], (0, 0, 0)))
            for place in range(lane, 3):
                counts[place] += 1
            collected[item.nodeid.split("[")[0]] = Cases(*counts)


# --- No kernel while tests are collected ----------------------------------------------------------------------------

_dispatcher = numba.core.dispatcher.Dispatcher
_compile = _dispatcher.compile
_kernels: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Note the kernels that are compiled, or loaded, before the first test runs."""

    def noted(self: Any, signature: Any) -> Any:
        _kernels.append(f"{self.py_func.__module__}.{self.py_func.__qualname__}")
        return _compile(self, signature)

    _dispatcher.compile = noted
    if config.getoption("--costs"):
        config.pluginmanager.register(Meter(config), "lowprec-costs")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse test files that compute at import: every worker and every selection of tests would pay for it."""
    _dispatcher.compile = _compile
    if _kernels:
        raise pytest.UsageError(
            f"collecting the tests ran {len(_kernels)} kernels, first {_kernels[0]}: "
            "make what computes at import of a test file a functools.cache function that its tests call"
        )


# --- What tests cost ------------------------------------------------------------------------------------------------


class Meter(numba.core.event.Listener):
    """Processor seconds of each test function: its own and its children's, without what Numba compiles."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.compiling, self.depth, self.started = config, 0.0, 0, 0.0
        self.seconds: dict[str, float] = {}
        self.cases: dict[str, int] = {}
        numba.core.event.register("numba:compile", self)

    def on_start(self, event: Any) -> None:
        """Start the clock at the outermost compilation: a kernel compiles those that it calls."""
        self.depth += 1
        if self.depth == 1:
            self.started = self.clock()

    def on_end(self, event: Any) -> None:
        """Add the time of the outermost compilation."""
        self.depth -= 1
        if self.depth == 0:
            self.compiling += self.clock() - self.started

    @staticmethod
    def clock() -> float:
        """Return the user seconds of this process and of its children that ended."""
        return sum(resource.getrusage(caller).ru_utime for caller in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Measure setup, call and teardown of a test."""
        before, compiled = self.clock(), self.compiling
        result = yield
        function = item.nodeid.split("[")[0]
        spent = self.clock() - before - (self.compiling - compiled)
        self.seconds[function] = self.seconds.get(function, 0.0) + max(spent, 0.0)
        self.cases[function] = self.cases.get(function, 0) + 1
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker measured."""
        for name, (cases, seconds) in node.workeroutput["costs"].items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.cases[name] = self.cases.get(name, 0) + cases

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or compare with it; a worker hands on what it measured."""
        found = {name: (self.cases[name], seconds) for name, seconds in sorted(self.seconds.items())}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = found
            return
        measured = {name: (cases, float(f"{seconds:.2g}")) for name, (cases, seconds) in found.items()}
        known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        if self.config.getoption("--costs") == "write":
            files = {name.split("::")[0] for name in collected}
            # A run of one function of a file says nothing about the others: only functions that are gone go.
            kept = {
                name: cost
                for name, cost in known.items()
                if name in collected or (name.split("::")[0] not in files and (ROOT / name.split("::")[0]).exists())
            }
            lines = [f"{json.dumps(name)}: {json.dumps(cost)}" for name, cost in sorted({**kept, **measured}.items())]
            COSTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            return
        expected = {
            name: known[name][1] / known[name][0] * cases for name, (cases, _) in measured.items() if name in known
        }
        grown = sorted(expected, key=lambda name: measured[name][1] - expected[name], reverse=True)
        report: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        for name in grown[:20]:
            report.write_line(f"{measured[name][1]:8.2f} s, {expected[name]:.2f} s in costs.json: {name}")
        total, before = sum(measured[name][1] for name in expected), sum(expected.values())
        if total > 2 * before:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            report.write_line(f"these tests take {total:.0f} processor seconds, twice the {before:.0f} of costs.json")
