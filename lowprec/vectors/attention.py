"""Vector sets of attention: output and log-sum-exp of one query, as attention kernels compute them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ..oracle.accumulators import ACCUMULATORS
from ..oracle.attention.forward import Attention
from ..oracle.float32 import ROUNDED, SpecialFunctions, rounded, times
from ..oracle.mufu import HOPPER
from ..oracle.values import BFLOAT16, E4M3FN, FLOAT32, Exact, Fields
from . import sage, sage3
from .family import Choice, Family, Rule, SetSpec, Stream, one_of
from .vectors import Answer, Field, Words, describe

_D, _KEYS, _COLUMNS = 8, 200, 2
_SOFTMAX_SCALE = rounded(Fraction(3, 10))
_CUBIC = tuple(
    Fraction(x) for x in (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625)
)
#: Columns of a tile of 128 keys for which FlashAttention-4 evaluates the polynomial, up to head size 64.
_EMULATED = frozenset(j for j in range(32, 96) if j % 16 >= 12)


def _kernel(chip: str, fmt: Fields, tile: int, **fields: Any) -> Attention:
    core = ACCUMULATORS[f"{chip}_{'fp8' if fmt == E4M3FN else 'bf16'}"]
    given = {"sum_order": "quad_fused", "functions": HOPPER if chip == "hopper" else ROUNDED, **fields}
    return Attention(core, core, fmt, fmt, tile, **given)


_FA4: dict[str, Any] = {
    "sum_order": "packed", "polynomial": _CUBIC, "emulated": _EMULATED, "flush": False, "lse_in_octaves": True,
    "empty_scale": Fraction(1),
}  # fmt: skip
KERNELS: dict[str, Attention] = {
    "flash2": _kernel("ampere", BFLOAT16, 128),
    "fa3_bf16": _kernel("hopper", BFLOAT16, 192),
    "fa3_fp8": _kernel("hopper", E4M3FN, 160, offset=8),
    "vllm_fa3_fp8": _kernel("hopper", E4M3FN, 128, offset=8, promote_every=1),
    "fa4_bf16": _kernel("blackwell", BFLOAT16, 128, threshold=8.0, **_FA4),
    "fa4_fp8": _kernel("blackwell", E4M3FN, 128, offset=8, **_FA4),
}
"""Kernels by catalogue name, with the tiles of head sizes up to 64 without a mask."""
_WRONG: dict[str, dict[str, Any]] = {
    "tiles from the first": {"backwards": False},
    "P not multiplied by 2^8": {"offset": 0},
    "S scale - shift rounded twice": {"fused_scores": False},
    "sum of rounded P": {"sums_rounded_p": True},
    "sum of a row in eight chains": {"sum_order": "packed"},
    "sum of a row by four threads": {"sum_order": "quad_fused"},
    "tiles of 64 keys": {"tile": 64},
    "O rescaled at every new maximum": {"threshold": 0.0},
    "O accumulated over all tiles": {"promote_every": None},
    "O added to float32 after each tile": {"promote_every": 1},
    "no polynomial": {"emulated": frozenset()},
    "log-sum-exp rounded twice": {"fused_lse": False},
    "2^x, 1/x and log2 correctly rounded": {"functions": ROUNDED},
    "2^x, 1/x and log2 of Hopper's MUFU": {"functions": HOPPER},
}


def _scale(kernel: Attention) -> Exact:
    """Return the factor of the scores; FlashAttention-4 rounds log2(e) to float32 first."""
    log2_e = Fraction(math.log2(math.e))
    return times(_SOFTMAX_SCALE, rounded(log2_e)) if kernel.lse_in_octaves else rounded(_SOFTMAX_SCALE * log2_e)


def _answer(name: str, kernel: Attention) -> Answer:
    """Return the function from the words of q, k and v to the bits of the output and of the log-sum-exp."""
    scale, nats = _scale(kernel), _SOFTMAX_SCALE if name == "flash2" else None

    def answer(words: Words) -> Words:
        rest = words[_D:]
        k = [rest[i : i + _D] for i in range(0, _KEYS * _D, _D)]
        v = [rest[i : i + _COLUMNS] for i in range(_KEYS * _D, len(rest), _COLUMNS)]
        out, lse = kernel.row(words[:_D], k, v, scale, lse_scale=nats)
        return (*out, lse)

    return answer


_SAGES = {**dict.fromkeys(sage.KERNELS, (sage.prepare, sage.rules)), "sage3_fp4": (sage3.prepare, sage3.rules)}


class AttentionFamily(Family):
    """Attention of one query."""

    name = "attention"
    choices = (Choice("KERNEL", one_of((*KERNELS, *_SAGES), "the oracle has the kernels")),)
    about = "attention: output and log-sum-exp of one query, with 2^x, 1/x and log2 of Hopper or correctly rounded"
    sets = (*KERNELS, *_SAGES)

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        if parts[0] in _SAGES:
            return _SAGES[parts[0]][0](parts[0], level, seed)
        name, kernel = parts[0], KERNELS[parts[0]]
        inputs = tuple(
            Field.of(name, kernel.operands, size)
            for name, size in (("q", _D), ("k", _KEYS * _D), ("v", _KEYS * _COLUMNS))
        )
        fields = {
            field.name: describe(value) if isinstance(value, Fields) else _plain(value)
            for field in dataclasses.fields(kernel)
            for value in [getattr(kernel, field.name)]
            if field.name not in ("scores", "values")
        }  # fmt: skip
        definition = {
            "head size": _D, "keys": _KEYS, "columns of v": _COLUMNS, "softmax scale": float(_SOFTMAX_SCALE),
            "scale of scores, times log2(e)": float(_scale(kernel)), "mask": "none", "layout": "k and v by keys",
            "accumulator": type(kernel.scores.rule).__name__, **fields,
        }  # fmt: skip
        results = Field.of("out", FLOAT32, _COLUMNS), Field.of("lse", FLOAT32)
        points = _points(kernel.operands, level, Stream(seed, f"attention/{name}"))
        return SetSpec(definition, inputs, results, points, _answer(name, kernel), "any")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the other kernels with these operands, then wrong rules near this one."""
        if parts[0] in _SAGES:
            yield from _SAGES[parts[0]][1](parts[0])
            return
        name, kernel = parts[0], KERNELS[parts[0]]
        for other, rule in KERNELS.items():
            if other != name and rule.operands == kernel.operands:
                yield Rule(f"as {other}", _answer(other, rule))
        for words, change in _WRONG.items():
            wrong = dataclasses.replace(kernel, **change)
            if wrong != kernel and not (words == "no polynomial" and not kernel.emulated):
                yield Rule(words, _answer(name, wrong), True)


def _plain(value: Any) -> Any:
    """Return a field of a kernel as text, a number or a list."""
    if isinstance(value, SpecialFunctions):
        return value.name
    if isinstance(value, (frozenset, tuple)):
        return [float(x) for x in sorted(value, key=abs)]
    return float(value) if isinstance(value, Fraction) else str(value) if value == float("-inf") else value


def _points(fmt: Fields, level: int, s: Stream) -> Iterator[tuple[Words, str]]:
    """Yield operands with scores of several sizes; the largest one is in the first, a later or the last tile."""

    def code(exponent: int, sign: int) -> int:
        return (sign << (fmt.width) | (fmt.bias + exponent) << fmt.mantissa_bits) | s.bits(fmt.mantissa_bits)

    sizes: dict[str, Callable[[int], int]] = {
        "nearly equal scores": lambda key: s.between(-5, -3), "scores of a few octaves": lambda key: s.between(-2, 0),
        "scores of many octaves": lambda key: s.between(0, 2),
        "the maximum grows from tile to tile": lambda key: 1 - key // 64,
        "the first tile has the maximum": lambda key: key // 64 - 2,
        "one key has the largest score": lambda key: 3 if key == 150 else -3,
    }  # fmt: skip
    for _ in range(2 if level == 1 else 10):
        for label, exponent in sizes.items():
            for signs in ("both signs", "positive values"):
                q = [code(s.between(-1, 1), s.bits(1)) for _ in range(_D)]
                k = [code(exponent(key), s.bits(1)) for key in range(_KEYS) for _ in range(_D)]
                v = [code(s.between(-2, 1), s.bits(1) * (signs == "both signs")) for _ in range(_KEYS * _COLUMNS)]
                yield (*q, *k, *v), f"{label}, {signs}"
