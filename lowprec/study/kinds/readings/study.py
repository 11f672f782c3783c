"""Studies that read something off trained models, in several precisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...design.study import FULL, QUICK, CheckpointSize, Study
from ...measurements.measurement import Measurement
from .. import kept


@dataclass(frozen=True, kw_only=True)
class Readings(Study):
    """One question that a reading of trained weights answers.

    Parameters
    ----------
    reading : Reading
        What is measured.
    config : mapping
        Fields of the model's configuration that differ from the setting's, in all runs: ``{"mtp_depth": 1}``.
    """

    reading: Measurement
    quick: CheckpointSize = QUICK
    full: CheckpointSize = FULL
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    kind: ClassVar[str] = "readings"

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is measured."""
        return self.reading.metrics


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


def describe(study: Readings, setting: CheckpointSize) -> dict[str, Any]:
    """Return what `study.json` keeps; of the reading, what a report needs to know."""
    reading = study.reading
    made = {"words": dict(reading.metrics), "described": reading.axis, "drawn": reading.panels, "lines": reading.joined}
    return kept.describe(study, setting, reading=made)


def read_study(folder: Path) -> tuple[Readings, CheckpointSize]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    reading = {"reading": lambda made: Described(**made)}
    return kept.read_kept(folder, Readings, lambda size: CheckpointSize(**size), **reading)
