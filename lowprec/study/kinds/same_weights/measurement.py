"""One run of a study of the same weights; this is what worker processes execute."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ...._files import to_csv, write_text
from ...design.stress import Healthy, Stress
from ...run.store import StudyError
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


def _windows(corpus: Any, sequence: int, batch: int, batches: int) -> list[Any]:
    """Return batches of held-out text, uint8 [batch, sequence + 1] each."""
    from lowprec.moe.data.corpus import held_out_windows

    windows = held_out_windows(corpus, sequence, batches * batch * sequence)
    if len(windows) < batches * batch:
        raise StudyError(
            f"the held-out text has {len(windows)} windows, {batches} batches of {batch} are needed: fewer --seeds"
        )
    return [windows[i * batch : (i + 1) * batch] for i in range(batches)]
