"""Stored runs: one folder per run, with `run.json` (description and result) and `metrics.csv` (one row per step).

`run.json` is replaced atomically and has the status "done" only when all other files of the run are on disk.
`metrics.csv` is only appended to. Floats are written with `repr`, which preserves every bit. CSV can hold nan and inf,
as a diverged run requires and JSON does not allow.
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
#: Advice in errors about incomplete files of a run.
AGAIN = "(the same command does that run again)"


class StudyError(RuntimeError):
    """Error for a study that cannot continue, or a result that cannot be trusted; the message has reason and remedy."""


class RunFailed(StudyError):
    """Error for a run that failed for a reason other than the user's input."""


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
    """Read the description of the study in a folder.

    Raises
    ------
    StudyError
        If the file is missing or damaged.
    """
    if not (folder / STUDY_FILE).is_file():
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    return read_json(folder / STUDY_FILE)


def check_writable(path: Path) -> None:
    """Check that a folder exists or can be created, and that files can be written to it.

    Raises
    ------
    StudyError
        If it is not writable; the message has the reason.
    """
    try:
        make_folder(path)
    except ValueError as error:
        raise StudyError(str(error)) from None


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Context manager: lock a folder against a second study.

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
        """Path of the file with metrics."""
        return self.path / METRICS_FILE

    def read(self) -> dict[str, Any] | None:
        """Return the content of `run.json`, None if it does not exist."""
        path = self.path / RUN_FILE
        return read_json(path) if path.exists() else None

    def finished(self) -> bool:
        """Return whether the run has finished, by success or divergence."""
        run = self.read()
        return run is not None and run.get("status") in FINISHED

    def start(self, description: Mapping[str, Any], *, keep_rows: int = 0) -> None:
        """Start or restart the run: write `run.json` with status "running" and keep `keep_rows` rows of metrics."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / RUN_FILE, {**description, "status": "running"})
        kept = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True) if keep_rows else []
        write_text(self.metrics, "".join(kept[: keep_rows + 1]))

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row of metrics."""
        with open(self.metrics, "a", encoding="utf-8", newline="") as file:
            if file.tell() == 0:
                file.write(csv_rows([list(row)]))
            file.write(csv_rows([list(row.values())]))

    def finish(self, status: str, **results: Any) -> None:
        """Finish the run: write results and status to `run.json`."""
        run = read_json(self.path / RUN_FILE)
        write_json(self.path / RUN_FILE, {**run, **results, "status": status})

    def rows(self) -> int:
        """Return the number of complete rows of metrics."""
        try:
            return max(0, self.metrics.read_bytes().count(b"\n") - 1)
        except FileNotFoundError:
            return 0

    def missing_rows(self, record: Mapping[str, Any]) -> str:
        """Describe a wrong number of rows of a finished run, given its `run.json`; empty if the number is correct."""
        steps = record.get("timed_steps" if record.get("status") == "diverged" else "steps")
        if (rows := self.rows()) == steps:
            return ""
        return f"has {rows} of {steps} rows in {METRICS_FILE} {AGAIN}"

    def columns(self) -> dict[str, list[float]]:
        """Return the metrics as columns of floats.

        Raises
        ------
        StudyError
            If the file is damaged.
        """
        try:
            head, rows = read_csv(self.metrics)
            return {name: [float(row[place]) for row in rows] for place, name in enumerate(head)}
        except ValueError as error:
            raise StudyError(f"{self.metrics} is damaged ({error}); remove that folder and run again") from None

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
