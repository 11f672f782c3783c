"""Public functions that take values, each called once: what holds of all of them is tested over this table."""

from collections.abc import Callable
from typing import Any

import numpy as np

import lowprec as lp
from lowprec import logfmt
from lowprec.codec import codecs
from lowprec.collective.catalogue import collectives
from lowprec.measure.atlas import measure_errors
from lowprec.measure.spread import kurtosis, tile_range

ONES = np.ones((16, 128), np.float32)
CODES = np.full((16, 128), 56, np.uint8)
QUANTIZED = lp.Quantized(np.full_like(CODES, 126), np.full((16, 1), 1 / 448, np.float32), "e4m3fn", "1x128")  # of ONES

#: By the name that a complaint begins with: a function of values [16, 128], whose result is an array or shows itself.
OF_VALUES: dict[str, Callable[[Any], Any]] = {
    "encode": lambda x: lp.encode(x, "bfloat16"),
    "round_to": lambda x: lp.round_to(x, "tf32"),
    "quantize": lambda x: lp.quantize(x, "nvfp4_te").dequantize(),
    "quantize_dequantize": lambda x: lp.quantize_dequantize(x, "e4m3fn 1x128"),
    "quantize_with_transpose": lambda x: lp.quantize_with_transpose(x, "e4m3fn 1x128")[1].dequantize(),
    "DelayedScaling": lambda x: lp.DelayedScaling().quantize(x).dequantize(),
    "hadamard": lambda x: lp.hadamard(x, 16),
    "matmul_f32": lambda x: lp.matmul_f32(x, ONES),
    "matmul_f32 of itself": lambda x: lp.matmul_f32(x, x.T.copy().T),
    "gemm: c": lambda x: lp.gemm(QUANTIZED, QUANTIZED, x[:, :16]),
    "mma: c": lambda x: lp.mma(CODES, CODES, x[:, :16]),
    "logfmt": lambda x: logfmt.encode(x).decode(),
    "codec": lambda x: codecs["fp8_1x128"].encode(x).decode(),
    "codec bf16": lambda x: codecs["bf16"].round_trip(x),
    "all_reduce": lambda x: collectives["ring"].all_reduce(x, "fp8_1x128"),
    "ulp": lambda x: lp.formats["bfloat16"].ulp(x),
    "compare": lambda x: lp.compare(x, ONES),
    "measure_errors": lambda x: measure_errors(x, "fp8_1x128"),
    "tile_range": tile_range,
    "kurtosis": kurtosis,
}


def bits(found: Any) -> bytes:
    """Return the bits of an array, or what an object shows of itself."""
    return found.tobytes() if isinstance(found, np.ndarray) else repr(found).encode()
