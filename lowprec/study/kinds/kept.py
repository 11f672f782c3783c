"""What `study.json` keeps of a study whose runs are trained: enough to report without the ablation's file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ..._files import plain
from ..design.arms import Arm
from ..design.expectations import Expectation
from ..run.store import StudyError, read_study_file

StudyT = TypeVar("StudyT")
SettingT = TypeVar("SettingT")


def describe(study: Any, setting: Any, **kept: Any) -> dict[str, Any]:
    """Return a study and its size in JSON's types: recipes by name; `kept` stands in place of fields."""
    arms = [
        replace(arm, recipe=arm.recipe_name, change={}, tail=None) if isinstance(arm, Arm) else arm
        for arm in study.arms
    ]
    content = {item.name: getattr(study, item.name) for item in fields(study)} | {"arms": arms} | kept
    return {"ablation": plain(content), "setting": plain(setting)}


def read_kept(
    folder: Path,
    study: Callable[..., StudyT],
    setting: Callable[[dict[str, Any]], SettingT],
    arm: Callable[..., Any] = Arm,
    **parts: Callable[[Any], Any],
) -> tuple[StudyT, SettingT]:
    """Read back what `describe` returned.

    Parameters
    ----------
    folder : Path
        The study's.
    study, setting, arm : callable
        Make them: of fields, of a dict of fields, of fields.
    **parts : callable
        Make further fields of the study of what was kept of them.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    content = read_study_file(folder)
    try:
        kept = dict(content["ablation"])
        kept["arms"] = tuple(arm(**item) for item in kept["arms"])
        kept["expectations"] = tuple(map(Expectation.of, kept["expectations"]))
        for name, make in {"quick": setting, "full": setting, **parts}.items():
            kept[name] = make(kept[name])
        return study(**kept), setting(content["setting"])
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{folder}: study.json is damaged, or another version of lowprec wrote it ({error})") from None
