"""The plan of a study: all its runs, in the order in which they start, and what each depends on.

The protocol is the one that resolves differences of 0.05 % with a few runs where training from scratch needs a
hundred: all arms start from the same BF16 checkpoint, see the same batches, and decay the learning rate to 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..._files import plain
from ..design.ablation import Ablation
from ..design.arms import Arm
from ..design.expectations import Expectation
from ..design.settings import Setting
from . import store
from .store import StudyError
from .tasks import Task

STUDY_FILE = "study.json"
BACKEND = "lowprec.study.run.trainer"
#: Arms of one checkpoint have data seeds from here on, this far apart: far from those of the checkpoints themselves.
SEEDS_PER_CHECKPOINT = 1000


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order in which they start.

    Attributes
    ----------
    ablation, setting : Any
        What is asked, and at which size.
    folder : Path
        Where it is kept.
    description : dict
        What `study.json` keeps: enough to report without the ablation's file.
    checkpoints, arms : tuple of Task
        The runs.
    """

    ablation: Any
    setting: Any
    folder: Path
    description: dict[str, Any]
    checkpoints: tuple[Task, ...]
    arms: tuple[Task, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All runs, checkpoints first."""
        return self.checkpoints + self.arms


def run_name(arm: Arm, checkpoint: int, seed: int) -> str:
    """Return the folder of a run below the study's."""
    return f"{arm.name}/c{checkpoint}-s{seed}"


def pairs_of(arm: Arm, setting: Setting) -> Iterator[tuple[int, int]]:
    """Yield (checkpoint, seed) of every pair of an arm."""
    for checkpoint in range(setting.checkpoints):
        for seed in range(setting.seeds if arm.pairs is None else min(arm.pairs, setting.seeds)):
            yield checkpoint, seed


def plan(
    ablation: Ablation, setting: Setting, folder: Path, *, data: str = "stdlib", backend: str | None = None
) -> Plan:
    """List the runs of a study; nothing is written.

    Raises
    ------
    UnknownNameError
        If a configuration or recipe is not in its catalogue.
    ValueError
        If the data cannot be used, or there are more seeds than places for them.
    """
    if setting.seeds > SEEDS_PER_CHECKPOINT:
        raise ValueError(f"seeds must be at most {SEEDS_PER_CHECKPOINT}, not {setting.seeds}")
    if not setting.from_scratch and setting.warmup_steps > setting.checkpoint_steps:
        raise ValueError(
            f"warmup_steps={setting.warmup_steps} are more than checkpoint_steps={setting.checkpoint_steps}"
        )
    backend = backend or BACKEND
    trainer = importlib.import_module(backend)
    data, common = what_all_share(data, backend)
    folder = folder.resolve()
    checkpoints = [
        checkpoint_task(setting, number, data, backend, common, folder)
        for number in range(0 if setting.from_scratch else setting.checkpoints)
    ]
    arms = []
    for arm in ablation.arms:
        for number, seed in pairs_of(arm, setting):
            schedule = {
                "peak": setting.learning_rate,
                "warmup_steps": setting.warmup_steps if setting.from_scratch else 0,
                "total_steps": setting.branch_steps,
                "kind": "linear_to_zero",
            }
            config = trainer.configuration(setting.config, arm.config) if arm.config else setting.config
            what = {
                **trainer.describe(config, arm.precision),
                "schedule": schedule,
                "seed": SEEDS_PER_CHECKPOINT * (number + 1) + seed,
                "perturb": arm.role == "floor",
                **({"weights": number} if setting.from_scratch else {"checkpoint": checkpoints[number].fingerprint}),
            }
            calibration = min(arm.calibration, setting.checkpoint_steps)
            if calibration:
                what["calibration"] = calibration
            tail = None
            if arm.tail is not None:
                tail = (arm.tail.begins(setting.branch_steps), arm.tail.precision)
                what["tail"] = {"from_step": tail[0], **trainer.describe(config, tail[1])["recipe"]}
            arms.append(
                Task(
                    run_name(arm, number, seed), folder, backend, config, arm.precision, data, what["seed"],
                    setting.branch_steps, schedule, {**what, **common},
                    "" if setting.from_scratch else checkpoints[number].name, what["perturb"],
                    weights_seed=number if setting.from_scratch else None, tail=tail, calibration=calibration,
                )
            )  # fmt: skip
    # Whole pairs early, and within a pair the arms that emulate (and take long) before the plain ones.
    arms.sort(key=lambda task: (task.name.rpartition("-s")[2].zfill(4), task.recipe_name == "bf16"))
    return Plan(ablation, setting, folder, describe(ablation, setting), tuple(checkpoints), tuple(arms))


def what_all_share(data: str, backend: str) -> tuple[str, dict[str, Any]]:
    """Return the data's resolved name, and the part of the fingerprint that all runs of a study have in common."""
    from lowprec.moe.data.corpus import SOURCES

    if data not in SOURCES:
        data = str(Path(data).resolve())
    common = {
        "data": importlib.import_module(backend).load_corpus(data).sha256,
        "code": store.code_hash(),
        "versions": store.versions(),
        "backend": backend,
    }
    return data, common


def checkpoint_task(
    setting: Any, number: int, data: str, backend: str, common: dict[str, Any], folder: Path, name: str = ""
) -> Task:
    """Return the run that trains BF16 checkpoint `number` of a setting."""
    schedule = {
        "peak": setting.learning_rate,
        "warmup_steps": setting.warmup_steps,
        "total_steps": setting.checkpoint_steps,
        "kind": "constant",
    }
    what = {
        **importlib.import_module(backend).describe(setting.config, "bf16"), "schedule": schedule, "seed": number,
    }  # fmt: skip
    return Task(
        name or f"checkpoints/c{number}", folder, backend, setting.config, "bf16", data, number,
        setting.checkpoint_steps, schedule, {**what, **common},
    )  # fmt: skip


def describe(ablation: Ablation, setting: Setting) -> dict[str, Any]:
    """Return what `study.json` keeps: enough to report without the ablation's file."""
    arms = tuple(replace(arm, recipe=arm.recipe_name, change={}, tail=None) for arm in ablation.arms)
    return {
        "kind": "ablation", "ablation": plain(replace(ablation, arms=arms)), "setting": plain(setting),
    }  # fmt: skip


def read_study(folder: Path) -> tuple[Ablation, Setting]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study.
    """
    if not (folder / STUDY_FILE).is_file():
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    content = store.read_json(folder / STUDY_FILE)
    try:
        fields = dict(content["ablation"])
        fields["arms"] = tuple(Arm(**arm) for arm in fields["arms"])
        fields["quick"], fields["full"] = Setting(**fields["quick"]), Setting(**fields["full"])
        fields["expectations"] = tuple(Expectation.of(item) for item in fields["expectations"])
        return Ablation(**fields), Setting(**content["setting"])
    except (KeyError, TypeError) as error:
        raise StudyError(f"{folder / STUDY_FILE} was written by another version of lowprec ({error})") from None
