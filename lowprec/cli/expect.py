"""The command `expect`: the difference of log-probabilities to expect between a trainer and a rollout."""

from __future__ import annotations

from typing import Any

import click

from .output import Cell, emit, machine_readable, output_format, progress_bar


def _sides(text: str) -> tuple[str, str]:
    """Return the values for the trainer and the rollout: ``A,B``, or one value for the rollout."""
    first, comma, second = text.partition(",")
    return (first, second) if comma else ("", text)


@click.command("expect")
@click.argument("train")
@click.argument("rollout")
@click.option("--kv", metavar="CODEC", help="Codec of the KV cache.")
@click.option("--head", metavar="FORMAT", help="Format of the logits.")
@click.option("--router", metavar="FORMAT", help="Format of the gate's operands and logits.")
@click.option("--attention", metavar="KERNEL", help="Kernel of attention.")
@click.option("--combine", metavar="CODEC", help="Codec of experts' outputs.")
@click.option("--norm", metavar="NORM", help="RMSNorm.")
@click.option("--log-softmax", metavar="FORMAT", help="Format of the log-sum-exp and of log-probabilities.")
@click.option("--logit-size", type=float, metavar="SIZE", help="Size of the largest logits; their step grows with it.")
@click.option(
    "--measured", type=click.FloatRange(min=0, min_open=True), metavar="X", help="Your mean absolute difference."
)
@click.option("--checkpoint", metavar="FILE", help="Checkpoint of `lowprec train`.  [default: nano, trained once]")
@machine_readable
def expect_command(
    train: str, rollout: str, logit_size: float | None, measured: float | None, checkpoint: str | None, **parts: Any
) -> None:
    """Compute the difference of log-probabilities to expect.

    TRAIN and ROLLOUT are the recipes of the trainer and of the rollout engine; options change the rollout, or both
    sides if two values are given as A,B (an empty one changes nothing). Both run in a small trained model with equal
    weights and tokens: prints the mean and quantiles of the difference, the KL divergence, the step of the logits and
    the contribution of each part that differs. `lowprec mismatch` measures the same in a model of yours.

    Example: lowprec expect bf16 dsv3 --kv fp8_1x128 --head float32,bfloat16 --measured 0.05
    """
    from ..moe.run.trainer import Trainer
    from ..parity.expect import expect
    from ..parity.side import Side

    given = {key: _sides(text) for key, text in parts.items() if text is not None}
    a, b = (
        Side.of(recipe, **{key: pair[side] for key, pair in given.items() if pair[side]})
        for side, recipe in enumerate((train, rollout))
    )
    trainer = None if checkpoint is None else Trainer.load(checkpoint)
    with progress_bar("steps of training, then passes") as progress:
        found = expect(a, b, trainer=trainer, logit_size=logit_size, measured=measured, progress=progress)
    if not output_format():
        click.echo(str(found))
        return
    rows: list[tuple[str, Cell]] = [("train", found.train), ("rollout", found.rollout), ("model", found.model)]
    rows += list(found.summary().items())
    rows += [
        (f"step of the {side}'s logits", grid.step)
        for side, grid in zip(("trainer", "rollout"), found.grids, strict=True)
    ]
    rows += [(f"KL of {part.name} alone", part.kl_alone) for part in found.parts]
    rows += [(f"KL reduction of {part.name}", part.kl_reduction) for part in found.parts]
    rows += [("verdict", found.verdict)] if found.verdict else []
    emit(("name", "value"), rows, "Expected difference")
