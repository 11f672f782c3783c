"""Files of ablations as modules, in every process that needs what they define.

An ablation may define accumulators, codecs and functions of its own. Python unpickles them by the name of their module,
which no worker could import: so what is sent to one names the files to be loaded first.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

#: Files loaded in this process, by the names of their modules.
_files: dict[str, str] = {}


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Loader that always compiles the source.

    Python takes cached byte code for current if the size of the file and the second of its last change are the same: an
    edit of one digit, right after a run, would not be seen.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load(path: Path) -> ModuleType:
    """Run a Python file and return its module, which `sys.modules` has from then on under a name of the file's place.

    Raises
    ------
    Exception
        Whatever the file raises; it leaves no module then.
    """
    place = str(path.resolve())
    name = f"lowprec_ablation_{path.stem}_{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    return _load(name, place)


def _load(name: str, place: str) -> ModuleType:
    loader = _SourceLoader(name, place)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=place))
    module.__file__ = place
    before = sys.modules.get(name)
    sys.modules[name] = module  # before it runs, as dataclasses look their module up
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    _files[name] = place
    return module


def used_by(value: Any) -> dict[str, str]:
    """Return the files that define classes and functions of an object and of what it holds, by their modules' names."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    todo = [value] if _files else []
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, str | int | float | ModuleType):
            continue
        seen.add(id(item))
        for name in (getattr(item, "__module__", None), getattr(item, "module", None)):  # a scale rule says its own
            if isinstance(name, str) and name in _files:
                found[name] = _files[name]
        if isinstance(item, Mapping):
            todo += item.values()
        elif isinstance(item, tuple | list | set | frozenset):
            todo += item
        elif not callable(item):
            todo += getattr(item, "__dict__", {}).values()
    return found


class Required:
    """Files that a process loads where this is unpickled: before whatever comes after it."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process makes of it: nothing but the modules."""
        return require, (self.files,)


def require(files: Mapping[str, str]) -> None:
    """Load files, by the names of their modules, that this process has not loaded yet."""
    for name, place in files.items():
        if name not in sys.modules:
            _load(name, place)
