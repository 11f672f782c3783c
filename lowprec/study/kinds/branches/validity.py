"""Which verdicts of branches stand: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...analysis.findings import not_detected, not_identical, unique
from .measured import ArmSummary
from .runs import PairRun


def judged(
    arms: Sequence[ArmSummary], reference: str, runs: Sequence[PairRun]
) -> tuple[list[ArmSummary], tuple[str, ...], tuple[str, ...]]:
    """Return the arms with what voids their verdicts.

    Parameters
    ----------
    arms : sequence of ArmSummary
        All arms but the reference.
    reference : str
        Its name.
    runs : sequence of PairRun
        Its runs.

    Returns
    -------
    list of ArmSummary, tuple of str, tuple of str
        The arms, and what voids all of them: damage, and controls that were not detected.
    """
    damage = [*_lost(runs)]
    for item in arms:
        if item.arm.role in ("repeat", "control"):
            damage += _lost(item.runs)
        if item.identical is False and not _lost([*runs, *item.runs]):
            damage.append(not_identical(item.arm.name, reference))
    blind = unique(not_detected(item.arm.name) for item in arms if item.arm.role == "control" and not item.detected)
    found = []
    for item in arms:
        if item.arm.role == "repeat":
            found.append(replace(item, damage=unique([*_lost(runs), *_lost(item.runs)])))
        else:
            found.append(replace(item, damage=unique([*damage, *_lost(item.runs)]), blind=blind))
    return found, unique(damage), blind


def _lost(runs: Sequence[PairRun]) -> list[str]:
    return [run.lacks for run in runs if run.lacks]
