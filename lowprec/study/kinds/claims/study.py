"""Studies that are a table of measured claims: what was published, what is expected, what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...._files import safe_name
from ...design.expectations import Expectation
from ...design.settings import check_whole

#: Given the seeds to draw data with, returns the measured numbers by (metric, arm).
Measure = Callable[[int], dict[tuple[str, str], float]]


@dataclass(frozen=True)
class ClaimArm:
    """Something that is compared, by name."""

    name: str


@dataclass(frozen=True)
class ClaimSetting:
    """How large the study is: data of so many seeds."""

    seeds: int

    def __post_init__(self) -> None:
        check_whole(self, seeds=1)

    def __str__(self) -> str:
        return f"data of {self.seeds} seeds"


@dataclass(frozen=True)
class Claims:
    """One question about tensors alone, answered by a table.

    Parameters
    ----------
    name, question : str
        As in `Ablation`.
    arms : tuple of ClaimArm
        What is compared.
    expectations : tuple of Expectation
        What was written down before the first run.
    measure : callable
        Returns the numbers that the expectations name.
    published, source : str
        The published result, and where.
    quick, full : ClaimSetting
        Two sizes.
    notes : str
        What has to be said beside the table.
    """

    name: str
    question: str
    arms: tuple[ClaimArm, ...]
    expectations: tuple[Expectation, ...]
    measure: Measure
    published: str = ""
    source: str = ""
    quick: ClaimSetting = ClaimSetting(2)
    full: ClaimSetting = ClaimSetting(8)
    notes: str = ""
    tier: ClassVar[str] = "T1"

    def __post_init__(self) -> None:
        safe_name("study", self.name)
        known = {arm.name for arm in self.arms}
        for item in self.expectations:
            for name in (item.arm, item.other or item.arm):
                if name not in known:
                    raise ValueError(f"study {self.name!r}: expectation {item.words!r} names the unknown arm {name!r}")
