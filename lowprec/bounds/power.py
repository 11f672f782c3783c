"""Power of a criterion: the share of correct results, and of results of every fault, that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._checks import check_int
from ..cast.casts import round_to
from ..measure.pairs import binomial_interval
from ..scaling.quantize import quantize
from ..scaling.quantizer import Quantizer
from ..tensorcore.accumulator import Accumulator
from .criteria import Criterion, criterion
from .data import operands
from .faults import faults
from .product import Product
from .tolerance import reordered, tolerance


class Passed(NamedTuple):
    """Share of the results of a kernel that a criterion accepts.

    Attributes
    ----------
    kernel : str
        "right", or the name of a fault.
    passes : float
        Share of the draws that the criterion accepts; for a correct kernel, in every order of K.
    ours : float
        Share of the draws that `Tolerance.test` accepts.
    draws : int
        Number of draws.

    Examples
    --------
    >>> [round(end, 2) for end in Passed("zeros", 0.0, 0.0, 30).interval]
    [0.0, 0.12]
    """

    kernel: str
    passes: float
    ours: float
    draws: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval (Clopper and Pearson) of the probability that the criterion accepts the kernel."""
        return binomial_interval(round(self.passes * self.draws), self.draws, 0.025)


@dataclass(frozen=True)
class Power:
    """Result of `criterion_power`.

    Attributes
    ----------
    criterion : Criterion
        Criterion whose power was measured.
    rows : tuple of Passed
        Correct kernels first, then the faults that apply.
    """

    criterion: Criterion
    rows: tuple[Passed, ...]

    @property
    def vacuous(self) -> tuple[str, ...]:
        """Accepted faults that every useful test rejects, see `Fault.vacuous`."""
        return tuple(row.kernel for row in self.rows[1:] if faults[row.kernel].vacuous and row.passes > 0)

    @property
    def refused(self) -> float:
        """Share of draws in which the criterion rejects a correct kernel in at least one order."""
        return 1 - self.rows[0].passes

    @property
    def sentence(self) -> str:
        """Summary in one sentence."""
        lived = [row.kernel for row in self.rows[1:] if row.passes > 0]
        low, high = (1 - end for end in reversed(self.rows[0].interval))
        text = (
            f"{self.criterion.name}: refuses a correct kernel in {self.refused:.0%} of draws (95 % interval {low:.0%} "
        )
        text += f"to {high:.0%}), accepts {len(lived)} of {len(self.rows) - 1} faults"
        return f"{text}; vacuous: it accepts {', '.join(self.vacuous)}" if self.vacuous else text


def criterion_power(
    given: str | Criterion | Callable[[Any, Any], Any],
    *,
    m: int = 128,
    n: int = 128,
    k: int = 1024,
    data: str = "normal",
    quantizers: tuple[str | Quantizer, str | Quantizer] = ("e4m3fn 1x128", "e4m3fn 128x128"),
    accumulator: str | Accumulator = "hopper_fp8",
    out_format: str = "bfloat16",
    draws: int = 3,
    **options: Any,
) -> Power:
    """Measure how often a criterion accepts correct kernels, in several orders of K, and each fault.

    Parameters
    ----------
    given : str, Criterion or callable
        See `lowprec.testing.criterion`.
    m, n, k : int
        Shape of the product.
    data : str
        Kind of data, see `lowprec.testing.operands`.
    quantizers : pair of str or Quantizer
        Specs of both operands, see `lowprec.quantize`.
    accumulator : str or Accumulator
        Summation rule of the correct kernel.
    out_format : str
        Format of the result.
    draws : int
        Number of operands to draw.
    **options
        Further arguments of `lowprec.gemm`.

    Returns
    -------
    Power
        Share of draws that are accepted, by kernel. All orders of a draw have the same operands; they are one trial,
        which is accepted if all of them are.

    Raises
    ------
    ValueError
        If the criterion raises an error, or returns different answers for the same arrays.
    """
    if not isinstance(quantizers, tuple | list) or len(quantizers) != 2:
        raise ValueError(f"criterion: quantizers must be a pair, those of a and of b, got {quantizers!r}")
    judge, seen = criterion(given), dict[str, list[NDArray[np.bool_]]]()
    for seed in range(check_int("criterion", "draws", draws, 1)):
        x, y = operands(data, m, n, k, seed=seed)
        a, b = (quantize(v, spec) for v, spec in zip((x, y), quantizers, strict=True))
        t = tolerance(a, b, accumulator=accumulator, out_format=out_format, seed=seed, values=(x, y), **options)
        exact = t.exact if judge.reference == "operands" else x.astype(np.float64) @ y.astype(np.float64).T
        want = round_to(exact, out_format)
        found: dict[str, list[tuple[bool, bool]]] = {}
        for name, got in results(t.products[0], seed):
            accepted = judge(got, want)
            if accepted != judge(got, want):
                raise ValueError(f"criterion {judge.name}: it must not depend on chance, got two answers")
            found.setdefault(name, []).append((accepted, bool(t.test(got, name_faults=False))))
        for name, orders in found.items():
            seen.setdefault(name, []).append(np.all(orders, axis=0))
    shares = {name: np.mean(trials, axis=0).tolist() for name, trials in seen.items()}
    return Power(judge, tuple(Passed(name, one, two, len(seen[name])) for name, (one, two) in shares.items()))


def results(product: Product, seed: int = 0) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the results of a correct kernel in three orders of K, and of every fault that changes an output."""
    right = product.result()
    yield "right", right
    for i in (1, 2):
        if (moved := reordered(product, np.random.default_rng([seed, 100 + i]))) is not None:
            yield "right", product.result(a=moved[0], b=moved[1])
    with np.errstate(all="ignore"):
        for name in faults:
            wrong = faults[name].apply(product, right)
            if wrong is not None and not np.array_equal(wrong, right, equal_nan=True):
                yield name, wrong
