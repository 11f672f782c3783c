"""Arithmetic of a recorded operation, in a sentence: the accumulator of a product, or the order of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnose.identify.identify import identify
from ..format.catalogue import formats
from ..order.catalogue import orders
from .recording import INTEGERS, Operation, Product, Recording, to_numbers

#: Number of names in a list.
MOST = 5


def list_operations(run: Recording, module: str) -> str:
    """Return the first operations that a run recorded in a module, as text."""
    names = [op.name for op in run.operations.values() if op.module == module and op.kind != "module"]
    return ", ".join(name.removeprefix(f"{module}/") for name in names[:MOST]) or "nothing recorded"


def describe_product(op: Operation, seconds: float, progress: Callable[[int], None] | None) -> str:
    """Return a sentence with the result of `identify` for the samples of a product."""
    p = op.product
    assert p is not None
    if p.factors:
        return f"a product with {' and '.join(p.factors)}, which is not searched"
    if unknown := [dtype for name in "abd" if not _is_known(dtype := p.dtypes[name])]:
        return f"a product of {p.dtypes['a']} and {p.dtypes['b']}: identify does not know {unknown[0]}"
    scales: dict[str, Any] = {}
    if "a_scale" in p.words:
        m, n = op.outputs[0].shape
        scales = {"a_scale": _scales(p, "a", m), "b_scale": _scales(p, "b", n)}
        if any(scale is None for scale in scales.values()):
            sizes = " and ".join(f"{p.dtypes[name]} {list(p.words[name].shape)}" for name in scales)
            return f"a product with scales {sizes}, which is not searched"
    c = to_numbers(p.words["c"], p.dtypes["c"]) if "c" in p.words else None
    of: dict[str, Any] = {f"{name}_format": p.dtypes[name] for name in "abd"}
    return identify(
        p.words["a"], p.words["b"], c, p.words["d"], seconds=seconds, progress=progress, **of, **scales
    ).sentence


def _is_known(dtype: str) -> bool:
    return dtype == "float64" or (dtype not in INTEGERS and dtype in formats)


def _scales(p: Product, side: str, count: int) -> NDArray[np.float32] | None:
    """Return the float32 scales of the stored rows of a, or of the rows of b that give the stored columns of d.

    They have shape [rows, 1], or [1, 1] for a single scale. The result is None for another dtype or layout.
    """
    words, places = p.words[f"{side}_scale"], p.rows if side == "a" else p.columns
    if p.dtypes[f"{side}_scale"] != "float32":
        return None
    scale = to_numbers(words, "float32")
    if scale.size == 1:
        return scale.reshape(1, 1)
    scale = scale if side == "a" else scale.T
    return np.ascontiguousarray(scale[places]) if scale.shape == (count, 1) else None


def describe_sum(op: Operation) -> str:
    """Return a sentence that names the catalogued orders that give a recorded sum or mean over the last axis, or ""."""
    if (
        not op.kind.startswith(("aten.mean", "aten.sum"))
        or op.numbers[:1] != ("-1",)
        or op.numbers[1:2] not in ((), ("True",))  # not the last axis alone
        or (op.inputs[0].dtype, op.outputs[0].dtype) != ("float32", "float32")
    ):
        return ""
    x, out = op.inputs[0], op.outputs[0]
    n = x.shape[-1]
    rows = [row for row in x.rows if row in out.rows] if out.shape[-1:] == (1,) else []
    if not rows:
        return ""
    data, recorded = (t.values[[t.rows.index(row) for row in rows]] for t in (x, out))
    fits = []
    for name in (name for name in orders if orders[name].is_defined_for(n)):
        sums = np.array([orders[name](n).sum(row) for row in data], np.float32)
        for how, made in _finished(sums, n, op.kind.startswith("aten.mean")).items():
            if np.array_equal(made, recorded[:, 0], equal_nan=True):
                fits.append(f"{name}{how}")
    if not fits:
        return f"no order in lp.orders gives its {len(rows)} stored sums of {n} numbers; `lowprec reveal` finds others"
    return f"its {len(rows)} stored sums of {n} numbers are those of {', '.join(fits)}"


def _finished(sums: NDArray[np.float32], n: int, is_mean: bool) -> Mapping[str, NDArray[np.float32]]:
    """Return the sums, or the means computed by division by n and by multiplication by 1/n; keys name the operation."""
    if not is_mean:
        return {"": sums}
    return {" divided by n": sums / np.float32(n), " times 1/n": sums * (np.float32(1) / np.float32(n))}
