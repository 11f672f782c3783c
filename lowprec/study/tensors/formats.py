"""Studies of formats on data: the error of each codec on each distribution, and published tables compared with ours.

An `ErrorStudy` neither trains nor multiplies: it draws values, passes them through codecs and measures errors. Its
results are a table of claims, one row per row of a published table; the complete measured tables; and figures with
their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowprec.measure.distributions import distributions

from ...plot.style import CONTROL, NEUTRAL, PALETTE
from ..design.expectations import Claim, Measured
from ..design.study import Progress, Size, check_names, count
from ..report.parts import Table
from .claims import ClaimResults, TableStudy, claims_csv, claims_json, claims_table

if TYPE_CHECKING:
    from lowprec.measure.atlas import FormatErrors

    from ..report.results import Block, Results
    from ..report.sheet import Figure

#: Color of each family; casts are neutral.
FAMILIES = {
    "LogFMT": PALETTE[0], "INT": PALETTE[1], "FP8 tiles": CONTROL, "MX": PALETTE[2], "NVFP4": PALETTE[4],
    "cast": NEUTRAL, "E5M6": PALETTE[3],
}  # fmt: skip
#: Measures with a table: description, factor and decimals.
TABLES = (
    ("sqnr", "SQNR, dB", 1.0, 2),
    ("relative_rms", "Relative error of a value, root mean square, %", 100.0, 3),
    ("flushed", "Values that became 0, %", 100.0, 3),
)


@dataclass(frozen=True)
class ErrorArm:
    """One format in an `ErrorStudy`.

    Parameters
    ----------
    name : str
        Name of the codec or quantizer.
    label : str
        Label in tables and figures.
    family : str
        Family of formats; a figure draws each family as one line.
    """

    name: str
    label: str = ""
    family: str = ""


@dataclass(frozen=True)
class ErrorSetting(Size):
    """Size of a study of formats: arrays of `rows` x `columns` values for `seeds` seeds.

    `training_steps` is for figures that train a small model in a format.
    """

    rows: int = count()
    columns: int = count()
    seeds: int = count()
    training_steps: int = count(1, 1)

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} values, {self.seeds} seeds"


@dataclass(frozen=True)
class PublishedTable:
    """A published table: one error measure for several formats and distributions.

    Parameters
    ----------
    what : str
        Description of the measure.
    measure : str
        Name of a field of `FormatErrors`.
    source : str
        Publication.
    data : tuple of str
        Distributions, the columns of the table.
    rows : mapping of str to tuple of float
        Values of each format, in decibels or as fractions.
    decibels : bool
        Whether the values are in decibels; others are compared by 20 log10 of their ratio.
    exceptions : mapping of (str, str) to str
        Cells (format, data) that cannot be reproduced, with the reason; they are shown but do not affect the claim.
    within : float
        Tolerance in dB. If the standard deviation of a single draw exceeds a third of it, the tolerance is three such
        standard deviations, because the published values are from a single draw.
    """

    what: str
    measure: str
    source: str
    data: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]
    decibels: bool = True
    exceptions: Mapping[tuple[str, str], str] = field(default_factory=dict)
    within: float = 0.3


@dataclass(frozen=True, kw_only=True)
class ErrorStudy(TableStudy):
    """A question about formats, answered by their errors on data.

    Parameters
    ----------
    arms : tuple of ErrorArm
        Formats to measure.
    data : tuple of str
        Names of distributions.
    tables : tuple of PublishedTable
        Published tables to reproduce; every row is a claim.
    claims : tuple of Claim
        Further claims.
    figures : tuple of callable
        Functions that return figures: ``figure(outcome)`` is a `Figure`.
    """

    arms: tuple[ErrorArm, ...]
    data: tuple[str, ...]
    tables: tuple[PublishedTable, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: tuple[Callable[[ErrorOutcome], Figure], ...] = ()
    kind: ClassVar[str] = "errors"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.name, "kind of data", self.data)
        for table in self.tables:
            unknown = (set(table.rows) - {arm.name for arm in self.arms}) | (set(table.data) - set(self.data))
            if unknown:
                raise ValueError(
                    f"study {self.name!r}: table {table.what!r} must name formats of the study, got {sorted(unknown)}"
                )

    def measured(self, size: ErrorSetting, folder: Path, command: str, progress: Progress) -> Results:
        """Measure all formats on all data; return the claims and the measured tables."""
        from ..report.results import Results
        from ..report.sheet import csv_of

        swept = sweep(self, size, progress)
        pairs = [pair for table in self.tables for pair in claims_of(table, swept)]
        pairs += [(claim, claim.measure()) for claim in self.claims]
        outcome = replace(swept, command=command, measured=tuple(pairs))
        rows = [
            {"data": data, "seed": seed, **row.as_dict()}
            for (_, data), seeds in outcome.errors.items()
            for seed, row in enumerate(seeds)
        ]
        files = {"claims.csv": claims_csv(outcome), f"{self.name}.csv": csv_of(rows)}
        json = {"claims": claims_json(outcome), "errors": rows}
        body = [*(figure(outcome) for figure in self.figures), *_body(outcome)]
        shown = _table(outcome, "SQNR dB", "bits", TABLES[0], self.question)
        if outcome.measured:
            shown = claims_table(outcome, title=self.question)
        return Results(self, folder, outcome, body, files, json, {}, [shown], holds=outcome.holds)


@dataclass(frozen=True, eq=False)
class ErrorOutcome(ClaimResults):
    """Errors of a study: `errors[format, data]` has one `FormatErrors` per seed."""

    study: ErrorStudy
    setting: ErrorSetting
    errors: Mapping[tuple[str, str], tuple[FormatErrors, ...]]

    def of(self, arm: str, data: str, measure: str) -> NDArray[np.float64]:
        """Return a measure for all seeds, shape (seeds,)."""
        field = "underflow" if measure == "flushed" else measure  # the name in registered ranges and stored tables
        return np.array([getattr(row, field) for row in self.errors[arm, data]], np.float64)


def sweep(study: ErrorStudy, setting: ErrorSetting, progress: Progress = lambda done, total: None) -> ErrorOutcome:
    """Measure every format on every distribution."""
    from lowprec.measure.atlas import measure_errors

    errors: dict[tuple[str, str], list[FormatErrors]] = {}
    done, total = 0, len(study.data) * setting.seeds
    for data in study.data:
        for seed in range(setting.seeds):
            values = distributions[data].values((setting.rows, setting.columns), seed)
            for arm in study.arms:
                errors.setdefault((arm.name, data), []).append(measure_errors(values, arm.name))
            done += 1
            progress(done, total)
    return ErrorOutcome(study, setting, {key: tuple(rows) for key, rows in errors.items()})


def claims_of(table: PublishedTable, outcome: ErrorOutcome) -> list[tuple[Claim, Measured]]:
    """Return one claim per row of a published table."""
    labels = {arm.name: arm.label for arm in outcome.study.arms}
    found = []
    for name, values in table.rows.items():
        worst, holds, at, scattered = 0.0, True, "", []
        for data, published in zip(table.data, values, strict=True):
            ours = outcome.of(name, data, table.measure)
            scale = ours if table.decibels else 20 * np.log10(ours)
            gap = float(scale.mean()) - (published if table.decibels else float(20 * np.log10(published)))
            spread = float(scale.std(ddof=1)) if len(scale) > 1 else 0.0
            allowed = max(table.within, 3 * spread)
            if (name, data) in table.exceptions:
                scattered.append(f"{data} {gap:+.2f}: {table.exceptions[name, data]}")
                continue
            holds &= abs(gap) <= allowed
            if allowed > table.within:
                scattered.append(f"{data} {gap:+.2f} (one draw: SD {spread:.2f})")
            elif abs(gap) >= abs(worst):
                worst, at = gap, data
        words = f"at most {abs(worst):.2f} dB away ({at})" + "".join(f"; {item}" for item in scattered)
        shown = [
            f"{value:.2f} dB" if table.decibels else f"{100 * value:.3g} %" for value in (min(values), max(values))
        ]
        measured = Measured(words, worst, holds)
        published_words = f"{shown[0]} to {shown[1]}"
        claim = Claim(f"{table.what}: {labels[name]}", table.source, published_words, partial(_same, measured))
        found.append((claim, measured))
    return found


def _same(measured: Measured) -> Measured:
    return measured


def _table(outcome: ErrorOutcome, first: str, second: str, measure: tuple[str, str, float, int], title: str) -> Table:
    """Return the table of a measure for every format and distribution."""
    name, _, scale, digits = measure
    data = outcome.study.data
    rows = [
        (arm.label, f"{outcome.of(arm.name, data[0], 'bits_per_value').mean():.4g}",
         *(f"{scale * outcome.of(arm.name, one, name).mean():.{digits}f}" for one in data))
        for arm in outcome.study.arms
    ]  # fmt: skip
    return Table((first, second, *data), rows, title=title)


def _body(outcome: ErrorOutcome) -> list[Block]:
    """Return the claims and all measured tables."""
    study = outcome.study
    blocks: list[Block] = [claims_table(outcome)] if outcome.measured else []
    for measure in TABLES:
        blocks += [f"## {measure[1]}", _table(outcome, "format", "bits per value", measure, "")]
    octaves = [f"{data} {outcome.of(study.arms[0].name, data, 'tile_range_octaves').mean():.1f}" for data in study.data]
    ranges = f"Mean range R of tiles of 128, octaves: {', '.join(octaves)}."
    blocks.append(f"Mean over seeds; {outcome.setting}; float32 values. {ranges}")
    blocks.append(f"Written down before: {study.expected} ({study.source})")
    return blocks + ([f"Made by `{outcome.command}`."] if outcome.command else [])
