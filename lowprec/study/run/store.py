"""Runs on disk: one folder a run, with `run.json` (what it was and how it ended) and `metrics.csv` (one row a step).

`run.json` is always replaced in one move and says "done" only when everything else of the run is on disk. Rows of
`metrics.csv` are only ever appended. Floats are written with `repr`, so what is read back has the same bits, and CSV
holds nan and inf, which a diverged run needs and JSON has no words for.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ... import _files
from ..._files import csv_rows, make_folder, read_csv, write_json, write_text

STUDY_FILE, RUN_FILE, METRICS_FILE = "study.json", "run.json", "metrics.csv"
FINISHED = ("done", "diverged")
#: What helps where files of a run are incomplete.
AGAIN = "(the same command does that run again)"


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


def read_study_file(folder: Path) -> dict[str, Any]:
    """Read the description of the study that a folder holds.

    Raises
    ------
    StudyError
        If it holds none, or a damaged one.
    """
    if not (folder / STUDY_FILE).is_file():
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    return read_json(folder / STUDY_FILE)


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

    def lacks(self, record: Mapping[str, Any]) -> str:
        """Return what is wrong with the number of rows of a finished run, given its `run.json`; empty if nothing."""
        steps = record.get("timed_steps" if record.get("status") == "diverged" else "steps")
        if (rows := self.rows()) == steps:
            return ""
        return f"has {rows} of {steps} rows in {METRICS_FILE} {AGAIN}"

    def columns(self) -> dict[str, list[float]]:
        """Return the metrics as columns of floats.

        Raises
        ------
        StudyError
            If they are damaged.
        """
        try:
            head, rows = read_csv(self.metrics)
            return {name: [float(row[place]) for row in rows] for place, name in enumerate(head)}
        except ValueError as error:
            raise StudyError(f"{self.metrics} is damaged ({error}); remove that folder and run again") from None

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
