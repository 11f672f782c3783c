"""Studies of the same weights: every arm computes one batch forward and backward, and is compared with a reference.

Nothing is trained but the BF16 checkpoints, so nothing is noisy: the same bits come out every time, and a difference of
recipes is seen where branches of trainings would need hours. What it cannot show is where a training ends.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from ...._files import plain, to_csv, write_text
from ...design.ablation import Arm, parsed_changes
from ...design.expectations import Expectation
from ...design.quantities import LAYER_METRICS, METRICS
from ...design.stress import Healthy, Stress
from ...run import plans, store
from ...run.plans import Plan, checkpoint_task, what_all_share
from ...run.tasks import Task, corpus_of, described, stop

LAYERS_FILE = "layers.csv"
#: Folder, beside those of the studies, of the BF16 checkpoints that they share.
SHARED_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class WeightsSetting:
    """How large a study of the same weights is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the measurement.
    checkpoints : int
        Independent checkpoints.
    seeds : int
        Batches of held-out text per checkpoint.
    learning_rate : float
        Constant rate of the checkpoints' training.
    warmup_steps : int
        Its linear warm-up.
    """

    config: str = "nano"
    checkpoint_steps: int = 300
    checkpoints: int = 1
    seeds: int = 2
    learning_rate: float = 2e-3
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("checkpoint_steps", "checkpoints", "seeds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if isinstance(self.warmup_steps, bool) or not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be a whole number of at least 0, not {self.warmup_steps!r}")
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be positive and finite, not {self.learning_rate!r}")

    def __str__(self) -> str:
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then {self.checkpoints * self.seeds} batches per arm"

    def with_(self, changes: dict[str, str | int | float]) -> WeightsSetting:
        """Return the setting with some fields changed; text is parsed as the field's type.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ValueError
            If a value cannot be read or is out of range.
        """
        return replace(self, **parsed_changes(self, changes))


@dataclass(frozen=True)
class SameWeights:
    """One question put to the same weights in several precisions.

    Parameters
    ----------
    name, question : str
        As in `Ablation`.
    arms : tuple of Arm
        The precisions; exactly one is the reference, which nothing but its own rounding separates from the truth.
    expectations : tuple of Expectation
        What was written down before the first run.
    published, source : str
        The published result, and where.
    quick, full : WeightsSetting
        Two sizes.
    stresses : tuple of Stress
        The conditions; every arm is measured under each.
    headline : str
        The metric of the figure and of the order.
    notes : str
        What this size cannot show.
    """

    name: str
    question: str
    arms: tuple[Arm, ...]
    expectations: tuple[Expectation, ...] = ()
    published: str = ""
    source: str = ""
    quick: WeightsSetting = WeightsSetting()
    full: WeightsSetting = WeightsSetting("pilot", checkpoint_steps=400, checkpoints=2, seeds=4)
    stresses: tuple[Stress, ...] = (Healthy(),)
    headline: str = "kl_percent"
    notes: str = ""
    tier: ClassVar[str] = "T2"
    planner: ClassVar[str] = "lowprec.study.kinds.same_weights.study"

    def __post_init__(self) -> None:
        for what, names in (("arm", [arm.name for arm in self.arms]), ("stress", [s.name for s in self.stresses])):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice or not names:
                raise ValueError(f"study {self.name!r}: every {what} needs a name of its own, got {names}")
        references = [arm.name for arm in self.arms if arm.role == "reference"]
        if len(references) != 1:
            raise ValueError(f"study {self.name!r}: exactly one arm is the reference, got {references}")
        if self.headline not in METRICS:
            raise ValueError(f"study {self.name!r}: headline {self.headline!r} is not one of {', '.join(METRICS)}")
        for arm in self.arms:
            if arm.tail is not None or arm.config:
                raise ValueError(f"arm {arm.name!r}: a tail or another configuration goes with branches, not one batch")
        arms, stresses = {arm.name for arm in self.arms}, {stress.name for stress in self.stresses}
        for item in self.expectations:
            for kind, name, known in (
                ("metric", item.metric, METRICS.keys()), ("arm", item.arm, arms), ("arm", item.over or item.arm, arms),
                ("stress", item.stress or self.stresses[0].name, stresses),
            ):  # fmt: skip
                if name not in known:
                    raise ValueError(
                        f"study {self.name!r}: expectation {item.words!r} names the unknown {kind} {name!r}"
                    )

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")


@dataclass(frozen=True)
class Measurement(Task):
    """One arm at one checkpoint: all conditions, all batches.

    Parameters
    ----------
    reference : str or Recipe
        The precision to compare with.
    stresses : tuple of Stress
        The conditions.
    """

    reference: Any = "bf16"
    stresses: tuple[Stress, ...] = field(default=(Healthy(),), hash=False)

    def execute(self) -> dict[str, Any]:
        """Measure, and return the finished `run.json`."""
        from lowprec.recipe import recipes

        from ...analysis.comparison import compare, compare_layers, record

        corpus, folder = corpus_of(self), self.folder
        folder.remove()
        folder.start(described(self))
        began = time.monotonic()
        trainer = importlib.import_module(self.backend).Trainer.load(self.checkpoint_file, data=corpus)
        config, batches = trainer.config, self.steps // len(self.stresses)
        head = ("stress", "batch", "layer", "kind", *LAYER_METRICS)
        layers: list[tuple[Any, ...]] = []
        for stress in self.stresses:
            for batch in range(batches):
                stop(self)
                tokens = _windows(corpus, config.sequence, config.batch, batches)[batch]
                theirs = record(trainer.model, recipes.get(self.reference), stress, tokens, self.seed)
                ours = record(trainer.model, recipes.get(self.recipe), stress, tokens, self.seed)
                folder.append({"stress": stress.name, "batch": batch, **compare(ours, theirs)})
                for layer, kind, values in compare_layers(ours, theirs):
                    layers.append((stress.name, batch, layer, kind, *values.values()))
        write_text(folder.path / LAYERS_FILE, to_csv(head, layers))
        seconds = time.monotonic() - began
        folder.finish("done", seconds=seconds, evaluation_seconds=0.0, timed_steps=self.steps)
        return folder.read() or {}


def _windows(corpus: Any, sequence: int, batch: int, batches: int) -> list[Any]:
    """Return batches of held-out text, uint8 [batch, sequence + 1] each."""
    from lowprec.moe.data.corpus import held_out_windows

    windows = held_out_windows(corpus, sequence, batches * batch * sequence)
    if len(windows) < batches * batch:
        raise store.StudyError(
            f"the held-out text has {len(windows)} windows, {batches} batches of {batch} are needed: fewer --seeds"
        )
    return [windows[i * batch : (i + 1) * batch] for i in range(batches)]


def plan(
    study: SameWeights, setting: WeightsSetting, folder: Path, *, data: str = "stdlib", backend: str | None = None
) -> Plan:
    """List the runs of a study; nothing is written.

    The BF16 checkpoints lie beside the study's folder and serve every study with the same code, data and sizes.

    Raises
    ------
    UnknownNameError
        If a configuration or recipe is not in its catalogue.
    ValueError
        If the data cannot be used.
    """
    backend = backend or plans.BACKEND
    trainer = importlib.import_module(backend)
    data, common = what_all_share(data, backend)
    folder = folder.resolve()
    shared = folder.parent / SHARED_CHECKPOINTS
    checkpoints = []
    for number in range(setting.checkpoints):
        task = checkpoint_task(setting, number, data, backend, common, shared)
        key = hashlib.sha256(json.dumps(plain(task.fingerprint), sort_keys=True).encode()).hexdigest()[:12]
        checkpoints.append(replace(task, name=f"{setting.config}-{setting.checkpoint_steps}-c{number}-{key}"))
    reference = trainer.describe(setting.config, study.reference.precision)["recipe"]
    stresses = [{"kind": type(stress).__name__, **plain(stress)} for stress in study.stresses]
    arms = []
    for number, checkpoint in enumerate(checkpoints):
        for arm in study.arms:
            what = {
                **trainer.describe(setting.config, arm.precision), "reference": reference, "stresses": stresses,
                "batches": setting.seeds, "seed": number, "checkpoint": checkpoint.fingerprint,
            }  # fmt: skip
            arms.append(
                Measurement(
                    f"{arm.name}/c{number}", folder, backend, setting.config, arm.precision, data, number,
                    setting.seeds * len(study.stresses), {}, {**what, **common}, checkpoint.name, False, shared,
                    study.reference.precision, study.stresses,
                )
            )  # fmt: skip
    return Plan(study, setting, folder, describe(study, setting), tuple(checkpoints), tuple(arms))


def describe(study: SameWeights, setting: WeightsSetting) -> dict[str, Any]:
    """Return what `study.json` keeps: enough to report without the ablation's file."""
    arms = tuple(replace(arm, recipe=arm.recipe_name, change={}) for arm in study.arms)
    content = {item.name: getattr(study, item.name) for item in fields(study)}
    content |= {"arms": arms, "stresses": [stress.name for stress in study.stresses]}
    return {"kind": "same_weights", "ablation": plain(content), "setting": plain(setting)}


@functools.cache
def _planned_names() -> tuple[str, ...]:
    return tuple(item.name for item in fields(SameWeights))


def read_study(folder: Path) -> tuple[SameWeights, WeightsSetting]:
    """Read `study.json` back; conditions come back as their names alone.

    Raises
    ------
    StudyError
        If the file was written by another version.
    """
    content = store.read_json(folder / "study.json")
    try:
        kept = {name: content["ablation"][name] for name in _planned_names()}
        kept["arms"] = tuple(Arm(**arm) for arm in kept["arms"])
        kept["stresses"] = tuple(Healthy(name) for name in kept["stresses"])
        kept["quick"], kept["full"] = WeightsSetting(**kept["quick"]), WeightsSetting(**kept["full"])
        kept["expectations"] = tuple(Expectation.of(item) for item in kept["expectations"])
        return SameWeights(**kept), WeightsSetting(**content["setting"])
    except (KeyError, TypeError, ValueError) as error:
        raise store.StudyError(f"{folder}: study.json was written by another version of lowprec ({error})") from None
