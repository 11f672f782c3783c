"""Search for the first operation at which two recorded runs diverge, and for its arithmetic in both runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from .causes import MOST, describe_product, describe_sum, list_operations
from .recording import BITS, INTEGERS, Operation, Recording, Tensor, to_numbers, to_ordered

SECONDS = 20.0
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Difference:
    """Difference of two recorded tensors at the indices that both have.

    Attributes
    ----------
    rows, differing : int
        Number of rows that both tensors have, and how many of these differ.
    first : tuple of int
        Index of the first row that differs.
    ulps : int or None
        Largest difference of stored values in units in the last place; None, as `share`, if no stored row differs, or
        if the dtypes differ.
    size : float or None
        Largest difference of finite stored values; None if no finite values differ.
    share : float or None
        Share of the stored values that differ.
    reason : str
        Reason why bits cannot be compared (dtypes or shapes); empty if they can.
    unaligned : bool
        Whether rows cannot be aligned, because the inputs of the two runs differ in shape; nothing is then compared.
    """

    rows: int
    differing: int
    first: tuple[int, ...] = ()
    ulps: int | None = None
    size: float | None = None
    share: float | None = None
    reason: str = ""
    unaligned: bool = False

    def __bool__(self) -> bool:
        return bool(self.differing or self.reason)

    def __str__(self) -> str:
        if self.unaligned:
            return "its rows cannot be aligned"
        if self.reason:
            return self.reason
        text = f"{self.differing} of {self.rows} rows differ, the first at {list(self.first)}"
        if self.ulps is None:
            return text
        most = f"by {self.ulps} ulp" if self.size is None else f"by at most {self.size:.3g} ({self.ulps} ulp)"
        return f"{text}; of values that both stored, {self.share:.1%} differ, {most}"


@dataclass(frozen=True, eq=False)
class Divergence:
    """Result of `diverge`.

    Attributes
    ----------
    a, b : Recording
        The runs.
    unlike : tuple of str
        Differences before any operation: weights, tokens, shapes, settings. Read them first.
    compared : int
        Number of operations that both runs have, by name, and whose rows can be aligned.
    only_a, only_b : tuple of str
        Names of operations that only one run has.
    first : Operation or None
        First operation, in A's order, with different outputs; None if all outputs are equal.
    inputs : tuple of Difference
        Differences of the inputs of that operation.
    output : Difference or None
        Difference of the first output of that operation that differs.
    causes : tuple of str
        Sentences about the arithmetic of the two runs.
    """

    a: Recording
    b: Recording
    unlike: tuple[str, ...]
    compared: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    first: Operation | None = None
    inputs: tuple[Difference, ...] = ()
    output: Difference | None = None
    causes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        if self.first is None:
            return f"the outputs of all {self.compared} operations that both recorded are equal"
        where = f"the first operation whose outputs differ is {self.first.name} ({self.output})"
        changed = [i for i, difference in enumerate(self.inputs) if difference]
        if not changed:
            unknown = [str(i) for i, difference in enumerate(self.inputs) if difference.unaligned]
            but = f", except input {' and '.join(unknown)}, whose rows cannot be aligned" if unknown else ""
            return f"{where}; its inputs are equal{but}"
        return f"{where}; its input {' and '.join(map(str, changed))} differs already: {self.inputs[changed[0]]}"

    def lines(self) -> Iterator[str]:
        """Yield the result as lines: `unlike`, the sentence, the causes, and operations that only one run has."""
        yield from self.unlike
        yield self.sentence
        yield from self.causes
        for side, names in (("A", self.only_a), ("B", self.only_b)):
            if names:
                yield f"only in {side}: {len(names)} operations, the first {', '.join(names[:MOST])}"

    def __repr__(self) -> str:
        return "\n  ".join(("Divergence:", *self.lines()))


def diverge(
    a: Recording, b: Recording, *, seconds: float = SECONDS, progress: Callable[[int], None] | None = None
) -> Divergence:
    """Find the first operation at which two recorded runs of one model diverge.

    Operations with the same name are compared by hashes of all rows, in the order of the first run. Runs with
    different numbers of sequences or tokens are compared on the rows that both have; if a tensor has one axis for
    sequences and tokens, its rows are aligned by the shapes of the models' inputs.

    Parameters
    ----------
    a, b : Recording
        Runs, from `load_recording`.
    seconds : float
        Time limit for the search for a product's arithmetic, for each run.
    progress : callable, optional
        Function that is called with the number of candidates tried.

    Returns
    -------
    Divergence
        First operation that differs, the difference of its outputs, and causes.
    """
    common = [name for name in a.operations if name in b.operations]
    entered = _entered(a, b)
    shapes = next(
        ((x.shape, y.shape) for x, y in entered if x and y and x.dtype in INTEGERS and y.dtype in INTEGERS),
        next(((x.shape[:-1], y.shape[:-1]) for x, y in entered if x and y), None),
    )
    outputs = {name: _pairs(a.operations[name].outputs, b.operations[name].outputs) for name in common}
    unaligned = [
        name for name, pairs in outputs.items()
        if pairs and all(x and y and _rows(x, y, shapes) is None for x, y in pairs)
    ]  # fmt: skip
    about = {
        "unlike": tuple(_unlike(a, b, entered, shapes, unaligned)), "compared": len(common) - len(unaligned),
        "only_a": tuple(name for name in a.operations if name not in b.operations),
        "only_b": tuple(name for name in b.operations if name not in a.operations),
    }  # fmt: skip
    for name in common:
        one, other = a.operations[name], b.operations[name]
        output = next((found for pair in outputs[name] if (found := compare(*pair, shapes))), None)
        if output:
            inputs = tuple(compare(*pair, shapes) for pair in _pairs(one.inputs, other.inputs))
            is_explained = _has_other_weights(a, b) or any(compare(*pair, shapes) for pair in entered)
            causes = tuple(_causes(a, b, one, other, inputs, is_explained, seconds, progress))
            return Divergence(a, b, first=one, inputs=inputs, output=output, causes=causes, **about)  # type: ignore[arg-type]
    return Divergence(a, b, **about)  # type: ignore[arg-type]


def _pairs(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[tuple[Tensor | None, Tensor | None]]:
    return list(zip_longest(one, other))


def compare(one: Tensor | None, other: Tensor | None, shapes: Shapes | None = None) -> Difference:
    """Return the difference of two tensors at the indices that both have.

    Parameters
    ----------
    one, other : Tensor or None
        Tensors; None stands for a missing one.
    shapes : pair of tuple of int, optional
        Numbers of sequences and tokens in both runs, by which rows of tensors that flatten them are aligned.

    Returns
    -------
    Difference
        Difference, which is false for equal tensors.
    """
    if one is None or other is None:
        return Difference(0, 0, reason=f"{one or 'none'} in A, {other or 'none'} in B")
    if one.hash == other.hash:
        return Difference(one.row_hashes.size, 0)
    rows = _rows(one, other, shapes)
    if rows is None:
        return Difference(0, 0, unaligned=True)
    same_form = len(one.shape) == len(other.shape) and one.shape[-1:] == other.shape[-1:]
    if one.dtype != other.dtype or not same_form or not one.row_hashes.size or not other.row_hashes.size:
        return Difference(0, 0, reason=f"{one} in A, {other} in B")
    both = tuple(slice(min(sizes)) for sizes in zip(*rows, strict=True))
    x, y = (t.row_hashes.reshape(form)[both] for t, form in zip((one, other), rows, strict=True))
    differs = x != y
    if not differs.any():
        return Difference(differs.size, 0)
    first = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), differs.shape))
    return Difference(differs.size, int(differs.sum()), first, *_sizes(one, other, rows))


def _rows(one: Tensor, other: Tensor, shapes: Shapes | None) -> Shapes | None:
    """Return the shapes of the rows of two tensors, with axes that correspond; None if rows cannot be aligned."""
    x, y = (t.shape[:-1] or (1,) for t in (one, other))
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return x, y  # dtypes or shapes differ, so no row is compared
    if shapes is None or len(shapes[0]) != len(shapes[1]):
        shapes = (), ()
    if one.shape[-1:] != other.shape[-1:]:
        return None if shapes[0] != shapes[1] else (x, y)
    if shapes[0] != shapes[1] and (x[0], y[0]) == (math.prod(shapes[0]), math.prod(shapes[1])):
        return (*shapes[0], *x[1:]), (*shapes[1], *y[1:])
    axes = list(zip(*shapes, strict=True))
    for size, own in zip(x, y, strict=True):
        of_sequences = bool(axes) and size % axes[0][0] == 0 and size * axes[0][1] == own * axes[0][0]
        if size != own and (size, own) not in axes and not of_sequences:
            return None
    return x, y


def _sizes(one: Tensor, other: Tensor, shapes: Shapes) -> tuple[int, float | None, float] | tuple[()]:
    """Return ulps, size and share of the differences of values that both stored, as in `Difference`."""
    places = [np.unravel_index(t.rows, shape) for t, shape in zip((one, other), shapes, strict=True)]
    at = [list(zip(*map(list, place), strict=True)) for place in places]
    pairs = [(at[0].index(place), at[1].index(place)) for place in at[0] if place in at[1]]
    if one.dtype not in BITS or not pairs:
        return ()
    x, y = (t.words[list(rows)] for t, rows in zip((one, other), zip(*pairs, strict=True), strict=True))
    if np.array_equal(x, y):
        return ()
    distance = np.abs(to_ordered(x, one.dtype) - to_ordered(y, one.dtype))
    with np.errstate(invalid="ignore"):
        sizes = np.abs(np.subtract(*(to_numbers(words, one.dtype).astype(np.float64) for words in (x, y))))
    largest = float(sizes[np.isfinite(sizes)].max(initial=0)) or None
    return int(distance.max()), largest, float(np.mean(x != y))


def _unlike(
    a: Recording, b: Recording, entered: Sequence[tuple[Tensor | None, Tensor | None]], shapes: Shapes | None,
    unaligned: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield sentences about differences other than results of operations.

    They concern recordings that ended with an error, parameters, inputs, operations whose rows cannot be aligned, and
    the model, torch version, device and precision of float32 products.
    """
    for side, run in (("A", a), ("B", b)):
        if not run.about.get("finished"):
            yield f"{side} ended with an error: its recording stops after {len(run.operations)} operations"
    if names := a.parameters.keys() ^ b.parameters.keys():
        yield f"the models differ: {len(names)} parameters are in one of them only, such as {sorted(names)[0]}"
    shared = [name for name in a.parameters if name in b.parameters]
    other = [name for name in shared if a.parameters[name].hash != b.parameters[name].hash]
    if other:
        first = compare(a.parameters[other[0]], b.parameters[other[0]])
        yield f"the weights differ: {len(other)} of {len(shared)} parameters, first {other[0]} ({first})"
    for one, two in entered:
        difference = compare(one, two, shapes)
        if one and two and one.shape != two.shape:
            sizes = f"{list(one.shape)} in A, {list(two.shape)} in B"
            but = "; whether the inputs are equal there is not known" if difference.unaligned else ""
            yield f"the model's inputs have shapes {sizes}: their common rows are compared{but}"
        if difference:
            yield f"the model's inputs differ: {difference}"
    if unaligned:
        count = f"{len(unaligned)} operations are" if len(unaligned) > 1 else "1 operation is"
        yield f"{count} not compared, because rows cannot be aligned, first {unaligned[0]}"
    for key in ("model", "torch", "device", "float32 products"):
        if a.about.get(key) != b.about.get(key):
            yield f"{key}: {a.about.get(key)} in A, {b.about.get(key)} in B"


def _entered(a: Recording, b: Recording) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return the inputs, without parameters, of the model's first call, or of the first module that has inputs."""
    weights = {t.hash for run in (a, b) for t in run.parameters.values()}
    found: dict[str, list[list[Tensor]]] = {}
    for name, op in a.operations.items():
        if op.kind == "module" and name in b.operations:
            pair = [[t for t in each.inputs if t.hash not in weights] for each in (op, b.operations[name])]
            if any(pair):
                found.setdefault(op.module, pair)
    one, other = found.get("") or next(iter(found.values()), [[], []])
    return _pairs(one, other)


def _has_other_weights(a: Recording, b: Recording) -> bool:
    """Return whether parameters differ, or are in one run only."""
    return {name: t.hash for name, t in a.parameters.items()} != {name: t.hash for name, t in b.parameters.items()}


def _causes(
    a: Recording,
    b: Recording,
    one: Operation,
    other: Operation,
    inputs: Sequence[Difference],
    is_explained: bool,
    seconds: float,
    progress: Callable[[int], None] | None,
) -> Iterator[str]:
    """Yield sentences about the arithmetic of an operation in both runs.

    If `is_explained`, weights or the models' inputs differ, so that operations need not.
    """
    if one.numbers != other.numbers:
        pairs = [pair for pair in zip_longest(one.numbers, other.numbers) if len(set(pair)) > 1]
        named = (" and ".join(f"{x} in {side}" for x, side in zip(pair, "AB", strict=True) if x) for pair in pairs)
        yield f"its arguments differ: {'; '.join(named)}"
    if one.kind == "module" or any(inputs):
        if any(inputs) and not is_explained and not any(difference.reason for difference in inputs):
            yield "the difference comes from operations that the two runs do not share by name"
        inside = [list_operations(run, one.module) for run in (a, b)]
        if inside[0] != inside[1]:
            yield from (
                f"{side} computes {one.module or 'the model'} as {x}" for side, x in zip("AB", inside, strict=True)
            )
        return
    for side, op in (("A", one), ("B", other)):
        if op.product is not None:
            yield f"{side}: {describe_product(op, seconds, progress)}"
        elif matched := describe_sum(op):
            yield f"{side}: {matched}"
