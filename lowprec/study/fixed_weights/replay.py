"""Replays: operands of a trained model's multiplications are recorded, and multiplied again on other accumulators.

The model is small and its sums are short in two of the three products. In the third, Wgrad, K counts tokens, and a
frozen checkpoint gives as many as one wants: there K is as long as in a large model. What K would do to the other two
is extrapolated: their operands are extended to K = 16384 by copies of themselves, such that products stay as correlated
as they were (the coherence that was recorded), or such that sums stay as much longer than those of independent products
(the coherence falls as 1 / K). The same is done to Wgrad's shortest sums, whose longest are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..design.arms import GemmArm
from ..design.study import CheckpointSize, PlannedStudy, count

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend
    from ..run.plan import Plan

#: What is measured of an arm in a class of multiplications.
REPLAY_METRICS = {
    "over_quantization": "Frobenius error of the sums over the error that quantizing the operands makes",
    "error_percent": "Frobenius error of the sums over the norm of the exact product, per cent",
    "bias_percent": "gain - 1 of the sums along the exact product, per cent",
}


@dataclass(frozen=True, kw_only=True)
class ReplaySetting(CheckpointSize):
    """How large a replay is; the BF16 checkpoints are those of `CheckpointSize`.

    Parameters
    ----------
    seeds : int
        Batches of Fprop and Dgrad, and pieces of Wgrad's tokens, that are multiplied of each layer at most.
    tokens : int
        Tokens of the longest Wgrad.
    rows : int
        Tokens of a batch that are multiplied in Fprop and Dgrad.
    columns : int
        Inputs and outputs of a layer that are multiplied in Wgrad, and rows of synthetic operands.
    """

    seeds: int = count(1, 1)
    tokens: int = count(1, 8192)
    rows: int = count(1, 64)
    columns: int = count(1, 16)

    def __str__(self) -> str:
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then Wgrad over up to {self.tokens} tokens"


@dataclass(frozen=True, kw_only=True)
class Replay(PlannedStudy):
    """One question put to recorded operands.

    Parameters
    ----------
    arms : tuple of GemmArm
        Accumulators and blocks; at most one is the reference.
    expectations : tuple of Expectation
        Numbers that were expected, over `REPLAY_METRICS`; their `stress` is a class of multiplications ("fprop",
        "wgrad_64k") or of extended ones ("fprop_at_16k"). One that the size at hand has no class for is not judged.
    quantized_by : str
        The recipe whose quantized layers are recorded.
    """

    arms: tuple[GemmArm, ...]
    quick: ReplaySetting = ReplaySetting()
    full: ReplaySetting = ReplaySetting(
        "pilot", checkpoint_steps=800, checkpoints=4, seeds=2, tokens=65536, rows=256, columns=64, learning_rate=1.5e-3
    )
    quantized_by: str = "dsv3"
    kind: ClassVar[str] = "replay"
    has_reference: ClassVar[bool] = False

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is measured."""
        return REPLAY_METRICS

    def plan(self, size: ReplaySetting, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """List the runs at a size; nothing is written."""
        from ..measurements.gemms import MultiplyRecorded, MultiplySynthetic
        from ..measurements.operands import FAMILIES, lengths
        from ..run.plan import Plan, checkpoint_task, create_context
        from ..run.tasks import Task

        context, folder = create_context(data, backend), folder.resolve()
        checkpoints = [checkpoint_task(size, i, context, folder.parent) for i in range(size.checkpoints)]
        described = context.backend.describe(size.config, self.quantized_by)
        arms = [arm.to_json() for arm in self.arms]
        measured = {name: getattr(size, name) for name in ("seeds", "tokens", "rows", "columns")}
        what = {**described, "arms": arms, "size": measured, **context.fingerprint}
        per_batch = int(described["config"]["batch"]) * int(described["config"]["sequence"])
        steps = max(size.seeds, lengths(size.tokens, per_batch)[-1] // per_batch)
        runs = [
            Task(
                f"recorded/c{number}", folder, context, size.config, self.quantized_by, number, steps,
                MultiplyRecorded(self.arms, size), {**what, "seed": number, "checkpoint": checkpoint.fingerprint},
                checkpoint,
            )
            for number, checkpoint in enumerate(checkpoints)
        ]  # fmt: skip
        lines = [
            Task(
                f"synthetic/s{number}", folder, context, size.config, self.quantized_by, number, len(FAMILIES),
                MultiplySynthetic(self.arms, size), {**what, "seed": number},
            )
            for number in range(size.seeds)
        ]  # fmt: skip
        return Plan(self, size, folder, self.to_json(size), tuple(checkpoints), (*runs, *lines))

    def results(self, size: ReplaySetting, folder: Path) -> Results:
        """Return the results of the finished runs."""
        from .replay_report import results
        from .replay_results import summarize

        return results(summarize(self, size, folder), folder)

    @classmethod
    def fields_from_json(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields but sizes and expectations."""
        return {**content, "arms": tuple(map(GemmArm.from_json, content["arms"]))}

    @classmethod
    def size_from_json(cls, content: Mapping[str, Any]) -> ReplaySetting:
        """Return a size."""
        return ReplaySetting(**content)
