"""`train`: from a configuration to a trained model, its metrics and its validation loss in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowprec._checks import check_int
from lowprec._fpenv import with_default_fpenv
from lowprec.moe.data.corpus import Corpus
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.config_file import get_config
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy
from lowprec.moe.run.files import RunFiles, deferred_interrupt, refuse_to_overwrite, run_files
from lowprec.moe.run.schedule import MOST_STEPS, Schedule
from lowprec.moe.run.step import Diverged, StepRecord
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    import pandas

__all__ = ["Diverged", "Run", "Schedule", "StepRecord", "Trainer", "default_rate", "train"]


@dataclass(frozen=True, eq=False)
class Run:
    """Result of `train`.

    Attributes
    ----------
    metrics : pandas.DataFrame
        One row per step, one column per field of `StepRecord`.
    validation_loss : float or None
        Mean loss on the held-out text at the end, nats per byte, in the run's own precision; infinite if it diverged,
        None if it was not evaluated.
    trainer : Trainer
        Trainer after the last step, from which training can continue.
    status : {"done", "diverged"}
        Whether all steps were made, or one had a loss or gradient that was not finite; the trainer keeps the state
        before that step.
    divergence_reason : str
        Reason for the divergence.
    excess_loss : float, optional
        Validation loss minus the entropy of the source, if both are known.
    """

    metrics: pandas.DataFrame = field(repr=False)
    validation_loss: float | None
    trainer: Trainer = field(repr=False)
    status: str = "done"
    divergence_reason: str = ""
    excess_loss: float | None = None

    def __repr__(self) -> str:
        trainer = self.trainer
        loss = self.validation_loss
        evaluated = "not evaluated" if loss is None else f"validation loss {loss:.4f} nats/byte"
        end = evaluated if self.status == "done" else self.status
        return f"<Run {trainer.config.name} {trainer.recipe.name}: {trainer.steps} steps, {end}>"


def default_rate(config: MoEConfig) -> float:
    """Return the default peak learning rate from scratch: 0.002 at width 128, scaled as 1 / sqrt(width).

    Measured on short runs: after 150 steps on the standard library, nano has 2.33, 2.26, 2.39 and 2.66 nats per byte at
    0.001, 0.002, 0.004 and 0.008; pilot has 2.18 at 0.0015 and 2.33 at 0.003.
    """
    return 2e-3 * math.sqrt(128 / config.dim)


@with_default_fpenv
def train(
    config: MoEConfig | str | os.PathLike[str] = "tiny",
    recipe: Recipe | str = "bf16",
    steps: int = 300,
    seed: int = 0,
    *,
    data: Corpus | str | os.PathLike[str] = "stdlib",
    learning_rate: float | None = None,
    schedule: str = "linear_to_zero",
    ema: float | None = None,
    recompute: RecomputePolicy | str = SAVE_ALL,
    out: str | os.PathLike[str] | None = None,
    save_every: int = 50,
    resume: bool = False,
    restart: bool = False,
    evaluate: bool = True,
    on_step: Callable[[StepRecord], object] | None = None,
    on_stage: Callable[[str], object] | None = None,
) -> Run:
    """Train a model from scratch; by default the rate falls linearly to zero after a short warm-up.

    Parameters
    ----------
    config : MoEConfig, str or path
        Shape of the model: "nano", "pilot", "tiny", "small", a TOML file, or a custom configuration.
    recipe : Recipe or str
        Precision of the training: "bf16", "dsv3" ..., a TOML file, or a custom recipe.
    steps : int
        Number of optimizer steps, each on `config.batch` x `config.sequence` bytes.
    seed : int
        Seed of initial weights, order of the data and random bits; the same seed gives the same bits.
    data : Corpus, str or path
        Training text: "stdlib", "bible", "synthetic", a text file, or a corpus.
    learning_rate : float, optional
        Peak learning rate; by default that of `default_rate`.
    schedule : str
        Learning rate schedule: "linear_to_zero", "constant" or "deepseek", see `Schedule`.
    ema : float, optional
        Decay of an exponential moving average of the weights.
    recompute : RecomputePolicy or str
        Recompute policy: activations that the backward pass recomputes, "dsv3" for example; results do not change.
    out : path, optional
        Folder for metrics.csv, run.json and checkpoint.npz.
    save_every : int
        Number of steps between two saves to `out`.
    resume : bool
        Resume from the checkpoint in `out`, if there is one, with the bits of an uninterrupted run.
    restart : bool
        Rename an existing run `out` to ``<out>.1`` or the next free number, and start over. Without `resume` or
        `restart`, a folder with a run is refused.
    evaluate : bool
        Evaluate the final weights on the held-out text, which takes as long as a few training steps.
    on_step : callable, optional
        Function called with the record of every step.
    on_stage : callable, optional
        Function called with the name of each stage: "reading the text", "reading the checkpoint", "the first step",
        "evaluating on the held-out text", "saving".

    Returns
    -------
    Run
        Metrics, validation loss and the trainer. If the loss becomes NaN or infinite, the run ends there and keeps its
        metrics.

    Raises
    ------
    ValueError
        If a name is unknown, a number is out of range, the corpus is missing or too short, the folder cannot be
        written, has a run or is in use by another one, or its checkpoint is damaged or of another run.
    KeyboardInterrupt
        After Ctrl-C, once the current step is done and saved.

    Examples
    --------
    >>> import lowprec as lp
    >>> run = lp.train("nano", "bf16", steps=2)
    >>> run.metrics[["step", "tokens"]].values.tolist(), run.validation_loss < 5.5
    ([[1, 2048], [2, 4096]], True)
    """
    config, recipe = get_config(config), load_recipe(recipe)
    steps = check_int("train", "steps", steps, 1, MOST_STEPS)
    save_every = check_int("train", "save_every", save_every, 1)
    if resume and out is None:
        raise ValueError("train: out must be the folder of the run to resume, got None")
    if out is not None:
        refuse_to_overwrite(out, resume=resume, restart=restart)  # before the work, and again once the folder is locked
    rate = default_rate(config) if learning_rate is None else learning_rate
    plan = Schedule.of_run(rate, steps, schedule)
    report_stage = (lambda _: None) if on_stage is None else on_stage
    if not isinstance(data, Corpus):
        report_stage("reading the text")
    corpus = data if isinstance(data, Corpus) else load_corpus(data)
    trainer = Trainer(config, recipe, corpus, seed=seed, schedule=plan, ema=ema, recompute=recompute)
    folder = contextlib.nullcontext() if out is None else run_files(out, resume=resume, restart=restart)
    with folder as files:
        return _train(trainer, steps, files, save_every, resume, evaluate, on_step, report_stage)


def _train(
    trainer: Trainer,
    steps: int,
    files: RunFiles | None,
    save_every: int,
    resume: bool,
    evaluate: bool,
    progress: Callable[[StepRecord], object] | None,
    report_stage: Callable[[str], object],
) -> Run:
    """Train until the end, a divergence or an interrupt; save `files`, if given, before returning."""
    import pandas

    records: list[dict[str, Any]] = []
    if files is not None and resume:
        report_stage("reading the checkpoint")
        trainer, records = files.resume(trainer)
    status, reason = "done", ""
    if trainer.steps < steps:
        report_stage("the first step")
    with deferred_interrupt() as stop:
        while trainer.steps < steps and not stop.asked:
            try:
                record = trainer.step()
            except Diverged as error:
                status, reason = "diverged", str(error)
                break
            records.append(dataclasses.asdict(record))
            if progress is not None:
                progress(record)
            if files is not None and trainer.steps % save_every == 0:
                files.save(trainer, records)
        if stop.asked and files is not None:
            files.save(trainer, records, status="interrupted")
    if stop.asked:
        raise KeyboardInterrupt
    loss, excess = (math.inf if status == "diverged" else None), None
    if status == "done" and evaluate:
        report_stage("evaluating on the held-out text")
        loss = trainer.evaluate()
        excess = trainer.excess_loss(loss=loss) if trainer.corpus.source_nll is not None else None
    if files is not None:
        report_stage("saving")
        results = {
            "validation_loss": loss if loss is not None and math.isfinite(loss) else None, "excess_loss": excess,
            "evaluated": status == "done" and evaluate, "reason": reason,
        }  # fmt: skip
        files.save(trainer, records, status=status, **results)
    columns = [field.name for field in dataclasses.fields(StepRecord)]
    return Run(pandas.DataFrame(records, columns=columns), loss, trainer, status, reason, excess)
