"""Probes in files, for functions that Python cannot call: inputs are written, outputs are read.

The first file has all pairs of masks, which determine the tree; the second has inputs for the arithmetic of that tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._arrays import as_real
from .._checks import check_choice, check_int
from .arithmetic import SAMPLES, samples
from .order import DTYPES, FORMATS, FormatName, Order
from .probed import Probed, RevealError, check_options
from .reveal import reveal
from .tree import TreeSearch

Array = NDArray[Any]
MOST = 128  # largest number of elements: the first file has a row for each pair


class Recorded:
    """Callable that returns the outputs in files, and collects the inputs that the files lack.

    Parameters
    ----------
    dumps : sequence of mappings
        Arrays ``a`` [P, n], ``b`` [P, n] if the callable takes two vectors, and ``d`` [P], the outputs.
    n : int
        Number of elements.
    dtype, out_format : str
        Formats of elements and outputs.
    operands : {1, 2}
        Number of vectors.
    """

    def __init__(
        self, dumps: Sequence[Mapping[str, Array]], n: int, dtype: FormatName, out_format: FormatName, operands: int
    ) -> None:
        self.out, self.answers, self.missing = DTYPES[out_format].type, dict[bytes, Any](), dict[bytes, Any]()
        names = ("a", "b")[:operands]
        for dump in dumps:
            rows = [np.asarray(dump[name]) for name in names if name in dump]
            d = np.asarray(dump.get("d", np.zeros(0)))
            if len(rows) != operands or any(x.shape != (d.size, n) for x in rows) or d.ndim != 1:
                shapes = {name: np.shape(array) for name, array in dump.items()}
                raise ValueError(f"reveal: answers must have {' and '.join(names)} [P, {n}] and d [P], got {shapes}")
            typed = [x.astype(DTYPES[dtype]) for x in rows]
            with np.errstate(over="ignore"):
                outputs = as_real("reveal: d", d).astype(DTYPES[out_format])
            wrong = np.flatnonzero((outputs.astype(np.float64) != d) & ~np.isnan(d.astype(np.float64)))
            if len(wrong):
                raise ValueError(
                    f"reveal: d must hold values of out_format={out_format}, got {float(d[wrong[0]])!r} among "
                    f"{len(wrong)} others"
                )
            for *vectors, y in zip(*typed, outputs, strict=True):
                known = self.answers.setdefault(_key(*vectors), y)
                if not (known.tobytes() == y.tobytes() or (np.isnan(known) and np.isnan(y))):
                    raise RevealError(
                        f"reveal: answers must have one d for one input, got {float(known)!r} and {float(y)!r}",
                        dict(zip(names, vectors, strict=True)) | {"got": np.array([known, y])},
                    )

    def __call__(self, *vectors: Array) -> Any:
        """Return the recorded output, or zero."""
        key = _key(*vectors)
        if key not in self.answers:
            self.missing.setdefault(key, vectors)
        return self.answers.get(key, self.out(0))


def _key(*vectors: Array) -> bytes:
    return b"".join(np.ascontiguousarray(x).tobytes() for x in vectors)


def first_probes(n: int, *, dtype: FormatName = "float32", operands: int = 1, seed: int = 0) -> dict[str, Array]:
    """Return the inputs that give the tree of n elements, as float32 (or float64) numbers.

    Raises
    ------
    ValueError
        If n is above 128, or another parameter is out of range.
    """
    n = check_int("reveal", "n", n, 1, MOST)
    operands, seed = check_options("reveal", dtype, operands, seed)
    asked: dict[bytes, tuple[Array, ...]] = {}

    def collect(*vectors: Array) -> Any:
        asked.setdefault(_key(*vectors), vectors)
        return vectors[0].dtype.type(np.sum(vectors[0].astype(np.float64)))

    probed = Probed(collect, n, dtype, operands, np.inf, None)
    tree = TreeSearch(probed, seed)
    for i in range(n):
        probed(np.eye(n)[i])
        for j in range(i):
            for pair in ((i, j), (j, i)):
                x = np.full(n, tree.mask.unit)
                x[list(pair)] = tree.mask.large, -tree.mask.large
                probed(x)
    inputs = samples(n, SAMPLES, operands, probed.dtype, seed)
    for row in range(SAMPLES):
        probed(*(x[row] for x in inputs))
    probed(np.full(n, -0.0))
    return _arrays(asked.values())


def _arrays(rows: Any) -> dict[str, Array]:
    columns = list(zip(*rows, strict=True))
    wide = np.float64 if columns[0][0].dtype == np.float64 else np.float32
    return {name: np.array(column).astype(wide) for name, column in zip("ab", columns, strict=False)}


def next_probes(
    dumps: Sequence[Mapping[str, Array]], n: int, *, dtype: FormatName = "float32",
    out_format: FormatName | None = None, operands: int = 1, seed: int = 0,
) -> Order | dict[str, Array]:  # fmt: skip
    """Return the order of recorded outputs, or the inputs for which outputs are required next.

    Raises
    ------
    RevealError
        If no order gives the outputs, or one input has two different outputs.
    ValueError
        If arrays are missing or differ in shape, or a parameter is out of range.
    """
    n = check_int("reveal", "n", n, 1, MOST)
    operands, seed = check_options("reveal", dtype, operands, seed)
    check_choice("reveal", "out_format", out_format, (None, *FORMATS))
    function = Recorded(dumps, n, dtype, out_format or dtype, operands)
    try:
        order = reveal(function, n, dtype=dtype, operands=operands, seed=seed).with_(name="answers")
    except RevealError:
        if not function.missing:
            raise
    return _arrays(function.missing.values()) if function.missing else order


def dump(function: Callable[..., Any], n: int, *, rows: int = 64, dtype: FormatName = "float32", operands: int = 1,
         seed: int = 0) -> dict[str, Any]:  # fmt: skip
    """Return operands and outputs of a callable for `lowprec.identify`, which finds the arithmetic of fused sums.

    Parameters
    ----------
    function : callable
        Function of one vector, or of two.
    n : int
        Length of a vector.
    rows : int
        Number of outputs.
    dtype : str
        Dtype of the elements.
    operands : {1, 2}
        Number of vectors; for 1, `b` contains ones.
    seed : int
        Seed of the operands.

    Returns
    -------
    dict
        Arguments of `lowprec.identify`: ``a`` and ``b`` of shape (rows, n), ``c`` None and ``d`` of shape (rows,).
    """
    n, rows = check_int("dump", "n", n, 1), check_int("dump", "rows", rows, 1)
    operands, seed = check_options("reveal", dtype, operands, seed)
    probed = Probed(function, n, dtype, operands, np.inf, None)
    inputs = samples(n, rows, operands, probed.dtype, seed, kinds=4)
    d = [probed(*(x[row] for x in inputs)) for row in range(rows)]
    b = inputs[1] if operands == 2 else np.ones_like(inputs[0])
    return {"a": inputs[0], "b": b, "c": None, "d": np.array(d).astype(DTYPES[probed.out_format or dtype])}
