"""Studies of single GEMMs: errors of accumulators against K, and published figures beside our own.

Where an `Ablation` trains models, a `TensorStudy` multiplies matrices; both are files in `ablations/`, listed and run
by the same command. What comes out is a table of claims (source, published, ours), a figure, and its numbers as CSV.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec._arrays import whole

from ...design.arms import GemmArm
from ...design.expectations import Claim
from ...design.study import Size, Study, check_names, count

if TYPE_CHECKING:
    from lowprec.scaling.quantize import Quantized

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]
MEASURES = ("max error / mean", "relative Frobenius error")


@dataclass(frozen=True)
class Operands:
    """Where the values of both matrices come from: `draw(rng, shape)`, then rounded to `format`."""

    name: str
    label: str
    draw: Draw
    format: str = "e4m3fn"


@dataclass(frozen=True)
class TensorSetting(Size):
    """How large a study is: outputs of `rows` x `rows`, K of `lengths`, matrices of `seeds` seeds."""

    rows: int = count()
    seeds: int = count()
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths:
            raise ValueError("lengths=(): one length at least is needed")
        object.__setattr__(self, "lengths", tuple(whole("", "lengths", length, 1) for length in self.lengths))

    def __str__(self) -> str:
        return f"{self.rows} x {self.rows} outputs, K {self.lengths[0]} to {self.lengths[-1]}, {self.seeds} seeds"


@dataclass(frozen=True, kw_only=True)
class TensorStudy(Study):
    """One question about single GEMMs.

    Parameters
    ----------
    arms : tuple of GemmArm
        The curves.
    data : tuple of Operands
        The panels.
    claims : tuple of Claim
        The rows of the table.
    title : callable
        Says the finding in a line, from the errors.
    marks : tuple of (str, int, float, str)
        Published points in the figure: panel, K, error, words.
    """

    arms: tuple[GemmArm, ...]
    data: tuple[Operands, ...]
    claims: tuple[Claim, ...] = ()
    title: Callable[[Errors], str] = lambda errors: ""
    marks: tuple[tuple[str, int, float, str], ...] = ()
    kind: ClassVar[str] = "tensors"
    has_reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.name, "kind of data", [data.name for data in self.data])

    @property
    def tier(self) -> str:
        """T1."""
        return "T1"


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of every arm: `values` [measure, data, arm, length, seed], measures as in `MEASURES`."""

    study: TensorStudy
    setting: TensorSetting
    values: Values

    def of(self, data: str, arm: str, length: int, measure: int = 0) -> Values:
        """Return the errors of all seeds, shape (seeds,)."""
        where = (
            [d.name for d in self.study.data].index(data),
            [a.name for a in self.study.arms].index(arm),
            self.setting.lengths.index(length),
        )
        errors: Values = self.values[(measure, *where)]
        return errors


def quantized(codes: NDArray[Any], format: str) -> Quantized:
    """Wrap codes [R, C] whose scale is 1."""
    return lp.Quantized(codes, np.ones((1, 1), np.float32), lp.formats[format], lp.Granularity.parse("tensor"))


def exact_product(a: NDArray[Any], b: NDArray[Any], format: str) -> Values:
    """Return ``A B^T`` of codes without any error.

    FP8 products are whole multiples of 2^-18 (e4m3) or 2^-32 (e5m2), so sums below 2^35 or 2^21 are exact in float64 in
    whatever order they are added; sums of e5m2 that could be larger are refused.
    """
    x, y = (lp.decode(codes, format).astype(np.float64) for codes in (a, b))
    unit = 2 * np.log2(lp.formats[format].smallest_subnormal)
    if a.shape[1] * np.abs(x).max(initial=0.0) * np.abs(y).max(initial=0.0) >= 2.0 ** (53 + unit):
        raise ValueError(f"exact_product: sums of {a.shape[1]} products of {format} do not fit float64")
    product: Values = np.einsum("ik,jk->ij", x, y)
    return product


def error_of(result: NDArray[Any], exact: Values) -> tuple[float, float]:
    """Return the errors of `MEASURES`: largest error over the mean magnitude, and the Frobenius norms' quotient."""
    error = np.abs(result.astype(np.float64) - exact)
    return float(error.max() / np.abs(exact).mean()), float(np.sqrt((error**2).sum() / (exact**2).sum()))


def sweep(study: TensorStudy, setting: TensorSetting, progress: Callable[[int, int], None] | None = None) -> Errors:
    """Multiply everything and measure the errors.

    Parameters
    ----------
    study : TensorStudy
        The arms and the data.
    setting : TensorSetting
        The size.
    progress : callable, optional
        Called with what is done and what there is.

    Returns
    -------
    Errors
        The same numbers on every computer and for any number of threads.
    """
    lengths = setting.lengths
    shape = (len(MEASURES), len(study.data), len(study.arms), len(lengths), setting.seeds)
    values = np.full(shape, np.nan)
    done, total = 0, len(study.data) * setting.seeds * len(study.arms)
    for d, data in enumerate(study.data):
        for seed in range(setting.seeds):
            rng = np.random.default_rng([seed, d])
            size = (setting.rows, max(lengths))
            a, b = (lp.encode(data.draw(rng, size), data.format) for _ in range(2))
            exact = {k: exact_product(a[:, :k], b[:, :k], data.format) for k in lengths}
            for i, arm in enumerate(study.arms):
                for j, k in enumerate(lengths):
                    operands = [quantized(np.ascontiguousarray(x[:, :k]), data.format) for x in (a, b)]
                    result = lp.gemm(*operands, accumulator=arm.machine, promote_every=arm.promote_every)
                    values[:, d, i, j, seed] = error_of(result, exact[k])
                done += 1
                if progress is not None:
                    progress(done, total)
    return Errors(study, setting, values)
