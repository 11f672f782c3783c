"""Who may import whom: the layers of the package, read from the sources."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest

import lowprec

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))  # `rooms` reads the imports for the drawing, too
import rooms
from rooms import imports_of, room_of

PACKAGE = Path(lowprec.__file__).parent
FILES = rooms.files()

# Rooms from the ground up; a room may import those on lower floors. A room is a folder, or a file beside the folders.
FLOORS = [
    {"_checks", "_values"},
    {"_arrays", "_files", "_fpenv", "_jit", "_markup", "registry"},
    {"_threads", "definitions", "format", "kernels"},
    {"cast", "interop", "oracle", "special"},
    {"scaling", "logfmt", "order"},
    {"codec", "norm", "tensorcore"},
    {"attn", "collective"},
    {"costs", "golden", "recipe", "vectors"},
    {"diagnose", "moe", "measure"},
    {"board", "bounds", "parity", "plot"},
    {"jax", "study", "testing", "torch"},
    {"cli"},
    {"__main__", "reference"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS, 1) for room in rooms}
# Rooms that stand apart, and all that each may import: the slow truth shares no code with what it judges.
ONLY = {
    "oracle": {"format"},
    "costs": {"_checks", "_values", "format", "codec", "registry"},
    "interop": {"format"},
    "reference": set(),
}
ONLY_JIT_MAY_IMPORT = {"numba", "llvmlite"}


@pytest.mark.slow
def test_kernels_are_no_generators() -> None:
    """Numba knows a generator no more once it comes from the disk cache: what is compiled against it then fails."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and "kernel" in map(ast.unparse, node.decorator_list):
                found = [part for part in ast.walk(node) if isinstance(part, ast.Yield | ast.YieldFrom)]
                assert not found, f"{path.relative_to(PACKAGE)}: {node.name}"


@pytest.mark.sampled(75)
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    room = room_of(path)
    names = imports_of(path)
    outside = {name.split(".")[0] for name in names} & ONLY_JIT_MAY_IMPORT
    assert not outside or room == "_jit", f"{outside} may be imported by _jit.py alone"
    if room == "__init__":
        return
    own = {name.removeprefix("lowprec.") for name in names if name.startswith("lowprec.")}
    used = {name.split(".")[0] for name in own} & FLOOR.keys() - {room}
    wrong = used - ONLY[room] if room in ONLY else {name for name in used if FLOOR[name] >= FLOOR[room]}
    assert not wrong, f"{room} must not import {sorted(wrong)}"


@pytest.mark.slow
def test_every_file_has_a_room_and_floors_are_few() -> None:
    assert {room_of(path) for path in FILES} == {*FLOOR, "__init__"}
    assert max(rooms.floors(rooms.room_graph()).values()) <= len(FLOORS) <= 13


@pytest.mark.slow
def test_no_circle_between_files() -> None:
    """Imports within functions count, and those for type checkers alone."""
    try:
        tuple(graphlib.TopologicalSorter(rooms.file_graph()).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


#: Functions of more than 60 lines; the docstring of each says why.
LONG = {
    "costs/published.py": "_catalogue",
    "kernels/tensorcore/reference/runs.py": "scaled_dot",
}


@pytest.mark.slow
def test_functions_are_short() -> None:
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > 60:
                    found[path.relative_to(PACKAGE).as_posix()] = node.name
    assert found == LONG
