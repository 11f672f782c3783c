"""Hash of the sources that determine the numbers of a run: results of different sources may differ.

Which sources these are is read from the imports: all that the folders of `ROOTS` hold, and whatever those import, at
the top of a file or within a function. The sources are parsed, none is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
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
    """Yield the sources of the package that a source imports; those for type checkers alone change no number."""
    faces: set[str] = set()  # names of the package itself, whose attributes are what is imported
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
    """Yield the source that an imported name stands in: a file's own, a folder's, or what its stub takes it from."""
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
    """Return the modules that the names of a lazy package come from."""
    if not path.is_file():
        return {}
    found = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ImportFrom):
            for item in node.names:
                found[item.asname or item.name] = f"{node.module}.{item.name}" if node.module else item.name
    return found


def hash_of_source(file: str, name: str) -> str:
    """Return a hash of a function's or class's source and of all that it names at the top of its file, however far.

    An edit of anything else in the file changes nothing (twelve hexadecimal digits).

    Parameters
    ----------
    file : str
        Path of the Python file.
    name : str
        What the file defines at its top.
    """
    return _hash_of_source(file, name, Path(file).stat().st_mtime_ns)


@functools.lru_cache(64)
def _hash_of_source(file: str, name: str, changed: int) -> str:
    top: dict[str, ast.AST] = {}
    for node in ast.parse(Path(file).read_bytes()).body:
        for bound in _bound(node):
            top[bound] = node
    used: dict[str, str] = {}
    todo = [name]
    while todo:
        if (one := todo.pop()) in top and one not in used:
            used[one] = ast.unparse(top[one])
            todo += [item.id for item in ast.walk(top[one]) if isinstance(item, ast.Name)]
    return hashlib.sha256(repr(sorted(used.items())).encode()).hexdigest()[:12]


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(item.asname or item.name).partition(".")[0] for item in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return [item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)]
    return []
