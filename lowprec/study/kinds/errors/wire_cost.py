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

from .figures import on_front
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
    from lowprec.moe.data.corpus import held_out_windows, load_corpus
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
    from .wire_plots import draw_cost

    rows = partial(cost_rows, model=model, machine=machine, dispatch=dispatch, config=config)
    return ErrorFigure(suffix, rows, partial(_draw, draw_cost), caption)


def _draw(draw: Any, rows: list[Row], outcome: ErrorOutcome, stem: Path) -> list[Path]:
    files: list[Path] = draw(rows, outcome, stem)
    return files
