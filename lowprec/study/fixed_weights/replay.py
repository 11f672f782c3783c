"""Replay studies: operands of a trained model's products are recorded and multiplied on other accumulators.

The model is small, so sums are short in Fprop and Dgrad. In Wgrad, K counts tokens, of which a frozen checkpoint can
process any number, so K is as long as in a large model. For the other two products the effect of K is extrapolated:
operands are extended to K = 16384 by copies of themselves, either keeping the recorded correlation of products
(coherence), or keeping the ratio of the sums to sums of independent products (coherence falls as 1 / K). As a check,
Wgrad's shortest sums are extended as well, since its longest sums are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..design.arms import GemmArm
from ..design.study import CheckpointSize, PlannedStudy, Size, count
from ..measurements.gemms import MultiplyRecorded, MultiplySynthetic
from ..measurements.operands import FAMILIES, lengths
from ..run.plan import Plan, checkpoint_task, create_context
from ..run.tasks import Task

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend

#: Metrics of an arm in a class of products.
REPLAY_METRICS = {
    "over_quantization": "Frobenius error of the sums over the error that quantizing the operands makes",
    "error_percent": "Frobenius error of the sums over the norm of the exact product, per cent",
    "bias_percent": "gain - 1 of the sums along the exact product, per cent",
}


@dataclass(frozen=True, kw_only=True)
class ReplaySetting(CheckpointSize):
    """Size of a replay study.

    Parameters
    ----------
    seeds : int
        Maximum number of products per layer: batches for Fprop and Dgrad, pieces of the tokens for Wgrad.
    tokens : int
        Number of tokens in the longest Wgrad.
    rows : int
        Number of tokens per batch in Fprop and Dgrad.
    columns : int
        Number of inputs and of outputs of a layer in Wgrad, and number of rows of synthetic operands.
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
    """A question answered by products of recorded operands.

    Parameters
    ----------
    arms : tuple of GemmArm
        Accumulators and blocks; at most one is the reference.
    expectations : tuple of Expectation
        Expected ranges of `REPLAY_METRICS`. Their `condition` is a class of products ("fprop", "wgrad_64k"), which may
        be extended ("fprop_at_16k"). Classes that a size does not contain are not judged.
    quantized_by : str
        Name of a recipe; the layers that it quantizes are recorded.
    """

    arms: tuple[GemmArm, ...]
    quick: ReplaySetting = ReplaySetting()
    full: ReplaySetting = ReplaySetting(
        "pilot", checkpoint_steps=800, checkpoints=4, seeds=2, tokens=65536, rows=256, columns=64, learning_rate=1.5e-3
    )
    quantized_by: str = "dsv3"
    kind: ClassVar[str] = "replay"
    size_type: ClassVar[type[Size]] = ReplaySetting
    has_reference: ClassVar[bool] = False

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metrics that expectations may refer to."""
        return REPLAY_METRICS

    def plan(self, size: ReplaySetting, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """Return the plan of the runs at a size, without writing anything."""
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
        """Return the fields of the study, with sizes and expectations still in their JSON form."""
        return {**content, "arms": tuple(map(GemmArm.from_json, content["arms"]))}
