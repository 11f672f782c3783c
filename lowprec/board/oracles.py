"""The oracle's answers for operations of the board, in exact arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import oracle
from ..format.catalogue import Format, formats
from ..oracle import block_scales as scales
from ..oracle import casts, tables
from ..oracle import quantizers as rules
from ..scaling.granularity import Granularity
from ..scaling.hadamard import sign_vector
from .adapters.harness import Operation


def cast(operation: Operation, x: NDArray[np.float32]) -> list[int]:
    """Return the codes of values."""
    f = formats[operation.entry]
    if f.is_table:
        table = tables.table(f.values().tolist())
        return [tables.cast(oracle.exact(value), table, "nearest_even") for value in x.tolist()]
    usual = "ocp_sat" if f.bits <= 8 else "ieee"
    rounding, policy = operation.options.get("rounding", "nearest_even"), operation.options.get("policy", usual)
    return [casts.cast(value, oracle.fields(f), rounding, policy) for value in x.tolist()]


def plain(operation: Operation, x: NDArray[Any]) -> Any:
    """Return bytes of packed codes, transformed blocks, or products of rows as bits of float32."""
    kind, _, name = operation.inputs.partition("/")
    if kind == "nibbles":
        codes = cast(operation, x)
        return [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]
    if kind == "hadamard":
        signs = sign_vector(16, operation.options.get("signs", "te")).astype(int).tolist()
        y = rules.transform(x[None], signs)[0]
        return [casts.cast(oracle.exact(v), oracle.BFLOAT16, "nearest_even", "ieee") << 16 for v in y.tolist()]
    rule, f = oracle.ACCUMULATORS[operation.entry].rule, oracle.FORMATS[name]
    c = int(np.float32(operation.options.get("addend", 0)).view(np.uint32))
    return [[rule.dot(a, b, c, f, f) for b in x[64:].tolist()] for a in x[:64].tolist()]


def quantize(operation: Operation, x: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return codes and scales of a matrix."""
    options = dict(operation.options)
    if "format" in options and formats[options["format"]].is_table:
        return _absmax(x, formats[options["format"]])
    block = Granularity.parse(options.pop("granularity")) if "granularity" in options else None
    shape = None if block is None else (block.rows, block.columns)
    if shape is not None and shape[0] != 1 == shape[1]:  # the oracle transforms rows only
        turned = replace(operation, options=options | {"granularity": f"1x{shape[0]}"})
        codes, found = quantize(turned, x.T)
        return codes.T, found.T
    if not options:
        codes, found, _ = rules.quantize(x, operation.entry, shape)
        return codes, found
    rule = rules.QUANTIZERS[operation.entry]
    if "format" in options:
        rule = rule._replace(element=oracle.fields(formats[options.pop("format")]))
    for name, value in options.items():
        rule = rule._replace(**_fields(name, value))
    codes, found, _ = rules.quantize(x, rule, shape)
    return codes, found


def _fields(name: str, value: Any) -> dict[str, Any]:
    """Return the oracle's fields for one changed field of a quantizer."""
    match name, value:
        case "scale_calculation", "amax/max":
            return {"rule": scales.round_up(scales.by_division, -127)}
        case "four_over_six", None:
            return {"choice": None, "rule": lambda amax, top, tensor: scales.six_or_four(amax, top, tensor)[0]}
        case "zero_block", "one" | "rule":
            return {"zeros": (scales.ONE, scales.ONE) if value == "one" else None}
        case "max_block_scale", _:
            return {"bound": Fraction(value)}
        case "amax_floor", _:
            return {"floor": Fraction(value)}
        case "min_scale", 0.0:
            return {"rule": _alone}
    raise ValueError(f"oracle: no rule for {name}={value!r}")


def _alone(amax: Fraction, top: Fraction, _: scales.Tensor) -> scales.Scaled:
    """Return the scale E4M3(amax / max), or 1 if amax / max is 0, and as divisor the scale or 2^-149 if that is 0."""
    s = scales.e4m3(scales.r32(amax / top) or scales.ONE)
    return scales.Scaled(s, max(s, oracle.values.two_to(-149)), divides=True)


def _absmax(x: NDArray[np.float32], f: Format) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return codes in a table of values up to 1, and the largest magnitude of each row, which is a block."""
    values = tables.table(f.values().tolist())
    amax = np.abs(x).max(1, keepdims=True)
    amax[amax == 0] = 1
    rows = zip(x.tolist(), amax[:, 0].tolist(), strict=True)
    scaled = [[scales.divide(oracle.exact(v), Fraction(s)) for v in row] for row, s in rows]
    return np.array([[tables.cast(v, values, "nearest_even") for v in row] for row in scaled]), amax
