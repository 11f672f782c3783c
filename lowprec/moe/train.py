"""One call from nothing to a trained model, its curve and its validation loss."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lowprec.moe import checkpoint
from lowprec.moe.config import MoEConfig, configs
from lowprec.moe.data import Corpus, load_corpus
from lowprec.moe.schedule import Schedule
from lowprec.moe.trainer import Diverged, StepRecord, Trainer, code_version
from lowprec.recipe import Recipe, recipes

if TYPE_CHECKING:
    import pandas

__all__ = ["Diverged", "Run", "Schedule", "StepRecord", "Trainer", "default_rate", "train"]


@dataclass(frozen=True, eq=False)
class Run:
    """The outcome of `train`.

    Attributes
    ----------
    metrics : pandas.DataFrame
        One row a step, a column for each field of `StepRecord`.
    validation_loss : float
        Mean loss on the held-out text at the end, nats per byte, in the run's own precision.
    trainer : Trainer
        To go on from.
    """

    metrics: pandas.DataFrame = field(repr=False)
    validation_loss: float
    trainer: Trainer = field(repr=False)

    def __repr__(self) -> str:
        trainer = self.trainer
        return (
            f"<Run {trainer.config.name} {trainer.recipe.name}: {trainer.steps} steps,"
            f" validation loss {self.validation_loss:.4f} nats/byte>"
        )


def default_rate(config: MoEConfig) -> float:
    """Return the peak learning rate from scratch: 0.002 at width 128, with the width as 1 / sqrt(width).

    Found for short runs: after 150 steps on the standard library, nano has 2.33, 2.26, 2.39 and 2.66 nats per byte at
    0.001, 0.002, 0.004 and 0.008; pilot has 2.18 at 0.0015 and 2.33 at 0.003.
    """
    return 2e-3 * math.sqrt(128 / config.dim)


def train(
    config: MoEConfig | str = "tiny",
    recipe: Recipe | str = "bf16",
    steps: int = 300,
    seed: int = 0,
    *,
    data: Corpus | str | os.PathLike[str] = "stdlib",
    learning_rate: float | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[StepRecord], object] | None = None,
) -> Run:
    """Train a model from scratch: a short warm-up, then the rate falls linearly to zero.

    Parameters
    ----------
    config : MoEConfig or str
        Shape of the model: "nano", "pilot", "tiny", "small" or one's own.
    recipe : Recipe or str
        Its precision: "bf16", "dsv3" ... or one's own.
    steps : int
        Optimizer steps of `config.batch` x `config.sequence` bytes.
    seed : int
        Initial weights and order of the data; the same seed gives the same bits.
    data : Corpus, str or path
        "stdlib", a text file, or a corpus.
    learning_rate : float, optional
        Its highest value; `default_rate` by default.
    out : path, optional
        A folder for metrics.csv, run.json and checkpoint.npz.
    progress : callable, optional
        Called with the record of every step.

    Returns
    -------
    Run
        Metrics, validation loss and the trainer.

    Raises
    ------
    Diverged
        If the loss becomes NaN or infinite.
    ValueError
        For unknown names, numbers out of range, a text that is missing or too short, or a folder that cannot be
        written.

    Examples
    --------
    >>> import lowprec as lp
    >>> run = lp.train("nano", "bf16", steps=2)
    >>> run.metrics[["step", "tokens"]].values.tolist(), run.validation_loss < 5.5
    ([[1, 2048], [2, 4096]], True)
    """
    import pandas

    config = configs.get(config)
    recipe = recipes.get(recipe)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps {steps!r}: a whole number >= 1 is needed")
    rate = default_rate(config) if learning_rate is None else learning_rate
    schedule = Schedule(rate, min(steps // 10, 50), steps, "linear_to_zero")
    corpus = data if isinstance(data, Corpus) else load_corpus(data)
    trainer = Trainer(config, recipe, corpus, seed=seed, schedule=schedule)
    folder = None if out is None else _writable_folder(out)
    records = []
    for _ in range(steps):
        records.append(trainer.step())
        if progress is not None:
            progress(records[-1])
    run = Run(pandas.DataFrame([dataclasses.asdict(record) for record in records]), trainer.evaluate(), trainer)
    if folder is not None:
        trainer.save(folder / "checkpoint.npz")
        checkpoint.write_atomically(folder / "metrics.csv", run.metrics.to_csv(index=False).encode())
        summary = {
            "config": config.name,
            "recipe": recipe.name,
            "steps": steps,
            "seed": seed,
            "learning_rate": rate,
            "corpus": {"name": corpus.name, "origin": corpus.origin, "sha256": corpus.sha256},
            "validation_loss": run.validation_loss,
            "code": code_version(),
        }
        checkpoint.write_atomically(folder / "run.json", json.dumps(summary, indent=2).encode() + b"\n")
    return run


def _writable_folder(out: str | os.PathLike[str]) -> Path:
    """Make a folder and prove, before the work and not after it, that files can be written there."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(folder / ".writable", b"")
        (folder / ".writable").unlink()
    except OSError as error:
        raise ValueError(f"output folder {os.fspath(out)!r} cannot be written: {error.strerror}") from None
    return folder
