"""Drawing of accuracy against the time of combine."""

from __future__ import annotations

from pathlib import Path

from ...report.style import save
from .plots import FAMILIES, front_line, new_figure, style
from .study import ErrorOutcome, Row

#: Where a label stands beside its point, in points, for those that would touch another.
SHIFTS = {
    "INT4 1x128": (-6, -8), "INT8 1x128": (-6, 3), "INT10 1x128": (-6, 3), "MXFP6 E2M3": (-6, 3), "NVFP4": (-4, 6),
    "LogFMT-12": (-6, 3), "LogFMT-10": (6, 4), "LogFMT-7": (-2, -11), "E4M3 1x128": (6, 0), "MXFP8": (6, -9),
    "LogFMT-5": (6, -5), "LogFMT-9": (6, -8),
}  # fmt: skip


def draw_cost(rows: list[Row], outcome: ErrorOutcome, stem: Path) -> list[Path]:
    """Draw SQNR and KL divergence against the time of combine, every codec a point, the fronts as stairs."""
    lossless = {row["label"] for row in rows if row["kl"] == 0}
    with style():
        figure, axes = new_figure(
            _finding(rows),
            "DeepSeek-V3 on H800 with 400G InfiniBand, 32 tokens a GPU, one layer; grey stairs: the front; left: eight "
            "experts combined as DeepEP's low-latency kernel does; right: a nano model after "
            f"{outcome.setting.training_steps} steps, KL from the predictions with BF16, bars: 2 standard errors",
            2, right=0.985, shared=False, gap=0.19,
        )  # fmt: skip
        for panel, key, sign in zip(axes, ("sqnr", "kl"), (1, -1), strict=True):
            shown = [row for row in rows if row["label"] not in lossless]
            front = [(row["combine_us"], sign * row[key]) for row in shown if row[f"{key}_on_front"]]
            xs, ys = front_line(front)
            panel.plot(xs, [sign * y for y in ys], color="#d0d0d0", linewidth=5, solid_joinstyle="round", zorder=1)
            for row in shown:
                color, at = FAMILIES[row["family"]], (row["combine_us"], row[key])
                if key == "kl":
                    low = min(2 * row["kl_error"], 0.9 * row["kl"])
                    panel.errorbar(*at, yerr=[[low], [2 * row["kl_error"]]], color=color, linewidth=1, zorder=2)
                panel.plot(*at, "o", color=color, markersize=5, zorder=3)
                shift = SHIFTS.get(row["label"], (6, -3))
                panel.annotate(row["label"].replace(" 1x128", ""), at, shift, textcoords="offset points", fontsize=7,
                               color=color, ha="right" if shift[0] < 0 else "left", zorder=4)  # fmt: skip
            panel.set_xlabel("time of combine (µs)")
            panel.set_xlim(17, 90)
        bf16 = next(row for row in rows if row["label"] in lossless)
        for panel in axes:
            panel.axvline(bf16["combine_us"], color=FAMILIES["cast"], linewidth=1.2, linestyle=(0, (5, 1.5)))
            panel.text(bf16["combine_us"] + 0.8, 0.5, "BF16: nothing lost", rotation=90, fontsize=8, va="center",
                       color=FAMILIES["cast"], transform=panel.get_xaxis_transform())  # fmt: skip
        axes[0].set_ylabel("SQNR of the combined output (dB)")
        axes[1].set_ylabel("KL of the predictions (nats per byte)")
        axes[1].set_yscale("log")
        axes[1].invert_yaxis()
        axes[0].set_title("up: more accurate", fontsize=9.5, loc="left", color="#202020", pad=7)
        axes[1].set_title("up: nearer to BF16's predictions", fontsize=9.5, loc="left", color="#202020", pad=7)
        return save(figure, stem)


def _finding(rows: list[Row]) -> str:
    by_name = {row["format"]: row for row in rows}
    eight, bf16 = by_name["logfmt8"], by_name["bf16"]
    integer = by_name["int8_1x128"]["sqnr"] - eight["sqnr"]
    fp8 = eight["sqnr"] - by_name["fp8_1x128"]["sqnr"]
    saved = 1 - eight["combine_us"] / bf16["combine_us"]
    return (
        f"Combining in 8 bits saves {100 * saved:.0f} % of its time; on experts' outputs LogFMT-8 is {fp8:.1f} dB "
        f"above E4M3 tiles and {integer:.1f} dB below INT8"
    )
