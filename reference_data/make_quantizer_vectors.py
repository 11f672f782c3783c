"""quantizer_vectors.json: exact codes and scales of a few bfloat16 values for every quantizer.

Codes, scales and tensor scales are from `lowprec.oracle.quantizers` only, so that the file tests the package's kernels,
and any other program, against the definitions. The values are bfloat16 numbers computed from counter-based random
words.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from lowprec.kernels.cast.random_bits import fill_words
from lowprec.oracle import quantizers as oracle

SHAPE = (2, 160)


def values() -> np.ndarray:
    """Return bfloat16 numbers of magnitudes 2^-8 to 2^8 as float32; the last 16 of each row are far smaller."""
    words = np.empty(SHAPE[0] * SHAPE[1], np.uint32)
    fill_words(words, np.uint32(2025), np.uint32(0), 0)
    sign, exponent, mantissa = words >> 31, 119 + (words >> 20) % 17, (words >> 8) & 0x7F
    x = (sign << 31 | exponent << 23 | mantissa << 16).astype(np.uint32).view(np.float32).reshape(SHAPE)
    x[:, -16:] *= np.float32(2.0**-12)
    return x


def case(name: str) -> dict[str, str | None]:
    """Return the quantized values: codes as two hexadecimal digits each, float32 as their bits."""
    codes, scales, tensor = oracle.quantize(values(), name)
    return {
        "codes": codes.astype(np.uint8).tobytes().hex(),
        "scales": scales.astype(">f4").tobytes().hex(),
        "tensor": None if tensor is None else np.array([tensor], ">f4").tobytes().hex(),
    }


def entries() -> dict[tuple[str, ...], Callable[[], object]]:
    """Return functions that compute the values, and their quantization by each quantizer."""
    return {
        ("shape",): lambda: SHAPE,
        ("values",): lambda: values().astype(">f4").tobytes().hex(),
        **{("quantizers", name): partial(case, name) for name in (*oracle.QUANTIZERS, *oracle.TRANSFORMED)},
    }
