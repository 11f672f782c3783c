"""One run of a reading; this is what worker processes execute."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ...._files import to_csv, write_text
from ...run.tasks import Task, corpus_of, described, stop
from ..same_weights.measurement import _windows
from .reading import Reading

READINGS_FILE = "readings.csv"


@dataclass(frozen=True)
class Read(Task):
    """One arm at one checkpoint: all batches.

    Parameters
    ----------
    reference : str or Recipe
        The precision to compare with.
    reading : Reading
        What is measured.
    """

    reference: Any = field(default="bf16", kw_only=True)
    reading: Reading = field(kw_only=True)

    def execute(self) -> dict[str, Any]:
        """Measure, and return the finished `run.json`."""
        from lowprec.recipe import recipes

        corpus, folder = corpus_of(self), self.folder
        folder.remove()
        folder.start(described(self))
        began = time.monotonic()
        trainer = self.backend.load(self.checkpoint_file, corpus)
        config, metrics = trainer.config, tuple(self.reading.metrics)
        precision, reference = recipes.get(self.recipe), recipes.get(self.reference)
        rows: list[tuple[Any, ...]] = []
        for batch, tokens in enumerate(_windows(corpus, config.sequence, config.batch, self.steps)):
            stop(self)
            seed = 1000 * self.seed + batch
            for place, values in self.reading.read(trainer.model, precision, reference, tokens, seed):
                rows.append((batch, place, *(float(values[name]) for name in metrics)))
            folder.append({"batch": batch, "rows": len(rows)})
        write_text(folder.path / READINGS_FILE, to_csv(("batch", "place", *metrics), rows))
        folder.finish("done", seconds=time.monotonic() - began, evaluation_seconds=0.0, timed_steps=self.steps)
        return folder.read() or {}
