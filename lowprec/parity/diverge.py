"""The first operation at which two recorded runs diverge, and the arithmetic of both runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnose.identify.identify import identify
from ..order.catalogue import orders
from .recording import Operation, Recording, Tensor, to_numbers

SECONDS = 20.0
_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
_MOST = 5


@dataclass(frozen=True, eq=False)
class Difference:
    """How two recorded tensors differ at the indices that both have.

    Attributes
    ----------
    rows, differing : int
        Number of rows that both tensors have, and number of these that differ.
    first : tuple of int
        Index of the first row that differs.
    ulps : int or None
        Largest difference of the stored values in units in the last place; None if no stored row differs, or if the
        dtypes differ.
    share : float or None
        Share of the stored values that differ.
    reason : str
        Why bits cannot be compared: dtypes or shapes; empty if they can.
    """

    rows: int
    differing: int
    first: tuple[int, ...] = ()
    ulps: int | None = None
    share: float | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.differing or self.reason)

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        text = f"{self.differing} of {self.rows} rows differ, the first at {list(self.first)}"
        if self.ulps is None:
            return text
        return f"{text}; of values that both stored, {self.share:.1%} differ, by at most {self.ulps} ulp"


@dataclass(frozen=True, eq=False)
class Divergence:
    """Result of `diverge`.

    Attributes
    ----------
    a, b : Recording
        The runs.
    unlike : tuple of str
        What differs before any operation: weights, tokens, shapes, settings. Read it first.
    compared : int
        Number of operations that both runs have, by name.
    only_a, only_b : tuple of str
        Operations that only one run has.
    first : Operation or None
        First operation, in A's order, whose outputs differ; None if none differs.
    inputs : tuple of Difference
        Differences of the inputs of that operation.
    output : Difference or None
        Difference of the first output of that operation that differs.
    causes : tuple of str
        What is known of the arithmetic of the two runs.
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
        """The result in a sentence."""
        if self.first is None:
            return f"the outputs of all {self.compared} operations that both recorded are equal"
        where = f"the first operation whose outputs differ is {self.first.name} ({self.output})"
        changed = [i for i, difference in enumerate(self.inputs) if difference]
        if not changed:
            return f"{where}; its inputs are equal"
        return f"{where}; its input {' and '.join(map(str, changed))} differs already: {self.inputs[changed[0]]}"

    def lines(self) -> Iterator[str]:
        """Yield the result as lines: `unlike`, the sentence, the causes, and operations of one run."""
        yield from self.unlike
        yield self.sentence
        yield from self.causes
        for side, names in (("A", self.only_a), ("B", self.only_b)):
            if names:
                yield f"only in {side}: {len(names)} operations, the first {', '.join(names[:_MOST])}"

    def __repr__(self) -> str:
        return "\n  ".join(("Divergence:", *self.lines()))


def diverge(
    a: Recording, b: Recording, *, seconds: float = SECONDS, progress: Callable[[int], None] | None = None
) -> Divergence:
    """Find the first operation at which two recorded runs of one model part.

    Operations with equal names are compared, in the order of the first run, by hashes of all rows. Runs with different
    numbers of sequences or tokens are compared on the rows that both have.

    Parameters
    ----------
    a, b : Recording
        Runs, from `load_recording`.
    seconds : float
        Time for the search of a product's arithmetic, for each side.
    progress : callable, optional
        Function that is called with the number of candidates tried.

    Returns
    -------
    Divergence
        The operation, the difference of its outputs, and causes.
    """
    common = [name for name in a.operations if name in b.operations]
    about = {
        "unlike": tuple(_unlike(a, b)), "compared": len(common),
        "only_a": tuple(name for name in a.operations if name not in b.operations),
        "only_b": tuple(name for name in b.operations if name not in a.operations),
    }  # fmt: skip
    for name in common:
        one, other = a.operations[name], b.operations[name]
        output = _first(one.outputs, other.outputs)
        if output:
            inputs = tuple(compare(*pair) for pair in zip_longest(one.inputs, other.inputs))
            causes = tuple(_causes(a, b, one, other, inputs, seconds, progress))
            return Divergence(a, b, first=one, inputs=inputs, output=output, causes=causes, **about)  # type: ignore[arg-type]
    return Divergence(a, b, **about)  # type: ignore[arg-type]


def _first(one: Sequence[Tensor], other: Sequence[Tensor]) -> Difference | None:
    """Return the first difference of two lists of tensors."""
    return next((found for pair in zip_longest(one, other) if (found := compare(*pair))), None)


def compare(one: Tensor | None, other: Tensor | None) -> Difference:
    """Return how two tensors differ at the indices that both have; None stands for a missing tensor."""
    if one is None or other is None:
        return Difference(0, 0, reason=f"{one or 'none'} in A, {other or 'none'} in B")
    if one.hash == other.hash:
        return Difference(one.row_hashes.size, 0)
    same_form = len(one.shape) == len(other.shape) and one.shape[-1:] == other.shape[-1:]
    if one.dtype != other.dtype or not same_form or not one.row_hashes.size or not other.row_hashes.size:
        return Difference(0, 0, reason=f"{one} in A, {other} in B")
    both = tuple(slice(min(sizes)) for sizes in zip(one.shape[:-1], other.shape[:-1], strict=True))
    differs = np.asarray(one.row_hashes[both] != other.row_hashes[both])
    if not differs.any():
        return Difference(differs.size, 0)
    first = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), differs.shape))
    ulps, share = _ulps(one, other)
    return Difference(differs.size, int(differs.sum()), first, ulps, share)


def _ulps(one: Tensor, other: Tensor) -> tuple[int | None, float | None]:
    """Return the largest difference in ulps of the rows that both stored, and the share of values that differ."""
    places = [np.unravel_index(rows, t.shape[:-1]) for t in (one, other) for rows in (t.rows,)]
    at = [list(zip(*map(list, place), strict=True)) for place in places]
    pairs = [(at[0].index(place), at[1].index(place)) for place in at[0] if place in at[1]]
    if one.dtype not in _BITS or not pairs:
        return None, None
    x, y = (t.words[list(rows)] for t, rows in zip((one, other), zip(*pairs, strict=True), strict=True))
    if np.array_equal(x, y):
        return None, None
    distance = np.abs(_ordered(x, one.dtype) - _ordered(y, one.dtype))
    return int(distance.max()), float(np.mean(x != y))


def _ordered(words: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return integers that are ordered as the numbers of the words; those of neighbours differ by 1."""
    sign = 1 << (_BITS[dtype] - 1)
    size = np.asarray(words & words.dtype.type(sign - 1)).astype(object if dtype == "float64" else np.int64)
    return np.where(words >= sign, -size, size)


def _unlike(a: Recording, b: Recording) -> Iterator[str]:
    """Yield a description of each difference that precedes all operations."""
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
    for one, two in zip(_entered(a), _entered(b), strict=False):
        if one.shape != two.shape:
            shapes = f"{list(one.shape)} in A, {list(two.shape)} in B"
            yield f"the model's inputs have shapes {shapes}: their common rows are compared"
        if difference := compare(one, two):
            yield f"the model's inputs differ: {difference}"
    for key in ("model", "torch", "device", "float32 products"):
        if a.about.get(key) != b.about.get(key):
            yield f"{key}: {a.about.get(key)} in A, {b.about.get(key)} in B"


def _entered(run: Recording) -> tuple[Tensor, ...]:
    """Return the inputs of the first call of the first module that has any."""
    return next((op.inputs for op in run.operations.values() if op.inputs), ())


def _causes(
    a: Recording, b: Recording, one: Operation, other: Operation, inputs: Sequence[Difference], seconds: float,
    progress: Callable[[int], None] | None,
) -> Iterator[str]:  # fmt: skip
    """Yield sentences about the arithmetic of an operation in both runs."""
    if one.numbers != other.numbers:
        pairs = [f"{x} in A, {y} in B" for x, y in zip_longest(one.numbers, other.numbers, fillvalue="none") if x != y]
        yield f"its arguments differ: {'; '.join(pairs)}"
    if one.kind == "module" or any(inputs):
        if any(inputs) and not any(difference.reason for difference in inputs):
            yield "the difference comes from a weight, or from operations that the two runs do not share by name:"
        for side, run in (("A", a), ("B", b)):
            inside = [op.name for op in run.operations.values() if op.module == one.module and op.kind != "module"]
            yield f"{side} computes {one.module or 'the model'} as {', '.join(inside[:_MOST]) or 'nothing recorded'}"
        return
    for side, op in (("A", one), ("B", other)):
        if op.product is not None:
            yield f"{side}: {_identified(op, seconds, progress)}"
        elif matched := _orders(op):
            yield f"{side}: {matched}"


def _identified(op: Operation, seconds: float, progress: Callable[[int], None] | None) -> str:
    """Return the result of `identify` for the samples of a product."""
    p = op.product
    assert p is not None
    if p.a.shape[1] == 0 or any(dtype in ("int8", "uint8") for dtype in p.dtypes):
        return f"a product of {p.dtypes[0]} and {p.dtypes[1]}, which identify does not know"
    c = None if p.c is None else to_numbers(p.c, p.dtypes[2])
    formats: dict[str, Any] = {"a_format": p.dtypes[0], "b_format": p.dtypes[1], "d_format": p.dtypes[3]}
    found = identify(p.a, p.b, c, p.d, seconds=seconds, progress=progress, **formats)
    return found.sentence


def _orders(op: Operation) -> str:
    """Return a sentence that names the catalogued orders that give a recorded sum or mean over the last axis, or ""."""
    if (
        not op.kind.startswith(("aten.mean", "aten.sum"))
        or op.numbers[:1] != ("-1",)
        or op.inputs[0].dtype != "float32"
    ):
        return ""
    x, out = op.inputs[0], op.outputs[0]
    n = x.shape[-1]
    rows = [row for row in x.rows if row in out.rows] if out.shape[-1:] == (1,) else []
    if not rows:
        return ""
    data, recorded = (t.values[[t.rows.index(row) for row in rows]] for t in (x, out))
    fits = []
    for name in orders:
        sums = np.array([orders[name](n).sum(row) for row in data], np.float32)
        for how, made in _finished(sums, n, op.kind.startswith("aten.mean")).items():
            if np.array_equal(made, recorded[:, 0]):
                fits.append(f"{name}{how}")
    if not fits:
        return f"no order in lp.orders gives its {len(rows)} stored sums of {n} numbers; `lowprec reveal` finds others"
    return f"its {len(rows)} stored sums of {n} numbers are those of {', '.join(fits)}"


def _finished(sums: NDArray[np.float32], n: int, is_mean: bool) -> Mapping[str, NDArray[np.float32]]:
    """Return the sums, or the means computed by division by n and by multiplication by 1/n; keys name the operation."""
    if not is_mean:
        return {"": sums}
    return {" divided by n": sums / np.float32(n), " times 1/n": sums * (np.float32(1) / np.float32(n))}
