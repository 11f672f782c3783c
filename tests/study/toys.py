"""A small study with a trainer that takes milliseconds, and what a folder of runs holds."""

import os
import sys
from pathlib import Path

from fake_trainer import FAKE

from lowprec.study import Ablation, Arm, Setting, catalogue
from lowprec.study.run.store import read_json

#: The path by which other processes find this module and the fake trainer.
SEARCH = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
SMALL = Setting(config="nano", checkpoint_steps=30, branch_steps=20, checkpoints=2, seeds=2)


def ablation(*more, **changes):
    arms = (
        Arm("bf16", role="reference"),
        Arm("again", role="repeat", pairs=1),
        Arm("perturb", role="floor"),
        Arm("dsv3", recipe="dsv3", expected="equivalent", source="a report"),
        Arm("fp4_naive", recipe="fp4_naive", role="control"),
    )
    fields = {"name": "toy", "question": "Does it?", "arms": arms + more, "quick": SMALL, "full": SMALL}
    return Ablation(**(fields | changes))


def make(tmp_path, *more, setting=SMALL, data="stdlib", **changes):
    return ablation(*more, **changes).plan(setting, tmp_path / "toy", data=data, backend=FAKE)


def summarize(folder):
    """What a study found whose runs are in a folder."""
    return catalogue.results(folder).outcome


def place_of(planned, name):
    """The folder of an arm's run, or, as "checkpoints/c1", of a checkpoint that studies share."""
    if name.startswith("checkpoints/c"):
        return planned.checkpoints[int(name.removeprefix("checkpoints/c"))].folder.path
    return planned.folder / name


def snapshot(folder):
    """What every file holds, and which folders there are."""
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*")) if path.name != ".lock"}


def results(folder):
    """All that a run's numbers are, without the clock."""
    found = {}
    shared = (folder.parent / "checkpoints").glob("*/run.json")
    for path in sorted([*folder.glob("*/*/run.json"), *shared]):
        run = read_json(path)
        clocks = ("seconds", "evaluation_seconds", "timed_steps")
        rest = {key: value for key, value in run.items() if key not in clocks}
        metrics = path.with_name("metrics.csv")  # a killed run may not have come that far
        place = path.parent.relative_to(folder if path.is_relative_to(folder) else folder.parent)
        found[place] = (rest, metrics.read_bytes() if metrics.exists() else b"")
    return found
