"""Time saved by a combine format, and its cost: the error of the output, and of a model's predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec.costs import decode_limit
from lowprec.measure.distributions import distributions
from lowprec.measure.metrics import sqnr
from lowprec.study import ErrorArm, ErrorSetting, ErrorStudy
from lowprec.study.measurements.measurement import Proxy, intercept
from lowprec.study.report.sheet import Figure, bar, panels
from lowprec.study.report.tradeoff import Point, draw_front, on_front, write_names
from lowprec.study.tensors.formats import FAMILIES

SLOTS = 8


class _KeptLogits(Proxy):
    """The multiplications of the head, whose logits are kept."""

    def __init__(self, ops: Any, found: dict[str, NDArray[np.float32]]) -> None:
        super().__init__(ops)
        self._found = found

    def fprop(self, *args: Any, **options: Any) -> Any:
        result = self._inner.fprop(*args, **options)
        self._found["logits"] = np.array(result[0])
        return result


def combined_sqnr(name: str, tokens: int, columns: int, seed: int = 0) -> float:
    """Return the SQNR in dB of combined outputs of eight experts, before the sum is rounded to bfloat16."""
    from lowprec.codec.reductions import combine_low_latency

    x = distributions["expert"].values((tokens * SLOTS, columns), seed).reshape(tokens, SLOTS, columns)
    x = lp.round_to(x, "bfloat16")
    gates = np.random.default_rng([seed, 1]).random((tokens, SLOTS)).astype(np.float32)
    gates /= gates.sum(axis=1, keepdims=True)
    exact = np.einsum("tkh,tk->th", x.astype(np.float64), gates.astype(np.float64))
    return sqnr(combine_low_latency(x, gates, name, out_format="float32"), exact)


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logarithms of probabilities, rows of float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result


def prediction_changes(names: list[str], config: str, steps: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Train a small model in BF16 and evaluate it with its combine in each codec, on held-out or training text.

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
        found: dict[str, NDArray[np.float32]] = {}
        bound = recipes["bf16"].with_(combine=name).bind(seed, shape.layers)
        model = trainer.model.with_bound(
            intercept(bound, lambda layer, ops: _KeptLogits(ops, found) if layer == "head" else ops)
        )
        return [(float(model.loss(part)), log_softmax(found["logits"])) for part in parts]

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


def cost_rows(outcome):
    """Return cost and accuracy of every format of the study as the codec of combine."""
    setting = outcome.setting
    changes = prediction_changes([arm.name for arm in outcome.study.arms], "nano", setting.training_steps)
    rows = []
    for arm in outcome.study.arms:
        limit = decode_limit("deepseek_v3", "h800_ib400", "fp8_1x128", arm.name)
        rows.append({
            "format": arm.name, "label": arm.label, "family": arm.family,
            "bits_per_value": lp.codecs[arm.name].bits_per_value, "combine_bytes_per_token": limit.combine_bytes / 32,
            "combine_us": limit.combine_s * 1e6, "exchange_us": limit.all_to_all_s * 1e6, "tpot_ms": limit.tpot_s * 1e3,
            "tokens_per_s": limit.tokens_per_s, "sqnr": combined_sqnr(arm.name, setting.rows // 4, setting.columns),
            **changes[arm.name],
        })  # fmt: skip
    for key, better in (("sqnr", 1.0), ("kl", -1.0)):
        points = [(row["combine_us"], better * row[key]) for row in rows]
        for row, front in zip(rows, on_front(points), strict=True):
            row[f"{key}_on_front"] = front
    return rows


def accuracy_against_time(outcome):
    """Return the figure of SQNR and KL divergence against the time of combine: a point per codec, fronts as stairs."""
    rows = cost_rows(outcome)
    small = (
        "DeepSeek-V3 on H800 with 400G InfiniBand, 32 tokens a GPU, one layer; grey stairs: the front; left: eight "
        "experts combined as DeepEP's low-latency kernel does; right: a nano model after "
        f"{outcome.setting.training_steps} steps, KL from the predictions with BF16, bars: 2 standard errors"
    )

    def draw(sheet, top):
        found = panels(sheet, top, 1, 2, head=0.30, foot=0.56, share_y=False, wspace=0.19)
        lossless = [row for row in rows if row["kl"] == 0]
        for axes, key in zip(found, ("sqnr", "kl"), strict=True):
            axes.set(xlabel="time of combine (µs)", xlim=(17, 90), yscale="log" if key == "kl" else "linear")
            draw_front(axes, [(row["combine_us"], row[key]) for row in rows
                              if row[f"{key}_on_front"] and row not in lossless])  # fmt: skip
            for row in lossless:
                axes.axvline(row["combine_us"], color=FAMILIES["cast"], linewidth=1.2, linestyle=(0, (5, 1.5)))
                axes.text(row["combine_us"] + 0.8, 0.5, "BF16: nothing lost", rotation=90, fontsize=8, va="center",
                          color=FAMILIES["cast"], transform=axes.get_xaxis_transform())  # fmt: skip
        found[0].set_ylabel("SQNR of the combined output (dB)")
        found[0].set_title("up: more accurate", fontsize=9.5, loc="left", color="#202020", pad=7)
        found[1].set_ylabel("KL of the predictions (nats per byte)")
        found[1].set_title("up: nearer to BF16's predictions", fontsize=9.5, loc="left", color="#202020", pad=7)
        found[1].invert_yaxis()
        for axes, key in zip(found, ("sqnr", "kl"), strict=True):
            names = [(point(row, key), row["combine_us"]) for row in rows if row not in lossless]
            for one, x in names:
                bar(axes, "y", x, one.interval, one.value, one.color, width=1.0)
            write_names(axes, names, size=7, radius=6)

    return Figure(finding(rows), "wire_cost", rows, draw, small, csv="wire_cost_figure",
                  caption="Accuracy against the time of combine, every codec a point")  # fmt: skip


def point(row, key):
    """Return a codec's point; its KL divergence has a bar of two standard errors."""
    low, high = row[key] - min(2 * row["kl_error"], 0.9 * row["kl"]), row[key] + 2 * row["kl_error"]
    ends = {"interval": (low, high)} if key == "kl" else {}
    return Point(row["label"].replace(" 1x128", ""), {}, row[key], FAMILIES[row["family"]], **ends)


def finding(rows):
    """Return a title with the gain and the loss of eight bits."""
    by_name = {row["format"]: row for row in rows}
    eight, bf16 = by_name["logfmt8"], by_name["bf16"]
    integer = by_name["int8_1x128"]["sqnr"] - eight["sqnr"]
    fp8 = eight["sqnr"] - by_name["fp8_1x128"]["sqnr"]
    saved = 1 - eight["combine_us"] / bf16["combine_us"]
    return (
        f"Combining in 8 bits saves {100 * saved:.0f} % of its time; on experts' outputs LogFMT-8 is {fp8:.1f} dB "
        f"above E4M3 tiles and {integer:.1f} dB below INT8"
    )


ablation = ErrorStudy(
    name="wire_cost",
    question="How much accuracy does each combine format give up for its time on the wire?",
    expected="LogFMT-8 loses less than E4M3 and E5M2 tiles for the same bytes; LogFMT-10 is near BF16 for two thirds "
    "of its time; integers of as many bits do as well or better on experts' outputs, which have light tails.",
    source="Insights into DeepSeek-V3 (arXiv:2505.09343), sections 2.3.2 and 3.2",
    arms=(
        ErrorArm("bf16", "BF16", "cast"),
        *(ErrorArm(f"logfmt{n}", f"LogFMT-{n}", "LogFMT") for n in (4, 5, 6, 7, 8, 9, 10, 12)),
        ErrorArm("int4_1x128", "INT4 1x128", "INT"), ErrorArm("int8_1x128", "INT8 1x128", "INT"),
        ErrorArm("int10_1x128", "INT10 1x128", "INT"), ErrorArm("e5m2_1x128", "E5M2 1x128", "FP8 tiles"),
        ErrorArm("fp8_1x128", "E4M3 1x128", "FP8 tiles"), ErrorArm("mxfp4_floor", "MXFP4", "MX"),
        ErrorArm("mxfp6_e2m3_floor", "MXFP6 E2M3", "MX"), ErrorArm("mxfp8", "MXFP8", "MX"),
        ErrorArm("nvfp4", "NVFP4", "NVFP4"), ErrorArm("e5m6_1x128_ue8m0", "E5M6 pow2", "E5M6"),
    ),
    data=("expert",),
    quick=ErrorSetting(rows=256, columns=1024, seeds=1, training_steps=40),
    full=ErrorSetting(rows=256, columns=1024, seeds=2, training_steps=400),
    figures=(accuracy_against_time,),
)  # fmt: skip
