"""Hash of the sources that affect the numbers of a run: results of different sources may differ.

Imports determine these sources: all files in the folders of `ROOTS`, and all that those import, at the top of a file or
within a function. The sources are parsed, not imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import itertools
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
#: Folders of the code that executes runs.
ROOTS = ("moe/run/", "study/run/", "study/measurements/")


@functools.cache
def code_hash() -> str:
    """Return a hash of all sources of the package that can change a run's numbers (sixteen hexadecimal digits).

    The hash covers paths as well as contents.
    """
    digest = hashlib.sha256()
    for name in numeric_sources(PACKAGE):
        digest.update(name.encode() + b"\0" + (PACKAGE / f"{name}.py").read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def numeric_sources(package: Path) -> list[str]:
    """Return the sources that can change the numbers of a run, as paths in the package without suffix, sorted.

    Examples
    --------
    >>> found = numeric_sources(PACKAGE)
    >>> [name in found for name in ("moe/run/trainer", "study/run/tasks", "study/report/training", "cli/app")]
    [True, True, False, False]
    """
    todo = [
        path.relative_to(package).with_suffix("").as_posix() for root in ROOTS for path in (package / root).glob("*.py")
    ]
    found: set[str] = set()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += _imports(package, name)
    return sorted(found)


def _imports(package: Path, source: str) -> Iterator[str]:
    """Yield the package's sources that a source imports, except under TYPE_CHECKING, where imports affect no number."""
    faces: set[str] = set()  # names of the package itself, of which the code imports attributes
    used: list[tuple[str, str]] = []
    todo: list[ast.AST] = [ast.parse((package / f"{source}.py").read_bytes())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            faces |= {item.asname or item.name for item in node.names if item.name == package.name}
            names = [item.name.split(".") for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [package.name, *source.split("/")][: -node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, item.name] for item in node.names]
        else:
            names = []
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.append((node.value.id, node.attr))
        for first, *rest in names:
            if rest and first == package.name:
                yield from _source_of(package, rest)
    for name, attribute in used:
        if name in faces:
            yield from _source_of(package, [attribute])


def _source_of(package: Path, parts: list[str]) -> Iterator[str]:
    """Yield the sources of an imported name: its file, or a folder's ``__init__`` and the file that its stub names."""
    for length in range(len(parts), -1, -1):
        path = package.joinpath(*parts[:length])
        if length and path.with_suffix(".py").is_file():
            yield "/".join(parts[:length])
            return
        if (path / "__init__.py").is_file():
            face = "/".join([*parts[:length], "__init__"])
            stub = _stub(path / "__init__.pyi") if length < len(parts) else {}
            if length < len(parts) and parts[length] in stub:
                yield from _source_of(package, [*parts[:length], *stub[parts[length]].split(".")])
            yield face
            return


@functools.cache
def _stub(path: Path) -> dict[str, str]:
    """Return the module and name behind each name in the stub of a lazy package, or nothing without a stub."""
    if not path.is_file():
        return {}
    found = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ImportFrom):
            for item in node.names:
                found[item.asname or item.name] = f"{node.module}.{item.name}" if node.module else item.name
    return found


def hash_of_source(file: str, name: str) -> str:
    """Return a hash of the source of a function or class and of all module-level names that it uses, transitively.

    Names from other modules are followed into those, except for installed modules and the standard library. Docstrings,
    comments and other definitions in the files do not count. The hash has twelve hexadecimal digits.

    Parameters
    ----------
    file : str
        Path of the Python file.
    name : str
        Module-level name in the file.
    """
    used: dict[tuple[str, str], list[str]] = {}
    todo = [(file, name)]
    while todo:
        place, one = todo.pop()
        if (place, one) in used:
            continue
        top = _statements(place, Path(place).stat().st_mtime_ns)
        nodes = top.get(one) or top.get("*", [])  # "import *" may define a name that the file does not
        if one in top:
            used[place, one] = [ast.unparse(node) for node in nodes]
        for node in itertools.chain.from_iterable(map(ast.walk, nodes)):
            if isinstance(node, ast.Import | ast.ImportFrom):  # including those in functions and blocks
                for bound in _bound(node):
                    todo += _imported_names(place, node, one if bound == "*" else bound)
            elif isinstance(node, ast.Name):
                todo.append((place, node.id))
    sources = [("" if place == file else Path(place).name, one, text) for (place, one), text in used.items()]
    return hashlib.sha256(repr(sorted(sources)).encode()).hexdigest()[:12]


def without_docstrings(path: Path) -> ast.Module:
    """Return the syntax tree of a file without docstrings: equal trees compute the same."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


@functools.lru_cache(64)
def _statements(file: str, changed: int) -> dict[str, list[ast.stmt]]:
    """Return the module-level statements of a file that define or change each name, without docstrings."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in without_docstrings(Path(file)).body:
        for name in _bound(statement):
            found.setdefault(name, []).append(statement)
    return found


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a module-level statement defines or changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(item.asname or item.name).partition(".")[0] for item in statement.names}
    nodes = list(ast.walk(statement))  # an assignment, a call that may change its arguments, or a block of statements
    changed = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    changed.update(*(_bound(node) for node in nodes if node is not statement and isinstance(node, _DEFINES)))
    for node in nodes:
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            changed |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return changed


_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _imported_names(file: str, node: ast.Import | ast.ImportFrom, name: str) -> Iterator[tuple[str, str]]:
    """Yield the origins (file, name) of a name in an import statement; for a module, those of all names it defines."""
    for item in node.names:
        if item.name != "*" and (item.asname or item.name).partition(".")[0] != name:
            continue
        parent = ""
        if isinstance(node, ast.ImportFrom):
            parent = "." * node.level + (node.module or "")
        if item.name != "*":
            module = _source_file(file, f"{parent}{'.' if parent.strip('.') else ''}{item.name}")
            if module is not None:
                yield from ((module, one) for one in _statements(module, Path(module).stat().st_mtime_ns))
                continue
        if parent and (module := _source_file(file, parent)) is not None:
            yield module, name if item.name == "*" else item.name


def _source_file(file: str, module: str) -> str | None:
    """Return the source of a module that a file imports; None if it is installed, built in, or not found."""
    level = len(module) - len(module.lstrip("."))
    if level:
        base = Path(file).parents[level - 1].joinpath(*filter(None, module[level:].split(".")))
        places = [base.with_suffix(".py"), base / "__init__.py"]
        return next((str(place) for place in places if place.is_file()), None)
    try:
        spec = getattr(sys.modules.get(module), "__spec__", None) or importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    origin = getattr(spec, "origin", None)
    if origin is None or not origin.endswith(".py"):
        return None
    path = Path(origin).resolve()
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return None if any(path.is_relative_to(folder) for folder in (PACKAGE, *installed)) else str(path)
