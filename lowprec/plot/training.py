"""Plot of training losses of runs, in memory or saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .style import axes_or_new, color, drawn


@drawn
def losses(*runs: Any, smoothing: float = 0.9, axes: Any = None) -> Any:
    """Plot the training losses of runs against the number of bytes trained on.

    Parameters
    ----------
    *runs : Run, str or path
        Results of `lowprec.train`, or folders of saved runs.
    smoothing : float
        Weight of earlier steps in the plotted running mean, in [0, 1); 0 plots every step.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with one curve per run; the label of a finished run has its validation loss.

    Raises
    ------
    ValueError
        If no run is given, a folder does not hold a run, or the smoothing is out of range.
    ModuleNotFoundError
        If matplotlib is not installed.

    Examples
    --------
    >>> import lowprec as lp
    >>> runs = [lp.train("nano", recipe, steps=2, evaluate=False) for recipe in ("bf16", "dsv3")]
    >>> axes = lp.plot.losses(*runs)
    >>> axes.get_ylabel()
    'training loss, nats/byte'
    """
    if not runs:
        raise ValueError("losses: runs must be one run or folder at least, got none")
    if not 0 <= smoothing < 1:
        raise ValueError(f"losses: smoothing must be in [0, 1), got {smoothing!r}")
    found = [_curve(run) for run in runs]
    axes = axes_or_new(axes)
    for place, (label, metrics) in enumerate(found):
        smooth = metrics["loss"].ewm(alpha=1 - smoothing).mean()
        axes.plot(metrics["tokens"], smooth, color=color(place), linewidth=1.4, label=label)
    axes.set_xlabel("bytes seen")
    axes.set_ylabel("training loss, nats/byte")
    axes.legend(frameon=False, fontsize=8.5)
    return axes


def _curve(run: Any) -> tuple[str, Any]:
    """Return a run's name, with its validation loss, and its metrics."""
    if isinstance(run, str | os.PathLike):
        from ..moe.run.files import read_run

        kept = read_run(Path(run))
        return _label(kept.name, kept.summary["recipe"], kept.summary.get("validation_loss")), kept.metrics
    if not hasattr(run, "metrics"):
        raise ValueError(f"losses: runs must be runs or folders of runs, got {run!r}")
    return _label("", run.trainer.recipe.name, run.validation_loss), run.metrics


def _label(name: str, recipe: str, validation: float | None) -> str:
    words = f"{name} ({recipe})" if name and name != recipe else recipe
    return words if validation is None else f"{words}: validation {validation:.4f}"
