"""Cells of the board: how often the answers of a package differ from lowprec, and the simplest input where they do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode
from ..scaling.quantize import quantize
from ..scaling.quantizer import Quantizer, quantizers
from . import oracles
from .adapters.harness import Answer, Operation
from .inputs import bfloat16_count, digest, inputs

Bools = NDArray[np.bool_]
_SHOWN = 64  # largest number of values of an input that is written out
_ORACLE = {"casts": 256, "blocks": 16, "tiles": 1, "tensors": 6}
"""Number of further inputs, in addition to the simplest differing ones, for which the oracle computes answers."""


@dataclass
class Units:
    """Inputs of an operation, values or blocks, with both answers.

    Attributes
    ----------
    x : float32 [n] or [n, values of a block]
        Values, or blocks of values.
    wrong, scales : bool [n]
        Whether answers differ in more than the sign of zeros; whether scales do.
    zero_signs : int [n]
        Number of zeros whose signs differ.
    amax : float32 [n]
        Magnitude that decides whether an input is extreme: of the value, the block, or the tensor.
    source : int [n]
        Index of the input that a unit is part of.
    simplicity : int [n]
        Sort key of the simplest input.
    answers : list of dict
        Theirs and ours: codes or values [n] or [n, values], scales [n].
    places : int [n, values], optional
        Index in the tensor of every value, for tensors.
    """

    x: NDArray[Any]
    wrong: Bools
    scales: Bools
    zero_signs: NDArray[np.int64]
    amax: NDArray[np.float32]
    source: NDArray[np.int64]
    simplicity: NDArray[np.int64]
    answers: list[dict[str, NDArray[Any]]]
    places: NDArray[Any] | None = None


def quantizer_of(operation: Operation) -> Quantizer:
    """Return the quantizer of a block operation."""
    q = quantizers[operation.entry]
    return q.with_(name=operation.entry, **operation.options) if operation.options else q


def ours(operation: Operation) -> Answer:
    """Return lowprec's answer for all inputs of an operation."""
    x = inputs(operation.inputs)[:: operation.step]
    match operation.inputs.partition("/")[0]:
        case "casts":
            return {"codes": encode(x, operation.entry, **operation.options)}
        case "codes":
            return {"values": decode(x, operation.entry)}
        case "tensors":
            found = [quantize(tensor, quantizer_of(operation)) for tensor in x]
            return {"codes": np.stack([q.codes for q in found]), "scale": np.stack([q.scale for q in found])}
    q = quantize(x, quantizer_of(operation))
    return {"codes": q.codes, "scale": q.scale}


def cell(operation: Operation, theirs: Answer) -> dict[str, Any]:
    """Compare one operation; return the cell of the board's JSON."""
    mine = ours(operation)
    units = (_values if operation.inputs.startswith(("casts", "codes")) else _blocks)(operation, theirs, mine)
    known = _DOMAINS[operation.domain](units.x.reshape(len(units.x), -1)).all(axis=1)
    special = known & ~np.isfinite(units.amax)
    finite = known & ~special
    exhaustive = units.source < -(-bfloat16_count(operation.inputs) // operation.step)
    live = (units.amax >= 2.0**-100) & (units.amax < 2.0**100)
    if units.x.ndim > 1:
        live &= (units.x != 0).any(1)
    if "scale" in units.answers[0]:
        live &= (units.answers[0]["scale"] != 0) & np.isfinite(units.answers[0]["scale"])
    if operation.inputs.startswith("casts"):
        live = units.x != 0
    regions = {"ordinary": finite & live, "extreme": finite & ~live, "special": special}
    wrong = units.wrong & known
    compared = {"bfloat16": finite & exhaustive, "adversarial": finite & ~exhaustive, "special": special}
    signs = known & (units.zero_signs > 0) & ~wrong
    examples = {name: wrong & region for name, region in regions.items()} | {"zero sign": signs & finite}
    shown = {name: int(at[np.argmin(units.simplicity[at])]) for name, mask in examples.items()
             if (at := np.flatnonzero(mask)).size}  # fmt: skip
    return {
        "inputs": operation.inputs,
        "compared": {name: int(mask.sum()) for name, mask in compared.items()},
        "differ": {name: int((wrong & mask).sum()) for name, mask in compared.items()}
        | {"ordinary": int((wrong & regions["ordinary"]).sum()), "scales": int((units.scales & known).sum()),
           "zero_signs": int(units.zero_signs[known].sum())},
        "smallest": [{"region": name} | _example(operation, units, i) for name, i in shown.items()],
        "oracle": _oracle(operation, units, mine, [units.source[i] for i in shown.values()]),
        "ours_sha256": digest([mine[name] for name in sorted(mine)]),
    }  # fmt: skip


_DOMAINS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "all": lambda x: np.ones(x.shape, bool),
    "numbers": lambda x: ~np.isnan(x),
    "finite": lambda x: np.isfinite(x),
    "nonnegative": lambda x: ~np.signbit(x) & ~np.isnan(x),
    "positive": lambda x: (x > 0) & np.isfinite(x),
}


def same(a: NDArray[Any], b: NDArray[Any]) -> Bools:
    """Return where floats have the same bits, or are both NaN."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return np.asarray((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b)))


def simplicity(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return sort keys of numbers: few significant bits first, then exponents near 0, then positive ones."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.int64)
    fraction = bits & 0x7FFFFF
    length = 23 - np.log2((fraction & -fraction).clip(1)).astype(np.int64)
    return np.asarray(np.where(fraction == 0, 0, length) * 1000 + np.abs(((bits >> 23) & 255) - 127) * 2 + (bits >> 31))


def _values(operation: Operation, theirs: Answer, mine: Answer) -> Units:
    x = inputs(operation.inputs)[:: operation.step]
    key = "codes" if "codes" in theirs else "values"
    own = mine[key] if key in mine else decode(mine["codes"], operation.entry)
    a = np.asarray(theirs[key]).reshape(-1)
    wrong = ~same(a, own) if key == "values" else a.astype(own.dtype) != own
    numbers = np.asarray(decode(x, operation.entry) if operation.inputs.startswith("codes") else x)
    n = np.arange(len(x))
    none = np.zeros(len(x), bool)
    return Units(numbers, wrong, none, none.astype(np.int64), np.abs(numbers), n, simplicity(numbers),
                 [{key: a}, {key: own}])  # fmt: skip


def _blocks(operation: Operation, theirs: Answer, mine: Answer) -> Units:
    q, x = quantizer_of(operation), inputs(operation.inputs)[:: operation.step]
    if operation.inputs == "tensors":
        per, scales_shape = x.shape[1:], mine["scale"].shape
    else:
        per, scales_shape = x.shape, (1, *mine["scale"].shape)
    height, width = q.granularity.block(per)
    count, R, C = scales_shape

    def cut(array: NDArray[Any]) -> NDArray[Any]:
        parts = np.asarray(array).reshape(count, R, height, C, width).transpose(0, 1, 3, 2, 4)
        return parts.reshape(count * R * C, height * width)

    f = q.format
    sign = 0 if f.is_table else f.sign_mask
    if "scale_codes" in theirs:
        theirs = theirs | {"scale": decode(np.asarray(theirs["scale_codes"]).astype(np.uint8), q.scale_format)}
    own_scale = mine["scale"].reshape(-1)
    known = "scale" in theirs
    scale = np.asarray(theirs["scale"], np.float32).reshape(-1) if known else own_scale
    scale_wrong = ~same(scale, own_scale)
    if "codes" in theirs:
        a, b = cut(theirs["codes"]).astype(mine["codes"].dtype), cut(mine["codes"])
        zero = (a != b) & ((a | b) & ~np.asarray(sign, a.dtype) == 0) if sign else np.zeros(a.shape, bool)
        wrong = (a != b) & ~zero
    else:
        with np.errstate(over="ignore"):
            b = decode(cut(mine["codes"]), f) * own_scale[:, None]
        a = cut(theirs["values"])
        zero = (a == 0) & (b == 0) & ~same(a, b)
        wrong = ~same(a, b) & ~zero
    live = (scale != 0) & np.isfinite(scale)
    xb = cut(x)
    blocks_of = np.abs(x).reshape(count, -1).max(1) if operation.inputs == "tensors" else None
    with np.errstate(invalid="ignore"):
        amax = np.abs(xb).max(1)
    top = amax if blocks_of is None else np.repeat(blocks_of, R * C)
    nonzero = (xb.view(np.uint32) != 0).sum(1)
    if operation.inputs == "tensors":
        nonzero = np.repeat((x.reshape(count, -1).view(np.uint32) != 0).sum(1), R * C)
        source = np.repeat(np.arange(count), R * C)
        places: NDArray[Any] | None = cut(np.broadcast_to(np.arange(x[0].size).reshape(per), x.shape))
    else:
        source, places = np.repeat(np.arange(R), C) * height, None
    key = "codes" if "codes" in theirs else "values"
    pair: list[dict[str, NDArray[Any]]] = [{key: a, "scale": scale}, {key: b, "scale": own_scale}]
    if not known:  # only values are compared
        pair = [{key: a}, {key: b}]
    near = 30_000 * ((amax < 2.0**-30) | (amax > 2.0**30))
    order = nonzero * 10**6 + simplicity(amax) + near
    return Units(xb, scale_wrong | (wrong.any(1) & live), scale_wrong, zero.sum(1), top, source, order, pair, places)


def _bits(value: Any) -> str:
    return f"0x{int(np.asarray(value, np.float32).view(np.uint32)):08X}"


def _example(operation: Operation, units: Units, i: int) -> dict[str, Any]:
    """Return an input and both answers; floats as the hexadecimal digits of their bits."""
    if units.x.ndim == 1:
        code = operation.inputs.startswith("codes")
        found = [_bits(answer["values"][i]) if "values" in answer else f"0x{int(answer['codes'][i]):02X}"
                 for answer in units.answers]  # fmt: skip
        return {"x": [i if code else _bits(units.x[i])], "theirs": {"code": found[0]}, "ours": {"code": found[1]}}
    whole = units.x[i]
    if operation.inputs == "tensors":
        whole = inputs("tensors")[:: operation.step][units.source[i]].reshape(-1)
    at = np.flatnonzero(whole.view(np.uint32) != 0)
    out: dict[str, Any] = {"source": int(units.source[i]) * operation.step, "amax": _bits(np.abs(units.x[i]).max())}
    if at.size <= _SHOWN:
        out["x"] = {str(j): _bits(whole[j]) for j in at.tolist()}
    key = "codes" if "codes" in units.answers[0] else "values"
    pair = [answer[key][i] for answer in units.answers]
    unlike = np.flatnonzero(pair[0] != pair[1] if key == "codes" else ~same(*pair))
    j = int(unlike[np.argmin(simplicity(units.x[i][unlike]))]) if unlike.size else 0
    for name, answer in zip(("theirs", "ours"), units.answers, strict=True):
        text = f"0x{int(answer[key][i][j]):02X}" if key == "codes" else _bits(answer[key][i][j])
        out[name] = {"code": text} | ({"scale": _bits(answer["scale"][i])} if "scale" in answer else {})
    return out | {"at": j if units.places is None else int(units.places[i][j]), "value": _bits(units.x[i][j])}


def _oracle(operation: Operation, units: Units, mine: Answer, shown: list[Any]) -> dict[str, int]:
    """Return how many values the oracle computed, of the shown inputs and some more, and how many differ."""
    kind = operation.inputs.partition("/")[0]
    if kind == "codes":
        return {}
    x = inputs(operation.inputs)[:: operation.step]
    size = 128 if kind == "tiles" else 1
    more = np.random.default_rng(1).integers(0, len(x) // size, _ORACLE[kind])
    chosen = sorted({int(i) // size for i in (*more, *shown)})
    if kind == "casts":
        ask = functools.partial(oracles.cast, operation)
        return {"values": len(chosen), "differ": int(np.count_nonzero(ask(x[chosen]) != mine["codes"][chosen]))}
    differ = values = 0
    for i in chosen:
        part = x[i] if kind == "tensors" else x[i * size : (i + 1) * size]
        codes, scales = oracles.quantize(operation, part)
        at: Any = i if kind == "tensors" else slice(i * size, (i + 1) * size)
        rows: Any = i if kind == "tensors" else slice(i, i + 1)
        differ += int((codes != mine["codes"][at]).sum() + (~same(scales, mine["scale"][rows])).sum())
        values += codes.size
    return {"values": values, "differ": differ}
