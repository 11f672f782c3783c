"""Naming of the fault that explains a wrong result: the nearest of those that the catalogue's faults give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import round_to
from ..format.catalogue import Format, formats
from ..tensorcore.library import gemm_libraries
from .faults import Result, faults
from .product import Product


def named(product: Product, expected: NDArray[np.float64], d: NDArray[np.float64]) -> str:
    """Return the name of the fault with which a product gives the result `d`, or "" if there is none."""
    right = product.result()
    c = None if product.c is None else np.asarray(product.c).T
    sources = None if product.sources is None else (product.sources[1], product.sources[0])
    options, library = dict(product.options), gemm_libraries.get(product.options.get("library", "deepgemm"))
    if library.stream_k:
        blocks, rows, columns = library.stream_k
        options["library"] = library.with_(stream_k=(blocks, columns, rows))
    exchanged = Product(product.b, product.a, c, options, sources)

    def wrong() -> Iterator[tuple[str, Result | None]]:
        for name in faults:
            yield name, faults[name].apply(product, right)
        for name in faults:  # faults of B, and of columns
            found = faults[name].apply(exchanged, right.T)
            yield f"{name}, with A and B exchanged", None if found is None else found.T

    return _nearest(wrong(), right, expected, d, formats.get(product.options["out_format"]))


def named_output(right: Result, expected: NDArray[np.float64], d: NDArray[np.float64], target: Format) -> str:
    """Return the name of the fault that explains a result of any computation, or "" if no fault does."""
    right = np.atleast_1d(right)
    expected, d = np.atleast_1d(expected), np.atleast_1d(d)
    outputs = {name: faults[name].output for name in faults}
    wrong = ((name, round_to(change(right.copy()), target)) for name, change in outputs.items() if change is not None)
    return _nearest(wrong, right, expected, d, target)


def _nearest(
    results: Iterable[tuple[str, Result | None]], right: Result, expected: NDArray[np.float64], d: NDArray[np.float64],
    target: Format,
) -> str:  # fmt: skip
    """Return the name of the wrong result nearest to d if they differ only by rounding, else ""."""
    ulp = 2.0**-target.mantissa_bits
    best, least = "", 0.1  # limit, relative to the distance from the right result
    with np.errstate(all="ignore"):
        far = _distance(d, right)
        for name, wrong in results:
            if wrong is None or np.array_equal(wrong, right, equal_nan=True):
                continue
            noise = ulp * np.abs(wrong) + 4 * np.nan_to_num(expected)
            near = _distance(d, wrong)
            if near == 0:
                return name
            if near < least * far and (np.abs(d - wrong) <= noise).mean() > 0.99:
                best, least = name, near / far
    return best


def _distance(d: Any, other: Any) -> float:
    """Return the root mean square difference of two arrays; infinite if an element is NaN in only one of them."""
    off = np.where(np.isnan(d) & np.isnan(other) | (d == other), 0.0, d - other)
    return float(np.sqrt(np.square(np.nan_to_num(off, nan=np.inf)).mean())) if off.size else 0.0
