"""One run of a study of the same weights; this is what worker processes execute."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...._files import read_csv, to_csv, write_text
from ...design.stress import Healthy, Stress
from ...run.store import RunFolder, StudyError
from ...run.tasks import Task, corpus_of, described, stop

LAYERS_FILE = "layers.csv"
#: Of a layer and a kind of parameter; the first columns of that file say which.
LAYER_METRICS = ("gradient_error", "token_error_median", "flushed", "saturated", "kurtosis", "tile_range")


@dataclass(frozen=True)
class Measurement(Task):
    """One arm at one checkpoint: all conditions, all batches.

    Parameters
    ----------
    reference : str or Recipe
        The precision to compare with.
    stresses : tuple of Stress
        The conditions.
    """

    reference: Any = "bf16"
    stresses: tuple[Stress, ...] = field(default=(Healthy(),), hash=False)

    def lacks(self) -> str:
        """Return what a finished run's files lack, in words: batches, or layers of a batch; empty if nothing."""
        return missing_rows(self.folder, self.folder.read() or {})

    def execute(self) -> dict[str, Any]:
        """Measure, and return the finished `run.json`."""
        from lowprec.recipe import recipes

        from ...analysis.comparison import compare, compare_layers, record

        corpus, folder = corpus_of(self), self.folder
        folder.remove()
        folder.start(described(self))
        began = time.monotonic()
        trainer = self.backend.load(self.checkpoint_file, corpus)
        config, batches = trainer.config, self.steps // len(self.stresses)
        head = ("stress", "batch", "layer", "kind", *LAYER_METRICS)
        layers: list[tuple[Any, ...]] = []
        for stress in self.stresses:
            for batch in range(batches):
                stop(self)
                tokens = _windows(corpus, config.sequence, config.batch, batches)[batch]
                theirs = record(trainer.model, recipes.get(self.reference), stress, tokens, self.seed)
                ours = record(trainer.model, recipes.get(self.recipe), stress, tokens, self.seed)
                folder.append({"stress": stress.name, "batch": batch, **compare(ours, theirs)})
                for layer, kind, values in compare_layers(ours, theirs):
                    layers.append((stress.name, batch, layer, kind, *values.values()))
        write_text(folder.path / LAYERS_FILE, to_csv(head, layers))
        seconds = time.monotonic() - began
        folder.finish("done", seconds=seconds, evaluation_seconds=0.0, timed_steps=self.steps)
        return folder.read() or {}


def missing_rows(run: RunFolder, record: dict[str, Any]) -> str:
    """Return what a finished run lacks, in words: batches, or layers of a batch; empty if nothing."""
    if lacks := run.lacks(record):
        return lacks
    again = "(the same command does that run again)"
    try:
        places: dict[tuple[str, str], set[tuple[str, str]]] = {
            (row["stress"], row["batch"]): set() for row in read_rows(run.metrics)
        }
        for row in read_rows(run.path / LAYERS_FILE):
            places[row["stress"], row["batch"]].add((row["layer"], row["kind"]))
    except (KeyError, ValueError, FileNotFoundError):
        return f"has a damaged {LAYERS_FILE} or {run.metrics.name} {again}"
    whole = set().union(*places.values())
    if whole and all(found == whole for found in places.values()):
        return ""
    return f"lacks rows in {LAYERS_FILE} {again}"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table by the names of its columns."""
    head, rows = read_csv(path)
    return [dict(zip(head, row, strict=True)) for row in rows]


def _windows(corpus: Any, sequence: int, batch: int, batches: int) -> list[Any]:
    """Return batches of held-out text, uint8 [batch, sequence + 1] each."""
    from lowprec.moe.data.corpus import held_out_windows

    windows = held_out_windows(corpus, sequence, batches * batch * sequence)
    if len(windows) < batches * batch:
        raise StudyError(
            f"the held-out text has {len(windows)} windows, {batches} batches of {batch} are needed: fewer --seeds"
        )
    return [windows[i * batch : (i + 1) * batch] for i in range(batches)]
