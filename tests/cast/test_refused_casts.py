"""What casts, roundings, tables of values, packed codes and streams of random words refuse, and what they say."""

import math
from typing import Any

import numpy as np
from refusals import refusals

import lowprec as lp
from lowprec.cast.hybrid import encode_hybrid
from lowprec.cast.packing import pack_e5m6, unpack_e5m6
from lowprec.cast.streams import streams


def names() -> dict[str, Any]:
    strict = lp.Policy("strict", overflow="raise", inf="raise", nan="raise", nan_without_nan="raise", unsigned="raise")
    return {
        "streams": streams, "pack_e5m6": pack_e5m6, "unpack_e5m6": unpack_e5m6, "strict": strict,
        "bytes_": np.zeros(2, np.uint8), "nan": math.nan, "inf": math.inf,
        "encode_hybrid": encode_hybrid, "table": lambda *values, **how: lp.TableFormat("t", list(values), **how),
        "by_chance": lambda **how: lp.encode([1.0, 2.0], "e4m3fn", rounding="stochastic", **how),
    }  # fmt: skip


STRICT = [
    ("e4m3fn", "nan", "nan at index 1 is not a number of e4m3fn"), ("e2m1fn", "nan", "nan_without_nan='raise'"),
    ("e4m3fn", "-500.0", "-500.0 at index 1 overflows"), ("e5m2", "-inf", "inf='raise'"),
    ("ue5m3", "-1.0", "is negative, ue5m3 has no sign"), ("bfloat16", "3.4e38", "overflows bfloat16"),
    ("e8m0fnu", "inf", "overflows e8m0fnu"),
]  # fmt: skip
test_refused = refusals(
    [
        ("lp.encode([1.0], 'e4m3fn', rounding='nearest')", "rounding"),
        ("by_chance()", r"needs a seed from 0 to 2\^64 - 1, not None"),
        ("by_chance(seed=-1)", "not -1"),
        ("by_chance(seed=0, offset=-1)", "offset=-1"),
        ("lp.Rounding.stochastic(25)", "bits=25: a whole number from 1 to 24"),
        ("lp.Rounding.stochastic(4, 'D')", "variant='D': 'A', 'B', 'C' is needed"),
        *((f"lp.Rounding('mine', odd=True, {field})",
           "odd=True excludes plus_word, minus_word, ties_even and random_bits")
          for field in ("plus_word=1", "minus_word=1 << 31", "ties_even=True", "random_bits=3")),
        ("lp.encode([1.0], 'e4m3fn', policy='torch')", "did you mean 'torch_2_1"),
        ("lp.encode([1.0], 'e4m3fn', overflow='wrap')", "overflow='wrap': one of saturate, nonsaturate, signed, nan"),
        ("lp.encode([[1.0, inf]], 'e4m3fn', overflow='raise')", r"inf at index \(0, 1\) overflows e4m3fn"),
        ("lp.round_to([465.0], 'e4m3fn', overflow='raise')", "465.0 at index 0 overflows e4m3fn"),
        ("lp.Policy('mine', overflow='explode')", "overflow='explode': 'saturate', 'nonsaturate'"),
        *((f"lp.encode(np.array([1.0, {value}], np.{dtype}), {name!r}, policy=strict)", message)
          for name, value, message in STRICT for dtype in ("float32", "float64")),
        ("lp.encode(np.array([2**60]), 'e5m2')", r"integers beyond \+-2\^53"),
        ("lp.encode(np.zeros(2, np.longdouble), 'e5m2')", TypeError, "would be rounded twice"),
        ("encode_hybrid(np.ones(3))", TypeError, "float32 or float16 is needed"),
        # Words from elsewhere.
        ("by_chance(random='philox')", "unknown stream 'philox'.*philox4x32"),
        ("by_chance(random='triton')", "needs a seed"),
        ("by_chance(random=[1, 2, 3])", r"random= has the shape \(3,\), the values \(2,\)"),
        ("by_chance(random=[1, 2], seed=1)", "words that are given need no seed"),
        ("by_chance(random=[1, 1 << 32])", "4294967296"),
        ("streams['triton'].words(0, (1 << 32) - 1, 2)", "Triton's have 32 bits"),
        # Tables of values.
        ("lp.TableFormat('', [0.0, 1.0])", "non-empty string"),
        ("table(0.0, 1.0, 2.0)", "3 values: a power of two from 2"),
        ("table(0.0, nan)", "at least two finite values"),
        ("table(-1.0, 0.0)", "one of them positive"),
        ("table(0.0, 0.1)", "0.1 is not a float32 number"),
        ("table(-1.0, 1.0, 0.0, inf)", "but not -Inf"),
        ("table(2.0, 1.0, 0.0, -inf)", "-Inf is for tables with Inf"),
        ("table(2.0, 1.0, -0.0, -1.0)", "-0 is listed without 0"),
        ("table(0.0, 1.0, beyond=1.0)", "a number above the largest value 1"),
        ("lp.formats['hif8'].nextafter(17.0, 0.0)", "17.0 is not one of its values"),
        ("lp.formats['nf4'].value(16)", r"code 16 is outside 0\.\.15"),
        ("lp.decode([16], 'nf4')", r"code 16 is outside nf4's 0\.\.15"),
        ("lp.mma(np.zeros((2, 32), 'u1'), np.zeros((2, 32), 'u1'), None, accumulator='hopper_fp8', a_format='hif8', "
         "b_format='hif8')", (TypeError, ValueError), "hif8"),
        # Packed codes.
        ("lp.pack([16], 4)", r"code 16 is outside bits=4's 0\.\.15"),
        ("lp.pack([-1], 4)", "code -1 is outside"),
        ("lp.pack([1], 17)", "pack: bits=17: a whole number from 1 to 16"),
        ("lp.pack([0.5], 4)", TypeError, "float64"),
        ("lp.pack([1, 2], 4, out=bytes_)", "needed is contiguous uint8"),
        ("lp.unpack(bytes_, 4, 5)", "5 codes of 4 bits take 3 bytes, not 2"),
        ("lp.unpack(bytes_, 4, -1)", "count=-1"),
        ("lp.unpack([300], 4, 2)", "300 is not a byte"),
        ("lp.unpack(bytes_[:1], 4, 2, out=np.empty(2, np.uint16))", "out is uint16"),
        ("lp.unpack(np.zeros(2, np.float32), 4, 4)", TypeError, "bytes"),
        ("pack_e5m6(np.zeros(7, np.uint16))", r"shape \(7,\); the last axis must be a multiple of 8"),
        ("unpack_e5m6(np.zeros(7, np.uint32))", "last axis must be a multiple of 3"),
        ("unpack_e5m6([1, 2, 3])", TypeError, "words are int64"),
        ("pack_e5m6([4096] * 8)", "4096"),
    ],
    names,
)  # fmt: skip
