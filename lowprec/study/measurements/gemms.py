"""Products of recorded and of synthetic operands on several accumulators: the work of a replay study's runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..run.tasks import Task, corpus_of, raise_if_stopped
from .measurement import Tables, Tabulate, relative_error
from .operands import EXTRAPOLATED_K, FAMILIES, Matrix, Operands, lengths, record_operands, sample_rows, tile_operands

PRODUCTS_FILE = "products.csv"
#: Columns of `PRODUCTS_FILE`: the product, properties of its operands, and errors of an arm.
COLUMNS = (
    "product", "tokens", "kept", "layer", "draw", "K", "coherence", "arm", "quantization", "accumulation",
    "gain_minus_1", "largest",
)  # fmt: skip
#: Values of K for the synthetic families.
SYNTHETIC_LENGTHS = (256, 384, 1024, 2048, 4096, 16384, 65536)

Values = NDArray[np.float64]


class GemmOperands(NamedTuple):
    """Operands of one product ``A @ B.T``, float32 a [M, K] and b [N, K], with its class (see `class_name`)."""

    product: str
    tokens: int
    preserves: str
    layer: str
    draw: int
    a: Matrix
    b: Matrix


@dataclass(frozen=True)
class MultiplyGemms(Tabulate):
    """Base class of work that multiplies operands on every accumulator.

    Parameters
    ----------
    arms : tuple
        Arms, each with `name`, `machine`, `promote_every` and `blocks`.
    size : Any
        Size, with `seeds`, `tokens`, `rows`, `columns`.
    """

    arms: tuple[Any, ...]
    size: Any

    def tables(self, task: Task) -> Tables:
        """Return the table of all products."""
        rows: list[tuple[Any, ...]] = []
        for product in self.products(task):
            raise_if_stopped(task)
            if product.a.any() and product.b.any():
                rows += multiply(product, self.arms)
        return {PRODUCTS_FILE: (COLUMNS, rows)}

    @abstractmethod
    def products(self, task: Task) -> Iterator[GemmOperands]:
        """Yield the operands of all products."""


@dataclass(frozen=True)
class MultiplyRecorded(MultiplyGemms):
    """Work that multiplies the operands of one checkpoint, in the layers that the task's recipe quantizes."""

    def products(self, task: Task) -> Iterator[GemmOperands]:
        """Record operands and yield them."""
        from lowprec.moe.data.corpus import batches
        from lowprec.recipe import recipes

        corpus, size = corpus_of(task), self.size
        trainer = task.context.backend.load(task.start_file, corpus)
        config, recipe = trainer.config, recipes.get(task.recipe)
        per_batch = config.batch * config.sequence
        windows = batches(corpus, task.seed, config.batch, config.sequence)
        passes: list[dict[str, Operands]] = []
        for step in range(task.steps):
            raise_if_stopped(task)
            loss, operands = record_operands(
                trainer.model, windows[step], lambda name: recipe.spec(name, config.layers).quantized,
                size.rows, size.columns,
            )  # fmt: skip
            task.folder.append({"batch": step, "loss": loss})
            passes.append(operands)
        for layer in passes[0]:
            yield from products_of(layer, [found[layer] for found in passes if layer in found], size, per_batch)


@dataclass(frozen=True)
class MultiplySynthetic(MultiplyGemms):
    """Work that multiplies synthetic operands, for reference lines."""

    def products(self, task: Task) -> Iterator[GemmOperands]:
        """Draw operands and yield them."""
        for place, (name, draw) in enumerate(FAMILIES.items()):
            for length in SYNTHETIC_LENGTHS:
                rng = np.random.default_rng([task.seed, place, length])
                yield GemmOperands("synthetic", 0, "", name, task.seed, *draw(rng, (self.size.columns, length)))
            task.folder.append({"family": place})


def products_of(layer: str, found: Sequence[Operands], size: Any, per_batch: int) -> Iterator[GemmOperands]:
    """Yield a layer's products from its operands in every batch: Fprop and Dgrad in the first batches, then Wgrad."""
    for draw, operands in enumerate(found[: size.seeds]):
        pairs = {"fprop": (operands.x, operands.w), "dgrad": (operands.dy, np.ascontiguousarray(operands.w.T))}
        for name, pair in pairs.items():
            yield GemmOperands(name, 0, "", layer, draw, *pair)
            few = [sample_rows(operand, size.columns) for operand in pair]
            for preserves in ("coherence", "growth"):
                yield _extrapolated(GemmOperands(name, 0, preserves, layer, draw, *few), EXTRAPOLATED_K)
    for length in lengths(size.tokens, per_batch):
        each = length // per_batch
        for draw in range(min(size.seeds, len(found) // each)):
            piece = found[draw * each : (draw + 1) * each]
            a, b = (np.concatenate([getattr(operands, name) for operands in piece], axis=1)
                    for name in ("dy_columns", "x_columns"))  # fmt: skip
            yield GemmOperands("wgrad", length, "", layer, draw, a, b)
            if length == per_batch < size.tokens:
                longest = lengths(size.tokens, per_batch)[-1]
                longer = GemmOperands("wgrad", longest, "coherence", layer, draw, a, b)
                yield _extrapolated(longer, longest * a.shape[1] // length)


def _extrapolated(product: GemmOperands, length: int) -> GemmOperands:
    """Return a product with extended operands that preserve the property named in `preserves`."""
    growth = variance_growth(product.a, product.b)
    if not growth > 0:
        return product
    copies = max(2, round(length / product.a.shape[1]))
    coherence = coherence_of(growth, product.a.shape[1])
    wanted = 1.0 + coherence * (copies * product.a.shape[1] - 1) if product.preserves == "coherence" else growth
    rng = np.random.default_rng([product.draw, product.a.shape[1]])
    a, b = tile_operands(product.a, product.b, length, growth, wanted, rng)
    return product._replace(a=a, b=b)


def multiply(product: GemmOperands, arms: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return one row of `COLUMNS` per arm, with errors relative to norms.

    The exact products of quantized and of unquantized operands are float64 sums in a fixed order, with errors below
    1e-12; the best accumulator here has errors of 1e-8.
    """
    import lowprec as lp

    length = product.a.shape[1]
    named = *product[:5], length, coherence_of(variance_growth(product.a, product.b), length)
    source = exact_product(product.a, product.b)
    scale = float(np.sqrt(np.sum(np.square(source))))
    rows, seen = [], {}
    for arm in arms:
        if arm.blocks not in seen:
            pair = [lp.quantize(operand, f"e4m3fn {arm.blocks}") for operand in (product.a, product.b)]
            truth = exact_product(*(operand.dequantize() for operand in pair))
            lost = float(np.sqrt(np.sum(np.square(truth - source)))) / scale
            seen[arm.blocks] = pair, truth, lost
        pair, truth, lost = seen[arm.blocks]
        got = lp.gemm(*pair, accumulator=arm.machine, promote_every=arm.promote_every)
        rows.append((*named, arm.name, lost, *errors(got.astype(np.float64), truth)))
    return rows


def exact_product(a: NDArray[Any], b: NDArray[Any]) -> Values:
    """Return ``A @ B.T`` in float64, summed in increasing k."""
    import lowprec as lp

    result: Values = lp.mma(a.astype(np.float64), b.astype(np.float64), accumulator="fp64")
    return result


def errors(got: Values, truth: Values) -> tuple[float, float, float]:
    """Return the relative Frobenius error, the error's share along `truth`, and the largest error / mean magnitude.

    The share along `truth` is the bias: -0.01 if the results are `truth` times 0.99.

    Examples
    --------
    >>> errors(np.array([[0.5, 1.5]]), np.array([[1.0, 1.0]]))
    (0.5, 0.0, 0.5)
    """
    off, size = got - truth, float(np.sum(np.square(truth)))
    largest = float(np.abs(off).max() / np.abs(truth).mean())
    return relative_error([(got, truth)]), float(np.sum(off * truth)) / size, largest


def variance_growth(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the mean square of the sums divided by that of sums of independent products; nan if all are 0."""
    squares = float(np.sum(exact_product(np.square(a, dtype=np.float64), np.square(b, dtype=np.float64))))
    return float(np.sum(np.square(exact_product(a, b)))) / squares if squares else float("nan")


def coherence_of(growth: float, length: int) -> float:
    """Return the mean correlation of the `length` products in a sum, given the result of `variance_growth`.

    The mean square of sums of K products with correlation c is K (1 + (K - 1) c) times that of one product.

    Examples
    --------
    >>> coherence_of(1.0, 4096), coherence_of(4096.0, 4096)
    (0.0, 1.0)
    """
    return (growth - 1.0) / (length - 1) if length > 1 else float("nan")
