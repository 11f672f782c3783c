"""The oracle's answers for operations of the board, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import oracle
from ..format.catalogue import formats
from ..oracle import block_scales as scales
from ..oracle import casts, tables
from ..oracle import quantizers as rules
from ..scaling.granularity import Granularity
from .adapters.harness import Operation


def cast(operation: Operation, x: NDArray[np.float32]) -> list[int]:
    """Return the codes of values."""
    f = formats[operation.entry]
    usual = "ocp_sat" if f.bits <= 8 else "ieee"
    rounding, policy = operation.options.get("rounding", "nearest_even"), operation.options.get("policy", usual)
    return [casts.cast(value, oracle.fields(f), rounding, policy) for value in x.tolist()]


def quantize(operation: Operation, x: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return codes and scales of a matrix."""
    options = dict(operation.options)
    block = Granularity.parse(options.pop("granularity")) if "granularity" in options else None
    shape = None if block is None else (block.rows, block.columns)
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
        case "arithmetic", "amax/max":
            return {"rule": scales.round_up(scales.by_division, -127)}
        case "choice", None:
            return {"choice": None, "rule": lambda amax, top, tensor: scales.six_or_four(amax, top, tensor)[0]}
        case "bound", _:
            return {"bound": Fraction(value)}
        case "amax_floor", _:
            return {"floor": Fraction(value)}
        case "smallest_scale", 0.0:
            return {"rule": _alone}
    raise ValueError(f"oracle: no rule for {name}={value!r}")


def _alone(amax: Fraction, top: Fraction, _: scales.Tensor) -> scales.Scaled:
    """E4M3(amax / max), which may be 0; x * min(1 / s, FLT_MAX)."""
    s = scales.e4m3(scales.r32(amax / top))
    return scales.Scaled(s, s, divides=True) if s else scales.Scaled(s, scales.FLT_MAX)


def table(operation: Operation, x: NDArray[np.float32], values: tables.Table, policy: str) -> list[int]:
    """Return the codes of values in a format that is a table."""
    return [tables.cast(value, values, "nearest_even", policy) for value in x.tolist()]
