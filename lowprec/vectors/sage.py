"""Vector sets of SageAttention: output and log-sum-exp of one query, given integers, values in FP8 and scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from ..oracle.accumulators import ACCUMULATORS
from ..oracle.attention.sage import SageAttention
from ..oracle.float32 import rounded
from ..oracle.values import E4M3FN, FLOAT32, INT8, decode
from .family import Rule, SetSpec, Stream
from .vectors import Answer, Field, Words, split_words

_D, _KEYS, _COLUMNS, _TILES = 8, 200, 2, 4
_SOFTMAX_SCALE = rounded(Fraction(3, 10))
KERNELS = {
    "sage2": (SageAttention(ACCUMULATORS["ada_fp8"]), 448.0, "fp22"),
    "sage2pp": (SageAttention(ACCUMULATORS["ada_fp8_f16"]), 2.25, "float16"),
}
"""Kernels by catalogue name, with the largest number of a channel of V, and the format of the sums of P V."""
_INPUTS = (
    Field.of("q", INT8, _D), Field.of("k", INT8, _KEYS * _D), Field.of("v", E4M3FN, _KEYS * _COLUMNS),
    Field.of("scale of q", FLOAT32), Field.of("scales of k", FLOAT32, 4 * _TILES),
    Field.of("scales of v", FLOAT32, _COLUMNS),
)  # fmt: skip
_WRONG: dict[str, dict[str, Any]] = {
    "offset 8": {"offset": 8.0},
    "scores rounded in no tile": {"exact_tiles": 0},
    "scores rounded in all tiles": {"exact_tiles": _TILES},
    "a thread adds its keys one by one": {"by_key": True},
    "threads at distance 2 added first": {"far_first": True},
    "sums rescaled, rounded, then added": {"splits_fma": True},
    "O accumulated over all tiles": {"one_buffer": True},
    "1/l times the scale of V first": {"scales_once": True},
    "scale of K of the next thread": {"next_thread": True},
    "sum of rounded P": {"sums_rounded_p": True},
    "offset added to the log-sum-exp": {"lse_of_scores": True},
    "tiles of 32 keys": {"cta_k": 32},
}


def prepare(name: str, level: int, seed: int) -> SetSpec:
    """Return the fields, inputs and rule of a set, without its answers."""
    kernel, largest, sums = KERNELS[name]
    definition = {
        "head size": _D, "keys": _KEYS, "columns of v": _COLUMNS, "softmax scale": float(_SOFTMAX_SCALE),
        "mask": "none", "layout": "k and v by keys; scales of k by tiles, then threads", "keys per tile": kernel.cta_k,
        "accumulator": type(kernel.core.rule).__name__, "sums of P V": sums,
        "offset": kernel.offset,
    }  # fmt: skip
    points = _points(largest, level, Stream(seed, f"attention/{name}"))
    results = Field.of("out", FLOAT32, _COLUMNS), Field.of("lse", FLOAT32)
    return SetSpec(definition, _INPUTS, results, points, _answer(kernel), "any")


def rules(name: str) -> Iterator[Rule]:
    """Yield the other kernel, then wrong rules near this one."""
    for other, (rule, *_) in KERNELS.items():
        if other != name:
            yield Rule(f"as {other}", _answer(rule))
    for words, change in _WRONG.items():
        yield Rule(words, _answer(dataclasses.replace(KERNELS[name][0], **change)), True)


def _answer(kernel: SageAttention) -> Answer:
    """Return the function from the words of a vector to the bits of the output and of the log-sum-exp."""

    def answer(words: Words) -> Words:
        q, k, v, q_scale, k_scales, v_scales = split_words(words, _INPUTS)
        rows = [k[i : i + _D] for i in range(0, len(k), _D)]
        values = [v[i : i + _COLUMNS] for i in range(0, len(v), _COLUMNS)]
        whole = q_scale, k_scales * (64 // kernel.cta_k), v_scales  # smaller tiles have more scales
        of_q, of_k, of_v = ([decode(x, FLOAT32) for x in part] for part in whole)
        integers = [_integers(row) for row in rows]
        out, lse = kernel.row(0, _integers(q), integers, values, of_q, of_k, of_v, _SOFTMAX_SCALE)
        return (*out, lse)

    return answer


def _integers(codes: Words) -> list[int]:
    return [code - 256 * (code > 127) for code in codes]


def _points(largest: float, level: int, s: Stream) -> Iterator[tuple[Words, str]]:
    """Yield operands with scores of several sizes, and values up to `largest`."""
    sizes: dict[str, Callable[[int], int]] = {
        "nearly equal scores": lambda key: 3, "scores of a few octaves": lambda key: 30,
        "scores of many octaves": lambda key: 127,
        "the maximum grows from tile to tile": lambda key: 16 + 30 * (key // 64),
        "the first tile has the maximum": lambda key: 127 - 30 * (key // 64),
        "one key has the largest score": lambda key: 127 if key == 150 else 8,
    }  # fmt: skip
    top = next(code for code in range(127) if decode(code, E4M3FN) == Fraction(largest))
    for _ in range(2 if level == 1 else 10):
        for label, size in sizes.items():
            for signs in ("both signs", "positive values"):
                q = [s.between(-127, 127) % 256 for _ in range(_D)]
                k = [s.between(-size(key), size(key)) % 256 for key in range(_KEYS) for _ in range(_D)]
                v = [s.between(0, top) + 128 * s.bits(1) * (signs == "both signs") for _ in range(_KEYS * _COLUMNS)]
                scales = [(s.between(119, 121) << 23) + s.bits(23) for _ in range(1 + 4 * _TILES + _COLUMNS)]
                yield (*q, *k, *v, *scales), f"{label}, {signs}"
