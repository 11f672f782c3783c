"""Show how far a study is: live bars on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

COMPILING = "compiling kernels, once per version of lowprec"
#: Seconds between two lines where there is no terminal.
LINE_EVERY = 5.0


@dataclass(frozen=True)
class Running:
    """One run in progress."""

    name: str
    done: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Snapshot:
    """Where a study stands.

    Attributes
    ----------
    runs_done, runs : int
        Finished runs and all runs.
    steps_done, steps : int
        The same in steps; runs that were finished before count as done.
    running : sequence of Running
        Runs in progress.
    seconds_left : float or None
        Estimate of the remaining wall time, None while nothing is known.
    """

    runs_done: int
    runs: int
    steps_done: int
    steps: int
    running: Sequence[Running]
    seconds_left: float | None


class Display:
    """What a study tells about itself while it runs; this one shows nothing."""

    def stage(self, text: str) -> None:
        """Announce what happens next."""

    def note(self, text: str) -> None:
        """Tell something that stays to be read."""

    def compiling(self, count: int) -> None:
        """Say that a kernel is compiled, the how manyth it is, or with 0 that none is any more."""

    def update(self, snapshot: Snapshot) -> None:
        """Show where the study stands."""


def clock(seconds: float) -> str:
    """Return a time span as minutes and seconds, or hours.

    Examples
    --------
    >>> clock(83), clock(7384)
    ('1:23', '2:03:04')
    """
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Lines(Display):
    """Plain lines, one every few seconds.

    Parameters
    ----------
    console : rich.console.Console
        Where to write.
    every : float
        Seconds between two lines.
    """

    def __init__(self, console: Any, every: float = LINE_EVERY) -> None:
        self.console, self.every = console, every
        self.began, self.last = time.monotonic(), float("-inf")

    def _write(self, text: str) -> None:
        line = f"[{clock(time.monotonic() - self.began):>5}] {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stage(self, text: str) -> None:
        """Write what happens next."""
        self._write(text)

    def note(self, text: str) -> None:
        """Write it."""
        self._write(text)

    def compiling(self, count: int) -> None:
        """Write it, the first time."""
        if count == 1:
            self._write(COMPILING)

    def update(self, snapshot: Snapshot) -> None:
        """Write a line, unless the last one is young."""
        now = time.monotonic()
        if now - self.last < self.every:
            return
        self.last = now
        ended = snapshot.runs_done == snapshot.runs
        left = "" if snapshot.seconds_left is None or ended else f", about {clock(snapshot.seconds_left)} left"
        running = "; ".join(
            f"{run.name} {run.done}/{run.steps}"
            + ("" if run.loss is None else f" loss {run.loss:.3f}")
            + (" evaluating" if run.done >= run.steps else "")
            for run in snapshot.running
        )
        percent = 100 * snapshot.steps_done // max(1, snapshot.steps)
        self._write(
            f"{snapshot.runs_done}/{snapshot.runs} runs, {percent} % of steps{left}; "
            f"{running or ('done' if ended else 'starting')}"
        )


class Bars(Display):
    """Live bars on a terminal: the whole study, and one line per run in progress.

    Parameters
    ----------
    progress : rich.progress.Progress
        Started by `display`.
    """

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.text = "starting"
        self.whole = progress.add_task(self.text, total=None, note="")
        self.tasks: dict[str, Any] = {}

    def stage(self, text: str) -> None:
        """Name the stage beside the bar."""
        self.text = text
        self.progress.update(self.whole, description=text)

    def note(self, text: str) -> None:
        """Write it above the bars."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def compiling(self, count: int) -> None:
        """Say it in place of the stage, and how many kernels there were."""
        text = f"{COMPILING}: {count}" if count else self.text
        self.progress.update(self.whole, description=text)

    def update(self, snapshot: Snapshot) -> None:
        """Move the bars."""
        left = "" if snapshot.seconds_left is None else f"about {clock(snapshot.seconds_left)} left"
        self.text = f"{snapshot.runs_done}/{snapshot.runs} runs"
        self.progress.update(
            self.whole,
            description=self.text,
            total=max(1, snapshot.steps),
            completed=snapshot.steps_done,
            note=left,
        )
        for name in [name for name in self.tasks if name not in {run.name for run in snapshot.running}]:
            self.progress.remove_task(self.tasks.pop(name))
        for run in snapshot.running:
            if run.name not in self.tasks:
                self.tasks[run.name] = self.progress.add_task(f"  {run.name}", total=run.steps, note="")
            note = "" if run.loss is None else f"loss {run.loss:.3f}"
            if run.done >= run.steps:
                note = "evaluating"
            self.progress.update(self.tasks[run.name], completed=run.done, note=note)


@contextmanager
def display(console: Any) -> Iterator[Display]:
    """Provide the display that suits a console.

    Parameters
    ----------
    console : rich.console.Console
        A terminal gets live bars, anything else plain lines.
    """
    if not console.is_terminal:
        yield Lines(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress)


@contextmanager
def status(console: Any, text: str) -> Iterator[None]:
    """Say on a terminal what takes a moment; nothing is left of it, and nothing comes where there is no terminal."""
    if not console.is_terminal:
        yield
        return
    with display(console) as shown:
        shown.stage(text)
        yield
