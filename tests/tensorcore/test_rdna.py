"""RDNA3 and RDNA4 against recordings of a Radeon Pro W7900 and a Radeon AI Pro R9700: every bit, NaN payloads too."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp

FOLDER = Path(__file__).parents[2] / "reference_data" / "units"


def rows(file: str) -> list[list[str]]:
    lines = (FOLDER / file).read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def output(accumulator: object, a: list[int], b: list[int], c: int) -> int:
    start = np.array([[c]], np.uint32).view(np.float32)
    found = lp.mma(np.array([a], np.uint16), np.array([b], np.uint16), start, accumulator=accumulator)
    return int(found.view(np.uint32)[0, 0])


def halves(word: str) -> list[int]:
    return [int(word, 16) & 0xFFFF, int(word, 16) >> 16]


@pytest.mark.parametrize(("chip", "column", "recorded"), [("rdna3_{}", 4, 103), ("rdna4_{}_dot2", 5, 121)])
def test_recorded_dot2(chip: str, column: int, recorded: int) -> None:
    cases = [row for row in rows("rdna_dot2_silicon.txt") if row[column] != "-"]
    assert len(cases) == recorded
    for row in cases:
        found = output(chip.format(row[0]), halves(row[1]), halves(row[2]), int(row[3], 16))
        assert found == int(row[column], 16), (row, hex(found))


@pytest.mark.parametrize(("name", "fmt"), [("rdna3_f16", "float16"), ("rdna3_bf16", "bfloat16")])
def test_recorded_matrix_of_integers(name: str, fmt: str) -> None:
    """Small integers, none of which RDNA3 sums exactly: opposing terms lose a unit each."""
    i = np.arange(16)
    place = 16 * i[:, None] + i
    a, b, c = (place * step % modulus - half for step, modulus, half in ((7, 17, 8), (11, 17, 8), (13, 129, 64)))
    found = lp.mma(lp.encode(a, fmt), lp.encode(b.T, fmt), c.astype(np.float32), accumulator=name)
    recorded = np.array([int(x, 16) for row in rows("rdna3_wmma_integer_silicon.txt") for x in row], np.uint32)
    assert np.array_equal(found.view(np.uint32).reshape(-1), recorded)


@pytest.mark.parametrize(("suffix", "column"), [("_wave32", 4), ("", 5)])
def test_recorded_wmma(suffix: str, column: int) -> None:
    cases = rows("rdna4_wmma_silicon.txt")
    for row in cases:
        a, b = ([int(x, 16) for x in row[i].split(",")] for i in (1, 2))
        assert output(f"rdna4_{row[0]}{suffix}", a, b, int(row[3], 16)) == int(row[column], 16), row
    assert len(cases) == 24


@pytest.mark.parametrize(("column", "fit"), [(4, [(0, 2, 1, 3)]), (5, [(0, 1, 2, 3), (1, 0, 2, 3)])])
def test_the_recordings_determine_the_order_of_groups(column: int, fit: list[tuple[int, ...]]) -> None:
    """Of the 24 orders one explains wave32, and two, other ones, wave64: they exchange the first two groups."""
    cases = [
        (row[0], *([int(x, 16) for x in row[i].split(",")] for i in (1, 2)), int(row[3], 16), int(row[column], 16))
        for row in rows("rdna4_wmma_silicon.txt")
    ]

    def explains(order: tuple[int, ...]) -> bool:
        machines = {name: lp.accumulators[f"rdna4_{name}"].with_(group_order=order) for name in ("f16", "bf16")}
        return all(output(machines[name], a, b, c) == d for name, a, b, c, d in cases)

    assert list(filter(explains, itertools.permutations(range(4)))) == fit


def test_order_of_groups_is_a_permutation() -> None:
    with pytest.raises(ValueError, match=r"group_order must be a permutation of 0, 1, ..., got \(0, 2\)"):
        lp.accumulators["rdna4_f16"].with_(group_order=(0, 2))
    with pytest.raises(ValueError, match="promote_every must be a multiple of 16, got 8"):
        lp.accumulators["rdna4_f16_wave32"].with_(promote_every=8)


@pytest.mark.parametrize(
    ("fixture", "outputs"), [("f16_fractional", 64), ("f16_underflow", 16), ("bf16_fractional", 64)]
)
def test_recorded_packed_results(fixture: str, outputs: int) -> None:
    """Results in 16 bits, of RDNA3, and of RDNA4 in both wave sizes, which differ."""
    given = [row[1:] for row in rows("rdna_packed_wmma_silicon.txt") if row[0] == fixture]
    matrix = {name: np.array([[int(x, 16) for x in row[1:]] for row in given if row[0] == name], np.uint16)
              for name, *_ in given}  # fmt: skip
    short = fixture.split("_")[0]
    c = matrix["c"].view(np.float16) if short == "f16" else (matrix["c"].astype(np.uint32) << 16).view(np.float32)
    for chip, name in (
        ("gfx1100", "rdna3_{0}_{0}"),
        ("gfx1201", "rdna4_{0}_{0}"),
        ("gfx1201_wave32", "rdna4_{0}_{0}_wave32"),
    ):
        found = lp.mma(matrix["a"], np.ascontiguousarray(matrix["b"].T), c, accumulator=name.format(short))
        bits = found.view(np.uint16) if short == "f16" else (found.view(np.uint32) >> 16).astype(np.uint16)
        assert bits.size == outputs
        assert np.array_equal(bits, matrix[chip]), name
    assert not np.array_equal(matrix["gfx1201"], matrix["gfx1201_wave32"])
