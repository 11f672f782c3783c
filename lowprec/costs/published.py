"""All numbers on costs in "Insights into DeepSeek-V3" and DeepEP, with the numbers that the formulas give.

A published number counts as reproduced if the computed one differs from it by less than one unit of its last digit,
which accepts both rounding and truncation (the paper prints 67 for 67.76), or by less than the given share, for
measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from .compute import achieved_flops, kv_cache_bytes, training_flops
from .hardware import hardware
from .models import models
from .traffic import decode_limit, deepep_bandwidth

PAPER = "arXiv 2505.09343"
DEEPEP = "DeepEP, docs/legacy.md, low-latency kernels"


@dataclass(frozen=True)
class PublishedFigure:
    """A published number and the computed one.

    Attributes
    ----------
    source : str
        Publication, and the table or section.
    quantity : str
        Quantity, with its unit.
    published : float
        Published number.
    compute : callable
        Function that returns the computed number.
    last_digit : float
        Unit of the last printed digit.
    rel_tol : float
        Relative tolerance instead of the unit, for measurements.
    note : str
        Reason why the number is not reproduced; empty if it is.
    """

    source: str
    quantity: str
    published: float
    compute: Callable[[], float]
    last_digit: float
    rel_tol: float = 0.0
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the computed number reproduces the published one."""
        # The printed decimal is not a binary fraction: a millionth of a unit covers its rounding.
        within = abs(self.compute() - self.published) < self.last_digit * (1 - 1e-6)
        return within or abs(self.compute() / self.published - 1) <= self.rel_tol


def _ratio(model: str) -> float:
    return kv_cache_bytes(model) / kv_cache_bytes("deepseek_v3")


def _giga(model: str, method: Literal["consistent", "paper"]) -> float:
    return training_flops(model, method=method) / 1e9


def _rate(tokens_per_day: float, causal: bool, share: bool) -> float:
    rate = achieved_flops(training_flops("deepseek_v3", causal=causal), tokens_per_day, 2048)
    return 100 * rate / hardware["h800_ib400"].peak_flops if share else rate / 1e12


def _limit(machine: str, field: str, scale: float) -> float:
    value: float = getattr(decode_limit("deepseek_v3", machine, 8, 16, dim=7000), field)
    return value * scale


def _deepep(microseconds: int, codec: float, header: int) -> float:
    return deepep_bandwidth(microseconds * 1e-6, codec, header) / 1e9


def _catalogue() -> list[PublishedFigure]:
    """Return all figures; this function is long because the papers print many."""
    rows = []
    table = f"{PAPER}, table 1"
    for model, kilobytes, times, note in (
        ("deepseek_v3", 70.272, 1.0, ""),
        ("qwen2.5_72b", 327.680, 4.66, ""),
        ("llama3.1_405b", 516.096, 7.28,
         "a slip of the paper: 516.096 / 70.272 is 7.34"),
    ):  # fmt: skip
        rows.append(
            PublishedFigure(table, f"{model}: KV cache, KB per token", kilobytes, partial(_kilobytes, model), 0.001)
        )
        rows.append(
            PublishedFigure(table, f"{model}: times DeepSeek-V3's", times, partial(_ratio, model), 0.01, note=note)
        )

    table = f"{PAPER}, table 2"
    dense = "printed is 6 (12 L h^2 + V h); the experts' rows count real matrices and attention"
    for model, printed in (("deepseek_v2", 155), ("deepseek_v3", 250), ("qwen2.5_72b", 394), ("llama3.1_405b", 2448)):
        methods: tuple[Literal["consistent", "paper"], ...] = ("consistent",) if models[model].experts else (
            "paper", "consistent")  # fmt: skip
        for method in methods:
            words = f"{model}: training GFLOPs per token" + f", {method} formula" * (len(methods) > 1)
            note = dense if len(methods) > 1 and method == "consistent" else ""
            rows.append(PublishedFigure(table, words, printed, partial(_giga, model, method), 1, note=note))

    table = f"{PAPER}, section 2.3.2"
    for machine, exchange, tpot, digits, rate, unit in (
        ("h800_ib400", 120.96, 14.76, 0.01, 67, 1),
        ("gb200_nvl72", 6.72, 0.82, 0.01, 1200, 100),
    ):
        rows += [
            PublishedFigure(table, f"{machine}: both exchanges, us", exchange,
                      partial(_limit, machine, "all_to_all_s", 1e6), digits),
            PublishedFigure(table, f"{machine}: TPOT, ms", tpot, partial(_limit, machine, "tpot_s", 1e3), digits),
            PublishedFigure(table, f"{machine}: tokens per second", rate,
                            partial(_limit, machine, "tokens_per_s", 1), unit),
        ]  # fmt: skip
    rows.append(
        PublishedFigure(table, "h800_ib400: one layer, us", 241.92, partial(_limit, "h800_ib400", "layer_s", 1e6), 0.01)
    )

    table = f"{PAPER}, table 4"
    for network, tokens, entries in (
        ("MPFT", 272.80e9, (432, 385, 43.73, 38.94)),
        ("MRFT", 272.52e9, (432, 385, 43.68, 38.90)),
    ):
        for i, printed_entry in enumerate(entries):
            causal, share = bool(i % 2), i >= 2
            words = f"{network}: {'MFU, %' if share else 'TFLOPS'} ({'causal' if causal else 'non-causal'})"
            rows.append(
                PublishedFigure(
                    table, words, printed_entry, partial(_rate, tokens, causal, share), 0.01 if share else 1
                )
            )

    # 8.25 bits: FP8 with a float32 scale per 128. The printed microseconds are integers, hence the share.
    for kind, codec, header, measured in (
        ("dispatch", 8.25, 16, ((8, 77, 98), (16, 118, 63), (32, 155, 48), (64, 173, 43), (128, 192, 39),
                                (256, 194, 39))),
        ("combine", 16.0, 0, ((8, 114, 127), (16, 195, 74), (32, 273, 53), (64, 314, 46), (128, 369, 39),
                              (256, 360, 40))),
    ):  # fmt: skip
        for ranks, microseconds, speed in measured:
            rows.append(
                PublishedFigure(DEEPEP, f"{kind}, {ranks} GPUs, {microseconds} us: GB/s", speed,
                          partial(_deepep, microseconds, codec, header), 0, rel_tol=0.03)
            )  # fmt: skip
    return rows


def _kilobytes(model: str) -> float:
    return kv_cache_bytes(model) / 1000


published: tuple[PublishedFigure, ...] = tuple(_catalogue())
"""All published numbers."""
