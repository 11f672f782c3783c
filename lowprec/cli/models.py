"""Commands on language models of transformers: eval, mismatch, parity, export."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .arrays import _writable_file
from .output import Cell, CommandError, emit, machine_readable, output_format, progress_bar


def _loaded(folder: str, data: str, window: int, most: int | None, dtype: str = "bfloat16") -> tuple[Any, Any]:
    """Return a folder's model, in a dtype, and windows of tokens."""
    try:
        import torch

        from ..torch import folder as files

        model = files.load_model(folder, getattr(torch, dtype))
        tokens = files.load_tokens(data, folder, model.config.vocab_size)
    except ImportError as error:
        raise CommandError(str(error)) from None
    return model, files.windows(tokens, window, most)


_DATA = click.option(
    "--data", required=True, metavar="FILE", help="Tokens (.npy), or text for the tokenizer of the folder."
)
_WINDOW = click.option(
    "--window", type=click.IntRange(min=2), default=1024, show_default=True, help="Tokens per window."
)
_WINDOWS = click.option("--max-windows", type=click.IntRange(min=1), help="Largest number of windows.  [default: all]")
_SKIP = click.option("--skip", multiple=True, metavar="PATTERN", help="Linear layers not to convert; may be repeated.")


@click.command("eval")
@click.argument("folder")
@click.option("--recipe", "recipes", required=True, metavar="NAME,...", help="Recipes or .toml files.")
@click.option("--reference", default="bf16", show_default=True, help="Recipe to compare with.")
@_DATA
@_WINDOW
@_WINDOWS
@_SKIP
@click.option("--figure", metavar="FILE.png", help="Save a figure.")
@click.option("--by-block", is_flag=True, help="Print the errors of every block instead.")
@machine_readable
def eval_command(
    folder: str, recipes: str, reference: str, data: str, window: int, max_windows: int | None, skip: tuple[str, ...],
    figure: str | None, by_block: bool
) -> None:  # fmt: skip
    """Evaluate a language model under recipes.

    Prints the perplexity of each recipe, and the KL divergence and the share of changed predictions (flips) relative to
    the reference. FOLDER holds a model saved by transformers (config.json, safetensors); nothing is downloaded.

    Example: lowprec eval MODEL --recipe dsv3,mxfp8 --data tokens.npy
    """
    from ..recipe import load_recipe

    names = [name.strip() for name in recipes.split(",") if name.strip()]
    for name in (*names, reference):
        load_recipe(name)
    if figure is not None and Path(figure).suffix not in (".png", ".svg", ".pdf"):
        raise CommandError(f"--figure must end in .png, .svg or .pdf, got {figure}")
    _writable_file(figure)
    model, tokens = _loaded(folder, data, window, max_windows)
    from ..torch import evaluation as run

    with progress_bar(f"{len(tokens)} windows x {len(names) + 1} recipes") as progress:
        found = run.evaluate(model, tokens, names, reference, progress=progress, skip=skip)
    if figure is not None:
        run.plot_evaluation(found).savefig(figure, dpi=120)
    rows: list[Sequence[Cell]]
    if by_block:
        rows = [
            (e.recipe, block, 100 * hidden, 100 * moved)
            for e in found[1:]
            for block, (hidden, moved) in enumerate(zip(e.hidden.tolist(), e.routing.tolist(), strict=True))
        ]
        emit(("recipe", "block", "error (%)", "rerouted (%)"), rows, "Errors along the blocks")
        return
    rows = [
        (
            e.recipe,
            e.perplexity,
            100 * (e.ratio - 1),
            100 * e.ratio_error,
            float(e.kl.mean()),
            100 * float(e.flips.mean()),
        )
        for e in found
    ]
    columns = ("recipe", "perplexity", "increase (%)", "standard error (%)", "KL (nats)", "flips (%)")
    emit(columns, rows, f"{len(tokens)} windows of {window} tokens, compared with {reference}")


@click.command("mismatch")
@click.argument("train")
@click.argument("rollout")
@click.option("--model", "folder", required=True, metavar="FOLDER", help="Folder of a model saved by transformers.")
@_DATA
@_WINDOW
@_WINDOWS
@_SKIP
@click.option(
    "--group-by", type=click.Choice(["layer", "part", "kind", "ingredient", "none"]), default="part",
    show_default=True, help="Groups of layers to attribute the difference to.",
)  # fmt: skip
@machine_readable
def mismatch_command(
    train: str, rollout: str, folder: str, data: str, window: int, max_windows: int | None, skip: tuple[str, ...],
    group_by: str
) -> None:  # fmt: skip
    """Measure the train-rollout mismatch of two recipes.

    TRAIN and ROLLOUT are the recipes of the trainer and of the rollout engine. Prints the KL divergence between them
    and the contribution of each group of layers.

    Example: lowprec mismatch bf16 dsv3 --model MODEL --data tokens.npy
    """
    from ..recipe import load_recipe

    for name in (train, rollout):
        load_recipe(name)
    model, tokens = _loaded(folder, data, window, max_windows)
    from ..parity.mismatch import PartContribution
    from ..torch.disagreement import mismatch

    with progress_bar("passes") as progress:
        groups: Any = None if group_by == "none" else group_by
        found = mismatch(model, tokens, train, rollout, group_by=groups, progress=progress, skip=skip)
    if not output_format():
        click.echo(str(found))
        return
    whole = PartContribution("everything", found.mean, found.error, found.mean, found.error)
    floor = PartContribution(
        "floor: sums in another order", found.noise_floor, float("nan"), float("nan"), float("nan")
    )
    emit(PartContribution._fields, [tuple(g) for g in (whole, *found.parts, floor)], "")


@click.command("parity")
@click.argument("a")
@click.argument("b")
@click.option("--model", "folder", required=True, metavar="FOLDER", help="Folder of a model saved by transformers.")
@_DATA
@click.option("--window", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens per window.")
@click.option(
    "--max-windows", type=click.IntRange(min=1), default=1, show_default=True, help="Largest number of windows."
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
    help="Format of the model; bfloat16 hides small differences.",
)  # fmt: skip
@machine_readable
def parity_command(a: str, b: str, folder: str, data: str, window: int, max_windows: int, dtype: str) -> None:
    """Find the rules by which two stacks give a model other outputs.

    A and B are stacks, the arithmetic of each operation of a forward pass: names of `lowprec stacks` or .toml files.
    The model runs on this CPU under both. If logits differ, prints which single rule of A makes them equal if B gets
    it, or a set of rules of which none can be left out, and the share of the differing logits that each rule mends.
    The exit code is 1 if logits differ.

    Example: lowprec parity torch_cpu rollout.toml --model MODEL --data tokens.npy
    """
    from ..parity.catalogue import stacks
    from ..parity.stack import load_stack

    first, second = load_stack(a, stacks), load_stack(b, stacks)
    model, tokens = _loaded(folder, data, window, max_windows, dtype)
    from ..torch.emulation.parity import parity

    with progress_bar("passes") as progress:
        found = parity(lambda x: model(x, use_cache=False), tokens, first, second, progress=progress)
    if output_format():
        rows: list[tuple[str, Cell]] = [
            ("outputs", found.outputs), ("differing", found.differing), ("KL", found.kl),
            ("first operation", found.first),
            ("fixes", "; ".join(", ".join(fix) for fix in found.fixes)),
            *((f"mended by {operation} (%)", 100 * share) for operation, share in found.mended.items()),
        ]  # fmt: skip
        emit(("name", "value"), rows, "Parity")
    else:
        click.echo(str(found))
    if found.differing:
        sys.exit(1)


@click.command("export")
@click.argument("checkpoint")
@click.argument("folder")
def export_command(checkpoint: str, folder: str) -> None:
    """Export a checkpoint as a model of transformers.

    CHECKPOINT is the checkpoint.npz of a training run. Writes config.json, model.safetensors and tokenizer.json to
    FOLDER, in the layout of the released DeepSeek-V3, which `lowprec eval`, `lowprec mismatch` and transformers read.

    Example: lowprec export runs/dsv3/checkpoint.npz model
    """
    try:
        from ..torch.huggingface import export

        written = export(checkpoint, folder)
    except ImportError as error:
        raise CommandError(str(error)) from None
    click.echo(f"wrote {written}: config.json, model.safetensors, tokenizer.json")
