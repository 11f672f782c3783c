"""Effects, sizes and pairs of studies of branches."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from ..._checks import check_int, check_positive
from ..._files import safe_name
from ..design.arms import Arm
from ..design.study import WARMUP, CheckpointSize, Size, count

#: Effects, defined by L[f](w), the validation loss of final weights w in the forward precision f.
EFFECTS = {
    "forward": "L[arm](w_ref) / L[bf16](w_ref) - 1: rounding in the forward pass of weights that the reference trained",
    "training": "L[bf16](w_arm) / L[bf16](w_ref) - 1: what training in that precision did to the weights",
    "training_own": "L[arm](w_arm) / L[arm](w_ref) - 1: the same, seen in the arm's own precision",
    "total": "L[arm](w_arm) / L[bf16](w_ref) - 1: both together",
}
#: Minimum number of checkpoints for a published verdict.
LEAST_CHECKPOINTS = 4
#: Effects that are fitted.
FITTED = ("forward", "training")
#: Axes of the fits.
AXES = ("parameters", "bytes", "corpus")
#: CPU seconds of a BF16 step, of an arm's step (mean of `ablations/scaling.py`), and of an evaluation of 64k bytes.
SECONDS = {"nano": (0.10, 0.28, 2.5), "pilot": (0.13, 0.28, 2.5), "tiny": (0.35, 0.8, 7.0), "small": (1.2, 2.7, 24.0)}


@dataclass(frozen=True, kw_only=True)
class Setting(CheckpointSize):
    """Size of a branch study.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Number of steps of BF16 training before the branch; 0 if every arm trains from scratch.
    branch_steps : int
        Number of steps of every arm, over which the learning rate decays linearly to 0.
    checkpoints : int
        Number of independent BF16 checkpoints, or of different initial weights.
    first_checkpoint : int
        Seed of the first checkpoint; the others have the seeds that follow.
    seeds : int
        Number of data seeds per checkpoint; an arm has checkpoints x seeds pairs.
    learning_rate : float
        Peak learning rate, at which the checkpoint is trained and the branch starts.
    warmup_steps : int, optional
        Number of steps of linear warm-up of the checkpoint, or of arms from scratch; by default 20, or all steps if
        there are fewer.
    evaluation_bytes : int
        Number of held-out bytes that the final weights predict.
    without : str
        Names of arms that are left out at this size, with spaces between them.
    """

    config: str = field(kw_only=False)
    checkpoint_steps: int = count(0)
    branch_steps: int = count()
    checkpoints: int = count()
    first_checkpoint: int = count(0, 0)
    seeds: int = count()
    evaluation_bytes: int = count(1, 65_536)
    without: str = ""

    @property
    def warmed_steps(self) -> str:
        """Name of the field that counts the steps of the phase of training that has the learning-rate warm-up."""
        return "branch_steps" if self.from_scratch else "checkpoint_steps"

    @property
    def from_scratch(self) -> bool:
        """Whether arms train from initial weights instead of branching from a checkpoint."""
        return self.checkpoint_steps == 0

    def __str__(self) -> str:
        if self.from_scratch:
            return f"{self.config}: {self.pairs} x {self.branch_steps} steps per arm from scratch"
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then {self.pairs} x {self.branch_steps} per arm"

    @property
    def pairs(self) -> int:
        """Number of pairs per arm: one per checkpoint and data seed."""
        return self.checkpoints * self.seeds

    def core_minutes(self, arms: int = 6) -> float:
        """Return the estimated CPU minutes on one core for `arms` arms per pair."""
        plain, arm, reading = SECONDS.get(self.config, SECONDS["small"])
        pair = arms * self.branch_steps * arm + 3 * arms * reading * self.evaluation_bytes / 65_536
        return (self.checkpoints * self.checkpoint_steps * plain + self.pairs * pair) / 60

    @property
    def checkpoint_numbers(self) -> range:
        """Seeds of the checkpoints, or of the initial weights."""
        return range(self.first_checkpoint, self.first_checkpoint + self.checkpoints)


def run_name(arm: Arm, checkpoint: int, seed: int) -> str:
    """Return the name of a run's folder below the study's."""
    return f"{arm.name}/c{checkpoint}-s{seed}"


def pairs_of(arm: Arm, setting: Setting) -> Iterator[tuple[int, int]]:
    """Yield (checkpoint, seed) of every pair of an arm."""
    for checkpoint in setting.checkpoint_numbers:
        for seed in range(setting.seeds if arm.pairs is None else min(arm.pairs, setting.seeds)):
            yield checkpoint, seed


# --- scaling ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One combination of model size, training length and corpus.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps, branch_steps : int
        Number of steps before the branch, and of the branch.
    corpus : str
        Name of a corpus, or a path.
    learning_rate : float
        Peak learning rate of the checkpoint and of the branch.
    """

    config: str
    checkpoint_steps: int
    corpus: str = "stdlib"
    branch_steps: int = 60
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        for name in ("checkpoint_steps", "branch_steps"):
            object.__setattr__(self, name, check_int(f"cell {self.config!r}", name, getattr(self, name), 1))
        rate = check_positive(f"cell {self.config!r}", "learning_rate", self.learning_rate)
        object.__setattr__(self, "learning_rate", rate)

    @property
    def name(self) -> str:
        """Name of the cell's folder."""
        return safe_name("cell", f"{self.config}-{self.checkpoint_steps}-{Path(self.corpus).stem}")


@dataclass(frozen=True, kw_only=True)
class ScalingSetting(Size):
    """Size of a scaling study.

    Parameters
    ----------
    cells : tuple of Cell
        Sizes, lengths and corpora.
    checkpoints, seeds : int
        Number per cell, as in `Setting`.
    warmup_steps : int
        Number of warm-up steps in every cell, at most all steps of the cell.
    evaluation_bytes : int
        Number of held-out bytes to predict, as in `Setting`.
    """

    cells: tuple[Cell, ...] = field(kw_only=False)
    checkpoints: int = count(1, 4)
    seeds: int = count(1, 2)
    warmup_steps: int = count(0, WARMUP)
    evaluation_bytes: int = count(1, 65_536)

    def __post_init__(self) -> None:
        super().__post_init__()
        cells = tuple(Cell(**cell) if isinstance(cell, Mapping) else cell for cell in self.cells)  # from study.json
        object.__setattr__(self, "cells", cells)
        names = [cell.name for cell in self.cells if isinstance(cell, Cell)]
        if len(names) < len(self.cells) or not names:
            raise ValueError(f"cells must be a tuple of Cell, got {self.cells!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"cells must have different names, got {', '.join(names)}")

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the setting with some fields changed, as in `Size.with_`; cells are selected by names or patterns.

        Raises
        ------
        UnknownNameError
            If the field does not exist.
        ValueError
            If a value cannot be parsed, is out of range, or does not match a cell.

        Examples
        --------
        >>> from lowprec.study import Cell, ScalingSetting
        >>> size = ScalingSetting((Cell("nano", 300), Cell("nano", 600), Cell("pilot", 300)))
        >>> [cell.name for cell in size.with_({"cells": "nano-6*,pilot-300-stdlib"}).cells]
        ['nano-600-stdlib', 'pilot-300-stdlib']
        """
        others = {key: value for key, value in changes.items() if key != "cells"}
        setting = super().with_(others)
        if "cells" not in changes:
            return setting
        wanted, names = str(changes["cells"]), [cell.name for cell in self.cells]
        patterns = [text.strip() for text in wanted.split(",")]
        meant = {pattern: fnmatch.filter(names, pattern) for pattern in patterns}
        for pattern, found in meant.items():
            if not found:
                raise ValueError(f"cells={wanted!r}: unknown cell {pattern!r}: expected one of {', '.join(names)}")
        chosen = {name for found in meant.values() for name in found}
        return replace(setting, cells=tuple(cell for cell in self.cells if cell.name in chosen))

    def of(self, cell: Cell) -> Setting:
        """Return the setting of a cell's branch study."""
        return Setting(
            cell.config, checkpoint_steps=cell.checkpoint_steps, branch_steps=cell.branch_steps,
            checkpoints=self.checkpoints, seeds=self.seeds, learning_rate=cell.learning_rate,
            warmup_steps=min(self.warmup_steps, cell.checkpoint_steps), evaluation_bytes=self.evaluation_bytes,
        )  # fmt: skip

    def core_minutes(self, arms: int = 6) -> float:
        """Return the estimated CPU minutes on one core for `arms` arms per pair."""
        return sum(self.of(cell).core_minutes(arms) for cell in self.cells)

    def __str__(self) -> str:
        pairs = self.checkpoints * self.seeds
        return f"{len(self.cells)} cells of {pairs} pairs per arm, about {self.core_minutes():.0f} core-minutes"
