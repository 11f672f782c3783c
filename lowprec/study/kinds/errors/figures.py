"""The numbers behind the figures of format errors: the Pareto front, error against magnitude, bias against theory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.measure.distributions import distributions
from lowprec.measure.metrics import gain_bias, magnitude_bias
from lowprec.measure.spread import tile_range

from .plots import draw_bias, draw_magnitude, draw_pareto
from .study import ErrorFigure, ErrorOutcome, Row

ROUNDINGS = ("linear", "log", "logmean")
TILE = 128


def on_front(points: list[tuple[float, float]]) -> list[bool]:
    """Tell which (cost, quality) points no other beats in both, equal ones left out.

    Examples
    --------
    >>> on_front([(8, 30), (8, 37), (9, 35), (10, 50)])
    [False, True, False, True]
    """
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points) for cost, quality in points
    ]


def nominal_bits(name: str) -> float:
    """Return the bits per value of a codec for bfloat16 numbers, as they travel: LogFMT's ends take 16 bits then."""
    from lowprec.measure.atlas import find_format

    return float(getattr(find_format(name), "bits_per_value", float("nan")))


def pareto_rows(outcome: ErrorOutcome, data: tuple[str, ...]) -> list[Row]:
    """Return SQNR and bits of every format, and whether it is on the front."""
    rows = []
    for name in data:
        points = [
            (nominal_bits(arm.name), float(outcome.of(arm.name, name, "sqnr").mean())) for arm in outcome.study.arms
        ]
        for arm, (bits, sqnr), front in zip(outcome.study.arms, points, on_front(points), strict=True):
            rows.append({
                "data": name, "format": arm.name, "label": arm.label, "family": arm.family, "bits_per_value": bits,
                "sqnr": sqnr, "on_front": front,
            })  # fmt: skip
    return rows


def magnitude_rows(outcome: ErrorOutcome, data: str, formats: tuple[str, ...], octaves: int) -> list[Row]:
    """Return the relative error of values by their distance from the largest of their tile, an octave a row."""
    from lowprec.measure.atlas import pass_through

    setting = outcome.setting
    x = distributions[data].values((setting.rows, setting.columns), 0)
    tiles = np.abs(x).reshape(-1, TILE)
    with np.errstate(divide="ignore"):
        below = np.floor(np.log2(tiles.max(axis=1, keepdims=True)) - np.log2(tiles)).reshape(x.shape)
    labels = {arm.name: arm.label for arm in outcome.study.arms}
    rows = []
    for name in formats:
        error = np.abs(pass_through(x, name).values - x).astype(np.float64) / np.abs(x)
        for octave in range(octaves):
            here = error[below == octave]
            if here.size >= 30:
                rows.append({
                    "data": data, "format": name, "label": labels[name], "octaves_below_amax": octave,
                    "values": int(here.size), "relative_rms": float(np.sqrt((here**2).mean())),
                    "flushed": float((here == 1).mean()),
                })  # fmt: skip
    return rows


def step(x: NDArray[Any], bits: int) -> float:
    """Return s, the step of LogFMT's grid in nats: root mean square over tiles, weighted with their energy."""
    tiles = np.asarray(x, np.float64).reshape(-1, TILE)
    steps = tile_range(tiles)[:, 0] * math.log(2) / ((1 << (bits - 1)) - 2)
    return float(np.sqrt(np.average(steps**2, weights=(tiles**2).sum(axis=1))))


def bias_rows(outcome: ErrorOutcome, data: tuple[str, ...], bits: tuple[int, ...], size: int) -> list[Row]:
    """Return biases of LogFMT's thresholds, and the theory: -s^2/12 for linear, +s^2/24 for log, 0 for logmean."""
    from lowprec.codec import LogFMTCodec

    del outcome
    rows = []
    for name in data:
        x = distributions[name].values((size, 1024), 7)
        for n in bits:
            s = step(x, n)
            for rounding, theory in zip(ROUNDINGS, (-s * s / 12, s * s / 24, 0.0), strict=True):
                y = LogFMTCodec("logfmt", n, rounding=rounding).round_trip(x)  # type: ignore[arg-type]
                rows.append({
                    "data": name, "bits": n, "s": s, "rounding": rounding, "theory": theory,
                    "magnitude_bias": magnitude_bias(y, x), "gain_bias": gain_bias(y, x),
                })  # fmt: skip
    return rows


def pareto(suffix: str, data: tuple[str, ...], caption: str) -> ErrorFigure:
    """Return the figure of SQNR against bits per value."""
    return ErrorFigure(suffix, partial(pareto_rows, data=data), draw_pareto, caption)


def against_magnitude(suffix: str, data: str, formats: tuple[str, ...], caption: str, octaves: int = 26) -> ErrorFigure:
    """Return the figure of relative error against magnitude."""
    rows = partial(magnitude_rows, data=data, formats=formats, octaves=octaves)
    return ErrorFigure(suffix, rows, draw_magnitude, caption)


def bias(suffix: str, data: tuple[str, ...], bits: tuple[int, ...], caption: str, size: int = 1024) -> ErrorFigure:
    """Return the figure of LogFMT's bias against theory."""
    return ErrorFigure(suffix, partial(bias_rows, data=data, bits=bits, size=size), draw_bias, caption)
