"""Report of a replay study: tables, sentences, numbers and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...plot.style import NEUTRAL, PALETTE
from ..analysis.estimates import BootstrapMean
from ..measurements.operands import EXTRAPOLATED_K
from ..report.parts import Table, bullets, finding_sentence, number
from ..report.results import Results, expected_blocks, last_blocks, made_of, summary_json
from ..report.sheet import Figure, csv_of, panels
from .replay_results import AT_FAR, NEGLIGIBLE_RATIO, ReplaySummary, class_label, spread_of


def sums_table(summary: ReplaySummary) -> Table:
    """Return the table of the error of each arm's sums relative to the quantization error, by class."""
    others = {arm.name for _, arm in summary.bits} - {summary.control.name}
    where = [*summary.classes, *summary.far]
    rows = [
        (arm.label, *(_cell(summary.of("over_quantization", arm.name, name)) for name in where))
        for arm in summary.study.arms
        if arm.name not in others
    ]
    caption = (
        "Frobenius error of the sums over the error of quantizing the operands: 1 doubles the mean square, "
        f"{NEGLIGIBLE_RATIO:g} adds half a per cent to the error. Means over layers and checkpoints, 90 % intervals "
        "over both. "
        f"At K = {EXTRAPOLATED_K}: extrapolated. {summary.size}."
    )
    return Table(("arm", *map(class_label, where)), tuple(rows), caption)


def bits_table(summary: ReplaySummary) -> Table:
    """Return the table of the error of sums without promotion, by number of fraction bits."""
    where = [*summary.classes, *summary.far]
    rows = [
        (str(bits), *(number(summary.of("over_quantization", arm.name, name).mean) for name in where))
        for bits, arm in summary.bits
    ]
    least = (
        "enough",
        *(str(bits) if (bits := summary.sufficient_bits(name)) is not None else "more" for name in where),
    )
    caption = (
        "Frobenius error of sums that are never promoted over the error of quantizing the operands, by the fraction "
        f"bits that alignment keeps. Enough: from there on the whole 90 % interval is below {NEGLIGIBLE_RATIO:g}."
    )
    return Table(("fraction bits", *map(class_label, where)), (*rows, least), caption)


def bias_table(summary: ReplaySummary) -> Table:
    """Return the table of the bias of sums towards zero, by class."""
    where = [*summary.classes, *summary.far]
    arms = [summary.control, *(arm for _, arm in summary.intervals)]
    rows = [
        (arm.label, *(_cell(summary.of("bias_percent", arm.name, name)) for name in where)) for arm in arms
    ]  # fmt: skip
    caption = "Bias, per cent: how much longer the result is along the exact one; truncation makes it shorter."
    return Table(("arm", *map(class_label, where)), tuple(rows), caption)


def operands_table(summary: ReplaySummary) -> Table:
    """Return the table of properties of the operands in each class, recorded and extended."""
    rows = []
    arm = summary.control.name
    for where in (*summary.classes, *summary.checks, *summary.far):
        lengths = [numbers["K"] for numbers in summary.values[where, arm].values()]
        span = f"{min(lengths):.0f}" if min(lengths) == max(lengths) else f"{min(lengths):.0f} to {max(lengths):.0f}"
        metrics = ("coherence", "quantization", "error_percent", "over_quantization", "largest")
        cells = [_cell(summary.of(metric, arm, where)) for metric in metrics]
        rows.append((class_label(where), str(len(lengths)), span, *cells))
    head = ("class", "multiplications", "K", "coherence", "quantization %", "sums %",
            "over quantization", "largest error %")  # fmt: skip
    caption = (
        "Coherence: mean correlation of two products of one sum. Sums, over quantization, and the largest error over "
        f"the mean magnitude (DeepSeek's measure): of {summary.control.label}. Extended: shorter operands, copied; as "
        "coherent: the correlation of products stays; less coherent: it falls as 1 / K. "
        + (f"{class_label(summary.checks[0])} compared with the class unextended shows how accurate extensions are."
           if summary.checks else "")
    )  # fmt: skip
    return Table(head, tuple(rows), caption)


def lines_table(summary: ReplaySummary) -> Table:
    """Return the table of the reference lines from synthetic operands."""
    arm = summary.control.name
    known = sorted({k for _, name, k in summary.lines if name == arm})
    rows = [
        (family, *(number(summary.lines[family, arm, k]["over_quantization"]) for k in known))
        for family in dict.fromkeys(family for family, _, _ in summary.lines)
    ]
    caption = (
        f"Synthetic operands, {summary.control.label}: Frobenius error over the error of quantization by K. Channels: "
        "1 % of the channels of one operand times 64. Shared: normal, with a direction in common that gives products "
        "this coherence."
    )
    return Table(("family", *(f"K = {k}" for k in known)), tuple(rows), caption)


def _cell(found: BootstrapMean) -> str:
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def sentences(summary: ReplaySummary) -> list[str]:
    """Return the findings as sentences, most important first."""
    arm = summary.control
    lines = []
    for where in (summary.classes[-1], *summary.far):
        cost, bias = (summary.of(metric, arm.name, where) for metric in ("over_quantization", "bias_percent"))
        lines.append(
            f"{class_label(where)}: {arm.label} costs {_cell(cost)} times what quantization does; bias {_cell(bias)} %."
        )
    for length, promoted in summary.intervals:
        found = [f"{_cell(summary.of('over_quantization', promoted.name, where))} in {class_label(where)}"
                 for where in (summary.classes[-1], *summary.far)]  # fmt: skip
        lines.append(f"Promoted every {length}: {', '.join(found)}.")
    least = [
        f"{'more than are here' if bits is None else bits} in {class_label(where)}"
        for where in (*summary.classes, *summary.far)
        for bits in [summary.sufficient_bits(where)]
    ]
    lines.append(f"Fraction bits that suffice without promotion: {', '.join(least)}.")
    return [*lines, *map(finding_sentence, summary.findings)]


def title(summary: ReplaySummary) -> str:
    """Return a title with the finding."""
    arm, longest = summary.control, summary.classes[-1]
    here = summary.of("over_quantization", arm.name, longest)
    far = [summary.of("over_quantization", arm.name, where).mean for where in summary.far]
    beyond = f", {number(min(far))} to {number(max(far))} if extrapolated to K = {EXTRAPOLATED_K}" if far else ""
    least = [summary.sufficient_bits(where) for where in (*summary.classes, *summary.far)]
    known = [bits for bits in least if bits is not None]
    enough = f"; {max(known)} fraction bits suffice everywhere" if len(known) == len(least) else ""
    where = f"{class_label(longest)}{beyond}{enough}"
    return f"{arm.label}: sums cost {number(here.mean)} times quantization's error in {where}"


def results(summary: ReplaySummary, folder: Path) -> Results:
    """Return the report of a finished replay."""
    study, sums, bits = summary.study, sums_table(summary), bits_table(summary)
    rows = [
        {"class": where, "extended": int(where not in summary.classes), "arm": arm.name,
         "accumulator": arm.machine.name, "promote_every": arm.promote_every or "never", "blocks": arm.blocks,
         "metric": metric, "mean": found.mean, "low90": found.low, "high90": found.high, "worst": found.largest,
         "multiplications": found.count}
        for where in (*summary.classes, *summary.checks, *summary.far)
        for arm in study.arms
        for metric in (*study.metrics, "quantization", "largest", "coherence", "K")
        for found in [summary.of(metric, arm.name, where)]
    ]  # fmt: skip
    body = [
        figure(summary, title(summary)), bullets(sentences(summary)), *expected_blocks(study, summary.findings),
        "## Measured", sums, bits, bias_table(summary), operands_table(summary), lines_table(summary),
        *last_blocks(study, summary.about),
    ]  # fmt: skip
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], title=title(summary),
        enough_bits={where: summary.sufficient_bits(where) for where in (*summary.classes, *summary.far)},
        sentences=sentences(summary),
    )  # fmt: skip
    shown = [Table(table.head, table.rows, table.caption, words)
             for table, words in ((sums, study.question), (bits, "Bits"))]  # fmt: skip
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), shown,
                   sentences(summary))  # fmt: skip


# --- the figure: errors of sums by K, by the promotion interval and by fraction bits ---------------------------------

#: Colours of the products; extrapolated points have the same colour, open and dashed.
COLORS = {"fprop": PALETTE[0], "dgrad": PALETTE[1], "wgrad": PALETTE[2]}
#: Dashes of the grey lines of synthetic operands in the first panel.
LINES = {"normal": "-", "channels": (0, (4, 1.5)), "positive": (0, (1, 1.2))}
#: Row of the figure's table.
Row = dict[str, Any]


def figure(summary: ReplaySummary, finding: str) -> Figure:
    """Return the figure; the rows of its table are the points of the three panels."""
    rows = [*_by_length(summary), *_by_interval(summary), *_by_bits(summary)]
    small = (
        f"{summary.size}. Dots: means over layers and checkpoints; bars: 90 % intervals of the mean; thin bars: 5 to "
        "95 % of the multiplications. Open and dashed: extrapolated, with the coherence that was recorded (circles) or "
        "one that falls as 1 / K (squares). Grey: synthetic operands"
    )

    def draw(sheet: Any, top: float) -> None:
        found = panels(sheet, top, 1, 3, head=0.30, foot=0.58, left=0.075, wspace=0.10)
        for axes, panel, drawn in zip(
            found, ("length", "interval", "bits"), (_draw_length, _draw_interval, _draw_bits), strict=True
        ):
            axes.grid(False)
            axes.set_yscale("log")
            drawn(axes, summary, [row for row in rows if row["panel"] == panel])
            axes.axhline(1.0, color="#808080", linewidth=0.8, zorder=0)
            axes.axhline(NEGLIGIBLE_RATIO, color="#808080", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        found[0].set_ylabel("error of sums / error of quantization")

    return Figure(finding, summary.study.name, rows, draw, small, 5.0, 10.4)


# --- the numbers -----------------------------------------------------------------------------------------------------


def _point(summary: ReplaySummary, panel: str, arm: str, where: str, x: float) -> Row:
    found = summary.of("over_quantization", arm, where)
    return {"panel": panel, "class": where, "x": x, "mean": found.mean, "low": found.low, "high": found.high}


def _by_length(summary: ReplaySummary) -> list[Row]:
    """Return the errors of sums without promotion: synthetic operands by K, then the classes at their mean K."""
    arm = summary.control.name
    rows: list[Row] = [
        {"panel": "length", "class": family, "x": k, "mean": summary.lines[family, arm, k]["over_quantization"],
         "low": "", "high": ""}
        for family in LINES
        for k in sorted(k for name, other, k in summary.lines if (name, other) == (family, arm))
    ]  # fmt: skip
    for where in (*summary.classes, *summary.far):
        lengths = [item["K"] for item in summary.values[where, arm].values()]
        rows.append(_point(summary, "length", arm, where, sum(lengths) / len(lengths)))
    return rows


def _by_interval(summary: ReplaySummary) -> list[Row]:
    arms = [*(arm for _, arm in summary.intervals), summary.control]
    return [_point(summary, "interval", arm.name, where, i) for where in _shown(summary) for i, arm in enumerate(arms)]


def _by_bits(summary: ReplaySummary) -> list[Row]:
    return [_point(summary, "bits", arm.name, where, bits) for where in _shown(summary) for bits, arm in summary.bits]


def _shown(summary: ReplaySummary) -> Sequence[str]:
    """Return the classes in the right panels: all but Wgrad's, the longest Wgrad, and the extended ones."""
    wgrad = [where for where in summary.classes if _product(where) == "wgrad"]
    return [*(where for where in summary.classes if where not in wgrad), *wgrad[-1:], *summary.far]


# --- the panels ------------------------------------------------------------------------------------------------------


def _product(where: str) -> str:
    return where.partition("_")[0]


def _look(where: str) -> dict[str, Any]:
    color, far = COLORS[_product(where)], AT_FAR in where
    return {"color": color, "linestyle": (0, (4, 2)) if far else "-"}


def _dot(axes: Any, row: Row) -> None:
    where, color = row["class"], COLORS[_product(row["class"])]
    axes.plot([row["x"]] * 2, [row["low"], row["high"]], color=color, linewidth=2.2, zorder=3)
    axes.plot([row["x"]], [row["mean"]], "s" if where.endswith("_diluted") else "o", color=color, markersize=5.5,
              markerfacecolor="white" if AT_FAR in where else color, zorder=4)  # fmt: skip


def _draw_length(axes: Any, summary: ReplaySummary, rows: Sequence[Row]) -> None:
    arm, places = summary.control.name, {row["class"]: (row["x"], row["mean"]) for row in rows}
    axes.set_xscale("log", base=2)
    for family, dashes in LINES.items():
        line = [(row["x"], row["mean"]) for row in rows if row["class"] == family]
        axes.plot(*zip(*line, strict=True), color="#a0a0a0", linewidth=1.2, linestyle=dashes, zorder=1)
        axes.annotate(family, line[-1], xytext=(-2, -11 if family == "normal" else 4), fontsize=8,
                      textcoords="offset points", color="#707070", ha="right")  # fmt: skip
    for row in rows:
        if (where := row["class"]) in LINES:
            continue
        ends = spread_of(item["over_quantization"] for item in summary.values[where, arm].values())
        axes.plot([row["x"]] * 2, ends, color=COLORS[_product(where)], linewidth=0.8, alpha=0.6, zorder=2)
        _dot(axes, row)
        if where in summary.far:
            line = [places[_product(where)], places[where]]
            axes.plot(*zip(*line, strict=True), linewidth=1.0, zorder=2, **_look(where))
    axes.set_title(f"{summary.control.label}, by K", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel("K: products in a sum (of Wgrad: tokens)")
    axes.set_xticks((256, 2048, 16384, 65536), ("256", "2k", "16k", "64k"))
    axes.minorticks_off()


def _draw_interval(axes: Any, summary: ReplaySummary, rows: Sequence[Row]) -> None:
    for where in _shown(summary):
        line = [row for row in rows if row["class"] == where]
        axes.plot([row["x"] for row in line], [row["mean"] for row in line], linewidth=1.2, zorder=2, **_look(where))
        for row in line:
            _dot(axes, row)
    lengths = [*(str(length) for length, _ in summary.intervals), "never"]
    axes.set_xticks(range(len(lengths)), lengths)
    axes.set_title("by the interval of promotion", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel("products between promotions to FP32")


def _draw_bits(axes: Any, summary: ReplaySummary, rows: Sequence[Row]) -> None:
    hopper = next((bits for bits, arm in summary.bits if arm.name == summary.control.name), 13)
    for where in _shown(summary):
        x, mean, low, high = (
            [row[key] for row in rows if row["class"] == where] for key in ("x", "mean", "low", "high")
        )
        marker = "s" if where.endswith("_diluted") else "o"
        axes.plot(x, mean, marker=marker, markersize=3.5, linewidth=1.2, label=class_label(where),
                  markerfacecolor="white" if AT_FAR in where else COLORS[_product(where)], **_look(where))  # fmt: skip
        axes.fill_between(x, low, high, color=COLORS[_product(where)], alpha=0.15, linewidth=0)
    axes.axvline(hopper, color=NEUTRAL, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_title("by fraction bits, never promoted", fontsize=9.5, loc="left", color="#202020")
    axes.set_xlabel(f"fraction bits (Hopper: {hopper})")
    axes.legend(fontsize=7.5, frameon=False, loc="lower left", borderaxespad=0.0)
    axes.set_ylim(bottom=1e-7)
