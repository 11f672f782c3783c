"""How large a study of branches is, and changes of any study's size given as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lowprec.registry import Registry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SettingT = TypeVar("SettingT", bound="DataclassInstance")


@dataclass(frozen=True)
class Setting:
    """How large a study is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the branch; 0 for arms that train from scratch, each from the initial weights.
    branch_steps : int
        Steps of every arm, with the learning rate going linearly to 0.
    checkpoints : int
        Independent BF16 checkpoints, or initial weights (their seeds are 0, 1, ...).
    seeds : int
        Data seeds per checkpoint; checkpoints x seeds pairs per arm.
    learning_rate : float
        Peak rate; the checkpoint is trained at it and the branch starts from it.
    warmup_steps : int
        Linear warm-up of the checkpoint, or of arms from scratch.
    """

    config: str
    checkpoint_steps: int
    branch_steps: int
    checkpoints: int
    seeds: int
    learning_rate: float = 2e-3
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        least = {"checkpoint_steps": 0, "branch_steps": 1, "checkpoints": 1, "seeds": 1, "warmup_steps": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be a whole number of at least {low}, not {value!r}")
        if self.from_scratch and self.warmup_steps > self.branch_steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} of branch_steps={self.branch_steps}, from scratch")
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be positive and finite, not {self.learning_rate!r}")

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
        """Pairs per arm: one for each checkpoint and data seed."""
        return self.checkpoints * self.seeds

    def with_(self, changes: dict[str, str | int | float]) -> Setting:
        """Return the setting with some fields changed; text is parsed as the field's type.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ValueError
            If a value cannot be read or is out of range.

        Examples
        --------
        >>> Setting("nano", 10, 5, 1, 2).with_({"branch_steps": "7"}).branch_steps
        7
        """
        return changed(self, changes)


def changed(setting: SettingT, changes: Mapping[str, str | int | float]) -> SettingT:
    """Return a setting with some fields changed; text is parsed as the type that the field has.

    Raises
    ------
    UnknownNameError
        If there is no such field.
    ValueError
        If a value cannot be read or is out of range.
    """
    types: Registry[type] = Registry("setting", type)
    for item in fields(setting):
        types.register(item.name, type(getattr(setting, item.name)))
    parsed: dict[str, Any] = {}
    for name, value in changes.items():
        kind = types[name]
        try:
            parsed[name] = kind(value)
        except ValueError:
            raise ValueError(f"{name}: cannot read {value!r} as {kind.__name__}") from None
    return replace(setting, **parsed)
