"""Plans of studies: all runs in starting order, with the runs that they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import safe_name, to_jsonable
from ..._markup import html_table
from . import backend as backends
from .backend import Backend
from .fingerprint import code_hash, key_of, versions
from .tasks import Prepare, RunContext, Task


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in starting order.

    Attributes
    ----------
    study, setting : Any
        The study and its size.
    folder : Path
        Folder of the study.
    description : dict
        Content of `study.json`, which suffices for a report without the ablation's file.
    checkpoints, arms : tuple of Task
        Runs that train checkpoints, and runs of arms.
    """

    study: Any
    setting: Any
    folder: Path
    description: dict[str, Any]
    checkpoints: tuple[Task, ...]
    arms: tuple[Task, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All runs, checkpoints first."""
        return self.checkpoints + self.arms

    def __repr__(self) -> str:
        return f"<Plan {self.study.name}: {len(self.tasks)} runs ({self.setting}) into {self.folder}>"

    def _repr_html_(self) -> str:
        rows = [
            ("question", self.study.question), ("size", self.setting), ("checkpoints", len(self.checkpoints)),
            ("runs of arms", len(self.arms)), ("arms", ", ".join(arm.name for arm in self.study.arms)),
            ("folder", self.folder),
        ]  # fmt: skip
        return html_table(rows, title=self.study.name)


def create_context(data: str, backend: Backend | None = None) -> RunContext:
    """Load the data and return the context that all runs share; the default backend is `BACKEND`.

    Raises
    ------
    ValueError
        If the data cannot be used.
    """
    from lowprec.moe.data.sources import SOURCES

    backend = backend or backends.BACKEND
    data = data if data in SOURCES else str(Path(data).resolve())
    fingerprint = {
        "data": backend.load_corpus(data).sha256,
        "code": code_hash(),
        "versions": versions(),
        "backend": backend.name,
    }
    return RunContext(backend, data, fingerprint)


#: Folder of the BF16 checkpoints that studies share, next to the folders of the studies.
SHARED_CHECKPOINTS = "checkpoints"


def checkpoint_task(setting: Any, number: int, context: RunContext, studies: Path, config: Any = None) -> Task:
    """Return the run that trains BF16 checkpoint `number` of a setting; `config` replaces its model configuration.

    Its folder is next to those of the studies and is named by a hash of everything that affects its numbers. Studies
    with equal code, data, configuration, seed, steps and rates share it.
    """
    schedule = {
        "peak_lr": setting.learning_rate,
        "warmup_steps": setting.warmup_steps,
        "total_steps": setting.checkpoint_steps,
        "curve": "constant",
    }
    config = setting.config if config is None else config
    what = {**context.backend.describe(config, "bf16"), "schedule": schedule, "seed": number}
    what |= context.fingerprint
    name = (
        f"{safe_name('configuration', setting.config)}-{setting.checkpoint_steps}-c{number}-{key_of(to_jsonable(what))}"
    )
    work, steps = Prepare(schedule), setting.checkpoint_steps
    return Task(name, studies / SHARED_CHECKPOINTS, context, config, "bf16", number, steps, work, what)
