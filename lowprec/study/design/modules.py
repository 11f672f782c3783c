"""Loading files of ablations as modules, in every process that uses objects defined in them.

An ablation may define accumulators, codecs and functions. Python unpickles them by the name of their module, which
workers cannot import. An object sent to a worker therefore carries the list of files that the worker must load first.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

#: Files loaded in this process, by module name.
_files: dict[str, str] = {}


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Loader that always compiles the source.

    Python considers cached bytecode current if file size and modification time in seconds match. It would miss an edit
    of one digit directly after a run.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load(path: Path) -> ModuleType:
    """Run a Python file and return its module, which is added to `sys.modules` under a name derived from the path.

    Raises
    ------
    ValueError
        If the file raises an exception, which the message names with its line; `sys.modules` is then as before.
    """
    place = str(path.resolve())
    name = f"lowprec_ablation_{path.stem}_{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    try:
        return _load(name, place)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
        text = str(error)
        if isinstance(error, SyntaxError):
            text = error.msg
            lines += [error.lineno] if error.filename == place else []
        where = f", line {lines[-1]}" if lines else ""
        raise ValueError(f"{path}{where}: {type(error).__name__}: {text}".removesuffix(": ")) from error


def _load(name: str, place: str) -> ModuleType:
    loader = _SourceLoader(name, place)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=place))
    module.__file__ = place
    before = sys.modules.get(name)
    sys.modules[name] = module  # before execution, since dataclasses look up their module
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
    """Return the files that define the classes and functions used in an object, by module name."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    todo = [value] if _files else []
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, str | int | float | ModuleType):
            continue
        seen.add(id(item))
        for name in (getattr(item, "__module__", None), getattr(item, "module", None)):  # a scale rule has `module`
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
    """Object that loads the given files when it is unpickled; it must precede the objects that use them."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as a call of `require`."""
        return require, (self.files,)


def require(files: Mapping[str, str]) -> None:
    """Load the files of modules that this process has not loaded yet."""
    for name, place in files.items():
        if name not in sys.modules:
            _load(name, place)
