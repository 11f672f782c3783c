"""The oracle's machines alone: vectors worked out by hand, the published one, and every recording of a real GPU."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from recordings import FOLDER, needs_recordings

import lowprec as lp
from lowprec.oracle import ACCUMULATORS, FORMATS, Fields, Scales, decode, encode, fused_dot, tf32_code
from lowprec.oracle.values import (
    BFLOAT16,
    E2M1FN,
    E4M3FN,
    E5M2,
    E5M2FNUZ,
    E8M0FNU,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    TF32,
    UE4M3,
)
from lowprec.vectors.recordings import OUTPUTS, RECORDINGS, Recording, read

NAN, INF, ONE = 0x7FFFFFFF, 0x7F800000, 0x3F800000
BELOW_ONE = 0x3F7FFFFF  # 1 - 2^-24


def f32(value: float | Fraction) -> int:
    return encode(value, FLOAT32)


def codes_of(a: list[float], b: list[float], fmt: Fields) -> list[list[int]]:
    return [[encode(v, fmt, "nonsaturate") for v in side] for side in (a, b)]


def dot(machine: str, a: list[float], b: list[float], c: float | Fraction | int = 0.0, fmt: Fields = FLOAT16) -> int:
    """Bits that a machine makes of values; an int c is taken as its bits."""
    rule = ACCUMULATORS[machine].rule
    c_bits = c if isinstance(c, int) else encode(c, rule.c_format)
    return rule.dot(*codes_of(a, b, fmt), c_bits, fmt, fmt)


# The published vector: a = [-2^13, -1/2, -1/4, -1/8], b = [2^10, 1, 1, 1], c = 2^23; exactly -0.875.

PUBLISHED = {
    **dict.fromkeys(["ada_fp8", "hopper_fp8", "volta_f16", "cdna2_f16", "cdna2_bf16_1k"], 0.0),
    **dict.fromkeys(["turing_f16", "ampere_f16", "ampere_bf16", "ampere_tf32"], -0.5),
    **dict.fromkeys(["ada_f16", "ada_bf16", "ada_tf32", "cdna3_xf32", "cdna3_f16", "cdna3_bf16"], -0.5),
    **{f"{chip}_{x}": -0.75 for chip in ("hopper", "blackwell", "rtx_blackwell") for x in ("f16", "bf16", "tf32")},
    **dict.fromkeys(["blackwell_fp8", "rtx_blackwell_fp8"], -0.75),
    **dict.fromkeys(["cdna1_f16", "cdna1_bf16", "cdna1_f32", "cdna2_f32", "cdna3_f32", "fp64"], -0.875),
    "cdna2_bf16": -0.375,
    "cdna3_fp8": -1.0,
}


@pytest.mark.parametrize("machine", PUBLISHED)
def test_one_vector_tells_the_machines_apart(machine: str) -> None:
    # e5m2 rather than e4m3fn; the five formats of Blackwell end otherwise
    fmt = FORMATS[ACCUMULATORS[machine].inputs[-1]]
    fmt = E5M2 if machine.endswith("blackwell_fp8") else fmt
    a, b = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0]
    assert [float(decode(encode(v, fmt), fmt)) for v in a + b] == a + b
    assert decode(dot(machine, a, b, 2.0**23, fmt), ACCUMULATORS[machine].rule.c_format) == PUBLISHED[machine]


def test_every_wide_accumulator_with_a_published_rule_is_in_the_row() -> None:
    """What need not be: results in float16, which cannot hold 2^23, those with scales, and what nobody published."""
    wide = {n for n, m in ACCUMULATORS.items() if m.rule.c_format != FLOAT16 and m.scales is None}
    published = {n for n in wide if "arXiv" in lp.accumulators[n].source}
    assert published == set(PUBLISHED)


# Formats of operands, exponents of zeros


def test_tf32_operands_are_cut_float32() -> None:
    assert tf32_code(0x3FFFFFFF) == tf32_code(0x3FFFE000)
    assert decode(tf32_code(0x7F800001), TF32) == float("inf")  # the payload was below the cut
    assert decode(tf32_code(0xFFC00000), TF32) != decode(tf32_code(0xFFC00000), TF32)
    assert decode(tf32_code(0x80001FFF), TF32) == 0


@pytest.mark.parametrize("machine", ["ampere_bf16", "ada_bf16", "hopper_bf16", "blackwell_bf16", "rtx_blackwell_bf16"])
def test_zero_terms_bound_the_alignment_of_bfloat16(machine: str) -> None:
    """Two products make 2^-149, the last bit of a result, if what they have below the last aligned bit is not cut."""
    ampere = machine.startswith("a")
    (x, y), (z, w) = ((251, 256), (5, 256)) if ampere else ((143, 448), (23, 64))
    a, b = [x * 2.0**-80, z * 2.0**-80], [y * 2.0**-85, w * 2.0**-85]
    assert x * y + z * w == 2**16
    assert dot(machine, a, b, 0, BFLOAT16) == 0
    rule, last = ACCUMULATORS[machine].rule, -133 if ampere else -134
    for exponent, result in ((None, 1), (-140, 1), (last, 1), (last + 1, 0)):
        changed = replace(rule, zero_exponent=exponent)
        assert fused_dot(*codes_of(a, b, BFLOAT16), 0, changed, BFLOAT16, BFLOAT16) == result


@pytest.mark.parametrize("machine", [n for n in ACCUMULATORS if n.endswith("_f16_f16") and not n.startswith("rdna")])
def test_zero_terms_bound_the_alignment_of_float16_results(machine: str) -> None:
    """2^-25 alone is a tie and rounds to zero; the last aligned bit decides it, the one below is cut."""
    last = {"volta": -42, "turing": -44, "ampere": -44, "ada": -44}.get(machine.split("_")[0], -46)
    for bit, result in ((last, 1), (last - 1, 0)):
        assert dot(machine, [2.0**-12, 2.0**-24], [2.0**-13, 2.0 ** (bit + 24)]) == result


@pytest.mark.parametrize("machine", ["hopper_f16", "hopper_f16_f16", "hopper_bf16", "blackwell_fp8", "ada_fp8_f16"])
def test_specials_and_zeros_of_tensor_cores(machine: str) -> None:
    fmt = FORMATS[ACCUMULATORS[machine].inputs[0]]
    half = ACCUMULATORS[machine].rule.c_format == FLOAT16
    nan, inf, sign = (0x7FFF, 0x7C00, 0x8000) if half else (NAN, INF, 0x80000000)
    assert dot(machine, [float("nan")], [0.0], 0, fmt) == nan
    assert dot(machine, [1.0], [1.0], sign | (inf + 1), fmt) == nan
    assert dot(machine, [1.0], [1.0], sign | inf, fmt) == sign | inf
    assert dot(machine, [-0.0] * 3, [1.0] * 3, sign, fmt) == 0
    assert dot(machine, [], [], sign | 1, fmt) == sign | 1


# FP8 through float16


def test_halves_add_c_last_and_to_nearest() -> None:
    three = [1.0, 0.0, 1.0, 1.0]
    assert dot("blackwell_fp8_mma", three, [1.0] * 4, 2.0**24, E4M3FN) == f32(2**24 + 4)
    assert dot("hopper_fp8", three, [1.0] * 4, 2.0**24, E4M3FN) == f32(2**24)


def test_halves_are_of_k_modulo_4() -> None:
    """Float16 rounds 2048 + 1 to 2048: the first half holds k = 0, 1, the second k = 2, 3."""
    a = [64.0, 1.0, 1.0, 1.0]
    for b, c, result in (
        ([32.0, 1.0, 1.0, 1.0], 0.0, 2050),  # 2049 -> 2048, then 2050
        ([32.0, 1.0, 1.0, 0.0], 0.0, 2048),
        ([32.0, 1.0, 1.0, 0.0], 1.0, 2048),
    ):
        assert dot("hopper_fp8_mma_f16", a, b, c, E4M3FN) == encode(result, FLOAT16)
    # Were the halves 0..15 and 16..31, or the second one first, the two ones would meet first and make 2050.
    swapped = replace(ACCUMULATORS["hopper_fp8_mma_f16"].rule, swapped=True)
    codes = codes_of(a, [32.0, 0.0, 1.0, 1.0], E4M3FN)
    assert swapped.dot(*codes, 0, E4M3FN, E4M3FN) == encode(2050, FLOAT16)
    wide = [64.0] + [1.0] * 4, [32.0, 0.0, 0.0, 0.0, 1.0]
    assert dot("hopper_fp8_mma_f16", *wide, 0.0, E4M3FN) == encode(2048, FLOAT16)


def test_halves_of_special_values() -> None:
    for machine, nan, inf in (("hopper_fp8_mma_f16", 0x7FFF, 0x7C00), ("blackwell_fp8_mma", NAN, INF)):
        rule = ACCUMULATORS[machine].rule
        assert rule.dot([0x7F], [0], 0, E4M3FN, E4M3FN) == nan
        assert rule.dot([0x7C], [0x3C], inf, E5M2, E5M2) == inf
        assert rule.dot([0xFC], [0x3C], inf, E5M2, E5M2) == nan
        assert rule.dot([0x80], [0x3C], 1 << rule.c_format.width, E5M2, E5M2) == 0


# Scales inside the instruction


def scaled(machine: str, a: list[float], b: list[float], c: float, scales: tuple, fmt: Fields) -> int:
    m = ACCUMULATORS[machine]
    return m.rule.dot(*codes_of(a, b, fmt), f32(c), fmt, fmt, Scales(*scales, *m.scales))


@pytest.mark.parametrize(
    ("a", "b", "c", "scales", "result"),
    [
        # A product of 2^-25 beside c = 1 still counts, one of 2^-26 does not.
        ([-1.0], [1.0], 1.0, ([127 - 25], [127]), BELOW_ONE),
        ([-1.0], [1.0], 1.0, ([127 - 13], [127 - 13]), ONE),
        ([2.0], [1.0], 0.0, ([254], [127]), INF),
        ([2.0], [1.0], 0.0, ([0], [126]), f32(2.0**-127)),
        ([448.0], [448.0], 0.0, ([0], [0]), 0),
        ([0.0], [1.0], 1.0, ([255], [127]), NAN),
        ([1.0] * 40, [1.0] * 40, 0.0, ([127, 130], [127, 127]), f32(32 + 64)),
    ],
)
def test_scales_move_the_alignment(a: list, b: list, c: float, scales: tuple, result: int) -> None:
    assert scaled("blackwell_mxf8", a, b, c, scales, E4M3FN) == result


RUN = [1.0] + [0.0] * 15
SIX, MINUS, MANY = [6.0, 6.0] + [0.0] * 14, [6.0, -6.0] + [0.0] * 14, [6.0] * 15 + [0.5]


@pytest.mark.parametrize(
    ("machine", "a", "b", "c", "scales", "result"),
    [
        # A run that cancels has an exponent all the same; one of nothing but zeros has none to speak of.
        ("blackwell_mxf4_16", SIX, MINUS, 1.0, ([127 + 36], [127]), 0),
        ("blackwell_mxf4_16", SIX, MINUS, 1.0, ([127 + 35], [127]), ONE),
        ("blackwell_mxf4_16", [0.0] * 16, MINUS, 1.0, ([127 + 90], [127]), ONE),
        # Within a run nothing is lost: 36 and 1/4 of the same scale, which is far above c.
        ("blackwell_nvfp4", MANY, MANY, 0.0, ([0x38], [0x38]), f32(36 * 15 + 0.25)),
        ("blackwell_nvfp4", RUN, RUN, 0.0, ([0x3C], [0xBC]), f32(2.25)),  # 1.5, its sign ignored
        ("blackwell_nvfp4", RUN, RUN, 0.0, ([0x01], [0x38]), f32(2.0**-9)),
        ("blackwell_nvfp4", RUN, RUN, 1.0, ([0x00], [0x7E]), ONE),
        ("blackwell_nvfp4", [0.0] * 16, RUN, 1.0, ([0x7F], [0x00]), NAN),
        ("blackwell_nvfp4", [0.0] * 16, RUN, 1.0, ([0xFF], [0x00]), NAN),
        # A subnormal scale has the exponent of the smallest normal one, 2^-6: 35 bits below 2^28 is 2^-7.
        ("blackwell_nvfp4", RUN * 2, RUN * 2, 0.0, ([0x38, 0x04], [0x38, 0x38]), f32(1 + 2.0**-7)),
        ("blackwell_nvfp4", RUN * 2, RUN * 2, 0.0, ([0x38, 0x02], [0x38, 0x38]), f32(1 + 2.0**-8)),
        # Four runs of different scales.
        ("blackwell_nvfp4", RUN * 4, RUN * 4, 0.5, ([0x38, 0x40, 0x48, 0x50], [0x38] * 4), f32(15.5)),
        ("blackwell_mxf4_16", RUN * 4, RUN * 4, 0.5, ([127, 128, 129, 130], [127] * 4), f32(15.5)),
        ("blackwell_mxf4", RUN * 4, RUN * 4, 0.5, ([127, 129], [127] * 2), f32(10.5)),
    ],
)
def test_runs_of_fp4_are_exact_and_have_their_scales_exponent(
    machine: str, a: list, b: list, c: float, scales: tuple, result: int
) -> None:
    assert scaled(machine, a, b, c, scales, E2M1FN) == result


def test_codes_of_one_as_a_scale() -> None:
    assert decode(0x38, UE4M3) == decode(127, E8M0FNU) == 1


# AMD


ONES, THIRD = [2.0**12, 1.0, 1.0, 1.0], float.fromhex("0x1.5555555555555p-2")
AMD = [
    # CDNA1 rounds the exact sum of a group once.
    ("cdna1_f16", [1.0, 2.0**-20], [1.0, 1.0], 2.0**24, FLOAT16, f32(2**24 + 2)),
    ("cdna1_f16", [1.0], [1.0], 2.0**24, FLOAT16, f32(2**24)),
    ("cdna1_f16", [1.0, 0.0, 0.0, 0.0, 2.0**-20], [1.0] * 5, 2.0**24, FLOAT16, f32(2**24)),  # the next group
    ("cdna1_bf16", [1.0, 0.0, 2.0**-20], [1.0] * 3, 2.0**24, BFLOAT16, f32(2**24)),
    ("cdna1_bf16", [-0.0], [1.0], 0x80000000, BFLOAT16, 0),
    ("cdna1_bf16", [-(2.0**-80)], [2.0**-80], 0, BFLOAT16, 0x80000000),
    # CDNA2 adds pairs and flushes.
    ("cdna2_bf16_1k", ONES, ONES, 0.0, BFLOAT16, f32(2**24 + 2)),
    ("cdna2_bf16", ONES, ONES, 0.0, BFLOAT16, f32(2**24 + 2)),
    ("cdna2_bf16_1k", ONES[:3], ONES[:3], 0.0, BFLOAT16, f32(2**24)),
    ("cdna2_bf16", [2.0**-64], [2.0**-64], 0, BFLOAT16, 0),
    ("cdna2_bf16", [-(2.0**-64)] * 2, [2.0**-64] * 2, 0, BFLOAT16, 0),  # -0 + -0, then +0
    ("cdna2_f16", [2.0**-24], [1.0], ONE, FLOAT16, ONE),
    ("cdna2_f16", [0.0], [1.0], 0x807FFFFF, FLOAT16, 0),
    ("cdna2_f16", [float("inf")], [2.0**-24], 0, FLOAT16, NAN),  # the subnormal is a zero
    # CDNA3 rounds down.
    ("cdna3_f16", [1.0], [1.0], -(2.0**-100), FLOAT16, BELOW_ONE),
    ("cdna3_f16", [-(2.0**-24)], [2.0**-24], 1.0, FLOAT16, ONE),  # 2^-32 below, and then to nearest
    ("cdna3_f16", [1.0, -(2.0**-14)], [1.0, 2.0**-11], 0.0, FLOAT16, ONE),  # products are cut toward zero
    ("cdna3_fp8", [1.0], [1.0], -(2.0**-25), E5M2FNUZ, BELOW_ONE),
    ("cdna3_fp8", [1.0], [1.0], -(2.0**-26), E5M2FNUZ, ONE),  # dropped
    # Even and odd k have exponents of their own: 2^-25 of the odd ones is rounded down against the even ones.
    ("cdna3_fp8", [1.0, -(2.0**-13)], [1.0, 2.0**-12], 0.0, E5M2FNUZ, BELOW_ONE),
    ("cdna3_fp8", [1.0, 0.0, -(2.0**-13)], [1.0, 0.0, 2.0**-12], 0.0, E5M2FNUZ, ONE),
    ("cdna3_bf16", [2.0**64], [2.0**64], 0.0, BFLOAT16, INF),
    ("cdna3_bf16", [2.0**64] * 2, [2.0**64, -(2.0**64)], 0.0, BFLOAT16, NAN),
    ("cdna3_bf16", [2.0**-80, 2.0**-84], [2.0**-70, 2.0**-75], 0, BFLOAT16, 0),  # 2^-158: cut at -157, a tie
    ("cdna3_bf16", [2.0**-80, 2.0**-80], [2.0**-70, 2.0**-77], 0, BFLOAT16, 1),
    # Float64 is summed one after the other.
    ("fp64", [1.0, 2.0**-53, 2.0**-53], [1.0] * 3, 0.0, FLOAT64, encode(1, FLOAT64)),
    ("fp64", [2.0**-53, 2.0**-53, 1.0], [1.0] * 3, 0.0, FLOAT64, encode(1 + 2.0**-52, FLOAT64)),
    ("fp64", [3.0], [THIRD], -1.0, FLOAT64, encode(Fraction(THIRD) * 3 - 1, FLOAT64)),
    ("fp64", [1e300], [1e300], 0.0, FLOAT64, 0x7FF << 52),
]


@pytest.mark.parametrize(("machine", "a", "b", "c", "fmt", "result"), AMD)
def test_sums_of_amd_by_hand(machine: str, a: list, b: list, c: float, fmt: Fields, result: int) -> None:
    got = dot(machine, a, b, c, fmt)
    assert got == result or (result == NAN and got & 0x7FFFFFFF > INF)


# Recordings


def rows(recording: Recording, step: int) -> list[tuple[list[int], list[int], int, int]]:
    """Every `step`-th recorded dot product, as codes."""
    arrays = read(Path(FOLDER), recording)
    a, b, c, d = (arrays[x] for x in "ABCD")
    assert len(d) == OUTPUTS
    if recording.operand == "tf32":
        a, b = (x >> 13 for x in (a, b))
    return list(zip(a[::step].tolist(), b[::step].tolist(), c[::step].tolist(), d[::step].tolist(), strict=True))


def format_of(recording: Recording) -> Fields:
    return FORMATS["tf32" if recording.operand == "tf32" else recording.format]


def test_there_are_48_recordings() -> None:
    assert len(RECORDINGS) == 48


def check_recording(recording: Recording, step: int) -> None:
    rule, fmt = ACCUMULATORS[recording.accumulator].rule, format_of(recording)
    for i, (a, b, c, d) in enumerate(rows(recording, step)):
        assert rule.dot(a, b, c, fmt, fmt) == d, f"{recording.accumulator}: row {step * i}"


@pytest.mark.sampled(14)
@needs_recordings
@pytest.mark.parametrize("recording", RECORDINGS, ids=[f"{r.file}-100-of-5000-outputs" for r in RECORDINGS])
def test_oracle_gives_the_recorded_bits(recording: Recording) -> None:
    check_recording(recording, 50)


@needs_recordings
@pytest.mark.exhaustive
@pytest.mark.parametrize("recording", RECORDINGS, ids=[f"{r.file}-5000-outputs" for r in RECORDINGS])
def test_oracle_gives_all_recorded_bits(recording: Recording) -> None:
    check_recording(recording, 1)
