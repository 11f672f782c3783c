"""A training run and a study that take moments, and whether what they left is whole."""

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
for _folder in ("moe", "study"):  # the small run of one, the fake trainer's study of the other
    if str(TESTS / _folder) not in sys.path:
        sys.path.append(str(TESTS / _folder))

from golden_runs import MIXED, golden, short_text  # noqa: E402
from toys import SMALL, make, results  # noqa: E402

from lowprec._files import read_csv, read_json  # noqa: E402
from lowprec.moe.run import checkpoint  # noqa: E402
from lowprec.moe.run.train import train  # noqa: E402
from lowprec.study import run_study  # noqa: E402

__all__ = ["SMALL", "WORKS", "check_whole", "command", "left_by", "results", "study", "train_micro"]

FILES = ("checkpoint.npz", "metrics.csv", "run.json")


def train_micro(out, steps=2, **changes):
    return train(
        golden.MICRO, MIXED, steps=steps, seed=1, data=short_text(300), ema=0.9, out=out, **{"save_every": 1, **changes}
    )


def left_by(folder):
    """All that a training run left, without the clock."""
    header, arrays = checkpoint.read(folder / "checkpoint.npz")
    head, rows = read_csv(folder / "metrics.csv")
    clock = head.index("seconds")
    curve = [[*row[:clock], *row[clock + 1 :]] for row in rows]
    return header, {name: array.tobytes() for name, array in arrays.items()}, curve, read_json(folder / "run.json")


def check_whole(folder):
    """Every file of a training run that is there can be read as a whole, and what is hidden is a rest to be removed."""
    for path in folder.glob("*"):
        if path.name == "checkpoint.npz":
            checkpoint.read(path)
        elif path.name == "metrics.csv":
            head, rows = read_csv(path)
            assert [int(row[head.index("step")]) for row in rows] == [*range(1, len(rows) + 1)]
        elif path.name == "run.json":
            assert {"config", "recipe", "status", "steps", "seed"} <= read_json(path).keys()
        else:
            assert path.name == ".lock" or path.name.endswith(".part"), path


def study(folder, **options):
    """Do, or go on with, a small study of the fake trainer."""
    return run_study(make(folder, setting=TINY), **{"jobs": 0, **options}).folder


TINY = SMALL.__class__(config="nano", checkpoint_steps=4, branch_steps=3, checkpoints=1, seeds=1, warmup_steps=1)


def check_whole_study(folder):
    """Every file of a study can be read; of a curve that is being written, all but the last row."""
    for path in folder.rglob("*"):
        if path.is_dir() or path.name in (".lock", ".stop") or path.name.endswith((".part", ".tmp")):
            continue
        if path.suffix == ".json":
            found = read_json(path)
            assert found.get("status", "done") in ("done", "running", "failed", "diverged"), path
            if found.get("status") == "done":
                _, rows = read_csv(path.with_name("metrics.csv"))
                assert len(rows) == found["steps"], path
        elif path.suffix == ".npz":
            json.loads(path.read_text())
        elif path.name == "windows.csv":  # losses of the held-out text: written whole, at the end
            head, rows = read_csv(path)
            assert {len(row) for row in rows} == {len(head)}, path
        else:
            assert path.name == "metrics.csv", path


class Work(NamedTuple):
    """What writes into a folder: how it begins and goes on, what it leaves, and whether that is whole."""

    begin: Callable
    go_on: Callable
    left_by: Callable
    check_whole: Callable


WORKS = {
    "train": Work(train_micro, functools.partial(train_micro, resume=True), left_by, check_whole),
    "study": Work(study, study, lambda folder: results(folder / "toy"), check_whole_study),
}


def command(program, *arguments):
    """Return what starts a program, given as text, that may import this module."""
    return [sys.executable, "-c", program, *map(str, arguments)]


def environment(**more):
    """Return variables under which it finds this module, the package and the fake trainer."""
    search = [str(TESTS / "faults"), str(TESTS / "study"), str(TESTS), str(TESTS.parent), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search), **more}
