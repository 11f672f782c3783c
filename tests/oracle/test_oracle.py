"""The oracle alone: hand-worked vectors, the published facts of every format, and ml_dtypes for every code."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from micro_vectors import FACTS, HOPPER_E4M3, INF, NAN, ONE, SHORT_FLOAT32, Dot

from lowprec.oracle import ADA_FP8, E4M3FN, E5M2, FLOAT16, FLOAT32, HOPPER_FP8, Fields, Rule, decode, encode, fused_dot
from lowprec.oracle.ieee import exact_dot, fma32, sequential_f32
from lowprec.oracle.tiles import promoted_dot, quantize_tile
from lowprec.oracle.values import max_code, nan_code

UP_TO_16_BITS = list(FACTS)
IN_ML_DTYPES = [name for name, facts in FACTS.items() if facts.ml_dtypes]


def codes_of(fields: Fields) -> range:
    return range(1 << (fields.width + fields.signed))


def same(x: Fraction | float, y: Fraction | float) -> bool:
    """Equal as values, NaN equal to NaN, and zeros equal only with their signs."""
    return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) == math.copysign(1, y))


def pad(dot: Dot, fmt: Fields, k: int = 32) -> list[list[int]]:
    return [[encode(v, fmt) for v in side] + [0] * (k - len(side)) for side in (dot.a, dot.b)]


# Formats


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", UP_TO_16_BITS)
def test_decode_has_the_published_facts(name: str) -> None:
    facts = FACTS[name]
    values = {code: decode(code, facts.fields) for code in codes_of(facts.fields)}
    assert max_code(facts.fields) == facts.max_code
    assert values[facts.max_code] == facts.maximum
    assert tuple(c for c, v in values.items() if math.isnan(v)) == tuple(sorted(facts.nan_codes))
    assert [c for c, v in values.items() if v == math.inf] == ([] if facts.inf_code is None else [facts.inf_code])
    assert any(v == 0 and math.copysign(1, v) < 0 for v in values.values()) == facts.negative_zero
    positive = {v for v in values.values() if 0 < v < math.inf}
    normal = Fraction(2) ** facts.min_normal
    smallest = normal if facts.min_subnormal is None else Fraction(2) ** facts.min_subnormal
    assert min(positive) == smallest
    assert normal in positive
    if facts.min_subnormal is not None:  # their spacing reaches through the first normal binade and no further
        assert {normal - smallest, 2 * normal - smallest} <= positive
        assert 2 * normal + smallest not in positive
    assert not facts.nan_codes or nan_code(facts.fields) in facts.nan_codes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", IN_ML_DTYPES)
def test_decode_is_ml_dtypes_for_every_code(name: str) -> None:
    facts = FACTS[name]
    codes = np.arange(len(codes_of(facts.fields)), dtype=np.uint16 if name == "bfloat16" else np.uint8)
    with np.errstate(invalid="ignore"):  # bfloat16's signalling NaNs
        theirs = codes.view(getattr(ml_dtypes, facts.ml_dtypes)).astype(np.float64)
    assert all(same(decode(int(c), facts.fields), float(v)) for c, v in zip(codes, theirs, strict=True))


@pytest.mark.slow
def test_decode_is_numpy_for_every_float16() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).tolist()
    assert all(same(decode(code, FLOAT16), v) for code, v in enumerate(values))


@pytest.mark.parametrize("fields", SHORT_FLOAT32.values(), ids=SHORT_FLOAT32)
def test_decode_of_shortened_float32_is_the_shifted_pattern(fields: Fields) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << (fields.width + 1), 3000).tolist()
    codes += [0, 1 << fields.width, 1, nan_code(fields)]
    patterns = np.array([c << (23 - fields.mantissa_bits) for c in codes], dtype=np.uint32).view(np.float32)
    assert all(same(decode(c, fields), float(v)) for c, v in zip(codes, patterns, strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*UP_TO_16_BITS, *SHORT_FLOAT32])
@pytest.mark.parametrize("overflow", ["saturate", "nonsaturate"])
def test_encode_inverts_decode(name: str, overflow: str) -> None:
    fields = SHORT_FLOAT32[name] if name in SHORT_FLOAT32 else FACTS[name].fields
    codes = codes_of(fields)
    if len(codes) > 1 << 16:
        codes = np.random.default_rng(2).integers(0, len(codes), 2000).tolist()
    top = max_code(fields) + (overflow == "nonsaturate")
    for code in codes:
        value = decode(code, fields)
        infinite = top | (code & 1 << fields.width)
        wanted = code if math.isfinite(value) else nan_code(fields) if math.isnan(value) else infinite
        assert encode(value, fields, overflow) == wanted


@pytest.mark.parametrize("name", [n for n in UP_TO_16_BITS if FACTS[n].fields.width < 12])
def test_encode_goes_to_the_nearest_code_and_ties_to_the_even_one(name: str) -> None:
    fields = FACTS[name].fields
    tiny, sign = Fraction(1, 1 << 200), 1 << fields.width
    for low in range(max_code(fields)):
        below, above = decode(low, fields), decode(low + 1, fields)
        middle, even = (below + above) / 2, low + low % 2
        got = [encode(v, fields) for v in (middle, middle - tiny, middle + tiny, below + tiny, above - tiny)]
        assert got == [even, low, low + 1, low, low + 1]
        if fields.signed:
            zero = 0 if fields.specials == "fnuz" else sign
            assert encode(-middle, fields) == (even | sign if even else zero)
            assert encode(-middle - tiny, fields) == (low + 1) | sign


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        (math.nan, [0x7F, 0x7F, 0x7E, 0x7E]),
        (math.inf, [0x7E, 0x7F, 0x7B, 0x7C]),
        (-math.inf, [0xFE, 0xFF, 0xFB, 0xFC]),
        (1e6, [0x7E, 0x7F, 0x7B, 0x7C]),
        (-1e300, [0xFE, 0xFF, 0xFB, 0xFC]),
        (-0.0, [0x80, 0x80, 0x80, 0x80]),
        (464, [0x7E, 0x7E, 0x5F, 0x5F]),  # 464 = 29/16 * 2^8 ties down to 448 in E4M3
        (464 + 2.0**-44, [0x7E, 0x7F, 0x5F, 0x5F]),
        (61440, [0x7E, 0x7F, 0x7B, 0x7C]),  # ties up, to what would be 65536
        (61440 - 2.0**-37, [0x7E, 0x7F, 0x7B, 0x7B]),
        (-(2.0**-10), [0x80, 0x80, 0x94, 0x94]),  # half of E4M3's smallest subnormal
        (2.0**-17, [0x00, 0x00, 0x00, 0x00]),
        (2.0**-17 * (1 + 2.0**-52), [0x00, 0x00, 0x01, 0x01]),
    ],
)
def test_encode_follows_the_ofp8_table(value: float, codes: list[int]) -> None:
    assert [encode(value, fmt, over) for fmt in (E4M3FN, E5M2) for over in ("saturate", "nonsaturate")] == codes


def test_encode_into_formats_without_inf_nan_or_negative_zero() -> None:
    fnuz, fp4, e8m0 = (FACTS[n].fields for n in ("e4m3fnuz", "e2m1fn", "e8m0fnu"))
    values = (math.nan, -0.0, -(2.0**-30), 248, 247.9, -math.inf, -1000)
    assert [encode(v, fnuz, "saturate") for v in values] == [0x80, 0, 0, 0x7F, 0x7F, 0xFF, 0xFF]
    assert [encode(v, fnuz, "nonsaturate") for v in values] == [0x80, 0, 0, 0x80, 0x7F, 0x80, 0x80]
    for overflow in ("saturate", "nonsaturate"):
        got = [encode(v, fp4, overflow) for v in (math.nan, math.inf, -math.inf, 100, -0.0, 0.25, 0.75, 5)]
        assert got == [7, 7, 15, 7, 8, 0, 2, 6]
    got = [encode(v, e8m0) for v in (1, 1.5, 3, 6, 2.0**-127, 2.0**-140, 2.0**300, math.inf, math.nan, -1)]
    assert got == [127, 128, 128, 130, 0, 0, 254, 254, 255, 255]  # ties go to the even code
    assert encode(2.0**127 * 1.51, e8m0, "nonsaturate") == 255


# Float32 arithmetic


def test_fma32_is_the_rounding_of_an_exact_sum() -> None:
    """Products of 24 bits are exact in float64; where the sum is too (checked), rounding it once is the answer."""
    rng, checked = np.random.default_rng(3), 0
    for _ in range(500):
        a, b = rng.standard_normal(2).astype(np.float32)
        c = np.float32(float(a) * float(b) * -(1 + int(rng.integers(0, 8)) * 2.0**-12))
        total = float(a) * float(b) + float(c)
        if Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) == Fraction(total):
            checked += 1
            *operands, wanted = np.array([a, b, c, total], np.float32).view(np.uint32).tolist()
            assert fma32(*operands) == wanted
    assert checked > 300


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        (ONE, ONE, 0xBF800000, 0),  # cancellation gives +0
        (0x80000000, ONE, 0x80000000, 0x80000000),
        (0x80000000, ONE, 0, 0),
        (0x00000001, 0x00000001, 0x80000001, 0x80000001),
        (0x00000001, 0x80000001, 0, 0x80000000),  # underflow keeps its sign
        (INF, 0, 0, 0x7FC00000),
        (INF, ONE, 0xFF800000, 0x7FC00000),
        (0x7F7FFFFF, 0x7F7FFFFF, 0, INF),
        (0x3F800001, 0x3F800001, 0xBF800002, 0x28800000),  # 2^-46, lost without the fused product
    ],
)
def test_fma32_of_ieee_754(a: int, b: int, c: int, result: int) -> None:
    assert fma32(a, b, c) == result


def test_exact_and_sequential_sums() -> None:
    one, tiny, big = (encode(v, E5M2) for v in (1, 2.0**-16, 2.0**15))
    big2 = encode(-(2.0**15), E5M2)
    a, b = [big, one, tiny, big2], [big, one, tiny, big]
    assert exact_dot(a, b, 0, E5M2, E5M2) == 0x3F800000  # 1 + 2^-32 rounds to 1
    assert sequential_f32(a, b, 0, E5M2, E5M2) == 0  # 2^30 + 1 is 2^30
    assert exact_dot([0x80], [one], 0x80000000, E5M2, E5M2) == 0
    assert sequential_f32([0x80], [one], 0x80000000, E5M2, E5M2) == 0x80000000
    assert exact_dot([], [], ONE, E5M2, E5M2) == ONE


# Tensor cores


@pytest.mark.parametrize("dot", HOPPER_E4M3, ids=lambda dot: dot.name)
@pytest.mark.parametrize("rule", [HOPPER_FP8, ADA_FP8], ids=["hopper", "ada"])
def test_published_micro_vectors(dot: Dot, rule: Rule) -> None:
    assert hex(fused_dot(*pad(dot, E4M3FN), dot.c, rule, E4M3FN, E4M3FN)) == hex(dot.d)


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        ([16], [1], 65504, 0x7C00),  # 65520 ties up
        ([12], [1], 65504, 0x7BFF),
        ([1] * 16, [1] * 16, 65504, 0x7BFF),  # each 1 is below 2^(15 - 13)
        ([math.nan], [0], 0, 0x7FFF),
        ([0], [0], -0.0, 0),
        ([0], [0], -(2.0**-24), 0x8001),
    ],
)
def test_float16_accumulate_rounds_once_to_nearest(a: list[float], b: list[float], c: float, result: int) -> None:
    codes = [[encode(v, E4M3FN) for v in side] for side in (a, b)]
    assert fused_dot(*codes, encode(c, FLOAT16), Rule(output="f16"), E4M3FN, E4M3FN) == result


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        ([0x7C], [0x3C], 0, INF),
        ([0xFC], [0x3C], 0, 0xFF800000),
        ([0x7C], [0x00], 0, NAN),
        ([0x7C], [0x80], 0, NAN),
        ([0x7C, 0xFC], [0x3C, 0x3C], 0, NAN),
        ([0x7C], [0x3C], 0xFF800000, NAN),
        ([0x7C], [0x3C], INF, INF),
        ([0x3C], [0x3C], 0xFF800000, 0xFF800000),
        ([0xFE], [0x3C], 0, NAN),
        ([0x7D], [0x7C], INF, NAN),
        ([0x80], [0x3C], 0x80000000, 0),
    ],
)
def test_specials_by_the_class_of_the_sum(a: list[int], b: list[int], c: int, result: int) -> None:
    assert fused_dot(a, b, c, HOPPER_FP8, E5M2, E5M2) == result


def test_interleaved_groups() -> None:
    assert Rule(group=4, interleaved=True).groups(10) == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9], []]
    assert Rule(group=4).groups(10) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_promotion_adds_scaled_partials_in_float32() -> None:
    one, third = encode(1, E4M3FN), encode(Fraction(1, 3), FLOAT32)
    # Each partial is exactly 128; fl32(1/3 * 1) * 128 added twice.
    got = promoted_dot([one] * 256, [one] * 256, [(third, ONE)] * 2, 128, HOPPER_FP8, E4M3FN, E4M3FN)
    assert decode(got, FLOAT32) == decode(third, FLOAT32) * 256
    # In one chain the same ones stay exact too; 2^-13 beside 16 does not, unless promoted before.
    a, b = ([one] * 32 + [encode(tiny, E4M3FN)] * 32 for tiny in (2.0**-7, 2.0**-6))
    assert promoted_dot(a, b, [(ONE, ONE)] * 2, 32, HOPPER_FP8, E4M3FN, E4M3FN) == encode(32 + 2.0**-8, FLOAT32)
    assert promoted_dot(a, b, [(ONE, ONE)], 64, HOPPER_FP8, E4M3FN, E4M3FN) == encode(32, FLOAT32)
    assert promoted_dot([], [], [], 128, HOPPER_FP8, E4M3FN, E4M3FN) == 0


# Block scaling


@pytest.mark.parametrize(
    ("tile", "options", "codes", "scale"),
    [
        ([[448.0, -1.0, 0.0, -0.0]], {}, [[0x7E, 0xB8, 0, 0x80]], 1.0),
        ([[449.0]], {"scale": "ue8m0"}, [[0x76]], 2.0),  # 224.5 rounds to 224
        ([[3.0]], {}, [[0x7E]], float(np.float32(3) / np.float32(448))),
        ([[0.0] * 3] * 2, {}, [[0, 0, 0]] * 2, 1.0),
        ([1e-6], {"amax_floor": 1e-4}, None, float(np.float32(1e-4) / np.float32(448))),
        *(([1.0, bad], {}, [0x7F, 0x7F], math.nan) for bad in (math.nan, math.inf, -math.inf)),
    ],
)
def test_quantize_tile_by_hand(tile: list, options: dict, codes: list | None, scale: float) -> None:
    got = quantize_tile(tile, E4M3FN, **options)
    assert codes is None or got[0].tolist() == codes
    assert same(float(got[1]), scale)


@pytest.mark.parametrize("k", range(-120, 120, 7))
def test_power_of_two_scales_change_only_past_the_power(k: int) -> None:
    amax = np.float32(448.0 * 2.0**k)
    assert quantize_tile([amax], E4M3FN, "ue8m0")[1] == 2.0**k
    assert quantize_tile([np.nextafter(amax, np.float32(np.inf))], E4M3FN, "ue8m0")[1] == 2.0 ** (k + 1)
    # One step below, the float32 quotient is below the power as well: 448 is 1.75 * 2^8, so no rounding reaches it.
    assert quantize_tile([np.nextafter(amax, np.float32(0))], E4M3FN, "ue8m0")[1] == 2.0**k
