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
    strict = lp.Policy(
        "strict", overflow="raise", inf="raise", nan="raise", nan_fallback="raise", negative_to_unsigned="raise"
    )
    return {
        "streams": streams, "pack_e5m6": pack_e5m6, "unpack_e5m6": unpack_e5m6, "strict": strict,
        "bytes_": np.zeros(2, np.uint8), "nan": math.nan, "inf": math.inf,
        "encode_hybrid": encode_hybrid, "table": lambda *values, **how: lp.TableFormat("t", list(values), **how),
        "by_chance": lambda **how: lp.encode([1.0, 2.0], "e4m3fn", rounding="stochastic", **how),
    }  # fmt: skip


STRICT = [
    ("e4m3fn", "nan", r"nan at index 1 has no code in e4m3fn, which"), ("e2m1fn", "nan", "nan_fallback='raise'"),
    ("e4m3fn", "-500.0", "-500.0 at index 1 overflows"), ("e5m2", "-inf", "inf='raise'"),
    ("ue5m3", "-1.0", "-1.0 at index 1 is negative and ue5m3 is"), ("bfloat16", "3.4e38", "overflows bfloat16"),
    ("e8m0fnu", "inf", "overflows e8m0fnu"),
]  # fmt: skip
test_refused = refusals(
    [
        ("lp.encode([1.0], 'e4m3fn', rounding='nearest')", "rounding"),
        ("by_chance()", r"encode: seed must be an integer from 0 to 2\^64 - 1 for rounding='stochastic', got None"),
        ("by_chance(seed=-1)", r"encode: seed must be an integer from 0 to 2\^64 - 1 for rounding='stochastic',"),
        ("by_chance(seed=0, offset=-1)", r"encode: offset must be an integer from 0 to 2\^62, got -1"),
        ("lp.Rounding.stochastic(25)", "bits must be an integer from 1 to 24, got 25"),
        ("lp.Rounding.stochastic(4, 'D')", "variant must be one of 'A', 'B', 'C', got 'D'"),
        *((f"lp.Rounding('mine', sticky_to_lsb=True, {field})",
           "with sticky_to_lsb=True, positive_increment, negative_increment, ")
          for field in ("positive_increment=1", "negative_increment=1 << 31", "ties_even=True", "random_bits=3")),
        ("lp.encode([1.0], 'e4m3fn', policy='torch')", "did you mean 'torch_2_1"),
        ("lp.encode([1.0], 'e4m3fn', overflow='wrap')", "overflow must be one of saturate, nonsaturate, signed,"),
        ("lp.encode([[1.0, inf]], 'e4m3fn', overflow='raise')", r"inf at index \(0, 1\) overflows e4m3fn"),
        ("lp.round_to([465.0], 'e4m3fn', overflow='raise')", "465.0 at index 0 overflows e4m3fn"),
        ("lp.Policy('mine', overflow='explode')", "overflow must be one of 'saturate', 'nonsaturate', 'signed',"),
        *((f"lp.encode(np.array([1.0, {value}], np.{dtype}), {name!r}, policy=strict)", message)
          for name, value, message in STRICT for dtype in ("float32", "float64")),
        ("lp.encode(np.array([2**60]), 'e5m2')", r"integers must be from -2\^53 to 2\^53, to be exact in float64,"),
        ("lp.encode(np.zeros(2, np.longdouble), 'e5m2')", TypeError, r"x must hold numbers of at most 64 bits, got"),
        ("encode_hybrid(np.ones(3))", TypeError, "x must be float32 or float16, got float64"),
        # Words from elsewhere.
        ("by_chance(random_words='philox')", "unknown stream 'philox'.*philox4x32"),
        ("by_chance(random_words='triton')", r"encode: seed must be an integer from 0 to 2\^64 - 1 for"),
        ("by_chance(random_words=[1, 2, 3])",
         r"random_words must have a word for each value, shape \(2,\), got \(3,\)"),
        ("by_chance(random_words=[1, 2], seed=1)", "seed must be None with given random_words, got 1"),
        ("by_chance(random_words=[1, 1 << 32])", "4294967296"),
        ("streams['triton'].words(0, (1 << 32) - 1, 2)", r"stream triton: offset must be below 2\^32, as in"),
        # Tables of values.
        ("lp.TableFormat('', [0.0, 1.0])", "TableFormat: name must be a non-empty string, got ''"),
        ("table(0.0, 1.0, 2.0)", r"TableFormat t: the number of values must be a power of two from 2 to 2\^16, got 3"),
        ("table(0.0, nan)", r"table must have two finite values at least, one of them positive, got \[0.0\]"),
        ("table(-1.0, 0.0)", "one of them positive"),
        ("table(0.0, 0.1)", "table must hold float32 numbers, got 0.1; the nearest is 0.10000000149011612"),
        ("table(-1.0, 1.0, 0.0, inf)", r"table must have -Inf if it has Inf and negative values, got \[-1.0, 0.0,"),
        ("table(2.0, 1.0, 0.0, -inf)", r"table has -Inf, so it must have Inf and negative values, got \[0.0, 1.0,"),
        ("table(2.0, 1.0, -0.0, -1.0)", r"TableFormat t: table must have 0 if it has -0, got \[-1.0, -0.0, 1.0, 2.0\]"),
        ("table(0.0, 1.0, next_above_max=1.0)", "a number above the largest value 1"),
        ("lp.formats['hif8'].nextafter(17.0, 0.0)", "hif8: x must be a value of the format, got 17.0"),
        ("lp.formats['nf4'].value(16)", r"code must be from 0 to 15, got 16"),
        ("lp.decode([16], 'nf4')", r"codes of nf4 must be from 0 to 15, got 16"),
        ("lp.mma(np.zeros((2, 32), 'u1'), np.zeros((2, 32), 'u1'), None, accumulator='hopper_fp8', a_format='hif8', "
         "b_format='hif8')", (TypeError, ValueError), "hif8"),
        # Packed codes.
        ("lp.pack([16], 4)", r"pack: codes must be from 0 to 15, got 16"),
        ("lp.pack([-1], 4)", "codes must be from 0 to 15, got -1"),
        ("lp.pack([1], 17)", "pack: bits must be an integer from 1 to 16, got 17"),
        ("lp.pack([0.5], 4)", TypeError, "float64"),
        ("lp.pack([1, 2], 4, out=bytes_)", "out must be a C-contiguous uint8 array"),
        ("lp.unpack(bytes_, 4, 5)", "unpack: packed must be 3 bytes for 5 codes of 4 bits, got 2"),
        ("lp.unpack(bytes_, 4, -1)", "unpack: count must be an integer >= 0, got -1"),
        ("lp.unpack([300], 4, 2)", "unpack: packed must be bytes from 0 to 255, got 300"),
        ("lp.unpack(bytes_[:1], 4, 2, out=np.empty(2, np.uint16))", r"unpack: out must be a C-contiguous uint8"),
        ("lp.unpack(np.zeros(2, np.float32), 4, 4)", TypeError, "bytes"),
        ("pack_e5m6(np.zeros(7, np.uint16))", r"pack_e5m6: codes must have a multiple of 8 along the last axis,"),
        ("unpack_e5m6(np.zeros(7, np.uint32))", r"unpack_e5m6: words must have a multiple of 3 along the last"),
        ("unpack_e5m6([1, 2, 3])", TypeError, "unpack_e5m6: words must be uint32, got int64"),
        ("pack_e5m6([4096] * 8)", "4096"),
    ],
    names,
)  # fmt: skip
