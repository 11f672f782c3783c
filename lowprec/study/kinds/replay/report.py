"""What a replay found: tables, sentences and numbers of its report."""

from __future__ import annotations

from pathlib import Path

from ...analysis.estimates import BootstrapMean
from ...measurements.operands import EXTRAPOLATED_K
from ...report.parts import Table, bullets, finding_sentence, number
from ...report.results import Results, expected_blocks, last_blocks, made_of, summary_json
from ...report.sheet import csv_of
from .figures import figure
from .study import ENOUGH, REPLAY_METRICS
from .summary import ReplaySummary, words_of


def sums_table(summary: ReplaySummary) -> Table:
    """Return what each arm but those of other bits costs, by class: over quantization, with intervals."""
    others = {arm.name for _, arm in summary.bits} - {summary.control.name}
    where = [*summary.classes, *summary.far]
    rows = [
        (arm.label, *(_cell(summary.of("over_quantization", arm.name, name)) for name in where))
        for arm in summary.study.arms
        if arm.name not in others
    ]
    caption = (
        "Frobenius error of the sums over the error of quantizing the operands: 1 doubles the mean square, "
        f"{ENOUGH:g} adds half a per cent to the error. Means over layers and checkpoints, 90 % intervals over both. "
        f"At K = {EXTRAPOLATED_K}: extrapolated. {summary.size}."
    )
    return Table(("arm", *map(words_of, where)), tuple(rows), caption)


def bits_table(summary: ReplaySummary) -> Table:
    """Return what each number of fraction bits costs in sums that are never promoted."""
    where = [*summary.classes, *summary.far]
    rows = [
        (str(bits), *(number(summary.of("over_quantization", arm.name, name).mean) for name in where))
        for bits, arm in summary.bits
    ]
    least = ("enough", *(str(bits) if (bits := summary.enough(name)) is not None else "more" for name in where))
    caption = (
        "Frobenius error of sums that are never promoted over the error of quantizing the operands, by the fraction "
        f"bits that alignment keeps. Enough: from there on the whole 90 % interval lies below {ENOUGH:g}."
    )
    return Table(("fraction bits", *map(words_of, where)), (*rows, least), caption)


def bias_table(summary: ReplaySummary) -> Table:
    """Return by how much sums are too small, by class."""
    where = [*summary.classes, *summary.far]
    arms = [summary.control, *(arm for _, arm in summary.intervals)]
    rows = [
        (arm.label, *(_cell(summary.of("bias_percent", arm.name, name)) for name in where)) for arm in arms
    ]  # fmt: skip
    caption = "Bias, per cent: how much longer the result is along the exact one; truncation makes it shorter."
    return Table(("arm", *map(words_of, where)), tuple(rows), caption)


def operands_table(summary: ReplaySummary) -> Table:
    """Return what the operands of each class are like, those that were extended too."""
    rows = []
    arm = summary.control.name
    for where in (*summary.classes, *summary.checks, *summary.far):
        lengths = [numbers["K"] for numbers in summary.values[where, arm].values()]
        span = f"{min(lengths):.0f}" if min(lengths) == max(lengths) else f"{min(lengths):.0f} to {max(lengths):.0f}"
        metrics = ("coherence", "quantization", "error_percent", "over_quantization", "largest")
        cells = [_cell(summary.of(metric, arm, where)) for metric in metrics]
        rows.append((words_of(where), str(len(lengths)), span, *cells))
    head = ("class", "multiplications", "K", "coherence", "quantization %", "sums %",
            "over quantization", "largest error %")  # fmt: skip
    caption = (
        "Coherence: mean correlation of two products of one sum. Sums, over quantization, and the largest error over "
        f"the mean magnitude (DeepSeek's measure): of {summary.control.label}. Extended: shorter operands, copied; as "
        "coherent: the correlation of products stays; less coherent: it falls as 1 / K. "
        + (f"{words_of(summary.checks[0])} beside the same without shows how far an extension can be trusted."
           if summary.checks else "")
    )  # fmt: skip
    return Table(head, tuple(rows), caption)


def lines_table(summary: ReplaySummary) -> Table:
    """Return the reference lines of synthetic operands."""
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
    """Return what was found, most important first."""
    arm = summary.control
    lines = []
    for where in (summary.classes[-1], *summary.far):
        cost, bias = (summary.of(metric, arm.name, where) for metric in ("over_quantization", "bias_percent"))
        lines.append(
            f"{words_of(where)}: {arm.label} costs {_cell(cost)} times what quantization does; bias {_cell(bias)} %."
        )
    for length, promoted in summary.intervals:
        found = [f"{_cell(summary.of('over_quantization', promoted.name, where))} in {words_of(where)}"
                 for where in (summary.classes[-1], *summary.far)]  # fmt: skip
        lines.append(f"Promoted every {length}: {', '.join(found)}.")
    least = [f"{'more than are here' if (bits := summary.enough(where)) is None else bits} in {words_of(where)}"
             for where in (*summary.classes, *summary.far)]  # fmt: skip
    lines.append(f"Fraction bits that suffice without promotion: {', '.join(least)}.")
    return [*lines, *map(finding_sentence, summary.findings)]


def title(summary: ReplaySummary) -> str:
    """Return the finding in a line."""
    arm, longest = summary.control, summary.classes[-1]
    here = summary.of("over_quantization", arm.name, longest)
    far = [summary.of("over_quantization", arm.name, where).mean for where in summary.far]
    beyond = f", {number(min(far))} to {number(max(far))} if extrapolated to K = {EXTRAPOLATED_K}" if far else ""
    least = [summary.enough(where) for where in (*summary.classes, *summary.far)]
    known = [bits for bits in least if bits is not None]
    enough = f"; {max(known)} fraction bits suffice everywhere" if len(known) == len(least) else ""
    return (
        f"{arm.label}: sums cost {number(here.mean)} times quantization's error in {words_of(longest)}{beyond}{enough}"
    )


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
        for metric in (*REPLAY_METRICS, "quantization", "largest", "coherence", "K")
        for found in [summary.of(metric, arm.name, where)]
    ]  # fmt: skip
    body = [
        figure(summary, title(summary)), bullets(sentences(summary)), *expected_blocks(study, summary.findings),
        "## Measured", sums, bits, bias_table(summary), operands_table(summary), lines_table(summary),
        *last_blocks(study, summary.about),
    ]  # fmt: skip
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], title=title(summary),
        enough_bits={where: summary.enough(where) for where in (*summary.classes, *summary.far)},
        sentences=sentences(summary),
    )  # fmt: skip
    shown = [Table(table.head, table.rows, table.caption, words)
             for table, words in ((sums, study.question), (bits, "Bits"))]  # fmt: skip
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), shown,
                   sentences(summary))  # fmt: skip
