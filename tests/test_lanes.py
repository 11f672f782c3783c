"""Lanes keep their size: what `costs.json` says of the functions in each adds up to less than their limits."""

import itertools
import json
import subprocess
from collections import Counter
from types import SimpleNamespace

import lanes
import pytest

LIMITS = {"fast": 126.0, "default": 1350.0}  # processor seconds, without compiling kernels
LARGEST = 0.5  # of a function in the fast lane, all its cases there together


def costs() -> dict[str, tuple[int, float]]:
    return {name: (cases, seconds) for name, (cases, seconds) in json.loads(lanes.COSTS.read_text()).items()}


def seconds_in(lane: str) -> dict[str, float]:
    """Seconds by function: those of its cases in a lane, by the mean of all that were measured."""
    known = costs()
    means = {name: seconds / cases for name, (cases, seconds) in known.items()}
    return {
        name: means[name] * getattr(cases, lane) if name in means else lanes.UNKNOWN * bool(getattr(cases, lane))
        for name, cases in lanes.collected.items()
    }


@pytest.mark.parametrize("lane", LIMITS)
def test_a_lane_is_within_its_limit(lane: str) -> None:
    spent = seconds_in(lane)
    largest = sorted(spent, key=spent.__getitem__, reverse=True)[:10]
    assert sum(spent.values()) <= LIMITS[lane], [f"{spent[name]:.1f} s {name}" for name in largest]


def test_a_function_of_the_fast_lane_is_fast() -> None:
    """Examples in docstrings have no lane: they count in the sums alone."""
    fast = seconds_in("fast").items()
    slow = {name: seconds for name, seconds in fast if name.startswith("tests/") and seconds > LARGEST}
    assert not slow, "mark them slow or sampled, or measure again with pytest --costs=write"


def test_costs_are_of_functions_that_exist() -> None:
    files = {name.split("::")[0] for name in lanes.collected}
    gone = [
        name
        for name in costs()
        if (name.split("::")[0] in files and name not in lanes.collected)
        or not (lanes.ROOT / name.split("::")[0]).exists()
    ]
    assert not gone


def test_every_room_is_in_the_fast_lane(request: pytest.FixtureRequest) -> None:
    if request.config.args != request.config.getini("testpaths"):
        pytest.skip("not all tests were collected")
    rooms: Counter[str] = Counter()
    for name, cases in lanes.collected.items():
        folder, _, rest = name.split("::")[0].removeprefix("tests/").partition("/")
        if name.startswith("tests/") and rest:
            rooms[folder] += cases.fast
    assert {room: count for room, count in rooms.items() if count < 10}.keys() <= {"frameworks"}, "needs torch or jax"


def test_a_sample_has_every_value_of_every_parameter() -> None:
    axes = {"name": 12, "family": 5, "kernel": 3}
    indices = [dict(zip(axes, places, strict=True)) for places in itertools.product(*map(range, axes.values()))]
    cases = [SimpleNamespace(callspec=SimpleNamespace(indices=each)) for each in indices]
    chosen = [indices[place] for place in lanes.spread(cases, 12)]
    assert len(chosen) == 12
    assert {axis: len({each[axis] for each in chosen}) for axis in axes} == axes
    assert lanes.spread(cases, 0) == []
    assert lanes.spread(cases, 1000) == list(range(len(cases)))


@pytest.mark.slow
def test_rooms_above_a_change_are_touched(tmp_path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "empty")
    assert lanes.touched(tmp_path, "HEAD") == set()
    (tmp_path / "lowprec/codec").mkdir(parents=True)
    (tmp_path / "lowprec/codec/new.py").write_text("")
    found = lanes.touched(tmp_path, "HEAD")
    assert {"codec", "recipe", "moe", "study", "cli"} <= found
    assert not {"format", "cast", "kernels", "tensorcore", "oracle"} & found
