"""HiF4 and block floating point: worked examples, and every block against rules in fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lowprec import oracle
from lowprec.oracle import BFLOAT16, FLOAT32, casts
from lowprec.scaling.block_formats import BlockFloat, block_formats

HIF4 = block_formats["hif4"]


@pytest.mark.parametrize(
    ("x", "value", "shared"), [(1.0, 0.9375, 0xB5), (7.0, 7.0, 0xC0), (344064.0, 344064.0, 0xFE), (1e9, 344064.0, 0xFE),
                               (2.0**-60, 0.0, 0x00)],
)  # fmt: skip
def test_hif4_of_one_number(x: float, value: float, shared: int) -> None:
    codes = HIF4.encode([x])
    assert (HIF4.decode(codes)[0], codes.shared.tolist()) == (value, [shared])
    assert HIF4.round_to([x]).tolist() == [value]


def test_hif4_worked_example() -> None:
    x = [7, 3.4, -1.7, 0.26, 0.9, 0.4, 0.1, -0.05, 1.9, 2, 2.1, -2.2, 0, 0, 0, 0, *[0.12] * 48]
    codes = HIF4.encode(x)
    assert codes.shared.tolist() == [0xC0]
    assert codes.levels[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1] + [0] * 13
    assert HIF4.decode(codes)[:12].tolist() == [7, 3, -2, 0, 1, 0.5, 0, -0.0, 2, 2, 2, -2]
    ramp = np.arange(64) / 16
    assert HIF4.encode(ramp).shared.tolist() == [(48 - 1) << 2]
    assert HIF4.round_to(ramp)[-4:].tolist() == [3.5] * 4


def rounded(value: Fraction, fmt: oracle.Fields) -> Fraction:
    """Return the nearest number of a format, ties to even."""
    return Fraction(oracle.decode(casts.cast(value, fmt, "nearest_even", "ocp_nonsat"), fmt))


def hif4(block: list[float]) -> list[float]:
    """Return the values of a block of 64: every operation exact, then rounded to float32 or bfloat16."""
    x = [Fraction(v) for v in block]
    m3 = [max(abs(v) for v in x[i : i + 4]) for i in range(0, 64, 4)]
    m2 = [max(m3[i : i + 2]) for i in range(0, 16, 2)]
    scale = rounded(rounded(max(m2) * Fraction(0.142578125), FLOAT32), BFLOAT16)
    scale = min(max(scale, Fraction(1, 2**48)), Fraction(49152))
    scale = rounded(scale, oracle.Fields(8, 2, 127))
    inverse = rounded(rounded(1 / scale, FLOAT32), BFLOAT16)
    values = []
    for i, v in enumerate(x):
        e2 = rounded(m2[i // 8] * inverse, FLOAT32) >= 4
        e3 = rounded(m3[i // 4] * inverse, FLOAT32) / 2**e2 >= 2
        quanta = rounded(rounded(abs(v) * inverse, FLOAT32) / 2 ** (e2 + e3) * 4 + Fraction(1, 2), FLOAT32)
        q = min(math.floor(quanta), 7)
        values.append(math.copysign(float(q * scale * Fraction(2 ** (e2 + e3), 4)), -1 if v < 0 else 1))
    return values


def blocks(count: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((count, width)) * 2.0 ** rng.integers(-12, 12, (count, 1))
    x[::4] *= 2.0 ** rng.integers(-6, 6, (count // 4, width))
    x[1::4] = np.round(x[1::4] * 8) / 8
    return x.astype(np.float32)


@pytest.mark.slow
def test_hif4_is_its_rule() -> None:
    x = blocks(160, 64)
    ours = HIF4.round_to(x)
    wanted = np.array([hif4(row) for row in x.tolist()], np.float32)
    assert np.array_equal(ours.view(np.uint32), wanted.view(np.uint32))


ROW = [8, 3.875, 1, 0.5, -0.25, 7.96875, 0.03125, -3] + [0] * 8
TENSTORRENT = {
    "bfp8_b_host": "40 1F 08 04 82 40 00 98", "bfp4_b_host": "4 2 0 0 0 4 0 A", "bfp2_b_host": "1 0 0 0 0 1 0 0",
    "bfp4_b_device": "4 1 0 0 0 4 0 9",
}  # fmt: skip


@pytest.mark.parametrize("name", TENSTORRENT)
def test_tenstorrents_worked_row(name: str) -> None:
    codes = block_formats[name].encode(ROW)
    assert codes.shared.tolist() == [130]
    assert codes.elements[:8].tolist() == [int(code, 16) for code in TENSTORRENT[name].split()]


def block_float(f: BlockFloat, block: list[float]) -> list[int]:
    """Return the magnitudes of a block with their signs, from the exponents of exact values."""
    x = [rounded(Fraction(v), BFLOAT16) if f.first_bits else Fraction(v) for v in block]
    top = max(math.frexp(float(v))[1] - 1 if v else -127 for v in x)
    bits = f.first_bits or f.magnitude_bits
    found = []
    for v in x:
        cut = Fraction(math.floor(abs(v) * Fraction(2) ** (23 - top)), 2 ** (24 - bits))
        nearest = math.floor(cut + Fraction(1, 2)) if f.ties == "away" else round(cut)
        m = min(nearest, (1 << bits) - 1) >> bits - f.magnitude_bits
        found.append(m | (1 << f.magnitude_bits if v < 0 and m else 0))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [n for n in block_formats if isinstance(block_formats[n], BlockFloat)])
def test_block_floating_point_is_its_rule(name: str) -> None:
    f, x = block_formats[name], blocks(400, 16)
    assert isinstance(f, BlockFloat)
    assert f.encode(x).elements.tolist() == [block_float(f, row) for row in x.tolist()]


@pytest.mark.parametrize(("bits", "share"), [(8, 0.104), (4, 0.419), (2, 0.279)])
def test_host_and_device_differ_as_often_as_they_are_said_to(bits: int, share: float) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 14, 16)).astype(np.float32)
    x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    host, device = (block_formats[f"bfp{bits}_b_{side}"].encode(x).elements for side in ("host", "device"))
    assert abs(np.mean(host != device) - share) < 0.01


@pytest.mark.parametrize("name", block_formats.names())
def test_shapes_zeros_and_specials(name: str) -> None:
    f = block_formats[name]
    x = blocks(6, 2 * f.block).reshape(2, 3, -1)
    assert np.array_equal(f.round_to(x[..., ::2][..., :5]), f.round_to(np.ascontiguousarray(x[..., ::2])[..., :5]))
    assert f.round_to(np.zeros((3, 70), np.float32)).tolist() == np.zeros((3, 70)).tolist()
    assert f.round_to(np.zeros((0, 5), np.float32)).shape == (0, 5)
    assert f.encode([np.inf, -np.inf, np.nan, 1.0]).elements.shape == (f.block,)
