"""RISC-V's sums against results of Spike, and against each other where they differ."""

from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.tensorcore.kinds.riscv import BulkNormalizedSum

ROWS = [
    line.partition("#")[0].split()
    for line in (Path(__file__).parents[2] / "reference_data/units/rvbna_spike.txt").read_text().splitlines()
    if not line.startswith("#")
]
FORMATS = {"e5m2": "e5m2", "e4m3": "e4m3fn", "bf16": "bfloat16"}


def output(accumulator: object, fa: str, fb: str, a: list[int], b: list[int], c: int) -> int:
    x, y = (np.array([side], lp.formats[fmt].code_dtype) for fmt, side in ((fa, a), (fb, b)))
    start = np.array([[c]], np.uint32).view(np.float32)
    return int(lp.mma(x, y, start, accumulator=accumulator, a_format=fa, b_format=fb).view(np.uint32)[0, 0])


def codes(text: str) -> list[int]:
    return [int(code, 16) for code in text.split(",")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:2] + row[4:6]))
def test_spike(row: list[str]) -> None:
    """One set of all products, then C: the whole instruction; and the sum alone, from a C of 0."""
    fa, fb = (FORMATS[name] for name in row[:2])
    a, b = codes(row[2]), codes(row[3])
    unit = BulkNormalizedSum(
        "spike", group_size=len(a), fraction_bits=23 + (len(a) - 1).bit_length(), sum_rounding="odd"
    )
    assert output(unit, fa, fb, a, b, 0) == int(row[5], 16)
    assert output(unit, fa, fb, a, b, int(row[4], 16)) == int(row[7], 16)


def test_spike_has_44_results() -> None:
    assert len(ROWS) == 44


@pytest.mark.parametrize(
    ("a", "b", "c", "wanted"),
    [
        ("bf4e,3c8a,bfe0,3fbd", "c00b,bcb5,c087,3d11", "bfdc2619", "40eecca0 40eecca2 40eecca1 40eecca0"),
        ("3a9b,ba94,bc9f,be9c", "bb46,bf08,3ca9,c12d", "3f2e51b9", "407e6fa3 407e6fa4 407e6fa4 407e6fa4"),
    ],
)
def test_disclosed_roundings_differ(a: str, b: str, c: str, wanted: str) -> None:
    """The draft's choices of rnd, and RVBNA, give different bits for the same operands."""
    units = ["ime_bf16_rto", "ime_bf16_frm", "ime_bf16_xct", "ime_bf16_rvbna"]
    found = [f"{output(unit, 'bfloat16', 'bfloat16', codes(a), codes(b), int(c, 16)):08x}" for unit in units]
    assert found == wanted.split()


def test_overflow_of_a_partial_sum() -> None:
    """An exact sum with C is finite where a partial sum of its own, rounded first, is Inf."""
    a, b, c = [0x7F7F, 0x7F7F], [0x3F80, 0x3F80], 0xFF7F0000  # twice the largest number, minus it
    wanted = {"ime_bf16_xct": 0x7F7F0000, "ime_bf16_frm": 0x7F800000, "ime_bf16_rto": 0x7F800000}
    assert {name: output(name, "bfloat16", "bfloat16", a, b, c) for name in wanted} == wanted


def test_nan_is_the_canonical_one() -> None:
    for a, b, c in (
        ([0x7FC1], [0x3F80], 0),
        ([0x7F80], [0], 0),
        ([0], [0], 0xFFC12345),
        ([0xFF80], [0x3F80], 0x7F800000),
    ):
        assert output("ime_bf16_rto", "bfloat16", "bfloat16", a, b, c) == 0x7FC00000


@pytest.mark.parametrize("name", ["hopper_fp8", "zvdota_fp8", "cdna3_fp8", "arm_fp8"])
def test_groups_of_1024(name: str) -> None:
    """The largest group, of the largest and of ordinary products, in the kernel that `mma` chooses."""
    unit = lp.accumulators[name].with_(group_size=1024)
    fmt = unit.default_format
    rng = np.random.default_rng(4)
    a, b = (lp.encode(rng.standard_normal((3, 1500)) * 20, fmt) for _ in "ab")
    a[0], b[0] = fmt.max_code, fmt.max_code
    found = lp.mma(a, b, accumulator=unit, a_format=fmt, b_format=fmt).view(np.uint32)
    rule = oracle.ACCUMULATORS[name].rule.__class__
    fields = {**vars(oracle.ACCUMULATORS[name].rule), "group": 1024}
    for i, j in ((0, 0), (1, 1), (2, 0)):
        wanted = rule(**fields).dot(a[i].tolist(), b[j].tolist(), 0, oracle.FORMATS[fmt.name], oracle.FORMATS[fmt.name])
        assert found[i, j] == wanted, (name, i, j)
