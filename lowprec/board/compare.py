"""Cells of the board: the number of differences between a package and lowprec, and the simplest input with one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode, round_to
from ..cast.packing import pack
from ..format.catalogue import formats
from ..scaling.hadamard import hadamard
from ..scaling.quantize import quantize
from ..scaling.quantizer import Quantizer, quantizers
from ..tensorcore.mma import mma
from . import oracles
from .adapters.harness import Answer, Operation
from .inputs import PLAIN, bfloat16_count, digest, inputs
from .prediction import Prediction, Rule, predict

Bools = NDArray[np.bool_]
f32nan = np.float32(np.nan)
_SHOWN = 64  # largest number of values of an input that are written out, the most frequent one excluded
_ORACLE = {"casts": 256, "blocks": 16, "tiles": 1, "tensors": 6} | dict.fromkeys(PLAIN, 8)
"""Number of further inputs, in addition to the simplest differing ones, for which the oracle computes answers."""


@dataclass
class Units:
    """Inputs of an operation (values or blocks), with the answers of the package and of lowprec.

    Attributes
    ----------
    x : float32 [n] or [n, values of a block]
        Values, or blocks of values.
    wrong, scales : bool [n]
        Whether the answers differ in more than the sign of zeros, and whether the scales differ.
    zero_signs : int [n]
        Number of zeros whose signs differ.
    amax : float32 [n]
        Magnitude that decides whether an input is extreme: the amax of the value, of the block, or of the tensor.
    source : int [n]
        Index of the input that a unit is part of.
    simplicity : int [n]
        Sort key of the inputs, the smallest for the simplest one.
    answers : list of dict
        Answers of the package and of lowprec: codes or values [n] or [n, values], scales [n].
    prediction : Prediction
        Lowprec's answer, to which rules are applied.
    places : int [n, values], optional
        Index in the tensor of every value, for tensors.
    stored : tuple, optional
        Name of the package's scales, and the scales [n] as the package returns them.
    """

    x: NDArray[Any]
    wrong: Bools
    scales: Bools
    zero_signs: NDArray[np.int64]
    amax: NDArray[np.float32]
    source: NDArray[np.int64]
    simplicity: NDArray[np.int64]
    answers: list[dict[str, NDArray[Any]]]
    prediction: Prediction
    places: NDArray[Any] | None = None
    stored: tuple[str, NDArray[Any]] | None = None

    def are_predicted(self, at: NDArray[np.int64], p: Prediction) -> Bools:
        """Return a mask of the units for which a prediction equals the package's answer, signs of zeros included."""
        theirs = {name: array[at] for name, array in self.answers[0].items()}
        found = np.ones(len(at), bool)
        if "scale" in theirs:
            found = same(theirs["scale"], p.scale)
        if "codes" in theirs:
            equal = (theirs["codes"].reshape(p.codes.shape) == p.codes).all(1)
        else:
            values = p.codes
            if p.scale is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    values = np.where(np.isnan(p.x), f32nan, decode(p.codes, p.format) * p.scale[:, None])
            equal = same(theirs["values"], values).all(1)
        live = (theirs["scale"] != 0) & np.isfinite(theirs["scale"]) if "scale" in theirs else found
        return np.asarray(found & (equal | ~live))


def causes(units: Units, rules: Sequence[tuple[str, Rule]]) -> NDArray[Any]:
    """Return for each unit the letters of the fewest rules that explain its answer (A+F); "?" for none, "" if equal."""
    labels = np.full(len(units.wrong), "", object)
    left = np.flatnonzero(units.wrong | (units.zero_signs > 0))
    chosen = (c for size in range(1, len(rules) + 1) for c in itertools.combinations(rules, size))
    for combination in chosen:
        if not left.size:
            break
        p = units.prediction.take(left)
        with np.errstate(all="ignore"):
            for _, rule in combination:
                p = rule(p)
        right = units.are_predicted(left, p)
        labels[left[right]] = "+".join(dict.fromkeys(letter for letter, _ in combination))
        left = left[~right]
    labels[left] = "?"
    return labels


def quantizer_of(operation: Operation) -> Quantizer:
    """Return the quantizer of a block operation."""
    q = quantizers[operation.entry]
    return q.with_(name=operation.entry, **operation.options) if operation.options else q


def ours(operation: Operation) -> Answer:
    """Return lowprec's answer for all inputs of an operation."""
    x = inputs(operation.inputs)[:: operation.step]
    kind, _, name = operation.inputs.partition("/")
    match kind:
        case "casts":
            return {"codes": encode(x, operation.entry, **operation.options)}
        case "codes":
            return {"values": decode(x, operation.entry)}
        case "nibbles":
            return {"codes": pack(encode(x, operation.entry), 4).reshape(len(x), -1)}
        case "hadamard":
            return {"values": round_to(hadamard(x, int(name), **operation.options), operation.entry)}
        case "products":
            how = {"accumulator": operation.entry, "a_format": name, "b_format": name}
            c = np.full((64, 8), float(operation.options.get("addend", 0)), np.float32)
            return {"values": np.stack([mma(codes[:64], codes[64:], c, **how) for codes in x])}
        case "tensors":
            found = [quantize(tensor, quantizer_of(operation)) for tensor in x]
            return {"codes": np.stack([q.codes for q in found]), "scale": np.stack([q.scale for q in found])}
    q = quantize(x, quantizer_of(operation))
    return {"codes": q.codes, "scale": q.scale}


def cell(operation: Operation, theirs: Answer, rules: Sequence[tuple[str, Rule]]) -> dict[str, Any]:
    """Compare one operation, and return its cell of the board's JSON."""
    mine = ours(operation)
    units = (_blocks if operation.quantizes else _values)(operation, theirs, mine)
    known = _DOMAINS[operation.domain](units.x.reshape(len(units.x), -1)).all(axis=1)
    units.wrong &= known
    units.zero_signs = np.where(known, units.zero_signs, 0)
    special = known & ~np.isfinite(units.amax)
    finite = known & ~special
    exhaustive = units.source < -(-bfloat16_count(operation.inputs) // operation.step)
    ordinary = finite & (units.amax >= 2.0**-100) & (units.amax < 2.0**100)
    if units.x.ndim > 1:
        ordinary &= (units.x != 0).any(1)
    compared = {"bfloat16": finite & exhaustive, "adversarial": finite & ~exhaustive, "special": special}
    labels = causes(units, rules)
    counts = {label: int((labels == label).sum()) for label in sorted(set(labels) - {""}, key=lambda x: (len(x), x))}
    shown: dict[str, int] = {}
    for label in counts:
        if label == "?" or not set(label.split("+")) <= {letter for known in shown for letter in known.split("+")}:
            at = np.flatnonzero(labels == label)
            shown[label] = int(at[np.argmin(units.simplicity[at])])
    return {
        "inputs": operation.inputs,
        "compared": {name: int(mask.sum()) for name, mask in compared.items()},
        "differ": {name: int((units.wrong & mask).sum()) for name, mask in compared.items()}
        | {"ordinary": int((units.wrong & ordinary).sum()), "scales": int((units.scales & known).sum()),
           "zero_signs": int(units.zero_signs.sum())},
        "unexplained": counts.pop("?", 0),
        "causes": counts,
        "smallest": [{"cause": label} | _example(operation, units, i) for label, i in shown.items()],
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
    """Return a mask of the elements that have the same bits or are both NaN."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return np.asarray((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b)))


def simplicity(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return sort keys of numbers: few significant bits first, then exponents near 0, then positive ones."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.int64)
    fraction = bits & 0x7FFFFF
    length = 23 - np.log2((fraction & -fraction).clip(1)).astype(np.int64)
    return np.asarray(np.where(fraction == 0, 0, length) * 1000 + np.abs(((bits >> 23) & 255) - 127) * 2 + (bits >> 31))


def _values(operation: Operation, theirs: Answer, mine: Answer) -> Units:
    """Return the units of an operation: one for each value, packed or transformed block, or dot product."""
    x = inputs(operation.inputs)[:: operation.step]
    kind, _, name = operation.inputs.partition("/")
    key = "codes" if "codes" in theirs else "values"
    own = mine[key] if key in mine else decode(mine["codes"], operation.entry)
    if kind == "products":  # a row of A and one of B
        numbers = np.asarray(decode(x, name), np.float32)
        rows = np.broadcast_to(numbers[:, :64, None], (*own.shape, x.shape[-1]))
        numbers = np.concatenate([rows, np.broadcast_to(numbers[:, None, 64:], rows.shape)], -1)
    else:
        numbers = np.asarray(decode(x, operation.entry) if kind == "codes" else x)
    n = len(x) if kind != "products" else own.size
    numbers, own, a = numbers.reshape(n, -1), own.reshape(n, -1), np.asarray(theirs[key]).reshape(n, -1)
    wrong = (~same(a, own) if key == "values" else a.astype(own.dtype) != own).any(1)
    none = np.zeros(n, bool)
    prediction = Prediction(numbers, own, formats["float32" if key == "values" else operation.entry])
    top = np.abs(numbers).max(1)
    order = simplicity(top) + 10**6 * (numbers.view(np.uint32) != 0).sum(1) * (kind != "casts")
    source = np.arange(n) // (own.size // len(x) if kind == "products" else 1)
    if kind == "casts":
        order = simplicity(numbers[:, 0])
    answers: list[dict[str, NDArray[Any]]] = [{key: a}, {key: own}]
    return Units(
        numbers, np.asarray(wrong), none, none.astype(np.int64), top, source, order, answers, prediction
    )  # fmt: skip


def _blocks(operation: Operation, theirs: Answer, mine: Answer) -> Units:
    q, x = quantizer_of(operation), inputs(operation.inputs)[:: operation.step]
    if operation.inputs.startswith("tensors"):
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
    stored = next(((k, np.asarray(theirs[k]).reshape(-1)) for k in ("scale", "scale_codes") if k in theirs), None)
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
    blocks_of = np.abs(x).reshape(count, -1).max(1) if operation.inputs.startswith("tensors") else None
    with np.errstate(invalid="ignore"):
        amax = np.abs(xb).max(1)
    top = amax if blocks_of is None else np.repeat(blocks_of, R * C)
    nonzero = (xb.view(np.uint32) != 0).sum(1)
    if operation.inputs.startswith("tensors"):
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
    wrong_units = scale_wrong | (wrong.any(1) & live)
    prediction = predict(xb, cut(mine["codes"]), q, own_scale, top)
    if places is not None:
        prediction = replace(prediction, tensors=tuple(x), source=source, places=places)
    return Units(xb, wrong_units, scale_wrong, zero.sum(1), top, source, order, pair, prediction, places, stored)


def _bits(value: Any) -> str:
    return f"0x{int(np.asarray(value, np.float32).view(np.uint32)):08X}"


def _example(operation: Operation, units: Units, i: int) -> dict[str, Any]:
    """Return an input, both answers as hexadecimal digits, and the output of the page's program."""
    kind = operation.inputs.partition("/")[0]
    key = "codes" if "codes" in units.answers[0] else "values"
    pair = [answer[key][i] for answer in units.answers]
    unlike = np.flatnonzero(pair[0] != pair[1] if key == "codes" else ~same(*pair))
    source = int(units.source[i])
    whole = inputs(operation.inputs)[:: operation.step][source]
    block = i - int(np.searchsorted(units.source, source))
    if kind in ("casts", *PLAIN):
        j = at = int(unlike[0])
        if kind == "products":
            at, rows = block, [block // 8, 64 + block % 8]
            kept = np.zeros_like(whole)
            kept[rows] = whole[rows]
            whole = kept
    else:
        j = int(unlike[np.argmin(simplicity(units.x[i][unlike]))]) if unlike.size else 0
        at = j if units.places is None else int(units.places[i][j])
    whole = np.asarray(whole).reshape(-1)
    out: dict[str, Any] = {"source": source * operation.step, "at": at}
    words = whole.view(np.uint32) if whole.dtype == np.float32 else whole
    found, counts = np.unique(words, return_counts=True)
    fill = found[np.argmax(counts)]
    places = np.flatnonzero(words != fill)
    if kind in ("casts", "codes"):
        out["x"] = {"0": int(words[0])}
    elif places.size <= _SHOWN and kind != "tiles":
        out |= {"fill": int(fill), "x": {str(place): int(words[place]) for place in places.tolist()}}
    for name, answer, value in zip(("theirs", "ours"), units.answers, (answer[j] for answer in pair), strict=True):
        out[name] = {"code": f"0x{int(value):02X}" if key == "codes" else _bits(value)}
        out[name] |= {"scale": _bits(answer["scale"][i])} if "scale" in answer else {}
    shown = [hex(int(pair[0][j])) if key == "codes" else repr(float(pair[0][j]))]
    for name in ("scale", "scale_codes"):
        if units.stored and units.stored[0] == name:
            scale = units.stored[1][i]
            shown.append(hex(int(scale)) if name == "scale_codes" else repr(float(scale)))
            out["stored"] = name
    if operation.quantizes:
        out |= {"block": block, "amax": _bits(np.abs(units.x[i]).max()), "value": _bits(units.x[i][j])}
    return out | {"prints": " ".join(shown)}


def _oracle(operation: Operation, units: Units, mine: Answer, shown: list[Any]) -> dict[str, int]:
    """Return the number of values that the oracle computed (shown inputs and a sample), and how many differ."""
    kind = operation.inputs.partition("/")[0]
    if kind == "codes":
        return {}
    x = inputs(operation.inputs)[:: operation.step]
    size, differ, values = 128 if kind == "tiles" else 1, 0, 0
    more = np.random.default_rng(1).integers(0, len(x) // size, _ORACLE[kind])
    chosen = sorted({*more.tolist(), *(int(i) // size for i in shown)})
    if kind in PLAIN:
        own = mine["codes" if "codes" in mine else "values"]
        for i in chosen[:2] if kind == "products" else chosen:
            found = np.asarray(oracles.plain(operation, x[i]), np.uint32)
            differ += int(
                (~same(found.view(np.float32), own[i])).sum() if "values" in mine else (found != own[i]).sum()
            )
            values += found.size
        return {"values": values, "differ": differ}
    if kind == "casts":
        ask = functools.partial(oracles.cast, operation)
        return {"values": len(chosen), "differ": int(np.count_nonzero(ask(x[chosen]) != mine["codes"][chosen]))}
    for i in chosen:
        part = x[i] if kind == "tensors" else x[i * size : (i + 1) * size]
        codes, scales = oracles.quantize(operation, part)
        at: Any = i if kind == "tensors" else slice(i * size, (i + 1) * size)
        rows: Any = i if kind == "tensors" else slice(i, i + 1)
        differ += int((codes != mine["codes"][at]).sum() + (~same(scales, mine["scale"][rows])).sum())
        values += codes.size
    return {"values": values, "differ": differ}
