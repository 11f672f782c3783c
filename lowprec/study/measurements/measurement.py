"""Base class of measurements of a model's weights on held-out text, and the work of a run that measures."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._files import read_csv, to_csv, write_text
from ..run.store import StudyError
from ..run.tasks import AGAIN, Task, Work, corpus_of, raise_if_stopped, run_record

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import Recipe

#: Name of the condition that covers all others, if a measurement has one.
ALL_CONDITIONS = "all"
ROWS_FILE, LAYERS_FILE = "rows.csv", "layers.csv"
#: Columns and rows of tables, by file.
Tables = dict[str, tuple[Sequence[str], list[tuple[Any, ...]]]]


class Row(NamedTuple):
    """Result of a measurement under one condition.

    Attributes
    ----------
    condition : str
        Name of the condition: a position in the context, a bit, a change of the weights.
    values : dict of str to float
        Values by metric.
    layers : sequence of tuple
        Layer (-1 for none), kind of parameter, and the values of the measurement's `layer_metrics`.
    """

    condition: str
    values: Mapping[str, float]
    layers: Sequence[tuple[Any, ...]] = ()


@dataclass(frozen=True)
class Measurement(ABC):
    """Base class of measurements of a model.

    `measure` imports the modules that compute, so that listing studies does not load them.
    """

    metrics: ClassVar[Mapping[str, str]]
    """Descriptions of the metrics, by name."""
    axis: ClassVar[str] = ""
    """Label for the axis of conditions; empty if there is one condition."""
    panels: ClassVar[tuple[str, ...]]
    """Metrics with a figure and a table."""
    joined: ClassVar[bool] = True
    """Whether conditions are points of a line; otherwise they are independent."""
    own_controls: ClassVar[bool] = False
    """Whether positive controls and ineffective cases are among the conditions, so that no arms have these roles."""
    layer_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics measured separately for every layer."""
    first_alone: ClassVar[bool] = False
    """Whether a metric without a condition refers to the first condition; otherwise to the mean over all."""

    @abstractmethod
    def measure(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield one or more rows per condition, without changing the weights.

        Parameters
        ----------
        model : Model
            Model to measure.
        recipe, reference : Recipe
            Precision of the arm, and of the reference.
        tokens : uint8 array [B, S + 1]
            Held-out text.
        seed : int
            Seed of all random choices, which do not depend on the recipe.
        """

    @property
    def condition_names(self) -> tuple[str, ...] | None:
        """Names of the conditions, if they are known in advance."""
        return None

    def seed_of(self, checkpoint: int, batch: int) -> int:
        """Return the seed of `measure` for a batch at a checkpoint."""
        return 1000 * checkpoint + batch

    def describe(self) -> dict[str, Any]:
        """Return the kind and parameters of the measurement, in JSON types."""
        return {"kind": type(self).__name__, **self.__dict__}


class Tabulate(Work):
    """Base class of work that trains nothing and writes tables."""

    def execute(self, task: Task) -> dict[str, Any]:
        """Compute and write the tables, and return the finished `run.json`."""
        folder = task.folder
        folder.remove()
        folder.start(run_record(task))
        began = time.monotonic()
        for file, (columns, rows) in self.tables(task).items():
            write_text(folder.path / file, to_csv(columns, rows))
        folder.finish("done", seconds=time.monotonic() - began, evaluation_seconds=0.0, timed_steps=task.steps)
        return folder.read() or {}

    @abstractmethod
    def tables(self, task: Task) -> Tables:
        """Return the columns and rows of each table by file name; append one row per step to the run's metrics."""


@dataclass(frozen=True)
class Measure(Tabulate):
    """Work that measures one arm at one checkpoint, on all batches.

    Parameters
    ----------
    measurement : Measurement
        The measurement.
    reference : str or Recipe
        Precision to compare with.
    """

    measurement: Measurement
    reference: Any

    def tables(self, task: Task) -> Tables:
        """Return the rows of all batches and, if the measurement has such metrics, of all layers."""
        from lowprec.recipe import recipes

        corpus, measurement = corpus_of(task), self.measurement
        trainer = task.context.backend.load(task.start_file, corpus)
        precision, reference = recipes.get(task.recipe), recipes.get(self.reference)
        rows: list[tuple[Any, ...]] = []
        layers: list[tuple[Any, ...]] = []
        for batch, tokens in enumerate(_held_out_batches(corpus, trainer.config, task.steps)):
            raise_if_stopped(task)
            seed = measurement.seed_of(task.seed, batch)
            for row in measurement.measure(trainer.model, precision, reference, tokens, seed):
                rows.append((batch, row.condition, *(float(row.values[name]) for name in measurement.metrics)))
                layers += [(batch, row.condition, *layer) for layer in row.layers]
            task.folder.append({"batch": batch, "rows": len(rows), "layers": len(layers)})
        found: Tables = {ROWS_FILE: (("batch", "condition", *measurement.metrics), rows)}
        if measurement.layer_metrics:
            found[LAYERS_FILE] = ("batch", "condition", "layer", "kind", *measurement.layer_metrics), layers
        return found

    def missing_output(self, task: Task, record: Mapping[str, Any]) -> str:
        """Describe missing outputs of a finished run: batches, or rows of a batch."""
        return missing_rows(task.folder.path, record)


def missing_rows(path: Path, record: Mapping[str, Any]) -> str:
    """Describe missing rows in the files of a finished measurement; empty if it is complete."""
    from ..run.store import RunFolder

    run = RunFolder(path)
    if lacks := run.missing_rows(record):
        return lacks
    try:
        columns = run.columns()
        for name, file in (("rows", ROWS_FILE), ("layers", LAYERS_FILE)):
            if (wanted := columns[name][-1]) and len(read_csv(path / file)[1]) != wanted:
                return f"lacks rows in {file} {AGAIN}"
    except (KeyError, ValueError, OSError, StudyError):
        return f"has a damaged {ROWS_FILE}, {LAYERS_FILE} or {run.metrics.name} {AGAIN}"
    return ""


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, as dictionaries by column."""
    head, rows = read_csv(path)
    return [dict(zip(head, row, strict=True)) for row in rows]


def _held_out_batches(corpus: Any, config: Any, batches: int) -> list[Any]:
    """Return batches of held-out text, uint8 [batch, sequence + 1] each."""
    from lowprec.moe.data.corpus import held_out_windows

    batch = config.batch
    windows = held_out_windows(corpus, config.sequence, batches * batch * config.sequence)
    if len(windows) < batches * batch:
        raise StudyError(
            f"held-out text must have {batches} batches of {batch} windows, got {len(windows)} windows; use fewer "
            "--seeds"
        )
    return [windows[i * batch : (i + 1) * batch] for i in range(batches)]


# --- what measurements share -----------------------------------------------------------------------------------------


class Proxy:
    """Proxy object: attributes that a subclass does not define are those of the wrapped object."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Intercepted(Proxy):
    def __init__(self, bound: Any, wrap: Callable[[str, Any], Any]) -> None:
        super().__init__(bound)
        self._wrap = wrap

    def linear(self, layer: str) -> Any:
        return self._wrap(layer, self._inner.linear(layer))


def intercept(bound: Any, wrap: Callable[[str, Any], Any]) -> Any:
    """Return a bound recipe with replaced multiplications of its layers.

    Parameters
    ----------
    bound : BoundRecipe
        Recipe to wrap; everything except the multiplications of its layers is unchanged.
    wrap : callable
        ``wrap(layer, ops)`` returns a replacement of a layer's multiplications, or `ops` itself.

    Examples
    --------
    >>> import lowprec as lp
    >>> seen = []
    >>> bound = intercept(lp.recipes["bf16"].bind(), lambda layer, ops: seen.append(layer) or ops)
    >>> y, saved = bound.linear("head").fprop(np.ones((2, 128), np.float32), np.ones((3, 128), np.float32))
    >>> seen
    ['head']
    """
    return _Intercepted(bound, wrap)


def relative_error(pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    """Return |ours - theirs| / |theirs| over all pairs (ours, theirs) of arrays jointly; nan if theirs are all 0.

    Examples
    --------
    >>> relative_error([(np.array([3.0, 0.0]), np.array([3.0, 4.0]))])
    0.8
    """
    error = size = 0.0
    for ours, theirs in pairs:
        wide = theirs.astype(np.float64)
        error += float(np.sum(np.square(ours - wide)))
        size += float(np.sum(np.square(wide)))
    return math.sqrt(error / size) if size else math.nan


def predicted(model: Model, recipe: Recipe, tokens: NDArray[np.uint8], seed: int) -> tuple[Any, Any]:
    """Return the logits [B, S, V] of the next byte and of the byte after it, as in an evaluation."""
    bound = recipe.bind(seed, layers=model.config.layers)
    with bound.evaluating():
        return model.with_bound(bound).predictions(tokens)
