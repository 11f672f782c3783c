"""Hash of the sources that determine the numbers of a run: results of different sources may differ."""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

#: Sources that cannot change the numbers of a run: files, and folders with all that they hold.
NOT_NUMERICS = (
    "__main__", "_code", "_files", "_show", "format/picture", "interop", "recipe/picture", "reference",
    "tensorcore/order", "testing",
    "_ablations/", "_reference_data/", "cli/", "costs/", "diagnose/", "measure/", "oracle/", "plot/", "study/",
    "vectors/",
)  # fmt: skip
#: But these files of theirs can: they execute runs.
EXECUTE_RUNS = (
    "measure/metrics",
    "measure/spread",
    "study/run/backend",
    "study/run/evaluation",
    "study/run/tasks",
    "study/design/stress",
    "study/analysis/comparison",
    "study/analysis/probe",
    "study/analysis/smoothing",
    "study/kinds/readings/acceptance",
    "study/kinds/readings/faults",
    "study/kinds/readings/measurement",
    "study/kinds/readings/positions",
    "study/kinds/readings/reading",
    "study/kinds/readings/reduced",
    "study/kinds/replay/measurement",
    "study/kinds/replay/operands",
    "study/kinds/same_weights/measurement",
)


@functools.cache
def code_hash() -> str:
    """Return a hash of all sources of the package that can change a run's numbers (sixteen hexadecimal digits).

    The hash covers paths as well as contents.
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).with_suffix("").as_posix()
        if makes_numbers(name):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def makes_numbers(source: str) -> bool:
    """Return whether a source (its path in the package, without suffix) can change the numbers of a run.

    Examples
    --------
    >>> makes_numbers("moe/run/trainer"), makes_numbers("study/run/tasks"), makes_numbers("study/report/html")
    (True, True, False)
    """
    if source in EXECUTE_RUNS:
        return True
    return not any(source.startswith(name) if name.endswith("/") else source == name for name in NOT_NUMERICS)


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
