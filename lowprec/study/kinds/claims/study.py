"""Studies that are a table of measured claims: what was published, what is expected, what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...design.study import Size, Study, count

#: Given the seeds to draw data with, returns the measured numbers by (metric, arm).
Measure = Callable[[int], dict[tuple[str, str], float]]


@dataclass(frozen=True)
class ClaimArm:
    """Something that is compared, by name."""

    name: str


@dataclass(frozen=True)
class ClaimSetting(Size):
    """How large the study is: data of so many seeds."""

    seeds: int = count()

    def __str__(self) -> str:
        return f"data of {self.seeds} seeds"


@dataclass(frozen=True, kw_only=True)
class Claims(Study):
    """One question about tensors alone, answered by a table.

    Parameters
    ----------
    arms : tuple of ClaimArm
        What is compared.
    measure : callable
        Returns the numbers that the expectations name.
    """

    arms: tuple[ClaimArm, ...]
    measure: Measure
    quick: ClaimSetting = ClaimSetting(2)
    full: ClaimSetting = ClaimSetting(8)
    kind: ClassVar[str] = "claims"
    has_reference: ClassVar[bool] = False

    @property
    def tier(self) -> str:
        """T1."""
        return "T1"
