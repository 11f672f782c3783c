"""Errors of every format on every distribution, and reproduction of published tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lowprec as lp
from lowprec.measure.distributions import distributions
from lowprec.measure.metrics import gain_error, magnitude_bias
from lowprec.measure.spread import tile_range
from lowprec.plot.style import NEUTRAL, PALETTE
from lowprec.study import Claim, ErrorArm, ErrorSetting, ErrorStudy, Measured, PublishedTable
from lowprec.study.report.sheet import Figure, label_ends, panels
from lowprec.study.report.tradeoff import Point, draw_front, on_front, write_names
from lowprec.study.tensors.formats import FAMILIES, ErrorOutcome

SOURCE = "the same definitions in other code, one draw of 2^18 values; LogFMT: arXiv 2505.09343, section 3.2"
OCTAVE = "the scale rounds down to a power of two: 30.1 to 30.9 dB as the deviation goes through an octave"
ONE_VALUE = "the ratio hangs on the largest value: 46 to 55 dB in 60 draws"
EXCEPTIONS = {
    ("mxfp8_floor", "gauss"): OCTAVE, ("mxfp8_floor", "zeros"): OCTAVE, ("e5m6_1x128_ue8m0", "logn2"): ONE_VALUE,
}  # fmt: skip
TEN = ("gauss", "laplace", "t5", "t3", "logn1", "logn2", "swiglu", "expert", "outlier", "zeros")
SQNR = {
    "e5m2_1x128": (25.81, 26.09, 26.18, 27.08, 27.11, 34.73, 26.88, 25.83, 38.80, 25.84),
    "fp8_1x128": (31.80, 32.09, 32.20, 33.10, 33.09, 40.51, 32.85, 31.76, 44.78, 31.82),
    "fp8_1x128_ue8m0": (31.57, 31.54, 31.57, 31.61, 31.56, 32.81, 31.57, 31.52, 31.53, 31.54),
    "mxfp8_e5m2_floor": (25.24, 25.25, 25.20, 25.22, 25.01, 26.76, 25.06, 25.33, 24.35, 25.26),
    "mxfp8_floor": (30.18, 30.02, 30.06, 29.67, 29.54, 29.56, 29.23, 30.49, 27.82, 30.14),
    "int8_1x128": (43.81, 40.99, 40.41, 37.03, 37.03, 37.28, 37.66, 43.76, 32.05, 43.92),
    "int10_1x128": (55.91, 53.09, 52.48, 49.18, 49.13, 46.94, 49.71, 55.87, 44.14, 56.02),
    "e5m6_1x128_ue8m0": (49.61, 49.61, 49.60, 49.62, 49.54, 50.97, 49.62, 49.60, 49.78, 49.61),
    "bf16": (55.60, 55.63, 55.59, 55.64, 55.69, 57.08, 55.70, 55.58, 55.77, 55.60),
    "logfmt4": (10.64, 10.07, 10.63, 11.17, 13.71, 15.83, 9.14, 10.56, 21.69, 10.73),
    "logfmt5": (18.01, 17.18, 17.68, 18.10, 20.86, 22.14, 16.08, 18.00, 28.33, 18.09),
    "logfmt6": (24.60, 23.76, 24.25, 24.62, 27.44, 29.14, 22.50, 24.58, 34.84, 24.69),
    "logfmt7": (30.92, 30.03, 30.54, 30.87, 33.71, 34.82, 28.80, 30.86, 41.09, 31.02),
    "logfmt8": (37.08, 36.19, 36.69, 37.07, 39.85, 41.53, 35.00, 37.03, 47.25, 37.18),
    "logfmt9": (43.17, 42.28, 42.77, 43.13, 45.92, 47.39, 41.04, 43.14, 53.32, 43.24),
    "logfmt10": (49.24, 48.33, 48.81, 49.20, 51.99, 53.61, 47.13, 49.16, 59.37, 49.31),
    "logfmt11": (55.26, 54.42, 54.87, 55.26, 58.09, 59.27, 53.16, 55.20, 65.44, 55.35),
    "logfmt12": (61.28, 60.42, 60.89, 61.27, 64.09, 65.68, 59.17, 61.22, 71.46, 61.37),
}
SIX = ("gauss", "laplace", "t3", "logn2", "swiglu", "expert")
RELATIVE = {  # root mean square, %
    "e5m2_1x128": (5.256, 5.251, 5.253, 5.252, 5.254, 5.251),
    "fp8_1x128": (2.649, 2.662, 2.662, 3.376, 2.849, 2.647),
    "fp8_1x128_ue8m0": (2.657, 2.679, 2.690, 3.781, 2.962, 2.659),
    "mxfp8_e5m2_floor": (5.312, 5.289, 5.301, 5.292, 5.296, 5.293),
    "mxfp8_floor": (2.750, 2.738, 2.724, 3.030, 2.902, 2.715),
    "int8_1x128": (11.011, 16.884, 18.593, 68.569, 31.860, 11.184),
    "int10_1x128": (5.443, 8.479, 9.243, 48.794, 18.230, 5.622),
    "e5m6_1x128_ue8m0": (0.331, 0.332, 0.332, 0.332, 0.332, 0.332),
    "bf16": (0.166, 0.166, 0.166, 0.166, 0.166, 0.166),
    "logfmt4": (28.662, 31.893, 32.097, 43.525, 38.730, 28.984),
    "logfmt5": (12.820, 14.525, 14.633, 20.737, 18.063, 12.917),
    "logfmt6": (6.030, 6.849, 6.908, 9.893, 8.575, 6.092),
    "logfmt7": (2.922, 3.328, 3.348, 4.815, 4.166, 2.955),
    "logfmt8": (1.436, 1.638, 1.650, 2.370, 2.053, 1.452),
    "logfmt9": (0.712, 0.813, 0.819, 1.177, 1.017, 0.721),
    "logfmt10": (0.355, 0.404, 0.408, 0.585, 0.508, 0.359),
    "logfmt11": (0.177, 0.202, 0.204, 0.292, 0.253, 0.179),
    "logfmt12": (0.089, 0.101, 0.102, 0.146, 0.126, 0.089),
}
BITS = (4, 5, 6, 8, 10)
BIAS = {  # of the mean magnitude, 1e-6, for 4, 5, 6, 8, 10 bits
    ("gauss", "linear"): (-84751, -15354, -3328, -185, -14), ("gauss", "log"): (56316, 9765, 2143, 120, 6),
    ("gauss", "logmean"): (4666, 1166, 309, 18, -1), ("laplace", "linear"): (-99177, -19097, -4248, -272, -11),
    ("laplace", "log"): (66728, 12229, 2553, 121, 15), ("laplace", "logmean"): (4978, 1604, 264, -11, 7),
    ("swiglu", "linear"): (-135244, -27416, -6517, -334, -34), ("swiglu", "log"): (112457, 19758, 3851, 268, 1),
    ("swiglu", "logmean"): (17493, 3592, 347, 75, -10), ("uniform", "linear"): (-28, -122, 105, -9, 0),
    ("uniform", "log"): (95908, 19089, 4308, 231, 15), ("uniform", "logmean"): (64218, 12700, 2902, 152, 10),
}  # fmt: skip


def step(x, bits):
    """Return s, the step of LogFMT's grid in nats: root mean square over tiles, weighted with their energy."""
    tiles = np.asarray(x, np.float64).reshape(-1, 128)
    steps = tile_range(tiles)[:, 0] * np.log(2) / ((1 << (bits - 1)) - 2)
    return float(np.sqrt(np.average(steps**2, weights=(tiles**2).sum(axis=1))))


def biased(data: str, rounding: str) -> Measured:
    """Measure the bias of one threshold on one kind of data, all bit widths."""
    from lowprec.codec import LogFMTCodec  # whose compiler a list of studies does not need

    x = distributions[data].values((1024, 1024), 7)
    ours, holds = [], True
    spread = float(np.sqrt(np.mean(x**2.0)) / np.mean(np.abs(x)))
    for bits, published in zip(BITS, BIAS[data, rounding], strict=True):
        y = LogFMTCodec("x", bits, rounding=rounding).round_trip(x)
        ours.append(1e6 * magnitude_bias(y, x))
        # Both numbers are means of 2^20 errors of s / sqrt(12); the tolerance for other differences is a twentieth.
        chance = 4 * 1e6 * step(x, bits) / np.sqrt(12 * x.size) * spread * np.sqrt(2)
        holds &= abs(ours[-1] - published) < 0.05 * abs(published) + chance
    return Measured(", ".join(f"{value:.0f}" for value in ours), ours[0], bool(holds))


DEEPEP = (49.21, 48.31, 48.82, 49.21, 52.02, 53.60, 47.12, 49.14, 59.36, 38.32)


def deepep() -> Measured:
    """SQNR of DeepEP's LogFMT-10 on bfloat16 values scaled below 1, for the ten kinds of data."""
    found: list[float] = []
    for name in TEN:
        x = distributions[name].values((256, 1024), 0)
        below_one = np.float32(2.0 ** -np.ceil(np.log2(np.abs(x).max()) + 0.01))
        tokens = lp.round_to(x * below_one, "bfloat16")
        found.append(lp.sqnr(lp.codecs["logfmt10_deepep"].round_trip(tokens), tokens))
    gaps = {name: ours - published for name, ours, published in zip(TEN, found, DEEPEP, strict=True)}
    one_draw = gaps.pop("logn2")  # the ratio of one draw hangs on its largest value
    worst = max(gaps, key=lambda name: abs(gaps[name]))
    words = f"at most {abs(gaps[worst]):.2f} dB away ({worst}); logn2 {one_draw:+.2f} (one draw scatters by 1 dB)"
    return Measured(words, gaps[worst], abs(gaps[worst]) <= 0.3 and abs(one_draw) < 3)


def bias_claim(data: str, rounding: str) -> Claim:
    """Return the claim of one row of the table of biases."""
    words = ", ".join(map(str, BIAS[data, rounding]))
    what = f"Magnitude bias, 1e-6, LogFMT-4, 5, 6, 8, 10 on {data}, {rounding} thresholds"
    return Claim(what, SOURCE.replace("2^18", "2^20"), words, lambda: biased(data, rounding))


AGAINST_MAGNITUDE = ("bf16", "e5m6_1x128_ue8m0", "logfmt10", "logfmt8", "fp8_1x128", "e5m2_1x128", "int8_1x128",
                     "int10_1x128", "mxfp8_floor", "nvfp4")  # fmt: skip


def magnitude_rows(outcome, data="logn2", formats=AGAINST_MAGNITUDE, octaves=26):
    """Return the relative error of values by their distance from the largest of their tile, one octave per row."""
    from lowprec.measure.atlas import round_trip

    x = distributions[data].values((outcome.setting.rows, outcome.setting.columns), 0)
    tiles = np.abs(x).reshape(-1, 128)
    with np.errstate(divide="ignore"):
        below = np.floor(np.log2(tiles.max(axis=1, keepdims=True)) - np.log2(tiles)).reshape(x.shape)
    labels = {arm.name: arm.label for arm in outcome.study.arms}
    rows = []
    for name in formats:
        error = np.abs(round_trip(x, name).values - x).astype(np.float64) / np.abs(x)
        for octave in range(octaves):
            here = error[below == octave]
            if here.size >= 30:
                rows.append({
                    "data": data, "format": name, "label": labels[name], "octaves_below_amax": octave,
                    "values": int(here.size), "relative_rms": float(np.sqrt((here**2).mean())),
                    "flushed": float((here == 1).mean()),
                })  # fmt: skip
    return rows


def against_magnitude(outcome):
    """Return the figure of a value's relative error against its distance from the largest of its tile."""
    rows = magnitude_rows(outcome)

    def draw(sheet, top):
        (axes,) = panels(sheet, top, head=0.1, foot=0.56, right=0.83)
        families, seen, ends = {arm.name: arm.family for arm in outcome.study.arms}, {}, []
        for name in dict.fromkeys(row["format"] for row in rows):
            family, here = families[name], [row for row in rows if row["format"] == name]
            nth = seen[family] = seen.get(family, -1) + 1
            y = [100 * row["relative_rms"] for row in here]
            axes.plot([row["octaves_below_amax"] for row in here], y, color=FAMILIES[family], linewidth=1.8,
                      linestyle=("-", (0, (5, 1.5)), (0, (1.5, 1.2)))[nth % 3])  # fmt: skip
            ends.append((y[-1], here[0]["label"], FAMILIES[family]))
        most = max(row["octaves_below_amax"] for row in rows)
        axes.set(yscale="log", ylim=(0.08, 160), xlim=(-0.3, most + 0.3), xticks=range(0, 1 + most, 2),
                 xlabel="octaves below the largest magnitude of the tile (0: the largest)",
                 ylabel="relative error, root mean square (%)")  # fmt: skip
        axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        axes.minorticks_off()
        label_ends(axes, ends)

    return Figure(
        "LogFMT's relative error is that of the whole tile; integers lose a bit an octave, E4M3 from 2⁻¹⁴ on",
        "error_atlas_magnitude", rows, draw,
        f"{panel_title(rows[0]['data'])}; {outcome.setting.rows} x {outcome.setting.columns} values, octaves with "
        "fewer than 30 left out; 100 %: flushed to 0", csv="error_atlas_magnitude_figure",
        caption="Relative error against magnitude within the tile",
    )  # fmt: skip


def bias_rows(data=("gauss", "laplace", "swiglu", "uniform"), bits=BITS, size=1024):
    """Return biases of LogFMT's thresholds, and the theory: -s^2/12 for linear, +s^2/24 for log, 0 for logmean."""
    from lowprec.codec import LogFMTCodec

    rows = []
    for name in data:
        x = distributions[name].values((size, 1024), 7)
        for n in bits:
            s = step(x, n)
            for rounding, theory in (("linear", -s * s / 12), ("log", s * s / 24), ("logmean", 0.0)):
                y = LogFMTCodec("logfmt", n, rounding=rounding).round_trip(x)
                rows.append({
                    "data": name, "bits": n, "s": s, "rounding": rounding, "theory": theory,
                    "magnitude_bias": magnitude_bias(y, x), "gain_error": gain_error(y, x),
                })  # fmt: skip
    return rows


def bias(outcome):
    """Return the figure of the bias of magnitudes against the step, a panel per threshold, with the theory's lines."""
    rows = bias_rows()
    shown = {
        "linear": ("thresholds in linear space", "-s²/12", -1 / 12),
        "log": ("thresholds in log space", "+s²/24", 1 / 24),
        "logmean": ("thresholds at the logarithmic mean", "0 to the order of s²", 0.0),
    }

    def draw(sheet, top):
        found = panels(sheet, top, 1, 3, head=0.30, foot=0.56, wspace=0.09)
        for axes, (rounding, (words, theory, slope)) in zip(found, shown.items(), strict=True):
            axes.axhline(0, color="#909090", linewidth=0.8)
            if slope:
                axes.axhline(slope, color="#202020", linewidth=1.4, linestyle=(0, (5, 1.5)))
            axes.text(0.97, slope - 0.006, theory, fontsize=9, color="#202020", ha="right", va="top",
                      transform=axes.get_yaxis_transform())  # fmt: skip
            for i, data in enumerate(dict.fromkeys(row["data"] for row in rows)):
                # Below a step of 0.04 nats, noise hides the bias of 2^20 values.
                here = [r for r in rows if r["data"] == data and r["rounding"] == rounding and r["s"] >= 0.04]
                s = np.array([row["s"] for row in here])
                y = np.array([row["magnitude_bias"] for row in here]) / s**2
                noise = 2 * 1.5 / np.sqrt(12 * 2.0**20) / s  # errors of s / sqrt(12) each; 1.5: rms over mean magnitude
                axes.errorbar(s, y, yerr=noise, fmt="os^D"[i], color=(*PALETTE[:3], NEUTRAL)[i], markersize=5,
                              linewidth=1, label=data, linestyle="-" if i < 3 else (0, (1, 1)))  # fmt: skip
            axes.set(xscale="log", xlim=(0.04, 2), ylim=(-0.135, 0.135), xlabel="step s (nats)")
            axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
            axes.minorticks_off()
            axes.set_title(words, fontsize=9.5, loc="left", color="#202020", pad=7)
        found[0].set_ylabel("bias of the mean magnitude / s²")
        found[0].legend(fontsize=8, frameon=False, loc="upper left")

    return Figure(
        "Rounding in linear space shrinks magnitudes, in log space it inflates them by half as much",
        "error_atlas_bias", rows, draw,
        "LogFMT, 4 to 8 bits; bias of the mean magnitude divided by s², s the step in nats; a uniform density has none "
        "in linear space, the paper's sense of unbiased; 2²⁰ values, bars: 2 standard errors",
        csv="error_atlas_bias_figure",
        caption="Bias of LogFMT's thresholds against the theory's -s^2/12 and +s^2/24",
    )  # fmt: skip


# --- SQNR against bits -----------------------------------------------------------------------------------------------


def nominal_bits(name: str) -> float:
    """Return a codec's bits per value for bfloat16 numbers, as transmitted: LogFMT's ends take 16 bits then."""
    from lowprec.measure.atlas import find_format

    return float(getattr(find_format(name), "bits_per_value", float("nan")))


def panel_title(data: str) -> str:
    """Return a kind of data with its description."""
    return f"{data}: {distributions[data].description}"


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
    """Return a label without the words of its family's name."""
    for gone in (" 1x128", " f32", "LogFMT-", "MX", "INT"):
        label = label.replace(gone, "")
    return {"E5M6 pow2": "", "E4M3 pow2": "", family: ""}.get(label, label)


ablation = ErrorStudy(
    name="error_atlas",
    question="What does every wire format lose on every kind of data, for how many bits?",
    expected="6 dB a bit in every family; LogFMT-8 is 5 dB above E4M3 tiles on normal data; integers are better "
    "than both on light tails and lose on heavy ones; LogFMT's relative error does not depend on the magnitude.",
    source=SOURCE,
    arms=(
        *(ErrorArm(f"logfmt{n}", f"LogFMT-{n}", "LogFMT") for n in range(4, 13)),
        ErrorArm("int4_1x128", "INT4 1x128", "INT"), ErrorArm("int8_1x128", "INT8 1x128", "INT"),
        ErrorArm("int10_1x128", "INT10 1x128", "INT"),
        ErrorArm("e5m2_1x128", "E5M2 1x128 f32", "FP8 tiles"), ErrorArm("fp8_1x128", "E4M3 1x128 f32", "FP8 tiles"),
        ErrorArm("fp8_1x128_ue8m0", "E4M3 1x128 pow2", "FP8 tiles"),
        ErrorArm("mxfp4_floor", "MXFP4", "MX"), ErrorArm("mxfp6_e3m2_floor", "MXFP6 E3M2", "MX"),
        ErrorArm("mxfp6_e2m3_floor", "MXFP6 E2M3", "MX"), ErrorArm("mxfp8_floor", "MXFP8 E4M3", "MX"),
        ErrorArm("mxfp8_e5m2_floor", "MXFP8 E5M2", "MX"), ErrorArm("nvfp4", "NVFP4", "NVFP4"),
        ErrorArm("e5m6_1x128_ue8m0", "E5M6 pow2", "E5M6"), ErrorArm("bf16", "BF16", "cast"),
        ErrorArm("fp16", "FP16", "cast"),
    ),
    data=(*TEN, "uniform"),
    quick=ErrorSetting(rows=256, columns=1024, seeds=4),
    full=ErrorSetting(rows=256, columns=1024, seeds=8),
    tables=(
        PublishedTable("SQNR of ten kinds of data", "sqnr", SOURCE, TEN, SQNR, exceptions=EXCEPTIONS),
        PublishedTable("Relative error (rms) of six kinds of data", "relative_rms", SOURCE, SIX,
                       {name: tuple(value / 100 for value in row) for name, row in RELATIVE.items()}, decibels=False),
    ),
    claims=(
        Claim("SQNR of ten kinds of data: DeepEP's LogFMT-10, below 1", SOURCE, "38.32 dB to 59.36 dB", deepep),
        *(bias_claim(*key) for key in BIAS),
    ),
    figures=(
        pareto("Per bit, integer blocks lead on experts' outputs; on heavier tails LogFMT does",
               "SQNR against bits per value including scales; rings: the Pareto front", ("expert", "logn1")),
        against_magnitude,
        bias,
    ),
)  # fmt: skip
