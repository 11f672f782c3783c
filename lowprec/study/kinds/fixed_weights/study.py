"""Studies that measure the same weights in several precisions: nothing is trained but the BF16 checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...design.arms import Arm
from ...design.study import FULL, QUICK, CheckpointSize, Study
from ...measurements.measurement import Measurement
from .. import kept


@dataclass(frozen=True, kw_only=True)
class MeasurementStudy(Study):
    """One question that a measurement of the same weights in several precisions answers.

    Parameters
    ----------
    measurement : Measurement
        What is measured, on every batch.
    arms : tuple of Arm
        The precisions; exactly one is the reference.
    headline : str
        The metric of the first figure and of the positive controls; by default the measurement's first panel.
    config : mapping
        Fields of the model's configuration that differ from the size's, in all runs: ``{"mtp_depth": 1}``.
    """

    measurement: Measurement
    arms: tuple[Arm, ...]
    quick: CheckpointSize = QUICK
    full: CheckpointSize = FULL
    headline: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    kind: ClassVar[str] = "measurement"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.headline and self.headline not in self.metrics:
            raise ValueError(f"study {self.name!r}: headline must be one of {', '.join(self.metrics)}, "
                             f"got {self.headline!r}")  # fmt: skip
        for arm in self.arms:
            if arm.tail is not None or arm.config:
                raise ValueError(f"arm {arm.name!r}: a tail or another configuration goes with branches, not one batch")

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is measured."""
        return self.measurement.metrics

    def conditions(self, metric: str) -> Sequence[str] | None:
        """Return the names of the measurement's conditions, if they are known before it."""
        names = self.measurement.condition_names
        return None if names is None else ("", *names)

    @property
    def first(self) -> str:
        """The metric of the first figure."""
        return self.headline or self.measurement.panels[0]


@dataclass(frozen=True)
class StoredMeasurement(Measurement):
    """What `study.json` keeps of a measurement: what a report needs to know of it."""

    content: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, value in self.content.items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)

    def measure(self, *_: Any) -> Any:
        """Raise: this is a record of what was measured."""
        raise TypeError("StoredMeasurement: measure needs the measurement of the ablation's file")


def describe(study: MeasurementStudy, size: CheckpointSize) -> dict[str, Any]:
    """Return what `study.json` keeps."""
    names = ("metrics", "axis", "panels", "joined", "layer_metrics", "first_alone")
    return kept.describe(study, size, measurement={name: getattr(study.measurement, name) for name in names})


def read_study(folder: Path) -> tuple[MeasurementStudy, CheckpointSize]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    return kept.read_kept(folder, MeasurementStudy, lambda size: CheckpointSize(**size), measurement=StoredMeasurement)
