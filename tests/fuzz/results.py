"""Types and shapes of results, as the documentation has them: a function of the arguments for each."""

from collections.abc import Callable
from typing import Any

import numpy as np
from calls import Arguments

import lowprec as lp

Documented = tuple[Any, tuple[int, ...]]


def like(name: str, dtype: str) -> Callable[[Arguments], Documented]:
    """Return: the shape of an argument, in a fixed type."""
    return lambda given: (dtype, np.shape(given[name]))


def codes(given: Arguments) -> Documented:
    return lp.formats.get(given["fmt"]).code_dtype, np.shape(given["x"])


def packed(given: Arguments) -> Documented:
    return "u1", (-(-int(np.size(given["codes"])) * int(given["bits"]) // 8),)


def unpacked(given: Arguments) -> Documented:
    return "u1" if given["bits"] <= 8 else "u2", (int(given["count"]),)


def quantized(given: Arguments) -> Documented:
    fmt = given.get("fmt") or lp.quantizers.get(given["quantizer"]).format
    return lp.formats.get(fmt).code_dtype, np.shape(given["x"])


def product(given: Arguments) -> Documented:
    return "f4", (given["a"].shape[0], given["b"].shape[0])


def matmul(given: Arguments) -> Documented:
    return "f4", (len(given["a"]), len(given["b"]))


def instruction(given: Arguments) -> Documented:
    accumulator = lp.accumulators.get(given.get("accumulator", "hopper_fp8"))
    return accumulator.dtype, (len(given["a"]), len(given["b"]))


def number(given: Arguments) -> Documented:
    return float, ()
