"""Arguments that suit each other, for functions that look at whole tensors: codes, machines, formats."""

from typing import Any

import numpy as np
from calls import Arguments
from draw import Draw

import lowprec as lp


def check_arguments(draw: Draw) -> Arguments:
    """Return somebody's codes and the values that they are of; now and then not quite."""
    rng = np.random.default_rng(draw.random.getrandbits(32))
    x = rng.standard_normal((draw.one(1, 4), draw.one(128, 256))).astype(np.float32)
    q = lp.quantize(x, "e4m3fn", "1x128")
    if draw.chance(0.5):
        q.codes[0, draw.random.randrange(x.shape[1])] ^= 1
    if draw.chance(0.5):
        return {"q": q, "values": x, "quantizer": q.quantizer}
    return {"q": q, "values": x}


def convert_arguments(draw: Draw) -> Arguments:
    """Return a quantized matrix, and another block format."""
    arguments: Arguments = {"q": draw.quantized(draw.one(1, 5, 40), draw.one(64, 256))}
    if draw.chance(0.5):
        arguments["fmt"] = draw.of(("e4m3fn", "e5m2", "e2m1fn"))
    return arguments


def identify_arguments(draw: Draw) -> Arguments:
    """Return a small dump of a machine of the catalogue."""
    rng = np.random.default_rng(draw.random.getrandbits(32))
    a, b = (rng.integers(0, 120, (draw.one(1, 3), 32)).astype(np.uint8) for _ in range(2))
    name = draw.of(("hopper_fp8", "ada_fp8"))
    return {"a": a, "b": b, "c": None, "d": lp.mma(a, b, accumulator=name), "a_format": "e4m3fn", "b_format": "e4m3fn"}


def eden_arguments(draw: Draw) -> Arguments:
    """Return a matrix whose columns are a multiple of what is rotated together."""
    size = draw.one(16, 32, 128)
    x = draw.values((draw.one(1, 3, 16), size * draw.one(1, 2)), "f4", 0.0)
    return {"x": x, "seed": draw.random.getrandbits(64), "size": size}


def pack_arguments(draw: Draw) -> Arguments:
    """Return codes of twelve bits, eight and eight."""
    rng = np.random.default_rng(draw.random.getrandbits(32))
    return {"codes": rng.integers(0, 4096, (draw.one(0, 1, 3), 8 * draw.one(0, 1, 4))).astype(np.uint16)}


def unpack_arguments(draw: Draw) -> Arguments:
    """Return words of theirs."""
    rng = np.random.default_rng(draw.random.getrandbits(32))
    return {"words": rng.integers(0, 1 << 32, (draw.one(0, 1, 3), 3 * draw.one(0, 1, 4))).astype(np.uint32)}


def table_arguments(draw: Draw) -> Arguments:
    """Return a table of values, some of them twice or none."""
    rng = np.random.default_rng(draw.random.getrandbits(32))
    table = np.sort(rng.standard_normal(draw.one(4, 16, 256)).astype(np.float32)).tolist()
    return {"name": "mine", "table": tuple(table), "rounding": draw.one("nearest_even", "nearest_away")}


def use_library(library: Any) -> Any:
    """Multiply in its order."""
    q = lp.quantize(np.outer(np.float32([1, -3]), np.arange(256, dtype=np.float32)), "e4m3fn", "1x128")
    try:
        return lp.gemm(q, q, library=library)
    except ValueError as error:  # a promotion that does not fit the accumulator's groups
        return str(error)
