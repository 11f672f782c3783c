"""Studies that measure fixed weights in several precisions; only the BF16 checkpoints are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..._files import to_jsonable
from ..design.arms import Arm
from ..design.study import FULL, QUICK, CheckpointSize, PlannedStudy
from ..measurements.measurement import Measure, Measurement
from ..run.plan import Plan, checkpoint_task, create_context
from ..run.tasks import Task

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend


@dataclass(frozen=True)
class StoredMeasurement(Measurement):
    """Attributes of a measurement that `study.json` stores for reports."""

    content: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, value in self.content.items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)

    def measure(self, *_: Any) -> Any:
        """Raise an error: a stored measurement cannot be run."""
        raise TypeError("a StoredMeasurement cannot measure; use the measurement in the ablation's file")


@dataclass(frozen=True, kw_only=True)
class MeasurementStudy(PlannedStudy):
    """A question answered by measuring fixed weights in several precisions.

    Parameters
    ----------
    measurement : Measurement
        Measurement to make on every batch.
    arms : tuple of Arm
        Arms with their recipes; exactly one is the reference.
    headline : str
        Metric of the first figure, in which positive controls must be detected; by default that of the measurement's
        first panel.
    config : mapping
        Changes to the size's model configuration, for all runs: ``{"mtp_depth": 1}``.
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
                raise ValueError(
                    f"arm {arm.name!r}: tail and config must be empty for a measurement of one batch, got {arm.tail} "
                    f"and {arm.config}"
                )

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metrics that expectations may refer to."""
        return self.measurement.metrics

    def conditions(self, metric: str) -> Sequence[str] | None:
        """Return the names of the measurement's conditions, if they are known in advance."""
        names = self.measurement.condition_names
        return None if names is None else ("", *names)

    @property
    def first(self) -> str:
        """Metric of the first figure."""
        return self.headline or self.measurement.panels[0]

    def plan(self, size: CheckpointSize, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """Return the plan of the runs at a size, without writing anything."""
        context, folder = create_context(data, backend), folder.resolve()
        backend = context.backend
        config = backend.configuration(size.config, self.config)
        checkpoints = [checkpoint_task(size, i, context, folder.parent, config) for i in range(size.checkpoints)]
        work = Measure(self.measurement, self.reference.precision)
        same = {
            "reference": backend.describe(config, self.reference.precision)["recipe"],
            "measurement": to_jsonable(self.measurement.describe()), "batches": size.seeds,
        }  # fmt: skip
        arms = [
            Task(
                f"{arm.name}/c{number}", folder, context, config, arm.precision, number, size.seeds, work,
                {**backend.describe(config, arm.precision), **same, "seed": number,
                 "checkpoint": checkpoint.fingerprint, **context.fingerprint},
                checkpoint,
            )
            for number, checkpoint in enumerate(checkpoints)
            for arm in self.arms
        ]  # fmt: skip
        return Plan(self, size, folder, self.to_json(size), tuple(checkpoints), tuple(arms))

    def results(self, size: CheckpointSize, folder: Path) -> Results:
        """Return the results of the finished runs."""
        from .report import results
        from .results import summarize

        return results(summarize(self, size, folder), folder)

    def to_json(self, size: CheckpointSize) -> dict[str, Any]:
        """Return the content of `study.json`, with the measurement's attributes for reports."""
        names = ("metrics", "axis", "panels", "joined", "layer_metrics", "first_alone")
        content = super().to_json(size)
        content["ablation"]["measurement"] = to_jsonable({name: getattr(self.measurement, name) for name in names})
        return content

    @classmethod
    def fields_from_json(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the study, with sizes and expectations still in their JSON form."""
        return {**super().fields_from_json(content), "measurement": StoredMeasurement(content["measurement"])}
