"""IBM's AIU: roundings of sums as its simulation has them, and chunks of any length against the oracle."""

from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle

AIU = lp.accumulators["aiu_dl8"]
ROWS = [
    [int(word, 16) for word in line.split()]
    for line in (Path(__file__).parents[2] / "reference_data/units/dl16_rounding.txt").read_text().splitlines()
    if not line.startswith("#")
]


def float32(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32)[:, None].view(np.float32)


def test_simulated_roundings() -> None:
    """Every sum of one product; the simulation rounds the NaN 7fffffff, which no sum here is, to zero."""
    rows = [row for row in ROWS if row[0] != 0x7FFFFFFF]
    assert len(rows) == 23
    one = np.ones((1, 1), np.float32)
    x = float32([given for given, _ in rows])
    wanted = float32([found for _, found in rows])
    for rounded_sum in ("chunk", "running"):
        unit = AIU.with_(input_formats=(), rounded_sum=rounded_sum)
        given = (x.view(np.uint32), one.view(np.uint32))
        found = lp.mma(*given, accumulator=unit, a_format="float32", b_format="float32")
        assert np.array_equal(found, wanted, equal_nan=True)
        assert np.array_equal(np.signbit(found), np.signbit(wanted))
    rule = oracle.ChunkSums()
    ends = [rule.dot([x], [0x3F800000], 0, oracle.FLOAT32, oracle.FLOAT32) for x, _ in rows]
    assert ends == [y for _, y in rows]


@pytest.mark.parametrize("rounded_sum", ["chunk", "running"])
@pytest.mark.parametrize("narrow", ["dl16", "dl8", "bfloat16"])
def test_chunks_of_any_format(rounded_sum: str, narrow: str) -> None:
    """Sums below the smallest number and beyond the largest one, which products of DL8 do not reach."""
    unit = AIU.with_(input_formats=(), group_size=5, chunk_format=narrow, rounded_sum=rounded_sum)
    rule = oracle.ChunkSums(5, oracle.fields(lp.formats[narrow]), rounded_sum == "chunk")
    rng = np.random.default_rng(3)
    size = np.exp2(rng.integers(-20, 18, (40, 1)))
    a, b = (lp.encode(rng.standard_normal((40, 12)) * size, "bfloat16") for _ in "ab")
    c = np.where(rng.random(40) < 0.3, 0, rng.standard_normal(40) * size[:, 0] ** 2).astype(np.float32)
    for i in range(40):
        given = a[i : i + 1], b[i : i + 1], c[i : i + 1, None]
        found = lp.mma(*given, accumulator=unit, a_format="bfloat16", b_format="bfloat16").view(np.uint32).item()
        bits = int(c[i : i + 1].view(np.uint32)[0])
        wanted = rule.dot(a[i].tolist(), b[i].tolist(), bits, oracle.BFLOAT16, oracle.BFLOAT16)
        assert found == (0x7FFFFFFF if wanted == 0x7FC00000 else wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"chunk_format": name}, f"signed floating-point format with NaN, got {name}")
     for name in ("int8", "ue4m3", "e2m1fn", "nf4")]
    + [({"rounded_sum": "both"}, "rounded_sum must be 'chunk' or 'running', got 'both'")],
)  # fmt: skip
def test_bad_fields(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AIU.with_(**change)
