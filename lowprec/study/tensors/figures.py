"""The figure of a study of formats that fits them all: SQNR against bits per value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowprec.measure.distributions import distributions

from ...plot.style import CONTROL, NEUTRAL, PALETTE
from ..report.sheet import Figure, panels
from ..report.tradeoff import Point, draw_front, on_front, write_names
from .formats import ErrorOutcome

#: Color of each family, the casts neutral.
FAMILIES = {
    "LogFMT": PALETTE[0], "INT": PALETTE[1], "FP8 tiles": CONTROL, "MX": PALETTE[2], "NVFP4": PALETTE[4],
    "cast": NEUTRAL, "E5M6": PALETTE[3],
}  # fmt: skip


def nominal_bits(name: str) -> float:
    """Return a codec's bits per value for bfloat16 numbers, as transmitted: LogFMT's ends take 16 bits then."""
    from lowprec.measure.atlas import find_format

    return float(getattr(find_format(name), "bits_per_value", float("nan")))


def panel_title(data: str) -> str:
    """Return a kind of data with its description."""
    return f"{data}: {distributions[data].about}"


def pareto(title: str, caption: str, data: tuple[str, ...]) -> Callable[[ErrorOutcome], Figure]:
    """Return a figure of SQNR against bits per value: a line per family, the front as stairs with ringed points.

    Parameters
    ----------
    title : str
        The finding.
    caption : str
        One sentence below the figure.
    data : tuple of str
        Kinds of data, a panel each.
    """

    def figure(outcome: ErrorOutcome) -> Figure:
        rows = [row for name in data for row in pareto_rows(outcome, name)]
        small = (
            f"SQNR against bits per value, scales included (LogFMT's ends as bfloat16); {outcome.setting}; grey stairs "
            "and rings: the Pareto front"
        )

        def draw(sheet: Any, top: float) -> None:
            found = panels(sheet, top, 1, len(data), head=0.30, foot=0.56, wspace=0.09)
            for axes, name in zip(found, data, strict=True):
                _draw(axes, [row for row in rows if row["data"] == name])
                axes.set_title(panel_title(name), fontsize=9.5, loc="left", color="#202020", pad=7)
            found[0].set_ylabel("SQNR (dB)")
            found[0].legend(fontsize=8, frameon=False, loc="upper left", handlelength=1.2)

        return Figure(title, outcome.study.name, rows, draw, small, height=5.6, csv=f"{outcome.study.name}_figure",
                      caption=caption)  # fmt: skip

    return figure


def pareto_rows(outcome: ErrorOutcome, data: str) -> list[dict[str, Any]]:
    """Return SQNR and bits of every format on one kind of data, and whether it is on the front."""
    arms = outcome.study.arms
    points = [(nominal_bits(arm.name), float(outcome.of(arm.name, data, "sqnr").mean())) for arm in arms]
    return [
        {"data": data, "format": arm.name, "label": arm.label, "family": arm.family, "bits_per_value": bits,
         "sqnr": sqnr, "on_front": front}
        for arm, (bits, sqnr), front in zip(arms, points, on_front(points), strict=True)
    ]  # fmt: skip


def _draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    draw_front(axes, [(row["bits_per_value"], row["sqnr"]) for row in rows if row["on_front"]])
    names = []
    for family in dict.fromkeys(row["family"] for row in rows):
        points = [(row["bits_per_value"], row["sqnr"]) for row in rows if row["family"] == family]
        best = dict(sorted(points))  # of formats with the same bits the one with the higher SQNR
        axes.plot([*best], [*best.values()], color=FAMILIES[family], linewidth=1.5, zorder=3)
        axes.plot(*zip(*points, strict=True), "o", color=FAMILIES[family], markersize=4.5, zorder=3, label=family)
    for row in rows:
        at = (row["bits_per_value"], row["sqnr"])
        if row["on_front"]:
            axes.plot(*at, "o", markersize=9, markerfacecolor="none", markeredgecolor="#202020", markeredgewidth=0.9,
                      zorder=4)  # fmt: skip
        label = _short(row["label"], row["family"])
        names.append((Point(label, {}, row["sqnr"], FAMILIES[row["family"]]), row["bits_per_value"]))
    axes.set_xlabel("bits per value, scales included")
    axes.set_xlim(2.7, 17.4)
    write_names(axes, names, size=7, radius=6)


def _short(label: str, family: str) -> str:
    """Return a label without what its family's name says."""
    for gone in (" 1x128", " f32", "LogFMT-", "MX", "INT"):
        label = label.replace(gone, "")
    return {"E5M6 pow2": "", "E4M3 pow2": "", family: ""}.get(label, label)
