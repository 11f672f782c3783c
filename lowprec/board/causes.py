"""Causes of differences, and the rules of each package in which the board tests them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from typing import Any

import numpy as np

from . import rules
from .rules import Rule


@dataclass(frozen=True)
class Cause:
    """A cause of differences: title, description of the rule, and a calculation by hand for one input.

    `links` has public reports of the cause by package, and `documents` quotes of a package's own documentation.
    """

    title: str
    rule: str
    calculation: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)


_RDIV = "pytorch/pytorch#84194 (open; a comment quotes Tensor.__rdiv__)"
CAUSES = {
    "A": Cause(
        "log2 in float32",
        "the exponent of a scale is ceil or floor of a float32 logarithm, which is rounded to an integer next to one",
        "amax = 1.75 + 2^-22, largest element 448: amax / 448 = 2^-8 * (1 + 2^-21 / 3.5) is above 2^-8, so the "
        "smallest power of two that is not below it is 2^-7. Its log2 is -8 + 2.0e-7; float32 numbers next to -8 are "
        "4.8e-7 apart, so it is rounded to -8",
    ),
    "B": Cause(
        "log2 as ln(x) * (1 / ln 2)",
        "the exponent of a scale is ceil of ln(amax / max) * (1 / ln 2) in float32, which is above an integer for some "
        "powers of two",
        "0.0546875 / 448 = 7 * 2^-7 / (7 * 2^6) = 2^-13 exactly, and 448 * 2^-13 = 0.0546875: the scale 2^-13 holds "
        "amax without an error; the package's is 2^-12",
        {"qwix": "jax-ml/jax#40419 (open)"},
    ),
    "C": Cause(
        "a quotient as a product with a reciprocal",
        "`448.0 / tensor` is 448 * fl(1 / tensor) in PyTorch, rounded twice; `torch.div(448.0, tensor)` is not",
        "amax = 1.5: 448 / 1.5 = 298.66..., 1 / 1.5 = 0.66..., whose float32 is 0x1.555556p-1, above 2/3; times 448 it "
        "is rounded up to 0x1.2aaaacp+8, where 0x1.2aaaaap+8 is the nearest to 298.66...",
        {"transformers": _RDIV, "compressed-tensors": _RDIV, "llmcompressor": _RDIV},
    ),
    "D": Cause(
        "division by a scale of zero",
        "the scale of a block or tensor of zeros, or of numbers whose scale underflows, is 0; 0 / 0 is NaN",
        "amax = 0, so the scale is 0 / max = 0, and every element is 0 / 0",
        {"torchao": "pytorch/ao#4713 (open; of Float8Tensor)"},
    ),
    "E": Cause(
        "the scale's byte wraps",
        "the exponent of a scale is not limited below, and its byte wraps to 0xFF, NaN, or 0xFE, 2^127",
        "amax = 2^-126 in E2M1: the exponent of the scale is -126 - 2 = -128, and the byte -128 + 127 = -1 = 0xFF",
    ),
    "F": Cause(
        "a smaller scale is stored than divided by",
        "a divisor has a lower bound, while the stored scale may be smaller: values come back smaller",
        "lower bound 2^-126, amax = 2^-125 in E2M1: the scale is 2^(-125 - 2) = 2^-127, and 2^-125 / 2^-127 = 4; "
        "divided by 2^-126 it is 2, which decodes to 2 * 2^-127 = 2^-126, half the value",
        {"torchao": "pytorch/ao#1104 (open)"},
    ),
    "G": Cause(
        "the nearest value by float32 distances",
        "the code is the first with the smallest distance |y - value| in float32, which rounds ties toward zero, and "
        "makes codes 0 of quotients beyond 2^24 times the values; NVFP4's y is (x / s) * e, rounded twice",
        "3.5 is the midpoint of E2M1's 3 (0x5) and 4 (0x6); nearest even gives 4, whose code is even",
    ),
    "H": Cause(
        "quotients beyond the largest element",
        "x / (s * g) is coded without a limit at 6: from 7 on its code is 8, which is -0, and Inf is coded 0xB",
        "a block scale that E4M3 rounds down from 2^-9 * 1.4 to 2^-9 leaves quotients up to 6 * 1.4 > 7",
    ),
    "I": Cause(
        "a small scale is replaced",
        "a scale of 0, or below a bound of the package, is replaced by 1 or by an epsilon: the block becomes zeros",
        "amax = 2^-55 with the scale 1: amax is below half of the smallest element, and is rounded to 0",
    ),
    "J": Cause(
        "the ends of E8M0",
        "between 2^-127 and 1.5 * 2^-127 the guard bit of a subnormal is taken from the place of its leading bit; "
        "zero, and values beyond the ends, have rules of their own",
        "0x00500000 = 1.25 * 2^-127 lies 0.25 * 2^-127 above 2^-127 (code 0x00) and 0.75 * 2^-127 below 2^-126 "
        "(0x01): the nearest is 2^-127",
        {"gfloat": "graphcore-research/gfloat#62 (closed by #66, which is not in this release)"},
        {"onnxruntime": "ONNX, operator Cast: without saturation, values below the smallest and above the largest "
         "number of E8M0 become NaN; onnxruntime follows this, no policy of lowprec does"},
    ),
    "K": Cause(
        "NaN",
        "the payload or the sign of a NaN is kept or dropped, or NaN becomes another code; lowprec's policy has one "
        "code, with the sign where the format has one",
        documents={"fpy2": "FPy, EFloatNanKind.NEG_ZERO: \"NaN replaces -0\", whose code is 0x80. Overflow and NaN as "
                   "0x00, which decodes to 0, are wrong by it"},
    ),
    "L": Cause(
        "overflow is decided before rounding, or by its carry",
        "values that round beyond the largest number are compared with it before they are rounded",
        "E5M2 without saturation: 61440 is the midpoint of 57344 (0x7B) and 65536, which would be code 0x7C; ties to "
        "even give 0x7C, Inf. E4M3 (fn): 480 is 1.875 * 2^8, the place of the code 0x7F, which is NaN; it is above 448",
        documents={"onnxruntime": "ONNX, Float stored in 8 bits (onnx.ai/onnx/technical/float8.html), conversion "
                   "without saturation: [x] > FLT_MAX, where [x] is rounded to the width of the significand, is NaN in "
                   "E4M3FN and Inf in E5M2. 480 as 448, and 61440 as NaN, are wrong by it"},
    ),
    "M": Cause(
        "-0 becomes +0, or the reverse",
        "the sign of a zero is dropped: `x >= 0`, or a sum with +0",
        "-0 compares equal to 0, and a sign of `x < 0` is then positive",
    ),
    "N": Cause(
        "blocks with Inf or NaN, or near FLT_MAX",
        "a block or tensor with Inf or NaN, or whose scale overflows, has another scale: Inf, NaN, the largest or a "
        "finite one; NaN may be ignored in the largest magnitude",
    ),
    "O": Cause(
        "another order of float32 operations",
        "the same number is computed by other float32 operations, which are rounded or overflow elsewhere",
    ),
    "P": Cause(
        "scales below 2^-127",
        "a scale is not limited by the smallest of E8M0, 2^-127",
        "amax = 1.875 * 2^-120 in E4M3: the exponent of the scale is -120 - 8 = -128, which E8M0 cannot store",
    ),
    "Q": Cause(
        "-2 in MXINT8",
        "values that round to -2 have its code 0x80; lowprec and microxcaling do not use it",
        "-1.9961889 * 2^k with the scale 2^k: 127.76 / 64 rounds to 128 / 64 = 2; lowprec saturates at 127 / 64",
    ),
    "S": Cause(
        "bfloat16 products of AVX-512",
        "a matrix product in bfloat16 uses VDPBF16PS on CPUs that have it: subnormal operands and sums are 0, -0 "
        "becomes +0, and pairs of products are summed; on other CPUs the answer may differ",
        "2^-133 is the smallest subnormal bfloat16; times 0.25, the element of the Hadamard matrix, it is 2^-135 in "
        "float32, and 0 with the instruction",
    ),
    "R": Cause(
        "order of the codes in a byte",
        "the first code is in the high nibble, or a byte has elements i and i + 16; in `lp.pack` it is in the low one",
    ),
}  # fmt: skip


def _between(low: int, high: int, code: int, signed: int = 0) -> Rule:
    return partial(rules.between, low=low, high=high, code=code, signed=signed)


def _nan(code: int, signed: int = 0) -> tuple[str, Rule]:
    return "K", _between(0x7F800001, 0x7FFFFFFF, code, signed)


def _special(**fields: Any) -> tuple[str, Rule]:
    return "N", partial(rules.special, **fields)


def _small(by: float, **fields: Any) -> tuple[str, Rule]:
    return "I", partial(rules.replaced, by=by, **fields)


def _signs(kind: str) -> tuple[str, Rule]:
    return "M", partial(rules.zero_signs, kind=kind)


_LOG2: tuple[str, Rule] = ("A", rules.log2_float32)
_LOW: tuple[str, Rule] = ("J", _between(0x400001, 0x5FFFFF, 1))
_FLOAT16: tuple[str, Rule] = ("K", partial(rules.payload, shift=13, quiet=0x200))
_INF, _TINY = np.inf, 2.0**-63  # sqrt of float32's smallest normal number
_QUARK = (_LOG2, ("P", rules.unlimited), _small(2.0**-23, of="scale"), _signs("positive"))
_QWIX = (("N", rules.nan_ignored), _small(1, below=_TINY))
_INVERSE = (("C", rules.inverse_stored), _signs("of_zero"))


def _torchao(inf: int) -> tuple[tuple[str, Rule], ...]:
    return ("F", partial(rules.divided_by, divisor=2.0**-126)), _special(inf=2.0**inf)


RULES: dict[str, dict[str, Sequence[tuple[str, Rule]]]] = {
    "amd-quark": {"*even": (_special(inf=2.0**127), _signs("positive")), "*": _QUARK},
    "bitsandbytes": {
        "packing*": [("R", rules.high_first)],
        "NF4 1x32": [("F", partial(rules.divided_by_least, least=1e-38))],
    },
    "compressed-tensors": {
        "MX*": (_special(inf=_INF, nan=2.0**-127), _signs("of_zero")),
        "NVFP4": _INVERSE,
        "FP8*": (_small(2.0**-23), _signs("of_zero"), _special(inf=_INF)),
    },
    "fouroversix": {
        "MXFP4*": (("D", rules.exponent_bits), _signs("of_zero")),
        "random*": [("S", rules.transformed_by_vdpbf16ps)],
        "NVFP4*": (("H", rules.unsaturated), _signs("of_zero")),
    },
    "fpy2": {
        "cast e4m3fn": [_nan(0x7F)], "cast e5m2": [_nan(0x7E)], "cast *fnuz": [("K", rules.nan_unsigned)],
        "cast bfloat16": [_nan(0x7FC0)], "cast float16": [_nan(0x7E00)],
        "cast e8m0fnu": [("J", _between(1, 0x2FFFFF, 0xFF))],
    },
    "gfloat": {
        "cast e4m3fn": [("K", _between(0x43E80001, 0x7FFFFFFF, 0xFF))],
        "cast e8m0fnu*": [("J", rules.below_smallest)],
        "MX int8*": [("Q", rules.minus_two)],
        "MX*": [_LOG2],
    },
    "gguf": {
        "packing*": [("R", rules.by_halves)],
        "MXFP4": (
            _LOG2, ("E", partial(rules.wrapped, stored=True)), ("G", rules.nearest_product),
            ("N", partial(rules.constant, scale=2.0**-127)),
        ),
        "cast ue4m3": (("L", _between(0x43780000, 0x7F800000, 0x7E)), ("O", rules.subnormals_by_addition)),
        "cast bfloat16": [("K", partial(rules.payload, shift=16, quiet=0x40))],
    },
    "jax": {
        "cast e8m0fnu": (_LOW, ("J", _between(0, 0, 0xFF))), "cast float16": [_FLOAT16], "cast e2m1fn": [_nan(8)],
    },
    "llmcompressor": {"NVFP4": _INVERSE},
    "ml_dtypes": {"cast e8m0fnu": (_LOW, ("J", _between(0, 0, 0xFF)))},
    "mlx": {
        "cast e4m3fn": [_nan(0x7E, 0x80)], "cast bfloat16": [_nan(0x7FC0)], "cast float16": [_nan(0x7D00, 0x8000)],
        "MXFP8": (
            ("E", rules.wrapped), _small(1), _signs("of_zero"), _special(inf=2, divisor=0, codes=0xFE),
            _special(nan=2, divisor=0, codes=0x7E),
        ),
        "MXFP4": (("E", rules.wrapped), _small(1), ("N", partial(rules.constant, scale=2))),
        "NVFP4 without*": [("G", partial(rules.multiplied_after_division, tensor=False))],
        "NVFP4": [("G", rules.multiplied_after_division)],
    },
    "nvidia-modelopt": {
        "MXFP8": (_LOG2, _special(nan=2.0**-127)),
        "MXFP4": (_LOG2, _signs("negative"), ("N", partial(rules.constant, scale=2.0**-127, code=8))),
        "NVFP4": (("D", rules.zero_tensor), _signs("of_zero")),
        "FP8*": (("D", partial(rules.replaced, by=0)), _special(inf=_INF)),
    },
    "onnx": {
        "cast float16": [("K", partial(rules.payload, shift=13, quiet=0))],
        "cast e8m0fnu, up": [("J", _between(1, 0x400000, 1))],
        "cast e8m0fnu*": [_LOW],
    },
    "onnxruntime": {
        "cast e4m3fn, saturate=0": [("L", _between(0x43F00000, 0x43F7FFFF, 0x7E, 0x80))],
        "cast e5m2, saturate=0": [("L", _between(0x47700000, 0x477FFFFF, 0x7F, 0x80))],
        "cast e5m2, saturate=1": [_nan(0x7F, 0x80)],
        "cast float16": [_FLOAT16],
        "cast e8m0fnu*": (("J", _between(0, 0x3FFFFF, 0xFF)), ("J", _between(0x7F000001, 0x7F7FFFFF, 0xFF))),
    },
    "qwix": {
        "mxfp*": (*_QWIX, ("B", rules.log2_by_ln), _special(inf=_INF), ("K", partial(rules.nan_code, code=8))),
        "nvfp4": (
            *_QWIX, _signs("of_zero"), _special(inf=448), ("O", partial(rules.reciprocal_applied, nan=8)),
            ("K", partial(rules.nan_code, code=8)),
        ),
        "float8*": (*_QWIX, _special(inf=_INF)),
    },
    "torch": {"cast e8m0fnu*": [_LOW], "cast bfloat16": [_nan(0xFFFF)], "cast float16*": [_FLOAT16]},
    "torchao": {
        "* RCEIL": (_LOG2, ("F", partial(rules.divided_by, divisor=1))),
        "MXFP8 *": _torchao(120), "MXFP8_E5M2 *": _torchao(113), "MXFP6_E3M2 *": _torchao(124), "MX*": _torchao(126),
        "NVFP4, two levels": [("O", rules.two_quotients)],
        "NVFP4, one level": [_special(inf=448)],
        "random*": [("S", rules.transformed_by_vdpbf16ps)],
        "Float8Tensor*": (("D", partial(rules.replaced, by=0)), _special(inf=_INF)),
        "FP8*": [_special(inf=_INF)],
    },
    "transformer_engine": {
        "NVFP4*": (_signs("of_zero"), _special(nan=np.nan, tensor=True)),
        "*powers of two": [_special(inf=_INF, nan=2)],
        "FP8*": [_special(inf=_INF, nan=np.nan)],
    },
    "transformers": {
        "FP8 1x128 ue8m0": (_LOG2, _special(nan=1)),
        "FP8*": [("C", rules.reciprocal)],
    },
}  # fmt: skip
"""Rules by package and pattern of operations; the first pattern that fits counts, and the order is that of the code."""


def rules_of(package: str, operation: str) -> Sequence[tuple[str, Rule]]:
    """Return the rules in which a package may differ for an operation, with the letters of their causes."""
    return next((found for pattern, found in RULES.get(package, {}).items() if fnmatch(operation, pattern)), ())
