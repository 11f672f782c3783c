"""Tenstorrent's matrix units against results of the vendor's functional simulator, and reports of its users."""

from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle

ROWS = [
    line.split()
    for line in (Path(__file__).parents[2] / "reference_data/units/ttsim_mvmul.txt").read_text().splitlines()
    if not line.startswith("#")
]


def codes(text: str) -> np.ndarray:
    """The upper 19 bits of float32 words, of which the unit reads 10 mantissa bits: as tf32."""
    return (np.array([[int(x, 16) for x in text.split(",")]], np.uint32) >> 13).astype(np.uint32)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"phase{row[0]}")
@pytest.mark.parametrize("wormhole", [True, False])
def test_simulated_instructions(row: list[str], wormhole: bool) -> None:
    """Right operands come first in a row of the file: they are the unit's register A."""
    changes = {"phases": (int(row[0]),), "phase_length": 16, "misplaces_minus_one": wormhole}
    unit = lp.accumulators["blackhole_bf16_lofi"].with_(input_formats=(), **changes)
    b, a = codes(row[1]), codes(row[2])
    c = np.array([[int(row[3], 16)]], np.uint32).view(np.float32)
    found = lp.mma(a, b, c, accumulator=unit, a_format="tf32", b_format="tf32").view(np.uint32).item()
    assert found == int(row[4], 16)
    rule = oracle.FidelityPhases(group=16, phases=(int(row[0]),), wormhole=wormhole)
    assert rule.dot(a[0].tolist(), b[0].tolist(), int(row[3], 16), oracle.TF32, oracle.TF32) == found


def test_a_sum_of_minus_one_unit_on_wormhole() -> None:
    """Only Wormhole returns it 2^27 times too large."""
    a, b = (np.zeros((1, 16), np.uint16) for _ in "ab")
    a[0, 0], b[0, 0] = 0x3F80, 0xBF80  # 1 and -1
    c = np.array([[0x3F7FFFFE]], np.uint32).view(np.float32)  # rounded half up to 1 - 2^-23, in units of 2^-23
    blackhole = lp.accumulators["blackhole_bf16_lofi"]
    found = [
        lp.mma(a, b, c, accumulator=blackhole.with_(misplaces_minus_one=defect)).item() for defect in (True, False)
    ]
    assert found == [-16.0, -(2.0**-23)]
    for wormhole, wanted in zip((True, False), found, strict=True):
        bits = oracle.FidelityPhases(wormhole=wormhole).dot(
            a[0].tolist(), b[0].tolist(), 0x3F7FFFFE, oracle.BFLOAT16, oracle.BFLOAT16
        )
        assert np.array(bits, np.uint32).view(np.float32) == wanted


@pytest.mark.parametrize(
    "fmt",
    [lp.Format("mine", exponent_bits=8, mantissa_bits=7, bias=130), lp.formats["float16"], lp.formats["e5m2"],
     lp.formats["e4m3fnuz"]],
    ids=lambda fmt: fmt.name,
)  # fmt: skip
def test_formats_are_read_by_their_bias_and_sign(fmt: lp.Format) -> None:
    """Only float32's bias makes a code the upper bits of a float32 word; NaN has a sign, except where -0 is NaN."""
    unit = lp.accumulators["blackhole_bf16_lofi"].with_(input_formats=(fmt,))
    one, nan, sign = int(lp.encode(1.0, fmt)), int(fmt.nan_code or 0), fmt.sign_mask
    specials = [nan, nan | sign] if fmt.exponent_bits < 8 else [nan]
    for code in (one, one | sign, fmt.max_code, fmt.max_code | sign, *specials):
        a, b = np.array([[code]], fmt.code_dtype), np.array([[one]], fmt.code_dtype)
        found = lp.mma(a, b, accumulator=unit, a_format=fmt, b_format=fmt)
        assert found.view(np.uint32).item() == oracle.FidelityPhases().dot([code], [one], 0, fmt, fmt)
        assert np.signbit(found.item()) == (code > sign)
        assert code != one or found.item() == 1


def test_more_phases_are_not_always_more_accurate() -> None:
    """1.3125 x 7.96875 in bfloat16, as reported: HiFi2 gives less than the product, HiFi4 the product."""
    a, b = (lp.encode([[x]], "bfloat16") for x in (7.96875, 1.3125))
    lofi = lp.accumulators["blackhole_bf16_lofi"]
    found = {p: lp.mma(a, b, accumulator=lofi.with_(phases=tuple(range(p)))).item() for p in (1, 2, 4)}
    assert found == {1: 7.9375 * 1.3125, 2: 7.9375 * 1.3125, 4: 7.96875 * 1.3125}


@pytest.mark.parametrize("sign", [1, -1])
def test_every_phase_counts(sign: int) -> None:
    """Reported of a test suite's reference (tt-llk #837): phases left out, and negative numbers made positive."""
    a, b = lp.encode([[255 / 128]], "bfloat16"), lp.encode([[sign * 255 / 128]], "bfloat16")
    lofi = lp.accumulators["blackhole_bf16_lofi"]
    found = [lp.mma(a, b, accumulator=lofi.with_(phases=tuple(range(p)))).item() * sign for p in (1, 2, 3, 4)]
    left, right = 127 / 64, 31 / 16  # the upper slices
    rest = 255 / 128 - left, 255 / 128 - right
    terms = left * right, left * rest[1], rest[0] * right, rest[0] * rest[1]
    assert found == [sum(terms[:p]) for p in (1, 2, 3, 4)]


def test_the_third_phase_is_worth_its_time() -> None:
    """Reported of the default (tt-metal #32584, raised from HiFi2 to HiFi3): the error is several times less."""
    rng = np.random.default_rng(1)
    a, b = (lp.encode(rng.standard_normal((32, 64)), "bfloat16") for _ in "ab")
    exact = lp.decode(a, "bfloat16").astype(np.float64) @ lp.decode(b, "bfloat16").astype(np.float64).T
    lofi = lp.accumulators["blackhole_bf16_lofi"]
    units = [lofi.with_(phases=tuple(range(p))) for p in (1, 2, 3, 4)]
    error = [np.abs(lp.mma(a, b, accumulator=unit) - exact).mean() for unit in units]
    assert error[0] > 3 * error[1] > 9 * error[2], error
    assert error[2] > error[3], error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": (0, 0)}, r"phases must be some of 0, 1, 2, 3, each once, got \(0, 0\)"),
        ({"phases": ()}, r"phases must be some of 0, 1, 2, 3, each once, got \(\)"),
        ({"phases": (0.7,)}, "phases must be an integer, got 0.7"),
        ({"phase_length": 24}, "phase_length must be a multiple of 16, got 24"),
        ({"promote_every": 16}, "promote_every must be a multiple of 32, got 16"),
    ],
)
def test_bad_fields(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.accumulators["blackhole_bf16_lofi"].with_(**change)
    with pytest.raises(ValueError, match="at most 11 significant bits"):
        lp.mma(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32), a_format="float32", b_format="float32",
               accumulator=lp.accumulators["blackhole_bf16_lofi"].with_(input_formats=()))  # fmt: skip
