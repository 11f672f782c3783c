"""Studies of single GEMMs: errors of accumulators against K, and published figures compared with ours.

An `Ablation` trains models; a `TensorStudy` multiplies matrices. Both are files in `ablations/`, run by the same
command. The results are a table of claims (source, published, ours), a figure, and its numbers as CSV.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec._checks import check_int

from ..design.arms import GemmArm
from ..design.expectations import Claim
from ..design.study import Progress, Size, check_names, count
from .claims import ClaimResults, TableStudy, claims_csv, claims_json, claims_table

if TYPE_CHECKING:
    from lowprec.scaling.quantize import Quantized

    from ..report.results import Results
    from ..report.sheet import Figure

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]
MEASURES = ("max error / mean", "relative Frobenius error")


@dataclass(frozen=True)
class Operands:
    """Distribution of both matrices: `draw(rng, shape)`, rounded to `format`."""

    name: str
    label: str
    draw: Draw
    format: str = "e4m3fn"


@dataclass(frozen=True)
class TensorSetting(Size):
    """Size of a GEMM study: outputs of `rows` x `rows`, K in `lengths`, and `seeds` seeds."""

    rows: int = count()
    seeds: int = count()
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths:
            raise ValueError("lengths must be one length at least, got ()")
        object.__setattr__(self, "lengths", tuple(check_int("", "lengths", length, 1) for length in self.lengths))

    def __str__(self) -> str:
        return f"{self.rows} x {self.rows} outputs, K {self.lengths[0]} to {self.lengths[-1]}, {self.seeds} seeds"


@dataclass(frozen=True, kw_only=True)
class TensorStudy(TableStudy):
    """A question about single GEMMs, answered by their errors.

    Parameters
    ----------
    arms : tuple of GemmArm
        Arms, the curves of the figure.
    data : tuple of Operands
        Distributions, the panels of the figure.
    claims : tuple of Claim
        Claims, the rows of the table.
    title : callable
        Function from the errors to a title with the finding.
    marks : tuple of (str, int, float, str)
        Published points in the figure: panel, K, error, label.
    """

    arms: tuple[GemmArm, ...]
    data: tuple[Operands, ...]
    claims: tuple[Claim, ...] = ()
    title: Callable[[Errors], str] = lambda errors: ""
    marks: tuple[tuple[str, int, float, str], ...] = ()
    kind: ClassVar[str] = "tensors"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.name, "kind of data", [data.name for data in self.data])

    def measured(self, size: TensorSetting, folder: Path, command: str, progress: Progress) -> Results:
        """Multiply all operands; return the figure and the table of claims."""
        from ..report.results import Block, Results

        measured = tuple((claim, claim.measure()) for claim in self.claims)
        errors = replace(sweep(self, size, progress), measured=measured, command=command)
        caption = f"Figure: {size}; largest error over the mean magnitude of the exact result, operands rounded first."
        body: list[Block] = [figure(errors), claims_table(errors, caption)]
        body.append(f"Written down before: {self.expected} ({self.source})")
        body += [f"Made by `{command}`."] * bool(command)
        shown = claims_table(errors, self.title(errors), self.question)
        return Results(
            self, folder, errors, body, {"claims.csv": claims_csv(errors)}, _as_json(errors), {}, [shown],
            holds=errors.holds,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Errors(ClaimResults):
    """Errors of every arm: `values` [measure, data, arm, length, seed], with measures in the order of `MEASURES`."""

    study: TensorStudy
    setting: TensorSetting
    values: Values

    def of(self, data: str, arm: str, length: int, measure: int = 0) -> Values:
        """Return the errors for all seeds, shape (seeds,)."""
        where = (
            [d.name for d in self.study.data].index(data),
            [a.name for a in self.study.arms].index(arm),
            self.setting.lengths.index(length),
        )
        errors: Values = self.values[(measure, *where)]
        return errors


def quantized(codes: NDArray[Any], format: str) -> Quantized:
    """Wrap codes [R, C] as a quantized matrix with scale 1."""
    return lp.Quantized(codes, np.ones((1, 1), np.float32), lp.formats[format], lp.Granularity.parse("tensor"))


def exact_product(a: NDArray[Any], b: NDArray[Any], format: str) -> Values:
    """Return the exact product ``A B^T`` of codes.

    FP8 products are multiples of 2^-18 (e4m3) or 2^-32 (e5m2), so sums below 2^35 or 2^21 are exact in float64 in any
    order. Operands with possibly larger sums are refused.
    """
    x, y = (lp.decode(codes, format).astype(np.float64) for codes in (a, b))
    unit = 2 * np.log2(lp.formats[format].smallest_subnormal)
    if a.shape[1] * np.abs(x).max(initial=0.0) * np.abs(y).max(initial=0.0) >= 2.0 ** (53 + unit):
        raise ValueError(f"exact_product: sums must be exact in float64, got {a.shape[1]} products of {format}")
    product: Values = np.einsum("ik,jk->ij", x, y)
    return product


def error_of(result: NDArray[Any], exact: Values) -> tuple[float, float]:
    """Return the errors of `MEASURES`: largest error over the mean magnitude, and the relative Frobenius error."""
    error = np.abs(result.astype(np.float64) - exact)
    return float(error.max() / np.abs(exact).mean()), float(np.sqrt((error**2).sum() / (exact**2).sum()))


def sweep(study: TensorStudy, setting: TensorSetting, progress: Progress = lambda done, total: None) -> Errors:
    """Multiply all operands on all arms and measure the errors.

    Parameters
    ----------
    study : TensorStudy
        Study with arms and data.
    setting : TensorSetting
        Size of the study.
    progress : callable, optional
        Function called with the number of finished steps and the total.

    Returns
    -------
    Errors
        Errors; they do not depend on the computer or the number of threads.
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
                progress(done, total)
    return Errors(study, setting, values)


def _as_json(errors: Errors) -> dict[str, Any]:
    """Return the errors in JSON types."""
    study = errors.study
    curves = [
        {"data": data.name, "arm": arm.name, "K": k, **{
            name: errors.of(data.name, arm.name, k, m).tolist() for m, name in enumerate(MEASURES)}}
        for data in study.data for arm in study.arms for k in errors.setting.lengths
    ]  # fmt: skip
    return {"claims": claims_json(errors), "curves": curves}


# --- the figure ------------------------------------------------------------------------------------------------------


def figure(errors: Errors) -> Figure:
    """Return the figure of error against K: one panel per distribution, bands over seeds; the table has all errors."""
    from ..report.sheet import Figure, label_ends, panels

    study, setting = errors.study, errors.setting
    rows = [
        {"data": data.name, "arm": arm.name, "K": k, "seed": seed,
         **dict(zip(MEASURES, errors.values[:, d, i, j, seed].tolist(), strict=True))}
        for d, data in enumerate(study.data)
        for i, arm in enumerate(study.arms)
        for j, k in enumerate(setting.lengths)
        for seed in range(setting.seeds)
    ]  # fmt: skip

    def draw(sheet: Any, top: float) -> None:
        found = panels(sheet, top, 1, len(study.data), head=0.30, foot=0.56, right=0.86, wspace=0.13)
        for axes, data in zip(found, study.data, strict=True):
            ends = _draw(axes, errors, data.name)
            axes.set_title(data.label, fontsize=9.5, loc="left", color="#202020", pad=7)
        label_ends(found[-1], ends)
        found[0].set_ylabel("largest error / mean magnitude (%)")

    small = f"{setting}; lines: mean over seeds, bands: smallest and largest; no line: no error"
    return Figure(study.title(errors), study.name, rows, draw, small)


def _draw(axes: Any, errors: Errors, data: str) -> list[tuple[float, str, str]]:
    """Draw one panel; return the ends of its curves: value, label, color."""
    from matplotlib.ticker import FuncFormatter

    from ..report.sheet import line_styles

    study, lengths, styles = errors.study, errors.setting.lengths, line_styles(errors.study.arms)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for arm in study.arms:
        style, width = styles[arm.name], {"reference": 1.4, "control": 2.4}.get(arm.role, 1.8)
        # A logarithmic axis cannot show 0: a curve begins where all seeds have an error.
        shown = [(k, 100 * row) for k in lengths if (row := errors.of(data, arm.name, k)).min() > 0]
        if not shown:
            continue
        at, mean = [k for k, _ in shown], [float(row.mean()) for _, row in shown]
        axes.fill_between(at, [row.min() for _, row in shown], [row.max() for _, row in shown], color=style.color,
                          alpha=0.16, linewidth=0)  # fmt: skip
        axes.plot(at, mean, color=style.color, linestyle=style.dashes, linewidth=width, solid_capstyle="round")
        ends.append((mean[-1], arm.label, style.color))
    for panel, k, error, words in study.marks:
        if panel == data and lengths[0] <= k <= lengths[-1]:
            axes.plot([k], [100 * error], "o", markersize=7, markerfacecolor="none", markeredgecolor="#202020",
                      markeredgewidth=1.3, zorder=5)  # fmt: skip
            axes.annotate(words, (k, 100 * error), (-10, 12), textcoords="offset points", fontsize=8,
                          color="#202020", ha="right")  # fmt: skip
    shown_lengths = lengths[::-2] if len(lengths) > 5 else lengths
    axes.set_xticks(shown_lengths, [f"{k:.0f}" for k in shown_lengths])
    axes.set_xlim(lengths[0] * 0.93, lengths[-1] * 1.07)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if value >= 1e-3 else f"10$^{{{round(math.log10(value))}}}$")
    )
    axes.minorticks_off()
    axes.grid(False, axis="x")
    axes.set_xlabel("K, products in a sum")
    return ends
