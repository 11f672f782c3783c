"""Causes before the quantizer: other values came in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...cast.casts import round_to
from .cause import add
from .dump import F32, Dump, Made, values_of
from .places import order_of_rows, spoken

_SMALLEST = np.finfo(np.float32).smallest_normal


@add("input rounded first", "making", "quantize the float32 values themselves, or compare with the rounded ones")
def _rounded(made: Made, found: Dump) -> Iterator[tuple[str, Made]]:
    x = made.x
    with np.errstate(over="ignore"):
        half = x.astype(np.float16).astype(np.float32)
    cut = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    cut = np.where(np.isfinite(x), cut, x)
    forms = {"to bfloat16": round_to(x, "bfloat16"), "to float16": half, "toward zero to bfloat16": cut}
    yield from _of(made, forms)


@add(
    "subnormal inputs flushed to zero", "making", "compile without flush-to-zero (-ftz=false), or flush the values too"
)
def _flushed(made: Made, found: Dump) -> Iterator[tuple[str, Made]]:
    small = np.abs(made.x) < _SMALLEST
    yield from _of(made, {"": np.where(small, np.copysign(np.float32(0), made.x), made.x)})


@add("NaN or Inf replaced first", "making", "give the values that were quantized; here NaN and Inf reach the scales")
def _replaced(made: Made, found: Dump) -> Iterator[tuple[str, Made]]:
    if np.isfinite(made.x).all():
        return
    zeros = np.where(np.isfinite(made.x), made.x, np.float32(0))
    yield from _of(made, {"by zero": zeros, "as numpy.nan_to_num does": np.nan_to_num(made.x)})


@add("rows in another order", "making", "compare with the values in that order, or mend the index of the row", 1.5)
def _rows(made: Made, found: Dump) -> Iterator[tuple[str, Made]]:
    for meant in _meant(made, found):
        if (order := order_of_rows(made.turned, meant)) is not None:
            yield from _of(made, {spoken(order): made.x[order]})
            return


@add(
    "columns in another order", "making", "compare with the values in that order, or mend the index of the column", 1.5
)
def _columns(made: Made, found: Dump) -> Iterator[tuple[str, Made]]:
    if made.q.hadamard is not None:
        return
    for meant in _meant(made, found):
        if (order := order_of_rows(made.x.T, meant.T)) is not None:
            yield from _of(made, {spoken(order): np.ascontiguousarray(made.x[:, order])})
            return


def _meant(made: Made, found: Dump) -> Iterator[F32]:
    """Yield what codes mean, with their scales if they have such, and without: those may be what is wrong."""
    values = values_of(found.codes, made.format)
    if found.scale.shape == made.scale.shape:
        with np.errstate(all="ignore"):
            yield made.each(found.scale) * values
    yield values


@add("values transposed", "making", "quantize the matrix, not its transpose")
def _transposed(made: Made, found: Dump) -> Iterator[tuple[str, Made]]:
    if made.x.shape[0] == made.x.shape[1]:
        yield from _of(made, {"": np.ascontiguousarray(made.x.T)})


def _of(made: Made, forms: dict[str, F32]) -> Iterator[tuple[str, Made]]:
    for form, x in forms.items():
        if x.tobytes() != made.x.tobytes():
            yield form, Made.of(np.ascontiguousarray(x), made.q)
