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
from typing import Any, ClassVar

from ....definitions import described
from ...design.arms import GemmArm
from ...design.study import CheckpointSize, Study, count
from ...measurements.operands import EXTRAPOLATED_K
from .. import kept

#: What is measured of an arm in a class of multiplications.
REPLAY_METRICS = {
    "over_quantization": "Frobenius error of the sums over the error that quantizing the operands makes",
    "error_percent": "Frobenius error of the sums over the norm of the exact product, per cent",
    "bias_percent": "gain - 1 of the sums along the exact product, per cent",
}
#: Behind the name of a class: operands were extended to so much.
AT_FAR = f"_at_{EXTRAPOLATED_K // 1024}k"
#: Accumulation that costs less than this share of what quantization costs adds less than half a per cent to the error.
ENOUGH = 0.1


def arm_data(arm: GemmArm) -> dict[str, Any]:
    """Return an arm in JSON's types, its accumulator with all that decides it."""
    plain = {name: value for name, value in vars(arm).items() if name != "change"}
    return {**plain, "accumulator": described(arm.machine)}


def _arm_of(**data: Any) -> GemmArm:
    """Return the arm that `arm_data` wrote."""
    from lowprec.recipe.data import reader

    return GemmArm(**{**data, "accumulator": reader({}, "study.json").made(data["accumulator"])})


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


def class_name(product: str, tokens: int, kept: str) -> str:
    """Return the name of a class of multiplications.

    Parameters
    ----------
    product : str
        "fprop", "dgrad" or "wgrad".
    tokens : int
        Over how many it sums, 0 if it does not.
    kept : {"", "coherence", "growth"}
        What of shorter sums is as it was recorded, where operands were extended; empty where they are whole.

    Examples
    --------
    >>> class_name("fprop", 0, ""), class_name("fprop", 0, "coherence"), class_name("wgrad", 65536, "")
    ('fprop', 'fprop_at_16k', 'wgrad_64k')
    """
    if not tokens:
        return product + {"": "", "coherence": AT_FAR, "growth": f"{AT_FAR}_diluted"}[kept]
    size = f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
    return f"{product}_{size}{'_extended' if kept else ''}"


@dataclass(frozen=True, kw_only=True)
class Replay(Study):
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


def read_study(folder: Path) -> tuple[Replay, ReplaySetting]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    return kept.read_kept(folder, Replay, lambda size: ReplaySetting(**size), _arm_of)
