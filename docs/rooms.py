"""Rooms of the package and their imports, read from the sources, for the drawing and for the layering test.

A room is a folder of the package, or a file next to these folders. All imports count: at the top of a file, in a
function, or for type checkers only.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lowprec"


def files() -> list[Path]:
    """Return the source files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return the room of a file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """Return the dotted module name of a file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Return the absolute dotted names that a file imports; for ``from a import b`` both ``a`` and ``a.b``."""
    found: set[str] = set()
    package = [PACKAGE.name, *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            found.add(".".join(base))
            found.update(".".join([*base, alias.name]) for alias in node.names)
    return found


def file_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports; a package has the imports of its `__init__.py`."""
    modules = {module_of(path): path for path in files()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        used = {other for other in imports_of(path) if other in modules and other != name}
        # `from .room import file` also names the room; a file of that room does not depend on its `__init__.py`.
        graph[name] = {other for other in used if not name.startswith(f"{other}.")}
    return graph


def room_graph() -> dict[str, set[str]]:
    """Return the imports of each room, without the package's top-level `__init__.py`."""
    graph: dict[str, set[str]] = {room_of(path): set() for path in files()}
    for path in files():
        own = {name.split(".")[1] for name in imports_of(path) if name.startswith(f"{PACKAGE.name}.")}
        graph[room_of(path)] |= own & graph.keys()
    del graph["__init__"]
    return {room: used - {room} for room, used in graph.items()}


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Return each room's floor: 1 without imports of other rooms, otherwise one above the highest imported room.

    Raises
    ------
    graphlib.CycleError
        If rooms import each other in a cycle.
    """
    found: dict[str, int] = {}
    for room in graphlib.TopologicalSorter(graph).static_order():
        found[room] = 1 + max((found[used] for used in graph[room]), default=0)
    return found


def direct(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the transitive reduction of the graph."""
    reach: dict[str, set[str]] = {}
    for room in graphlib.TopologicalSorter(graph).static_order():
        reach[room] = set(graph[room]).union(*(reach[used] for used in graph[room]))
    return {room: {u for u in used if not any(u in reach[v] for v in used - {u})} for room, used in graph.items()}


def subject(room: str) -> str:
    """Return the first sentence of a room's docstring."""
    path = PACKAGE / room / "__init__.py"
    text = ast.get_docstring(ast.parse((path if path.exists() else PACKAGE / f"{room}.py").read_text("utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").rstrip(".")
