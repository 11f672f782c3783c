"""MS-EDEN: the worked example, what is exactly unbiased, and what is so on average over rotations."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.oracle import E2M1FN, E4M3FN, decode, encode, max_code
from lowprec.scaling.eden import stages

F32 = NDArray[np.float32]

EXAMPLE = np.float32([[
    1, -2, 0.3, 4, 0.05, -0.6, 2.2, 3.1, -1.4, 0.8, 0, 5, -2.5, 1.7, 0.45, -0.9,
    0.5, -0.5, 1, -1, 0.25, 0.125, 0, 1.5, 0.5, 0.5, -0.5, 0.375, 0.05, 0.1, -0.15, 1.25,
]])  # fmt: skip
CODES = [
    1, -2, 0.5, 4, 0, -0.5, 3, 4, -1.5, 1, 0, 6, -3, 2, 0.5, -1, 2, -2, 4, -4, 1, 0.5, 0, 6, 2, 2, -2, 1.5, 0, 0.5,
    -0.5, 4,
]  # fmt: skip


def eden(x: NDArray[np.floating], seed: int) -> lp.Quantized:
    """Quantize by MS-EDEN, runs of 128, with signs of a seed."""
    q = lp.quantizers["nvfp4_te"].with_(hadamard_size=128, hadamard_signs=seed)
    return lp.quantize(x, lp.TensorSpec("e2m1fn", q, eden=True), seed=seed)


def test_the_worked_example() -> None:
    codes, scale, factor, tensor = stages(EXAMPLE, 32)
    assert tensor == pytest.approx(0.0032166785, rel=3e-7)
    assert scale.tolist() == [[256, 80]]
    assert lp.decode(codes, "e2m1fn")[0].tolist() == CODES
    assert factor.item() == pytest.approx(1.0311395, rel=3e-7)
    wanted = (scale * factor).astype(np.float32)
    made = [lp.round_to(wanted, "e4m3fn", rounding="stochastic", seed=seed) for seed in range(2000)]
    scales = np.array([each[0] for each in made])
    assert {*map(tuple, scales.tolist())} == {(a, b) for a in (256.0, 288.0) for b in (80.0, 88.0)}
    for share, wanted in zip((scales == (288, 88)).mean(0), (0.24911594, 0.3113947), strict=True):
        assert abs(share - wanted) < 4 * (wanted * (1 - wanted) / 2000) ** 0.5


# Exactly


def in_fractions(z: F32, size: int) -> tuple[list[int], list[Fraction], list[Fraction]]:
    """Codes, block scales to nearest and factors by the definition, where only the scales' own steps are rounded."""
    r32 = lambda v: Fraction(float(np.float32(float(v))))  # noqa: E731  # quotients of float32: rounded once in float64, then
    largest = r32(Fraction(float(np.float32(6 / (17 / 16 * 0.93)))))
    tensor = r32(r32(max(abs(Fraction(float(v))) for v in z) / r32(Fraction(255.99))) / largest)
    codes, scales, factors = [], [], []
    values = [Fraction(decode(code, E2M1FN)) for code in range(max_code(E2M1FN) + 1)]
    for start in range(0, len(z), size):
        above = below = Fraction(0)
        for block in range(start, start + size, 16):
            x = [Fraction(float(v)) for v in z[block : block + 16]]
            s = Fraction(decode(encode(r32(r32(max(map(abs, x)) / largest) / tensor), E4M3FN), E4M3FN)) or Fraction(1)
            scales.append(s)
            for v, negative in zip(x, np.signbit(z[block : block + 16]), strict=True):
                y = r32(v / r32(s * tensor))
                code = sum((a + b) / 2 <= abs(y) for a, b in itertools.pairwise(values))
                codes.append(code | (8 if negative else 0))
                above += y * y
                below += abs(y) * values[code]
        factors.append(above / below if below else Fraction(1))
    return codes, scales, factors


@pytest.mark.parametrize("seed", range(8))
def test_codes_scales_and_factors_are_the_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = (rng.standard_normal((3, 128)) * np.exp2(rng.integers(-6, 6, (3, 1)))).astype(np.float32)
    z[1, :16] = 0
    z[2] = lp.round_to(z[2] / np.abs(z[2]).max() * 6, "e2m1fn")
    for row in z:
        codes, scales, factors = in_fractions(row, 64)
        ours = stages(row[None], 64)
        assert ours[0][0].tolist() == codes
        assert [Fraction(float(s)) for s in ours[1][0]] == scales
        # Ours sums 64 terms in float64 and rounds the quotient to float32.
        for c, f in zip(ours[2][0], factors, strict=True):
            assert abs(Fraction(float(c)) - f) <= f * Fraction(2) ** -23


# By simulation


def test_effective_bits_are_the_repositorys() -> None:
    """Its tests ask for 3.32 bits; it has 3.344. NVFP4 with stochastic elements has 1.9 times the squared error."""
    x = lp.round_to(np.random.default_rng(2).standard_normal((512, 2048)).astype(np.float32), "bfloat16")
    z = lp.hadamard(x, 128, 3)
    error = float(np.mean((eden(x, 3).dequantize() - z) ** 2) / np.mean(z**2))
    assert -np.log2(error) / 2 == pytest.approx(3.344, abs=0.02)
    stochastic = lp.quantize_dequantize(z, "nvfp4_te", rounding="stochastic", seed=1)
    assert 1.8 < float(np.mean((stochastic - z) ** 2) / np.mean(z**2)) / error < 2.1


def test_zeros_and_tiny_numbers() -> None:
    assert not eden(np.zeros((3, 256)), 0).dequantize().any()
    assert eden(np.zeros((0, 128)), 0).shape == (0, 128)
    assert np.isfinite(eden(np.full((2, 128), 1e-44, np.float32), 0).dequantize()).all()
