"""Figures of reports: a finding above, a size below it, and how they are written."""

from __future__ import annotations

import io
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..._files import write_bytes
from ..run.store import StudyError


def require_matplotlib() -> None:
    """Make sure that figures can be drawn, before the work and not after it.

    Raises
    ------
    StudyError
        If matplotlib is not installed; the message says how to get it.
    """
    if find_spec("matplotlib") is None:
        raise StudyError("figures need matplotlib: pip install 'lowprec[plot]' (or pass --no-plot)")


def wrapped(text: str, width: int) -> str:
    r"""Return text in lines of that many characters, a number and its per cent sign on one.

    Examples
    --------
    >>> wrapped("equivalent within ±0.25 % of it", 24).split(chr(10))
    ['equivalent within', '±0.25\xa0% of it']
    """
    return textwrap.fill(text.replace(" %", "\N{NO-BREAK SPACE}%"), width)


def new_figure(width: float, height: float, title: str, subtitle: str) -> tuple[Any, float]:
    """Return a figure with its finding in bold and its size below, and the height (0 to 1) that is left below both."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160)
    FigureCanvasAgg(figure)
    finding, small = wrapped(title, 92), wrapped(subtitle, 145)
    lines = finding.count("\n") + 1
    below = 1 - (0.09 + 0.21 * lines) / height
    figure.text(0.017, 1 - 0.09 / height, finding, fontsize=11, fontweight="bold", va="top", linespacing=1.25)
    figure.text(0.017, below, small, fontsize=8, color="#606060", va="top", linespacing=1.3)
    return figure, below - (0.06 + 0.16 * (small.count("\n") + 1)) / height


def save(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as `.png` and `.svg`, each in one move, and return the paths."""
    files = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in files:
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
        write_bytes(path, content.getvalue())
    return files
