"""Conversions of machines, as their manuals' and simulators' examples have them: policies, roundings, words, HiF8."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.cast.hybrid import encode_hybrid
from lowprec.oracle import casts, tables

NAN, INF = math.nan, math.inf


#: Worked examples of AVX10: x (a float16), b, E4M3, E4M3 saturating, E5M2, E5M2 saturating.
AVX10 = [
    (1.0625, 127, 0x38, 0x38, 0x3C, 0x3C), (1.0625, 128, 0x39, 0x39, 0x3C, 0x3C),
    (1.009765625, 255, 0x39, 0x39, 0x3D, 0x3D), (-1.009765625, 254, 0xB9, 0xB9, 0xBD, 0xBD),
    (440.0, 192, 0x7E, 0x7E, 0x5F, 0x5F), (460.0, 255, 0x7F, 0x7E, 0x60, 0x60), (2.0**-10, 127, 0x00, 0x00, 0x14, 0x14),
    (2.0**-10, 128, 0x01, 0x01, 0x14, 0x14), (2.0**-20, 255, 0x00, 0x00, 0x01, 0x01),
    (61440.0, 128, 0x7F, 0x7E, 0x7C, 0x7B), (61440.0, 127, 0x7F, 0x7E, 0x7B, 0x7B),
]  # fmt: skip
#: Of RISC-V: x, format, frm, code, saturating code.
RISCV = [
    (464.0, "e4m3fn", "nearest_even", 0x7E, 0x7E), (465.0, "e4m3fn", "nearest_even", 0x7F, 0x7E),
    (-465.0, "e4m3fn", "nearest_even", 0x7F, 0xFE), (INF, "e4m3fn", "nearest_even", 0x7F, 0x7E),
    (-NAN, "e4m3fn", "nearest_even", 0x7F, 0x7F), (-0.0, "e4m3fn", "nearest_even", 0x80, 0x80),
    (1e9, "e4m3fn", "toward_zero", 0x7E, 0x7E), (449.0, "e4m3fn", "up", 0x7F, 0x7E),
    (61440.0, "e5m2", "nearest_even", 0x7C, 0x7B), (NAN, "e5m2", "nearest_even", 0x7F, 0x7F),
    (-INF, "e5m2", "nearest_even", 0xFC, 0xFB),
]  # fmt: skip
#: Of Arm: x, NSCALE, a power of two, so that in float64 there is one rounding, format, code and that of OSC = 1.
ARM = [(56.0, 3, "e4m3fn", 0x7E, 0x7E), (480.0, 0, "e4m3fn", 0x7F, 0x7E), (61440.0, 0, "e5m2", 0x7C, 0x7B),
       (-NAN, 0, "e5m2", 0x7E, 0x7E), (INF, 0, "e4m3fn", 0x7F, 0x7E), (-INF, 0, "e5m2", 0xFC, 0xFB)]  # fmt: skip
#: Of AMD: x, seed, FP16_OVFL, E4M3, E5M2.
AMD = [
    (1.0625, 0x7FFFFFFF, 0, 0x38, 0x3C), (1.0625, 0x80000000, 0, 0x39, 0x3C), (1.01, 0xFFFFFFFF, 0, 0x39, 0x3D),
    (440.0, 0xC0000000, 0, 0x7E, 0x5F), (470.0, 0xC0000000, 1, 0x7E, 0x60), (2.0**-12, 0xFFFFFFFF, 0, 0x01, None),
    (2.0**-40, 0xFFFFFFFF, 0, 0x00, 0x00), (NAN, 0, 0, 0xFF, 0xFE), (-NAN, 0, 1, 0xFF, 0xFE),
    (INF, 0, 1, 0x7F, 0x7C), (-INF, 0, 0, 0xFF, 0xFC), (1e9, 0, 0, 0x7F, 0x7C), (-1e9, 0, 0, 0xFF, 0xFC),
    (-1e9, 0, 1, 0xFE, 0xFB),
]  # fmt: skip
#: Of PTX: float32 bits, the upper 16 random bits, a bfloat16.
PTX = [(0x3F808000, 0x7FFF, 0x3F80), (0x3F808000, 0x8000, 0x3F81), (0x3F800001, 0xFFFF, 0x3F81),
       (0x3F800001, 0xFFFE, 0x3F80), (0x3FFFFFFF, 0x0001, 0x4000), (0x7F7FFFFF, 0x0001, 0x7F80)]  # fmt: skip


def examples() -> Iterator[tuple[np.generic, str, str, str, int | None, int]]:
    """Yield a value, the format, rounding, policy and random word of its conversion, and the code."""
    for x, b, hf8, hf8s, bf8, bf8s in AVX10:
        for fmt, normal, saturated in (("e4m3fn", hf8, hf8s), ("e5m2", bf8, bf8s)):
            yield np.float16(x), fmt, "avx10_bias", "avx10", b << 24, normal
            yield np.float16(x), fmt, "avx10_bias", "avx10_sat", b << 24, saturated
    for x, fmt, frm, code, saturated in RISCV:
        yield np.float64(x), fmt, frm, "riscv", None, code
        yield np.float64(x), fmt, frm, "riscv_sat", None, saturated
    for x, code in zip((NAN, -NAN, INF, -INF, -1e-45), (0x7FC0, 0x7FC0, 0x7F80, 0xFF80, 0x8000), strict=True):
        yield np.float32(x), "bfloat16", "nearest_even", "riscv_bf16", None, code
    for x, nscale, fmt, osc0, osc1 in ARM:
        yield np.ldexp(np.float64(x), nscale), fmt, "nearest_even", "arm_osc0", None, osc0
        yield np.ldexp(np.float64(x), nscale), fmt, "nearest_even", "arm_osc1", None, osc1
    for x, seed, ovfl, fp8, bf8 in AMD:
        for fmt, rounding, code in (("e4m3fn", "amd_sr_e4m3", fp8), ("e5m2", "amd_sr_e5m2", bf8)):
            if code is not None:
                yield np.float32(x), fmt, rounding, "amd_ovfl" if ovfl else "amd", seed, code
    for bits, r, code in PTX:
        for policy, wanted in ((None, code), ("cuda_satfinite", min(code, 0x7F7F))):
            yield np.uint32(bits).view(np.float32), "bfloat16", "ptx_rs_bf16", policy, r << 16, wanted


@pytest.mark.parametrize(("x", "fmt", "rounding", "policy", "word", "code"), [*examples()])
def test_worked_examples(x, fmt, rounding, policy, word, code) -> None:
    how = {"rounding": rounding, "policy": policy} | (
        {} if word is None else {"random_words": np.array([word], np.uint32)}
    )
    assert lp.encode(np.array([x]), fmt, **how).tolist() == [code]
    if word is None:
        assert casts.cast(float(x), oracle.fields(lp.formats[fmt]), rounding, lp.policies[policy].name) == code


@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2"])
def test_avx10_bias_is_floor_of_quanta(fmt: str) -> None:
    """Every positive finite float16: floor(|x|/q + b/256) quanta, which the exact oracle calls StochasticA."""
    x = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    f = lp.formats[fmt]
    exponent = np.maximum(np.frexp(x)[1] - 1, f.emin)
    q = np.ldexp(1.0, exponent - f.mantissa_bits)
    for b in (0, 1, 63, 128, 255):
        value = np.floor(x / q + b / 256) * q
        wanted = lp.encode(np.minimum(value, 1e9), fmt, policy="avx10")
        ours = lp.encode(
            x, fmt, rounding="avx10_bias", policy="avx10", random_words=np.full(x.size, b << 24, np.uint32)
        )
        assert np.array_equal(ours, wanted)


def narrowed(x: float, fmt: str, seed: int) -> int:
    """v_cvt_sr_*: the significand aligned to the least normal without a sticky bit, plus the seed's bits, then cut."""
    f, bits = lp.formats[fmt], int(np.float32(x).view(np.uint32))
    m, emin = f.mantissa_bits, f.emin
    exponent, s = max((bits >> 23 & 0xFF) - 127, -126), bits & 0x7FFFFF | (0x800000 if bits >> 23 & 0xFF else 0)
    s >>= min(max(emin - exponent, 0), 24)
    s += seed >> 32 - (23 - m)
    exponent = max(exponent, emin)
    if s >> 24:
        s, exponent = s >> 1, exponent + 1
    code = (exponent - emin + 1 << m) + (s >> 23 - m) - (1 << m)
    return bits >> 31 << 7 | (code if code <= f.max_code else f.inf_code or f.nan_code or 0)


@pytest.mark.parametrize(("fmt", "rounding"), [("e4m3fn", "amd_sr_e4m3"), ("e5m2", "amd_sr_e5m2")])
def test_amd_instructions_are_stochastic_a(fmt: str, rounding: str) -> None:
    rng = np.random.default_rng(8)
    x = (rng.standard_normal(4000) * 2.0 ** rng.integers(-22, 12, 4000)).astype(np.float32)
    seeds = rng.integers(0, 1 << 32, x.size, dtype=np.uint32)
    wanted = [narrowed(v, fmt, int(seed)) for v, seed in zip(x.tolist(), seeds, strict=True)]
    assert lp.encode(x, fmt, rounding=rounding, policy="amd", random_words=seeds).tolist() == wanted


@pytest.mark.parametrize("rounding", ["avx10_bias", "amd_sr_e4m3", "amd_sr_e5m2", "ptx_rs_f16", "ptx_rs_bf16"])
@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2", "bfloat16", "float16", "e8m0fnu", "hif8"])
def test_words_that_are_given_are_the_oracles_r(rounding: str, fmt: str) -> None:
    bits, rng = lp.roundings[rounding].random_bits, np.random.default_rng(3)
    x = np.abs(rng.standard_normal(200) * 2.0 ** rng.integers(-20, 20, 200))
    words = rng.integers(0, 1 << 32, x.size, dtype=np.uint32)
    table, f = oracle.tables.hif8(), lp.formats[fmt]
    cast, form = (oracle.tables.cast, table) if f.is_table else (casts.cast, oracle.fields(f))
    drawn = zip(x.tolist(), (words >> (32 - bits)).tolist(), strict=True)
    wanted = [cast(v, form, "A", "ocp_sat", r, bits) for v, r in drawn]
    assert lp.encode(x, fmt, rounding=rounding, policy="ocp_sat", random_words=words).tolist() == wanted
    rounded = lp.round_to(x, fmt, rounding=rounding, policy="ocp_sat", random_words=words)
    assert np.array_equal(rounded, lp.decode(np.array(wanted, lp.formats[fmt].code_dtype), fmt))


# --- HiF8's hybrid rounding -------------------------------------------------------------------------------------------


T = tables.hif8()
POSITIVE = [v for v in T.numbers if v >= 0]
PLACES = {value: place for place, value in enumerate(POSITIVE)}
FLOAT32 = [(16.0, 0x41), (16.001, 0x40), (17.0, 0x41), (300.0, 0x61), (2.0**-20, 0x04), (32768.0, 0x6F),
           (-32768.0, 0xEF), (33000.0, 0x6E)]  # fmt: skip
FLOAT16 = [(16.0, 0x40), (17.0, 0x41), (18.015625, 0x40), (300.0, 0x61), (384.0, 0x61), (32768.0, 0x6E),
           (40000.0, 0x6F), (2.0**-24, 0x00), (2.0**-23, 0x01)]  # fmt: skip


@pytest.mark.parametrize(("dtype", "examples"), [(np.float32, FLOAT32), (np.float16, FLOAT16)])
def test_published_examples(dtype: type, examples: list[tuple[float, int]]) -> None:
    x = np.array([value for value, _ in examples], dtype)
    assert encode_hybrid(x, policy="ocp_nonsat").tolist() == [code for _, code in examples]


def hybrid(sign: int, e: int, fraction: int, bits: int, last: int, everywhere: bool) -> int:
    """Return the code of (1 + fraction / 2^bits) 2^e, by the rule as it reads."""
    size = abs(e)
    if size < 4 and not everywhere:
        return tables.cast((-1) ** sign * float(np.ldexp(1 + fraction / 2**bits, e)), T, "nearest_away", "ocp_nonsat")
    w = 3 if size < 4 else 2 if size < 8 else 1 if size < 16 else 0
    if e == -23:
        place = 0
        first = (fraction >> 10) + 8192 if bits == 23 else 2 + (fraction >> 9)
    else:
        value = (1 + (fraction >> bits - w) / 2**w) * 2.0**e
        place = PLACES[value]
        rest = fraction & ((1 << bits - w) - 1)
        first = rest >> (bits - w - (14 if bits == 23 else 2))
    place += first >= (fraction & 0x3FFF if bits == 23 else 2 * last + 1)
    code = 0x6F if place == len(POSITIVE) else T.codes[POSITIVE[place]]
    return code | sign << 7 if code else 0


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, True])
def test_every_float16(everywhere: bool) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    keep = (np.abs(x.astype(np.float32)) < 40960) & (np.abs(x.astype(np.float32)) >= 2.0**-23)
    x = x[keep]
    mantissa, exponent = np.frexp(np.abs(x.astype(np.float64)))
    wanted = [
        hybrid(int(word) >> 15, int(e) - 1, int((2 * m - 1) * 1024), 10, int(word) & 1, everywhere)
        for word, m, e in zip(x.view(np.uint16), mantissa, exponent, strict=True)
    ]
    assert encode_hybrid(x, everywhere=everywhere, policy="ocp_nonsat").tolist() == wanted


@pytest.mark.slow
def test_float32() -> None:
    rng = np.random.default_rng(4)
    bits = (rng.integers(104, 143, 20_000) << 23 | rng.integers(0, 1 << 23, 20_000)).astype(np.uint32)
    bits[::3] &= np.uint32(0xFFFC0000)
    bits |= rng.integers(0, 2, bits.size).astype(np.uint32) << np.uint32(31)
    bits = bits[np.abs(bits.view(np.float32)) < 40960]
    wanted = [hybrid(w >> 31, (w >> 23 & 0xFF) - 127, w & 0x7FFFFF, 23, 0, False) for w in bits.tolist()]
    assert encode_hybrid(bits.view(np.float32), policy="ocp_nonsat").tolist() == wanted


def test_values_that_move_and_specials() -> None:
    f = lp.formats["hif8"]
    values = f.values()[np.isfinite(f.values()) & (f.values() > 0)]
    moved = encode_hybrid(values, policy="ocp_nonsat") != lp.encode(values, f)
    assert (values.size, np.count_nonzero(moved)) == (126, 70)
    narrow = values.astype(np.float16)
    assert np.array_equal(encode_hybrid(narrow, policy="ocp_nonsat"), lp.encode(values, f))
    special = np.array([np.nan, np.inf, -np.inf, 40960, 0.0, -0.0, 1e-30, -1e-40], np.float32)
    assert encode_hybrid(special, policy="ocp_nonsat").tolist() == [0x80, 0x6F, 0xEF, 0x6F, 0, 0, 0, 0]
    assert encode_hybrid(special, policy="cann_sat").tolist() == [0, 0x6E, 0xEE, 0x6E, 0, 0, 0, 0]
