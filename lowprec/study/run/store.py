"""Runs on disk: one folder a run, with `run.json` (what it was and how it ended) and `metrics.csv` (one row a step).

`run.json` is always replaced in one move and says "done" only when everything else of the run is on disk. Rows of
`metrics.csv` are only ever appended. Floats are written with `repr`, so what is read back has the same bits, and CSV
holds nan and inf, which a diverged run needs and JSON has no words for.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import lowprec

from ... import _files
from ..._files import csv_rows, make_folder, read_csv, write_json, write_text

RUN_FILE, METRICS_FILE = "run.json", "metrics.csv"
FINISHED = ("done", "diverged")
#: Sources that cannot change the numbers of a run; of the study's own, only those that execute runs can.
NOT_NUMERICS = (
    "__main__", "_files", "interop", "reference", "testing",
    "_ablations/", "_reference_data/", "cli/", "costs/", "measure/", "oracle/",
)  # fmt: skip
EXECUTE_RUNS = (
    "study/run/tasks",
    "study/run/trainer",
    "study/design/stress",
    "study/analysis/probe",
    "study/analysis/comparison",
    "study/kinds/same_weights/study",
)
#: Features of a processor that a run records.
CPU_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16", "amx_tile", "asimd",
    "asimdhp", "bf16", "sve",
)  # fmt: skip


class StudyError(RuntimeError):
    """A study cannot go on, or its result cannot be trusted; the message says why and what to do."""


class RunFailed(StudyError):
    """A run broke off with an error that is not the user's."""


# --- files -----------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a study.

    Raises
    ------
    StudyError
        If the file is missing or damaged.
    """
    try:
        return _files.read_json(path)
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise StudyError(f"{error}; remove that folder and run again") from None


def check_writable(path: Path) -> None:
    """Make sure that a folder exists or can be made and takes files.

    Raises
    ------
    StudyError
        If not; the message says why.
    """
    try:
        make_folder(path)
    except ValueError as error:
        raise StudyError(str(error)) from None


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Keep two studies from working in one folder.

    Raises
    ------
    StudyError
        If another living process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_files.locked(path))
        except ValueError as error:
            raise StudyError(str(error)) from None
        yield


# --- one run ---------------------------------------------------------------------------------------------------------


class RunFolder:
    """The folder of one run.

    Parameters
    ----------
    path : Path
        The folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def metrics(self) -> Path:
        """Path of the metrics."""
        return self.path / METRICS_FILE

    def read(self) -> dict[str, Any] | None:
        """Return `run.json`, None if there is none."""
        path = self.path / RUN_FILE
        return read_json(path) if path.exists() else None

    def finished(self) -> bool:
        """Whether the run came to its end (a divergence is one)."""
        run = self.read()
        return run is not None and run.get("status") in FINISHED

    def start(self, description: Mapping[str, Any], *, keep_rows: int = 0) -> None:
        """Begin, or begin again: `run.json` says "running" and the first `keep_rows` rows of metrics stay."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / RUN_FILE, {**description, "status": "running"})
        kept = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True) if keep_rows else []
        write_text(self.metrics, "".join(kept[: keep_rows + 1]))

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row to the metrics."""
        with open(self.metrics, "a", encoding="utf-8", newline="") as file:
            if file.tell() == 0:
                file.write(csv_rows([list(row)]))
            file.write(csv_rows([list(row.values())]))

    def finish(self, status: str, **results: Any) -> None:
        """End: `run.json` takes the results and the status."""
        run = read_json(self.path / RUN_FILE)
        write_json(self.path / RUN_FILE, {**run, **results, "status": status})

    def rows(self) -> int:
        """Return how many complete rows of metrics there are."""
        try:
            return max(0, self.metrics.read_bytes().count(b"\n") - 1)
        except FileNotFoundError:
            return 0

    def columns(self) -> dict[str, list[float]]:
        """Return the metrics as columns of floats."""
        head, rows = read_csv(self.metrics)
        return {name: [float(row[place]) for row in rows] for place, name in enumerate(head)}

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


# --- what a run's numbers depend on ----------------------------------------------------------------------------------


@functools.cache
def code_hash() -> str:
    """Return a hash of all sources of the package that can change a run's numbers (sixteen hexadecimal digits)."""
    root = Path(lowprec.__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).with_suffix("").as_posix()
        if name.startswith(NOT_NUMERICS):
            continue
        if name.startswith("study/") and name not in EXECUTE_RUNS:
            continue
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that take part in the arithmetic."""
    return {
        "lowprec": lowprec.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "numba", "llvmlite")},
    }


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return one line for every place where two nests of JSON types differ.

    Examples
    --------
    >>> differences({"data": "aa", "steps": 3}, {"data": "bb", "steps": 3})
    ["data: 'aa' then, 'bb' now"]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(key for key in new if key not in old)]:
            found += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, pair in enumerate(zip(old, new, strict=True)) for line in differences(*pair, f"{path}[{i}]")
        ]
    return [] if old == new else [f"{path}: {old!r} then, {new!r} now"]


@functools.cache
def machine() -> dict[str, Any]:
    """Describe the machine: for the record, since runs do not depend on it."""
    cpu, flags = platform.processor() or "unknown", ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                cpu = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = value
                break
    except OSError:
        pass
    return {
        "cpu": cpu,
        "features": [name for name in CPU_FEATURES if name in flags.split()],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "executable": sys.executable,
        "openblas": _openblas_core(),
    }


def _openblas_core() -> str | None:
    """Return the kernel family that NumPy's OpenBLAS chose, None if it cannot be asked."""
    import ctypes

    import numpy.linalg  # noqa: F401  (loads the library)

    try:
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line}
        # SciPy brings a copy of its own, which has nothing to do with NumPy's.
        library = ctypes.CDLL(next(path for path in sorted(mapped) if "scipy.libs" not in path))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    except (OSError, StopIteration, AttributeError):
        pass
    return None
