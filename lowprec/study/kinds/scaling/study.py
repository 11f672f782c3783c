"""Scaling: the same arms branch off from checkpoints of models of several sizes, trained for longer, on other texts.

One cell is one study of branches. What its arms do, apart by forward effect and training effect, is fitted by a line
in the logarithms of parameters and of bytes trained on, beside a step for every other corpus. What matters is the sign
of a slope: the models of this field lie orders of magnitude further on.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from ...._arrays import positive, whole
from ...._files import safe_name
from ...design.arms import Arm
from ...design.study import WARMUP, Size, Study, count
from .. import kept
from ..branches.ablation import Ablation, Setting

#: Effects that are fitted.
FITTED = ("forward", "training")
#: What may be expected of an arm: means over all cells, and slopes along what `Expectation.stress` says.
SCALING_METRICS = {
    **{f"{effect}_percent": f"{effect} effect, per cent of loss, at the centre of all cells" for effect in FITTED},
    **{f"{effect}_slope": "its change, per cent of loss per factor of 10 (per corpus)" for effect in FITTED},
}
#: Along what effects are fitted.
AXES = ("parameters", "bytes", "corpus")
#: Seconds of one core: a step of BF16, a step of an arm (mean of `ablations/scaling.py`), an evaluation of 64k bytes.
SECONDS = {"nano": (0.10, 0.28, 2.5), "pilot": (0.13, 0.28, 2.5), "tiny": (0.35, 0.8, 7.0), "small": (1.2, 2.7, 24.0)}


@dataclass(frozen=True)
class Cell:
    """One size, length and text.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps, branch_steps : int
        Steps before the branch, and of it.
    corpus : str
        A corpus by name, or a path.
    learning_rate : float
        Peak rate of both.
    """

    config: str
    checkpoint_steps: int
    corpus: str = "stdlib"
    branch_steps: int = 60
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        for name in ("checkpoint_steps", "branch_steps"):
            object.__setattr__(self, name, whole(f"cell {self.config!r}", name, getattr(self, name), 1))
        rate = positive(f"cell {self.config!r}", "learning_rate", self.learning_rate)
        object.__setattr__(self, "learning_rate", rate)

    @property
    def name(self) -> str:
        """Its folder."""
        return safe_name("cell", f"{self.config}-{self.checkpoint_steps}-{Path(self.corpus).stem}")


@dataclass(frozen=True, kw_only=True)
class ScalingSetting(Size):
    """How large a study of scaling is.

    Parameters
    ----------
    cells : tuple of Cell
        Sizes, lengths and texts.
    checkpoints, seeds : int
        Of every cell, as in `Setting`.
    warmup_steps : int
        Of every cell, at most all of its steps.
    evaluation_bytes : int
        As in `Setting`.
    """

    cells: tuple[Cell, ...] = field(kw_only=False)
    checkpoints: int = count(1, 4)
    seeds: int = count(1, 2)
    warmup_steps: int = count(0, WARMUP)
    evaluation_bytes: int = count(1, 65_536)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [cell.name for cell in self.cells if isinstance(cell, Cell)]
        if len(names) < len(self.cells) or not names:
            raise ValueError(f"cells={self.cells!r}: sizes, lengths and texts are needed, as `Cell`")
        if len(set(names)) < len(names):
            raise ValueError(f"cells: two are called alike among {', '.join(names)}")

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the setting with some fields changed, as `Size.with_`; text chooses cells, by names or patterns.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ValueError
            If a value cannot be read or is out of range, or names no cell.

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
                raise ValueError(f"cells={wanted!r}: {pattern!r} is no cell; there are {', '.join(names)}")
        chosen = {name for found in meant.values() for name in found}
        return replace(setting, cells=tuple(cell for cell in self.cells if cell.name in chosen))

    def of(self, cell: Cell) -> Setting:
        """Return the setting of a cell's branches."""
        return Setting(
            cell.config, checkpoint_steps=cell.checkpoint_steps, branch_steps=cell.branch_steps,
            checkpoints=self.checkpoints, seeds=self.seeds, learning_rate=cell.learning_rate,
            warmup_steps=min(self.warmup_steps, cell.checkpoint_steps), evaluation_bytes=self.evaluation_bytes,
        )  # fmt: skip

    def core_minutes(self, arms: int = 6) -> float:
        """Return about how long it takes on one core that does nothing else, for so many arms of every pair."""
        seconds = 0.0
        for cell in self.cells:
            plain, arm, reading = SECONDS.get(cell.config, SECONDS["small"])
            pair = arms * cell.branch_steps * arm + 3 * arms * reading * self.evaluation_bytes / 65_536
            seconds += self.checkpoints * (cell.checkpoint_steps * plain + self.seeds * pair)
        return seconds / 60

    def __str__(self) -> str:
        pairs = self.checkpoints * self.seeds
        return f"{len(self.cells)} cells of {pairs} pairs per arm, about {self.core_minutes():.0f} core-minutes"


@dataclass(frozen=True, kw_only=True)
class Scaling(Study):
    """One question put to several sizes.

    Parameters
    ----------
    arms : tuple of Arm
        The precisions, with reference, floor and control.
    quick, full : ScalingSetting
        Two sizes.
    expectations : tuple of Expectation
        Numbers that were expected, over `SCALING_METRICS`; of a slope, `stress` is one of `AXES`. One along which a
        size does not vary is not judged.
    margin : float
        Equivalence margin of a cell's verdicts.
    series : int
        As in `Ablation`.
    """

    arms: tuple[Arm, ...]
    quick: ScalingSetting
    full: ScalingSetting
    margin: float = 0.0025
    series: int = 0
    kind: ClassVar[str] = "scaling"

    def __post_init__(self) -> None:
        self.branches(self.quick.cells[0], self.quick)  # what is wrong with the arms is said here
        super().__post_init__()

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is fitted."""
        return SCALING_METRICS

    def conditions(self, metric: str) -> Sequence[str]:
        """Return the axes of a slope."""
        return AXES if metric.endswith("_slope") else ("",)

    @property
    def tier(self) -> str:
        """T3."""
        return "T3"

    def branches(self, cell: Cell, setting: ScalingSetting) -> Ablation:
        """Return the study of branches that one cell is."""
        return Ablation(
            name=f"{self.name}-{cell.name}", question=self.question, arms=self.arms, quick=setting.of(cell),
            full=setting.of(cell), source=self.source, margin=self.margin, series=self.series,
        )  # fmt: skip


def read_study(folder: Path) -> tuple[Scaling, ScalingSetting]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    return kept.read_kept(folder, Scaling, _setting)


def _setting(content: dict[str, Any]) -> ScalingSetting:
    return ScalingSetting(**{**content, "cells": tuple(Cell(**cell) for cell in content["cells"])})
