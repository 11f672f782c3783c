"""Sizes of studies: what every kind's class of settings checks and how a setting is changed by text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

from lowprec._arrays import whole
from lowprec._values import plain_fields
from lowprec.registry import Registry

#: Beyond it no study ends; somebody mistyped.
MOST = 10**9
#: Steps of warm-up where a setting gives none.
WARMUP = 20


def check_whole(setting: Any, **least: int) -> None:
    """Make sure that fields of a setting are whole numbers, each of at least so much and at most `MOST`.

    Raises
    ------
    ValueError
        If one is not; the message names it.
    """
    plain_fields(setting)
    for name, low in least.items():
        whole("", name, getattr(setting, name), low, MOST)


def fit_warmup(setting: Any, field: str) -> None:
    """Replace ``warmup_steps=None`` by `WARMUP`, or by all steps of the training if there are fewer.

    Parameters
    ----------
    setting : dataclass
        Has `warmup_steps`.
    field : str
        Its field with the steps of the training that warms up.

    Raises
    ------
    ValueError
        If the warm-up that is given is longer than the training.
    """
    steps = getattr(setting, field)
    if setting.warmup_steps is None:
        object.__setattr__(setting, "warmup_steps", min(WARMUP, steps))
    check_whole(setting, warmup_steps=0)
    if setting.warmup_steps > steps:
        raise ValueError(f"warmup_steps must be at most {field}={steps}, got {setting.warmup_steps}")


class Changeable:
    """A dataclass of settings that can be changed by text, as the command line has it."""

    @property
    def warms_up_by_default(self) -> bool:
        """Whether its warm-up follows from its steps, see `fit_warmup`."""
        return False

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the setting with some fields changed; text is parsed as the type that the field has.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ValueError
            If a value cannot be read or is out of range.

        Examples
        --------
        >>> from lowprec.study import Setting
        >>> Setting("nano", 10, 5, 1, 2).with_({"branch_steps": "7"}).branch_steps
        7
        """
        setting: Any = self
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
        if self.warms_up_by_default:
            parsed = {"warmup_steps": None, **parsed}
        result: Self = replace(setting, **parsed)
        return result


class WarmedUp(Changeable):
    """A setting whose warm-up follows from its steps where none is given."""

    @property
    def warms_up_by_default(self) -> bool:
        """Whether its warm-up follows from its steps, see `fit_warmup`."""
        setting: Any = self
        return bool(replace(setting, warmup_steps=None) == setting)
