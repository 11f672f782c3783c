"""Progress of a study: live bars on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

COMPILING = "compiling kernels, once per version of lowprec"
#: Seconds between two lines outside of a terminal.
LINE_EVERY = 5.0
#: Seconds between two lines while kernels are being compiled.
COMPILING_EVERY = 30.0
#: Number of steps after the first before the remaining time is estimated.
STEPS_TO_SETTLE = 3


@dataclass(frozen=True)
class Running:
    """One run in progress."""

    name: str
    done: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Snapshot:
    """Progress of a study at one time.

    Attributes
    ----------
    runs_done, runs : int
        Number of finished runs, and of all runs.
    steps_done, steps : int
        Number of finished steps, including those of runs finished earlier, and of all steps.
    running : sequence of Running
        Runs in progress.
    seconds_left : float or None
        Estimated remaining wall time, None if unknown.
    """

    runs_done: int
    runs: int
    steps_done: int
    steps: int
    running: Sequence[Running]
    seconds_left: float | None


def seconds_per_step(seconds: Sequence[float]) -> float | None:
    """Return the seconds per step of a run, None until its steps take about equally long.

    The first step is ignored, because it loads or compiles kernels.

    Parameters
    ----------
    seconds : sequence of float
        Duration of every step so far.

    Examples
    --------
    >>> compiling = [21.0, 1.4, 0.09, 0.11]
    >>> seconds_per_step(compiling), seconds_per_step([*compiling, 0.09])
    (None, 0.1)
    """
    counted = seconds[1:]
    early = [counted[i : i + STEPS_TO_SETTLE] for i in range(min(len(counted), 10) - STEPS_TO_SETTLE + 1)]
    settled = len(counted) >= 10 or any(max(few) <= 1.5 * min(few) for few in early)
    return median(counted[-20:]) if settled else None


class Display:
    """Interface for the progress of a study; this base class shows nothing."""

    def stage(self, text: str) -> None:
        """Announce the next stage."""

    def note(self, text: str) -> None:
        """Show a permanent message."""

    def compiling(self, count: int) -> None:
        """Show that kernels are being compiled: the number of the current one, or 0 at the end."""

    def update(self, snapshot: Snapshot) -> None:
        """Show a snapshot of the progress."""


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, or hours, minutes and seconds.

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
    """Progress as lines of text, one every few seconds.

    Parameters
    ----------
    console : rich.console.Console
        Console to write to.
    every : float
        Seconds between two lines.
    """

    def __init__(self, console: Any, every: float = LINE_EVERY) -> None:
        self.console, self.every = console, every
        self.began = self.compiled = time.monotonic()
        self.last = float("-inf")

    def _write(self, text: str) -> None:
        line = f"[{clock(time.monotonic() - self.began):>5}] {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stage(self, text: str) -> None:
        """Print the next stage."""
        self._write(text)

    def note(self, text: str) -> None:
        """Print the message."""
        self._write(text)

    def compiling(self, count: int) -> None:
        """Print that kernels are being compiled, and occasionally their number."""
        now = time.monotonic()
        if count == 1 or (count and now - self.compiled >= COMPILING_EVERY):
            self.compiled = now
            self._write(COMPILING + (f": {count} so far" if count > 1 else ""))

    def update(self, snapshot: Snapshot) -> None:
        """Print a line, unless the last one is recent."""
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
    """Progress as live bars on a terminal: one for the study, and one line per run in progress.

    Parameters
    ----------
    progress : rich.progress.Progress
        Progress bars, started by `display`.
    """

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.text = "starting"
        self.whole = progress.add_task(self.text, total=None, note="")
        self.tasks: dict[str, Any] = {}

    def stage(self, text: str) -> None:
        """Show the stage next to the bar."""
        self.text = text
        self.progress.update(self.whole, description=text)

    def note(self, text: str) -> None:
        """Print the message above the bars."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def compiling(self, count: int) -> None:
        """Show the number of compiled kernels in place of the stage."""
        text = f"{COMPILING}: {count}" if count else self.text
        self.progress.update(self.whole, description=text)

    def update(self, snapshot: Snapshot) -> None:
        """Update the bars."""
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
    """Context manager: the display that fits a console.

    Parameters
    ----------
    console : rich.console.Console
        Console to write to; live bars on a terminal, lines elsewhere.
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
    """Context manager: show a temporary message on a terminal; show nothing elsewhere."""
    if not console.is_terminal:
        yield
        return
    with display(console) as shown:
        shown.stage(text)
        yield
