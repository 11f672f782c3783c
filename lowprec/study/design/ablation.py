"""An ablation is one question put to the trainer: its arms, its sizes and the expected answer, all of it data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .arms import Arm, Tail
from .expectations import Expectation
from .quantities import BRANCH_METRICS
from .settings import Setting, parsed_changes

__all__ = ["Ablation", "Arm", "Setting", "Tail", "parsed_changes"]


@dataclass(frozen=True)
class Ablation:
    """One question with its arms, its two sizes and the expected finding.

    Parameters
    ----------
    name : str
        Its name on the command line.
    question : str
        The question in one sentence.
    arms : tuple of Arm
        The arms, the reference among them.
    quick, full : Setting
        A size for minutes and a size for a result.
    expected : str
        The expected finding, written down before the first run.
    source : str
        Where it comes from.
    margin : float
        Equivalence margin on the relative difference of the validation loss.
    notes : str
        What the sizes cost and what they cannot show.
    expectations : tuple of Expectation
        Numbers that were expected, over metrics of `lowprec.study.design.quantities.BRANCH_METRICS`.
    """

    name: str
    question: str
    arms: tuple[Arm, ...]
    quick: Setting
    full: Setting
    expected: str = ""
    source: str = ""
    margin: float = 0.0025
    notes: str = ""
    expectations: tuple[Expectation, ...] = ()
    planner: ClassVar[str] = "lowprec.study.run.plans"

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"ablation {self.name!r}: two arms are called {twice[0]!r}")
        references = [arm.name for arm in self.arms if arm.role == "reference"]
        if len(references) != 1:
            raise ValueError(f"ablation {self.name!r}: exactly one arm is the reference, got {references}")
        for arm in self.arms:
            same = arm.recipe_name == self.reference.recipe_name
            if arm.role in ("repeat", "floor") and not same:
                raise ValueError(f"arm {arm.name!r} is a {arm.role}: its recipe must be the reference's")
            if arm.config and not (self.quick.from_scratch and self.full.from_scratch):
                raise ValueError(
                    f"arm {arm.name!r} changes the configuration ({', '.join(arm.config)}): that goes with arms from "
                    "scratch, checkpoint_steps=0"
                )
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"ablation {self.name!r}: margin must lie between 0 and 1, not {self.margin!r}")
        for item in self.expectations:
            known = {
                "metric": (item.metric, BRANCH_METRICS),
                "arm": (item.arm, names),
                "over": (item.over, ["", *names]),
            }
            for kind, (name, allowed) in known.items():
                if name not in allowed:
                    raise ValueError(
                        f"ablation {self.name!r}: expectation {item.words!r} names the unknown {kind} {name!r}; "
                        f"allowed are {', '.join(filter(None, allowed))}"
                    )

    @property
    def tier(self) -> str:
        """T3, or T4 if its arms train from scratch."""
        return "T4" if self.full.from_scratch else "T3"

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")

    def arms_of(self, *roles: str) -> tuple[Arm, ...]:
        """Return the arms with one of these roles, in order."""
        return tuple(arm for arm in self.arms if arm.role in roles)
