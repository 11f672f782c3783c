"""One run of a replay: operands multiplied on every accumulator; this is what worker processes execute."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...._files import to_csv, write_text
from ...run.tasks import Task, corpus_of, described, stop
from .operands import FAMILIES, FAR, Matrix, Operands, extended, lengths, recorded, spread_rows

PRODUCTS_FILE = "products.csv"
#: A row of that file: which multiplication, what its operands are like, and what an arm makes of it.
COLUMNS = (
    "product", "tokens", "kept", "layer", "draw", "K", "coherence", "arm", "quantization", "accumulation",
    "gain_minus_1", "largest",
)  # fmt: skip
#: K of the synthetic families.
SYNTHETIC_LENGTHS = (256, 384, 1024, 2048, 4096, 16384, 65536)

Values = NDArray[np.float64]


class Product(NamedTuple):
    """One multiplication ``A @ B.T`` of float32 a [M, K] and b [N, K], and what it is called (see `class_name`)."""

    product: str
    tokens: int
    kept: str
    layer: str
    draw: int
    a: Matrix
    b: Matrix


@dataclass(frozen=True)
class Replayed(Task):
    """The multiplications of one checkpoint.

    Parameters
    ----------
    arms : tuple
        What they are repeated on, each with `name`, `accumulator`, `promote_every` and `blocks`.
    setting : Any
        How many: `seeds`, `tokens`, `rows`, `columns`.
    quantized_by : str
        The recipe whose quantized layers are recorded.
    """

    arms: tuple[Any, ...] = field(default=(), kw_only=True)
    setting: Any = field(default=None, kw_only=True)
    quantized_by: str = field(default="dsv3", kw_only=True)

    def execute(self) -> dict[str, Any]:
        """Record, multiply, and return the finished `run.json`."""
        return _measured(self, self._products())

    def _products(self) -> Iterator[Product]:
        from lowprec.moe.data.corpus import batches
        from lowprec.recipe import recipes

        corpus, setting = corpus_of(self), self.setting
        trainer = self.backend.load(self.checkpoint_file, corpus)
        config, recipe = trainer.config, recipes.get(self.quantized_by)
        per_batch = config.batch * config.sequence
        windows = batches(corpus, self.seed, config.batch, config.sequence)
        passes: list[dict[str, Operands]] = []
        for step in range(self.steps):
            stop(self)
            loss, operands = recorded(
                trainer.model, windows[step], lambda name: recipe.spec(name, config.layers).quantized,
                setting.rows, setting.columns,
            )  # fmt: skip
            self.folder.append({"batch": step, "loss": loss})
            passes.append(operands)
        for layer in passes[0]:
            yield from products_of(layer, [found[layer] for found in passes if layer in found], setting, per_batch)


@dataclass(frozen=True)
class Synthetic(Task):
    """Synthetic operands in place of a checkpoint's: the lines that recorded ones are seen against.

    Parameters
    ----------
    arms, setting : tuple, Any
        As in `Replayed`.
    """

    arms: tuple[Any, ...] = field(default=(), kw_only=True)
    setting: Any = field(default=None, kw_only=True)

    def execute(self) -> dict[str, Any]:
        """Multiply, and return the finished `run.json`."""
        return _measured(self, self._products())

    def _products(self) -> Iterator[Product]:
        for place, (name, draw) in enumerate(FAMILIES.items()):
            for length in SYNTHETIC_LENGTHS:
                rng = np.random.default_rng([self.seed, place, length])
                yield Product("synthetic", 0, "", name, self.seed, *draw(rng, (self.setting.columns, length)))
            self.folder.append({"family": place})


def products_of(layer: str, found: Sequence[Operands], setting: Any, per_batch: int) -> Iterator[Product]:
    """Yield the multiplications of a layer, given its operands in every batch: the first batches, pieces of all."""
    for draw, operands in enumerate(found[: setting.seeds]):
        pairs = {"fprop": (operands.x, operands.w), "dgrad": (operands.dy, np.ascontiguousarray(operands.w.T))}
        for name, pair in pairs.items():
            yield Product(name, 0, "", layer, draw, *pair)
            few = [spread_rows(operand, setting.columns) for operand in pair]
            for kept in ("coherence", "growth"):
                yield _longer(Product(name, 0, kept, layer, draw, *few), FAR)
    for length in lengths(setting.tokens, per_batch):
        size = length // per_batch
        for draw in range(min(setting.seeds, len(found) // size)):
            piece = found[draw * size : (draw + 1) * size]
            a, b = (np.concatenate([getattr(operands, name) for operands in piece], axis=1)
                    for name in ("dy_columns", "x_columns"))  # fmt: skip
            yield Product("wgrad", length, "", layer, draw, a, b)
            if length == per_batch < setting.tokens:
                longest = lengths(setting.tokens, per_batch)[-1]
                yield _longer(Product("wgrad", longest, "coherence", layer, draw, a, b), longest * a.shape[1] // length)


def _longer(product: Product, length: int) -> Product:
    """Return a product of extended operands that keep what it says."""
    growth = growth_of(product.a, product.b)
    if not growth > 0:
        return product
    copies = max(2, round(length / product.a.shape[1]))
    coherence = coherence_of(growth, product.a.shape[1])
    wanted = 1.0 + coherence * (copies * product.a.shape[1] - 1) if product.kept == "coherence" else growth
    rng = np.random.default_rng([product.draw, product.a.shape[1]])
    a, b = extended(product.a, product.b, length, growth, wanted, rng)
    return product._replace(a=a, b=b)


def _measured(task: Any, products: Iterator[Product]) -> dict[str, Any]:
    """Measure every arm on every product, write the table, and return the finished `run.json`."""
    folder = task.folder
    folder.remove()
    folder.start(described(task))
    began = time.monotonic()
    rows: list[tuple[Any, ...]] = []
    for product in products:
        stop(task)
        if product.a.any() and product.b.any():
            rows += measure(product, task.arms)
    write_text(folder.path / PRODUCTS_FILE, to_csv(COLUMNS, rows))
    folder.finish("done", seconds=time.monotonic() - began, evaluation_seconds=0.0, timed_steps=task.steps)
    return folder.read() or {}


def measure(product: Product, arms: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for every arm, errors relative to norms.

    The exact products of quantized and of unquantized operands are float64 sums in a fixed order: no more than 1e-12
    off, where the best accumulator here is 1e-8 off.
    """
    import lowprec as lp

    length = product.a.shape[1]
    named = *product[:5], length, coherence_of(growth_of(product.a, product.b), length)
    source = exact(product.a, product.b)
    scale = float(np.sqrt(np.sum(np.square(source))))
    rows, seen = [], {}
    for arm in arms:
        if arm.blocks not in seen:
            pair = [lp.quantize(operand, f"e4m3fn {arm.blocks}") for operand in (product.a, product.b)]
            truth = exact(*(operand.dequantize() for operand in pair))
            lost = float(np.sqrt(np.sum(np.square(truth - source)))) / scale
            seen[arm.blocks] = pair, truth, lost
        pair, truth, lost = seen[arm.blocks]
        got = lp.gemm(*pair, accumulator=arm.accumulator, promote_every=arm.promote_every)
        rows.append((*named, arm.name, lost, *errors(got.astype(np.float64), truth)))
    return rows


def exact(a: NDArray[Any], b: NDArray[Any]) -> Values:
    """Return ``A @ B.T`` in float64, summed in increasing k."""
    import lowprec as lp

    result: Values = lp.mma(a.astype(np.float64), b.astype(np.float64), accumulator="fp64")
    return result


def errors(got: Values, truth: Values) -> tuple[float, float, float]:
    """Return the Frobenius error over the norm, gain - 1 along the truth, the largest error over the mean magnitude.

    Examples
    --------
    >>> errors(np.array([[0.5, 1.5]]), np.array([[1.0, 1.0]]))
    (0.5, 0.0, 0.5)
    """
    off, size = got - truth, float(np.sum(np.square(truth)))
    frobenius = float(np.sqrt(np.sum(np.square(off)) / size))
    return frobenius, float(np.sum(off * truth)) / size, float(np.abs(off).max() / np.abs(truth).mean())


def growth_of(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the mean square of sums over that of sums of independent products; nan if all are 0."""
    squares = float(np.sum(exact(np.square(a, dtype=np.float64), np.square(b, dtype=np.float64))))
    return float(np.sum(np.square(exact(a, b)))) / squares if squares else float("nan")


def coherence_of(growth: float, length: int) -> float:
    """Return the mean correlation of the products in a sum, from how much larger the sums are than of independent ones.

    Sums of K products with a correlation c have the mean square of K (1 + (K - 1) c) products.

    Examples
    --------
    >>> coherence_of(1.0, 4096), coherence_of(4096.0, 4096)
    (0.0, 1.0)
    """
    return (growth - 1.0) / (length - 1) if length > 1 else float("nan")
