"""Common parts of the benchmarks: interleaved timing, child processes, tables on screen and in Markdown files."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Work = Callable[[], object]


def interleaved(
    works: Mapping[str, Work], rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return median seconds of each work; they take turns, so that a change of the machine's mood hits all of them.

    ``time.thread_time`` (CPU time of this thread) fits work that stays on it, ``time.perf_counter`` all other.
    A work too short for the clock is repeated within a round.
    """
    repeats = {}
    for name, work in works.items():
        work()
        start = clock()
        work()
        repeats[name] = max(1, min(1000, int(2e-3 / max(clock() - start, 1e-7))))
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = clock()
            for _ in range(repeats[name]):
                work()
            seconds[name].append((clock() - start) / repeats[name])
    return {name: statistics.median(times) for name, times in seconds.items()}


def child(script: str, *arguments: str, **environment: str) -> Any:
    """Run a benchmark script again in a fresh process with other environment variables; return the JSON it prints."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True, text=True, timeout=900, env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_memory(work: Work, forget: Work) -> int:
    """Return the peak memory of a call in bytes: as counted by Python and NumPy, or resident, whichever is larger.

    `forget` frees the memory kept by earlier calls.
    """

    def status(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

    forget()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to the current size
    before = status("VmRSS")
    work()
    resident = status("VmHWM") - before
    forget()
    tracemalloc.start()
    work()
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return max(resident, traced)


def machine_line() -> str:
    """Describe the machine of the measurement, with the features that kernels are compiled for."""
    import numpy as np

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line[:10] == "model name"
        ]
        model = names[0] if names else model
    from lowprec._jit import cpu_features

    known = ("avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "neon", "sve")
    words = [name for name in known if name in cpu_features()]
    return (
        f"{model} ({', '.join(words) or 'no vector features known here'}), {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{platform.system()} {platform.machine()}; load average {os.getloadavg()[0]:.1f} at the start"
    )


@dataclass(frozen=True)
class Table:
    """A titled table of strings, with a `note` below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "|".join(["---"] + ["---:"] * (len(self.columns) - 1)) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def show(self) -> None:
        """Print it in colour."""
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        Console().print(table)


def write_between_markers(path: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- name -->`` and ``<!-- /name -->`` in a file.

    Raises
    ------
    ValueError
        If the file has not both markers, in this order.
    """
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = path.read_text()
    if start not in old or end not in old or old.index(end) < old.index(start):
        raise ValueError(f"{path}: the markers {start} and {end} are needed")
    head, tail = old[: old.index(start) + len(start)], old[old.index(end) :]
    path.write_text(f"{head}\n{text}\n{tail}")
