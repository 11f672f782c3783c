"""Kinds of operands for tests of kernels; each reveals certain faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._checks import check_int
from ..registry import Registry

Matrix = NDArray[np.float32]
Drawn = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DataKind:
    """Kind of operands.

    Parameters
    ----------
    name : str
        Name in tables.
    summary : str
        Faults that the data reveal.
    draw : callable
        ``draw(rng, rows, k)`` returns one operand.
    only_a : bool
        Whether only A is of this kind; B is then normal.
    """

    name: str
    summary: str
    draw: Callable[[np.random.Generator, int, int], Drawn]
    only_a: bool = False


data_kinds: Registry[DataKind] = Registry("kind of data", DataKind)
"""Catalogue of kinds of data."""


def _add(name: str, summary: str, only_a: bool = False) -> Callable[[Callable[..., Drawn]], DataKind]:
    return lambda draw: data_kinds.register(name, DataKind(name, summary, draw, only_a))


_add("normal", "what suites use: no fault shows that is smaller than the rounding of the result")(
    lambda rng, rows, k: rng.standard_normal((rows, k))
)
_add("positive", "truncation adds up: sums that are never promoted, and bits that are missing")(
    lambda rng, rows, k: np.abs(rng.standard_normal((rows, k)))
)


@_add("cancelling", "sums that nearly vanish: an absolute tolerance sees everything, a relative one nothing")
def _(rng: np.random.Generator, rows: int, k: int) -> Drawn:
    x = rng.standard_normal((rows, k))
    x[:, 1::2] = -x[:, 0 : k - k % 2 : 2] * (1 + 2.0**-6 * rng.standard_normal((rows, k // 2)))
    return x


@_add("tiles", "every tile of 128 has its own size: a scale of another tile or row shows")
def _(rng: np.random.Generator, rows: int, k: int) -> Drawn:
    sizes = np.exp2(rng.permutation(rows * -(-k // 128)).reshape(rows, -1) % 8)
    x: Drawn = rng.standard_normal((rows, k)) * np.repeat(sizes, 128, axis=1)[:, :k]
    return x


@_add("integers", "every sum is exact, so that a correct kernel has no error at all and any error is a fault")
def _(rng: np.random.Generator, rows: int, k: int) -> Drawn:
    x = rng.integers(-3, 4, (rows, k)).astype(np.float64)
    x[:, ::32] = 7 * np.where(rng.random(x[:, ::32].shape) < 0.5, -1, 1)  # the same maximum in every block
    x *= 64
    return x


@_add("outliers", "one element in 128 is 64 times larger: small terms are cut, and saturation shows")
def _(rng: np.random.Generator, rows: int, k: int) -> Drawn:
    return rng.standard_normal((rows, k)) * np.where(np.arange(k) % 128 == 77, 64, 1)


@_add("boundaries", "values at the edges of the format: ties, neighbours of powers of two, subnormals")
def _(rng: np.random.Generator, rows: int, k: int) -> Drawn:
    x: Drawn = np.exp2(rng.integers(-9, 9, (rows, k))) * rng.choice([1.0, 1 + 2.0**-4, 2 - 2.0**-4, 1.5], (rows, k))
    return x * np.where(rng.random((rows, k)) < 0.5, -1, 1)


@_add("nan", "a NaN in the middle of a row of A: all outputs of the row must be NaN, and no others", only_a=True)
def _(rng: np.random.Generator, rows: int, k: int) -> Drawn:
    x: Drawn = rng.standard_normal((rows, k))
    x[rows // 3, k // 2] = np.nan
    return x


def operands(kind: str, m: int, n: int, k: int, *, seed: int = 0) -> tuple[Matrix, Matrix]:
    """Draw operands that reveal certain faults of a kernel.

    Parameters
    ----------
    kind : str
        Name in ``lowprec.testing.data_kinds``: ``normal``, ``positive``, ``cancelling``, ``tiles``, ``integers``,
        ``outliers``, ``boundaries`` or ``nan``; see their summaries for their uses.
    m, n, k : int
        Shapes of the operands, [m, k] and [n, k].
    seed : int
        Seed of the random numbers.

    Returns
    -------
    tuple of float32 arrays
        Values before quantization.

    Examples
    --------
    >>> [x.shape for x in operands("positive", 4, 6, 256)]
    [(4, 256), (6, 256)]
    """
    m, n, k = (check_int("operands", name, value, 1) for name, value in (("m", m), ("n", n), ("k", k)))
    entry = data_kinds.get(kind)
    rng = np.random.default_rng(check_int("operands", "seed", seed, 0))
    draws = entry.draw, data_kinds["normal"].draw if entry.only_a else entry.draw
    x, y = (np.asarray(draw(rng, rows, k), np.float32) for draw, rows in zip(draws, (m, n), strict=True))
    return x, y
