"""Accuracy against communication: what a combine in each codec loses, and the time that its bytes take.

Accuracy is measured where it arises and where it matters: the SQNR of the combined outputs of experts, and how far the
predictions of a small model move when its own combine goes through the codec, all else unchanged.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.measure.distributions import distributions
from lowprec.measure.metrics import sqnr

from ...report.labels import Label, write_labels
from ...report.style import save
from .figures import on_front
from .plots import FAMILIES, front_line, new_figure, style
from .study import ErrorFigure, ErrorOutcome, Row

SLOTS = 8


class _HeadRecorder:
    """A bound recipe whose head keeps the logits that it returns; everything else is the recipe's own."""

    def __init__(self, bound: Any) -> None:
        self._bound = bound
        self.logits: NDArray[np.float32] = np.empty((0, 0), np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)

    def linear(self, name: str) -> Any:
        ops = self._bound.linear(name)
        return _RecordedLinear(self, ops) if name == "head" else ops


class _RecordedLinear:
    def __init__(self, recorder: _HeadRecorder, ops: Any) -> None:
        self._recorder, self._ops = recorder, ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def fprop(self, *args: Any, **options: Any) -> Any:
        result = self._ops.fprop(*args, **options)
        self._recorder.logits = np.array(result[0])
        return result


def combined_sqnr(name: str, tokens: int, columns: int, seed: int = 0) -> float:
    """Return the SQNR in dB of combined outputs of eight experts, before the sum is rounded to bfloat16."""
    from lowprec.cast.casts import round_to
    from lowprec.codec.reductions import combine_low_latency

    x = distributions["expert"].values((tokens * SLOTS, columns), seed).reshape(tokens, SLOTS, columns)
    x = round_to(x, "bfloat16")
    gates = np.random.default_rng([seed, 1]).random((tokens, SLOTS)).astype(np.float32)
    gates /= gates.sum(axis=1, keepdims=True)
    exact = np.einsum("tkh,tk->th", x.astype(np.float64), gates.astype(np.float64))
    return sqnr(combine_low_latency(x, gates, name, store="float32"), exact)


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logarithms of probabilities, rows of float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result


def prediction_changes(names: list[str], config: str, steps: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Train a small model in BF16 and evaluate it with its combine in each codec, on 32 KiB or what it was trained on.

    Parameters
    ----------
    names : list of str
        Codecs.
    config : str
        Model configuration.
    steps : int
        Training steps.
    seed : int
        Weights and order of the data.

    Returns
    -------
    dict of str to dict
        For each codec ``kl`` and ``kl_error``, the KL divergence of the predictions from those with a BF16 combine,
        nats per byte, and its standard error over batches; ``loss_change`` and ``loss_change_error``, the same of the
        difference in loss, in per cent of the loss.
    """
    from lowprec.moe.data.corpus import held_out_windows
    from lowprec.moe.data.sources import load_corpus
    from lowprec.moe.model.config import configs
    from lowprec.moe.run.schedule import Schedule
    from lowprec.moe.run.train import default_rate
    from lowprec.moe.run.trainer import Trainer
    from lowprec.recipe import recipes

    corpus = load_corpus("stdlib")
    schedule = Schedule(default_rate(configs[config]), max(1, steps // 50), steps)
    trainer = Trainer(config, "bf16", corpus, seed=seed, schedule=schedule)
    for _ in range(steps):
        trainer.step()
    shape = trainer.config
    windows = held_out_windows(corpus, shape.sequence, min(32768, 2048 * steps))
    parts = [windows[i : i + shape.batch] for i in range(0, len(windows), shape.batch)]

    def evaluated(name: str) -> list[tuple[float, NDArray[np.float64]]]:
        recorder = _HeadRecorder(recipes["bf16"].with_(combine=name).bind(seed, shape.layers))
        model: Any = trainer.model.with_bound(recorder)  # type: ignore[arg-type]
        return [(float(model.loss(part)), log_softmax(recorder.logits)) for part in parts]

    reference = evaluated("bf16")
    base = float(np.mean([loss for loss, _ in reference]))
    changes = {}
    for name in names:
        moved = evaluated(name)
        kl = [float((np.exp(p) * (p - q)).sum(axis=1).mean()) for (_, p), (_, q) in zip(reference, moved, strict=True)]
        change = [100 * (b - a) / base for (a, _), (b, _) in zip(reference, moved, strict=True)]
        root = np.sqrt(max(1, len(parts) - 1))
        changes[name] = {
            "kl": float(np.mean(kl)), "kl_error": float(np.std(kl) / root),
            "loss_change": float(np.mean(change)), "loss_change_error": float(np.std(change) / root),
        }  # fmt: skip
    return changes


def cost_rows(outcome: ErrorOutcome, model: str, machine: str, dispatch: str, config: str) -> list[Row]:
    """Return cost and accuracy of every format of a study as the codec of combine."""
    from lowprec.codec import codecs
    from lowprec.costs import decode_limit

    names = [arm.name for arm in outcome.study.arms]
    setting = outcome.setting
    changes = prediction_changes(names, config, setting.training_steps)
    rows: list[Row] = []
    for arm in outcome.study.arms:
        limit = decode_limit(model, machine, dispatch, arm.name)
        rows.append({
            "format": arm.name, "label": arm.label, "family": arm.family,
            "bits_per_value": codecs[arm.name].bits_per_value, "combine_bytes_per_token": limit.combine_bytes / 32,
            "combine_us": limit.combine_s * 1e6, "exchange_us": limit.exchange_s * 1e6, "tpot_ms": limit.tpot_s * 1e3,
            "tokens_per_s": limit.tokens_per_s, "sqnr": combined_sqnr(arm.name, setting.rows // 4, setting.columns),
            **changes[arm.name],
        })  # fmt: skip
    for key, better in (("sqnr", 1.0), ("kl", -1.0)):
        points = [(row["combine_us"], better * row[key]) for row in rows]
        for row, front in zip(rows, on_front(points), strict=True):
            row[f"{key}_on_front"] = front
    return rows


def accuracy_against_time(
    suffix: str, caption: str, *, model: str, machine: str, dispatch: str, config: str
) -> ErrorFigure:
    """Return the figure of accuracy against the time of combine, every codec a point."""
    rows = partial(cost_rows, model=model, machine=machine, dispatch=dispatch, config=config)
    return ErrorFigure(suffix, rows, draw_cost, caption)


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
        figure.canvas.draw()  # places in pixels are known from here on
        for panel, key in zip(axes, ("sqnr", "kl"), strict=True):
            _write_names(panel, [row for row in rows if row["label"] not in lossless], key)
        return save(figure, stem)


def _write_names(panel: Any, rows: list[Row], key: str) -> None:
    """Write every codec's name beside its point, clear of the bars of the others."""
    from matplotlib.transforms import Bbox

    def pixels(row: Row, value: float) -> tuple[float, float]:
        x, y = panel.transData.transform((row["combine_us"], value))
        return float(x), float(y)

    bars = []
    if key == "kl":
        for row in rows:
            low = row["kl"] - min(2 * row["kl_error"], 0.9 * row["kl"])
            (x, y0), (_, y1) = pixels(row, low), pixels(row, row["kl"] + 2 * row["kl_error"])
            bars.append(Bbox.from_extents(x - 3, min(y0, y1), x + 3, max(y0, y1)))
    labels = [Label(row["label"].replace(" 1x128", ""), FAMILIES[row["family"]], pixels(row, row[key])) for row in rows]
    write_labels(panel, labels, size=7, radius=6, taken=bars)


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
