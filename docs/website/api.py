"""Pages of the Python API, with every public name by room and the command line, generated from the docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import lowprec
from lowprec.format.layout import Layout
from lowprec.registry import Registry

from .links import ROOT

#: Modules with several functions, each with a separate page.
MODULES = ("measure.metrics", "measure.comparison", "logfmt", "costs", "testing", "reference", "interop", "study")
_TITLES = {
    "_threads": "Threads", "cast": "Casts", "codec": "Codecs", "format": "Formats", "measure": "Measures",
    "moe": "The trainer", "recipe": "Recipes", "scaling": "Block scaling", "tensorcore": "Tensor cores",
}  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of all rooms with public names, of modules, of the command line, and an index."""
    rooms: dict[str, list[str]] = {}
    for module, name in public("lowprec/__init__.pyi"):
        if module:
            rooms.setdefault(module.split(".")[0], []).append(name)
    written = []
    for room, names in sorted(rooms.items()):
        written.append(f"api/{room.strip('_')}")
        title = _TITLES.get(room, room.capitalize())
        yield f"generated/{written[-1]}.rst", _page(title, "", [(f"lowprec.{name}", name) for name in names])
    for name in MODULES:
        written.append(f"api/module_{name.rpartition('.')[2]}")
        module = _module(name)
        names = [(f"{module.__name__}.{item}", item) for item in _names_of(module)]
        about = inspect.getdoc(module) or ""
        yield f"generated/{written[-1]}.rst", _page(f"lowprec.{name}", about.split("\n\n")[0], names)
    yield (
        "generated/command_line.rst",
        ("The command line\n================\n\n.. click:: lowprec.cli.app:cli\n   :prog: lowprec\n   :nested: full\n"),
    )
    listing = "\n".join(f"   {name.removeprefix('api/')}" for name in written)
    yield (
        "generated/api/index.rst",
        (
            "Python API\n==========\n\nEvery public name, by its subject; each is loaded when it is used.\n\n"
            f".. toctree::\n   :maxdepth: 1\n\n{listing}\n"
        ),
    )


def public(path: str) -> list[tuple[str, str]]:
    """Return the modules and names that a stub file re-exports, in its order."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return [
        (node.module or "", alias.asname or alias.name)
        for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]  # fmt: skip


def _module(name: str) -> ModuleType:
    found: Any = getattr(lowprec, name, None) or importlib.import_module(f"lowprec.{name}")
    assert isinstance(found, ModuleType)
    return found


def _names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module: its `__all__`, or its definitions without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    return [
        name for name, item in vars(module).items()
        if not name.startswith("_") and getattr(item, "__module__", "") == module.__name__
        and (inspect.isfunction(item) or inspect.isclass(item))
    ]  # fmt: skip


def _page(title: str, about: str, names: list[tuple[str, str]]) -> str:
    parts = [f"{title}\n{'=' * len(title)}\n"]
    if about:
        parts.append(f"{about}\n")
    for path, name in names:
        item = _item(path)
        if isinstance(item, Registry):
            parts.append(f"``lowprec.{name}``\n{'-' * (len(name) + 12)}\n\nA catalogue of {len(item)} {item.kind}s: "
                         + ", ".join(f"``{entry}``" for entry in item) + ".\n")  # fmt: skip
        elif inspect.isclass(item):
            inherited = Layout in item.__bases__  # many properties of `Format`
            more = "   :inherited-members: Value\n" if inherited else ""
            parts.append(f".. autoclass:: {path}\n   :members:\n{more}")
        elif callable(item):
            parts.append(f".. autofunction:: {path}\n")
    return "\n".join(parts)


def _item(path: str) -> Any:
    module, _, name = path.rpartition(".")
    found: Any = lowprec
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    return getattr(found, name)
