"""Conversions of machines, as their manuals' and simulators' worked examples have them: policies, roundings, words."""

import itertools
import math

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import casts

NAN, INF = math.nan, math.inf


def shifted(r: int, bits: int) -> np.ndarray:
    return np.array([r << (32 - bits)], np.uint32)


AVX10 = [  # x (a float16), b, E4M3, E4M3 saturating, E5M2, E5M2 saturating
    (1.0625, 127, 0x38, 0x38, 0x3C, 0x3C), (1.0625, 128, 0x39, 0x39, 0x3C, 0x3C),
    (1.009765625, 255, 0x39, 0x39, 0x3D, 0x3D), (-1.009765625, 254, 0xB9, 0xB9, 0xBD, 0xBD),
    (440.0, 192, 0x7E, 0x7E, 0x5F, 0x5F), (460.0, 255, 0x7F, 0x7E, 0x60, 0x60), (2.0**-10, 127, 0x00, 0x00, 0x14, 0x14),
    (2.0**-10, 128, 0x01, 0x01, 0x14, 0x14), (2.0**-20, 255, 0x00, 0x00, 0x01, 0x01),
    (61440.0, 128, 0x7F, 0x7E, 0x7C, 0x7B), (61440.0, 127, 0x7F, 0x7E, 0x7B, 0x7B),
]  # fmt: skip


@pytest.mark.parametrize(("x", "b", "hf8", "hf8s", "bf8", "bf8s"), AVX10)
def test_avx10_biased_conversions(x: float, b: int, hf8: int, hf8s: int, bf8: int, bf8s: int) -> None:
    for fmt, policy, wanted in (
        ("e4m3fn", "avx10", hf8), ("e4m3fn", "avx10_sat", hf8s), ("e5m2", "avx10", bf8), ("e5m2", "avx10_sat", bf8s),
    ):  # fmt: skip
        value = np.array([x], np.float16)
        code = lp.encode(value, fmt, rounding="avx10_bias", policy=policy, random=shifted(b, 8))
        assert code.tolist() == [wanted]


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
        ours = lp.encode(x, fmt, rounding="avx10_bias", policy="avx10", random=np.full(x.size, b << 24, np.uint32))
        assert np.array_equal(ours, wanted)


RISCV = [  # x, format, frm, code, saturating code
    (464.0, "e4m3fn", "nearest_even", 0x7E, 0x7E), (465.0, "e4m3fn", "nearest_even", 0x7F, 0x7E),
    (-465.0, "e4m3fn", "nearest_even", 0x7F, 0xFE), (INF, "e4m3fn", "nearest_even", 0x7F, 0x7E),
    (-NAN, "e4m3fn", "nearest_even", 0x7F, 0x7F), (-0.0, "e4m3fn", "nearest_even", 0x80, 0x80),
    (1e9, "e4m3fn", "toward_zero", 0x7E, 0x7E), (449.0, "e4m3fn", "up", 0x7F, 0x7E),
    (61440.0, "e5m2", "nearest_even", 0x7C, 0x7B), (NAN, "e5m2", "nearest_even", 0x7F, 0x7F),
    (-INF, "e5m2", "nearest_even", 0xFC, 0xFB),
]  # fmt: skip


@pytest.mark.parametrize(("x", "fmt", "frm", "code", "saturated"), RISCV)
def test_riscv_narrowing(x: float, fmt: str, frm: str, code: int, saturated: int) -> None:
    assert lp.encode([x], fmt, rounding=frm, policy="riscv").tolist() == [code]
    assert lp.encode([x], fmt, rounding=frm, policy="riscv_sat").tolist() == [saturated]


def test_riscv_bfloat16_has_one_nan() -> None:
    x = np.array([NAN, -NAN, INF, -INF, -1e-45], np.float32)
    assert lp.encode(x, "bfloat16", policy="riscv_bf16").tolist() == [0x7FC0, 0x7FC0, 0x7F80, 0xFF80, 0x8000]


ARM = [(56.0, 3, "e4m3fn", 0x7E, 0x7E), (480.0, 0, "e4m3fn", 0x7F, 0x7E), (61440.0, 0, "e5m2", 0x7C, 0x7B),
       (-NAN, 0, "e5m2", 0x7E, 0x7E), (INF, 0, "e4m3fn", 0x7F, 0x7E), (-INF, 0, "e5m2", 0xFC, 0xFB)]  # fmt: skip


@pytest.mark.parametrize(("x", "nscale", "fmt", "osc0", "osc1"), ARM)
def test_arm_narrowing(x: float, nscale: int, fmt: str, osc0: int, osc1: int) -> None:
    """NSCALE is a power of two: in float64 the product is exact, so there is one rounding."""
    scaled = np.ldexp(np.array([x], np.float64), nscale)
    assert lp.encode(scaled, fmt, policy="arm_osc0").tolist() == [osc0]
    assert lp.encode(scaled, fmt, policy="arm_osc1").tolist() == [osc1]


AMD = [  # x, seed, FP16_OVFL, E4M3, E5M2
    (1.0625, 0x7FFFFFFF, 0, 0x38, 0x3C), (1.0625, 0x80000000, 0, 0x39, 0x3C), (1.01, 0xFFFFFFFF, 0, 0x39, 0x3D),
    (440.0, 0xC0000000, 0, 0x7E, 0x5F), (470.0, 0xC0000000, 1, 0x7E, 0x60), (2.0**-12, 0xFFFFFFFF, 0, 0x01, None),
    (2.0**-40, 0xFFFFFFFF, 0, 0x00, 0x00), (NAN, 0, 0, 0xFF, 0xFE), (-NAN, 0, 1, 0xFF, 0xFE),
    (INF, 0, 1, 0x7F, 0x7C), (-INF, 0, 0, 0xFF, 0xFC), (1e9, 0, 0, 0x7F, 0x7C), (-1e9, 0, 0, 0xFF, 0xFC),
    (-1e9, 0, 1, 0xFE, 0xFB),
]  # fmt: skip


@pytest.mark.parametrize(("x", "seed", "ovfl", "fp8", "bf8"), AMD)
def test_amd_stochastic_conversions(x: float, seed: int, ovfl: int, fp8: int, bf8: int | None) -> None:
    value, word = np.array([x], np.float32), np.array([seed], np.uint32)
    policy = "amd_ovfl" if ovfl else "amd"
    assert lp.encode(value, "e4m3fn", rounding="amd_sr_e4m3", policy=policy, random=word).tolist() == [fp8]
    if bf8 is not None:
        assert lp.encode(value, "e5m2", rounding="amd_sr_e5m2", policy=policy, random=word).tolist() == [bf8]


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
    assert lp.encode(x, fmt, rounding=rounding, policy="amd", random=seeds).tolist() == wanted


PTX = [(0x3F808000, 0x7FFF, 0x3F80), (0x3F808000, 0x8000, 0x3F81), (0x3F800001, 0xFFFF, 0x3F81),
       (0x3F800001, 0xFFFE, 0x3F80), (0x3FFFFFFF, 0x0001, 0x4000), (0x7F7FFFFF, 0x0001, 0x7F80)]  # fmt: skip


@pytest.mark.parametrize(("bits", "r", "code"), PTX)
def test_ptx_rs_to_bfloat16(bits: int, r: int, code: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    assert lp.encode(x, "bfloat16", rounding="ptx_rs_bf16", random=shifted(r, 16)).tolist() == [code]
    saturated = min(code, 0x7F7F)
    sat = lp.encode(x, "bfloat16", rounding="ptx_rs_bf16", policy="cuda_satfinite", random=shifted(r, 16))
    assert sat.tolist() == [saturated]


@pytest.mark.parametrize("rounding", ["avx10_bias", "amd_sr_e4m3", "amd_sr_e5m2", "ptx_rs_f16", "ptx_rs_bf16"])
@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2", "bfloat16", "float16", "e8m0fnu", "hif8"])
def test_words_that_are_given_are_the_oracles_r(rounding: str, fmt: str) -> None:
    bits, rng = lp.roundings[rounding].random_bits, np.random.default_rng(3)
    x = np.abs(rng.standard_normal(200) * 2.0 ** rng.integers(-20, 20, 200))
    words = rng.integers(0, 1 << 32, x.size, dtype=np.uint32)
    rs = [int(w) >> (32 - bits) for w in words]
    if lp.formats[fmt].is_table:
        t = oracle.tables.hif8()
        wanted = [oracle.tables.cast(v, t, "A", "ocp_sat", r, bits) for v, r in zip(x.tolist(), rs, strict=True)]
    else:
        f = oracle.fields(lp.formats[fmt])
        wanted = [casts.cast(v, f, "A", "ocp_sat", r, bits) for v, r in zip(x.tolist(), rs, strict=True)]
    assert lp.encode(x, fmt, rounding=rounding, policy="ocp_sat", random=words).tolist() == wanted
    rounded = lp.round_to(x, fmt, rounding=rounding, policy="ocp_sat", random=words)
    assert np.array_equal(rounded, lp.decode(np.array(wanted, lp.formats[fmt].code_dtype), fmt))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["riscv", "riscv_bf16", "arm_osc1", "amd", "amd_ovfl", "cann_sat"])
def test_policies_of_machines_on_every_float16(policy: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    special = ~(np.abs(x.astype(np.float32)) < 300)
    some = np.concatenate([x[special][::5], x[~special][::501]])
    for fmt, mode in itertools.product(("e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn"), ("nearest_even", "up")):
        f = oracle.fields(lp.formats[fmt])
        wanted = [casts.cast(v, f, mode, policy) for v in some.tolist()]
        assert lp.encode(some, fmt, rounding=mode, policy=policy).tolist() == wanted
