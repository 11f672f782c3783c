"""The command that trains one model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import Cell, CommandError, emit, machine_readable

if TYPE_CHECKING:
    from ..moe.run.train import Run
    from ..study.run.progress import Display


@click.command()
@click.option(
    "--config",
    default="tiny",
    show_default=True,
    metavar="NAME|FILE",
    help="Model: nano, pilot, tiny, small, or FILE.toml.",
)
@click.option(
    "--recipe",
    default="bf16",
    show_default=True,
    metavar="NAME|FILE",
    help="A recipe of lowprec recipes, or FILE.toml.",
)
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Optimizer steps.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of weights and data.")
@click.option("--data", default="stdlib", show_default=True, metavar="NAME|FILE", help="stdlib, bible, synthetic, ...")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: by the model's width]")
@click.option(
    "--schedule",
    default="linear_to_zero",
    show_default=True,
    metavar="NAME",
    help="linear_to_zero, constant or deepseek.",
)
@click.option("--ema", type=float, help="Decay of an exponential moving average of the weights.  [default: none]")
@click.option(
    "--recompute", default="none", show_default=True, metavar="NAME", help="Activations to recompute: none, dsv3 ..."
)
@click.option("--out", type=click.Path(), help="Folder for the results.")
@click.option("--save-every", type=click.IntRange(min=1), default=50, show_default=True, help="Steps between saves.")
@click.option("--resume", is_flag=True, help="Resume from the checkpoint in the folder, if there is one.")
@click.option("--restart", is_flag=True, help="Rename an existing run folder to OUT.1 and start over.")
@click.option(
    "--evaluate/--no-evaluate", default=True, show_default=True, help="Evaluate the final weights on held-out text."
)
@machine_readable
def train(
    config: str,
    recipe: str,
    steps: int,
    seed: int,
    data: str,
    learning_rate: float | None,
    schedule: str,
    ema: float | None,
    recompute: str,
    out: str | None,
    save_every: int,
    resume: bool,
    restart: bool,
    evaluate: bool,
) -> None:
    """Train one model from scratch and print its losses.

    With --out, the folder holds metrics.csv, run.json and checkpoint.npz; --resume continues an interrupted run.

    Example: lowprec train --config nano --recipe dsv3 --steps 150 --out runs/dsv3
    """
    from rich.console import Console

    from .. import _jit
    from ..moe.data.sources import load_corpus
    from ..moe.model.config_file import check_tiles, get_config
    from ..moe.model.memory import recompute_policies
    from ..moe.run.ema import ParameterEMA
    from ..moe.run.files import CHECKPOINT, describe_existing_run
    from ..moe.run.train import Schedule
    from ..moe.run.train import train as run_training
    from ..recipe import load_recipe
    from ..study.run.progress import display, status
    from ..study.run.store import check_writable

    # All arguments are checked before the first line of progress.
    if resume and out is None:
        raise CommandError("missing option --out DIR, the folder of the run to --resume")
    if resume and restart:
        raise CommandError("--resume and --restart are mutually exclusive")
    if out is not None and not (resume or restart) and (there := describe_existing_run(out)) is not None:
        raise CommandError(f"{out} holds a run ({there}); --resume continues it, --restart renames it")
    console = Console(stderr=True)
    shape, precision = get_config(config), load_recipe(recipe)
    with status(console, "reading the text"):
        corpus = load_corpus(data)
    check_tiles(shape, precision)
    precision.bind(seed, shape.layers)
    if ema is not None:
        ParameterEMA({}, ema)
    policy = recompute_policies[recompute]
    Schedule(1.0 if learning_rate is None else learning_rate, 0, steps, schedule)
    name = f"{shape.name} {precision.name}"
    if out is not None:
        if resume and not (Path(out) / CHECKPOINT).is_file():
            click.echo(f"{out} has no checkpoint to resume from: the run begins at step 0", err=True)
        check_writable(Path(out))
    passes = steps * shape.batch * shape.sequence / corpus.train.size
    if passes > 1:
        click.echo(f"{corpus.name} is shorter than the run, which reads it {passes:.1f} times", err=True)
    try:
        with display(console) as shown, _jit.compiling(shown.compiling):
            run = run_training(
                shape, precision, steps, seed, data=corpus, learning_rate=learning_rate, schedule=schedule, ema=ema,
                recompute=policy, out=out, save_every=save_every, resume=resume, restart=restart, evaluate=evaluate,
                on_step=_progress(shown, name, steps), on_stage=shown.stage,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = (
            f"{out} has the run so far; --resume continues it" if out else "nothing was saved, as --out was not given"
        )
        raise CommandError(f"stopped; {kept}", 130) from None
    row = _row(run, seed, mean_weights=ema is not None and run.status == "done" and evaluate)
    title = "Training, nats/byte" + (", not evaluated" if run.validation_loss is None else "")
    emit(tuple(row), [tuple(row.values())], title)
    if out is not None:
        click.echo(f"wrote {out}", err=True)
    if run.status == "diverged":
        raise CommandError(f"the run diverged: {run.divergence_reason}", 1)


def _progress(shown: Display, name: str, steps: int) -> Callable[[Any], None]:
    """Return the callback that shows a finished step and the remaining time."""
    from ..study.run.progress import Running, Snapshot, seconds_per_step

    seconds: list[float] = []

    def progress(record: Any) -> None:
        done = int(record.step)
        seconds.append(record.seconds)
        left = None if (step := seconds_per_step(seconds)) is None else step * (steps - done)
        running = [Running(name, done, steps, float(record.loss))]
        shown.update(Snapshot(int(done == steps), 1, done, steps, running, left))

    return progress


def _row(run: Run, seed: int, *, mean_weights: bool) -> dict[str, Cell]:
    """Return the results of a run as a row."""
    losses, trainer = run.metrics["loss"], run.trainer
    row: dict[str, Cell] = {
        "config": trainer.config.name,
        "recipe": trainer.recipe.name,
        "steps": trainer.steps,
        "seed": seed,
        "first loss": float(losses.iloc[0]) if len(losses) else None,
        "last loss": float(losses.iloc[-1]) if len(losses) else None,
        "validation loss": run.validation_loss,
    }
    if run.excess_loss is not None:
        row["excess loss"] = run.excess_loss
    if mean_weights:
        row["validation loss of mean weights"] = trainer.evaluate(mean_weights=True)
    return row
