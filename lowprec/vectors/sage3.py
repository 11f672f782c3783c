"""Vector set of SageAttention 3: output and log-sum-exp of one query, given codes of FP4 operands and their scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from ..oracle.accumulators import ACCUMULATORS
from ..oracle.attention.sage3 import SageAttention3
from ..oracle.float32 import rounded
from ..oracle.values import E2M1FN, E4M3FN, FLOAT32, decode
from .family import Rule, SetSpec, Stream
from .vectors import Answer, Field, Words, split_words

_D, _KEYS, _COLUMNS, _BLOCKS = 16, 150, 2, 10
_SOFTMAX_SCALE = rounded(Fraction(3, 10))
_KERNEL = SageAttention3(ACCUMULATORS["rtx_blackwell_nvfp4"])
_INPUTS = (
    Field.of("q", E2M1FN, _D), Field.of("k", E2M1FN, _KEYS * _D), Field.of("v", E2M1FN, _COLUMNS * _KEYS),
    Field.of("scale of q", E4M3FN), Field.of("scales of k", E4M3FN, _KEYS),
    Field.of("scales of v", E4M3FN, _COLUMNS * _BLOCKS), Field.of("addends", FLOAT32, _KEYS),
)  # fmt: skip
_WRONG: dict[str, dict[str, Any]] = {
    "maxima of the first tile from -inf": {"absmax_start": float("-inf")},
    "mask by keys": {"masks_keys": True},
    "P divided by the scale in E4M3": {"rounds_scale": True},
    "sum of rounded P": {"sums_rounded_p": True},
    "a thread adds the keys of its columns": {"by_column": True},
    "threads at distance 2 added first": {"far_first": True},
    "products rounded, then added": {"splits_fma": True},
    "O accumulated over all tiles": {"one_buffer": True},
    "tiles from the first key": {"first_tile_first": True},
}


def prepare(name: str, level: int, seed: int) -> SetSpec:
    """Return the fields, inputs and rule of the set, without its answers."""
    definition = {
        "head size": 64, "channels that are not zero": _D, "keys": _KEYS, "columns of v": _COLUMNS,
        "softmax scale": float(_SOFTMAX_SCALE), "mask": "none", "keys per tile": _KERNEL.block,
        "keys per scale of P": 16,
        "layout": "k by keys; v and its scales by columns; one scale for the channels of a key",
        "accumulator": type(_KERNEL.core.rule).__name__, "largest P": 448 * 6,
    }  # fmt: skip
    results = Field.of("out", FLOAT32, _COLUMNS), Field.of("lse", FLOAT32)
    return SetSpec(definition, _INPUTS, results, _points(level, Stream(seed, f"attention/{name}")), _answer(), "any")


def rules(name: str) -> Iterator[Rule]:
    """Yield wrong rules near the kernel."""
    for words, change in _WRONG.items():
        yield Rule(words, _answer(**change), True)


def _answer(**wrong: Any) -> Answer:
    """Return the function from the words of a vector to the bits of the output and of the log-sum-exp."""
    kernel = dataclasses.replace(_KERNEL, **wrong)

    def answer(words: Words) -> Words:
        q, k, v, (sfq,), sfk, sfv, addends = split_words(words, _INPUTS)
        keys = [_padded(k[i : i + _D]) for i in range(0, len(k), _D)]
        columns = [v[i : i + _KEYS] for i in range(0, len(v), _KEYS)]
        scales = [sfv[i : i + _BLOCKS] for i in range(0, len(sfv), _BLOCKS)]
        of_k, delta_s = [[x, 0, 0, 0] for x in sfk], [decode(x, FLOAT32) for x in addends]
        out, lse = kernel.row(0, _padded(q), keys, columns, [sfq, 0, 0, 0], of_k, scales, delta_s, _SOFTMAX_SCALE)
        return (*out, lse)

    return answer


def _padded(codes: Words) -> list[int]:
    return [*codes, *[0] * (64 - len(codes))]


def _points(level: int, s: Stream) -> Iterator[tuple[Words, str]]:
    """Yield operands whose scores have several sizes."""
    sizes: dict[str, Callable[[int], int]] = {
        "nearly equal scores": lambda key: 1, "scores of many octaves": lambda key: 7,
        "the maximum grows from tile to tile": lambda key: 7 if key < 128 else 2,
        "one key has the largest score": lambda key: 7 if key == 140 else 2,
    }  # fmt: skip
    for _ in range(2 if level == 1 else 10):
        for label, size in sizes.items():
            for signs in ("both signs", "negative scores", "positive values"):
                negative = signs == "negative scores"
                q = [s.between(1, 7) + 8 * s.bits(1) * (not negative) for _ in range(_D)]
                k = [s.between(0, size(key)) + 8 * (negative or s.bits(1)) for key in range(_KEYS) for _ in range(_D)]
                v = [s.between(0, 7) + 8 * s.bits(1) * (signs == "both signs") for _ in range(_COLUMNS * _KEYS)]
                scales = [s.between(48, 60) for _ in range(1 + _KEYS + _COLUMNS * _BLOCKS)]
                addends = [
                    ((s.bits(1) or negative) << 31) + (s.between(122, 127) << 23) + s.bits(23) for _ in range(_KEYS)
                ]
                yield (*q, *k, *v, *scales, *addends), f"{label}, {signs}"
