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


class Changeable:
    """A dataclass of settings that can be changed by text, as the command line has it."""

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
        result: Self = replace(setting, **parsed)
        return result
