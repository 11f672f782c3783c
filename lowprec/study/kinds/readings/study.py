"""Studies that read something off trained models, in several precisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...._files import safe_name
from ...design.arms import Arm
from ...design.expectations import Expectation
from ...measurements.measurement import Measurement
from .. import kept
from ..same_weights.study import WeightsSetting

QUICK, FULL = WeightsSetting(), WeightsSetting("pilot", checkpoint_steps=400, checkpoints=4, seeds=4)


@dataclass(frozen=True)
class Readings:
    """One question that a reading of trained weights answers.

    Parameters
    ----------
    name, question : str
        As in `Ablation`.
    reading : Reading
        What is measured.
    arms : tuple of Arm
        The precisions; exactly one is the reference.
    expectations : tuple of Expectation
        What was written down before the first run; `stress` names a place, by default the mean over all.
    published, source : str
        The published result, and where.
    quick, full : WeightsSetting
        Two sizes: checkpoints, and batches of each.
    config : mapping
        Fields of the model's configuration that differ from the setting's, in all runs: ``{"mtp_depth": 1}``.
    notes : str
        What this size cannot show.
    """

    name: str
    question: str
    reading: Measurement
    arms: tuple[Arm, ...]
    expectations: tuple[Expectation, ...] = ()
    published: str = ""
    source: str = ""
    quick: WeightsSetting = QUICK
    full: WeightsSetting = FULL
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    notes: str = ""
    tier: ClassVar[str] = "T2"

    def __post_init__(self) -> None:
        safe_name("study", self.name)
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"study {self.name!r}: every arm needs a name of its own, got {names}")
        references = [arm.name for arm in self.arms if arm.role == "reference"]
        if len(references) != 1:
            raise ValueError(f"study {self.name!r}: exactly one arm is the reference, got {references}")
        for item in self.expectations:
            for kind, name, known in (
                ("metric", item.metric, [*self.reading.metrics]), ("arm", item.arm, names),
                ("arm", item.other or item.arm, names),
            ):  # fmt: skip
                if name not in known:
                    raise ValueError(
                        f"study {self.name!r}: expectation {item.words!r} names the unknown {kind} {name!r}; "
                        f"there are {', '.join(known)}"
                    )

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")


@dataclass(frozen=True)
class Described(Measurement):
    """A reading that was made: what a report needs to know of it."""

    words: Mapping[str, str] = field(default_factory=dict, hash=False)
    described: str = ""
    drawn: tuple[str, ...] = ()
    lines: bool = True

    def __post_init__(self) -> None:
        for name, value in (
            ("metrics", self.words), ("axis", self.described), ("panels", tuple(self.drawn)), ("joined", self.lines),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def measure(self, *_: Any) -> Any:
        """Raise: this is what was read, not what reads."""
        raise TypeError("this reading was made; the ablation's file has the one that reads")


def describe(study: Readings, setting: WeightsSetting) -> dict[str, Any]:
    """Return what `study.json` keeps; of the reading, what a report needs to know."""
    reading = study.reading
    made = {"words": dict(reading.metrics), "described": reading.axis, "drawn": reading.panels, "lines": reading.joined}
    return kept.describe(study, setting, reading=made)


def read_study(folder: Path) -> tuple[Readings, WeightsSetting]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    reading = {"reading": lambda made: Described(**made)}
    return kept.read_kept(folder, Readings, lambda size: WeightsSetting(**size), **reading)
