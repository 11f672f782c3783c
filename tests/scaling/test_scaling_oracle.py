"""Block scaling at the sizes that training uses, on awkward magnitudes, bit for bit against the oracle."""

import itertools

import numpy as np
import pytest
from answers import once
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle


def matrix(kind: str, rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    if kind == "wide":
        x *= 2.0 ** rng.integers(-30, 30, x.shape)
    elif kind == "extreme":
        x *= 2.0 ** rng.choice([-125.0, -100.0, 0.0, 100.0, 120.0], (rows, 1))
    elif kind == "sparse":
        x *= rng.random(x.shape) < 0.02
        x *= np.where(rng.random(x.shape) < 0.5, -1.0, 1.0)
    elif kind == "powers":
        # amax of max * 2^k and its float32 neighbours: where power-of-two scales change.
        x = np.ones(x.shape) * 448.0 * 2.0 ** rng.integers(-20, 20, (rows, 1))
        x = np.nextafter(x.astype(np.float32), np.float32(np.inf) * rng.choice([-1, 1], x.shape).astype(np.float32))
        x = np.where(rng.random(x.shape) < 0.9, x / 16, x)
    elif kind == "special":
        x[0, 0], x[rows // 2, columns - 1], x[-1, columns // 2] = np.nan, np.inf, -np.inf
    return x.astype(np.float32)


def blocks(shape: tuple[int, int], size: tuple[int, int]) -> list[tuple[int, int, slice, slice]]:
    tops, lefts = range(0, shape[0], size[0]), range(0, shape[1], size[1])
    return [
        (i, j, slice(top, top + size[0]), slice(left, left + size[1]))
        for (i, top), (j, left) in itertools.product(enumerate(tops), enumerate(lefts))
    ]


def check(x: NDArray[np.float32], fmt: str, granularity: str, size: tuple[int, int], scale: str, floor: float) -> None:
    q = lp.quantize(x, fmt, granularity, scale=scale, amax_floor=floor)
    once(lambda: check_tiles(q, x, fmt, granularity, size, scale, floor), x, fmt, size, scale, floor, q.codes, q.scale)


def check_tiles(
    q: lp.Quantized, x: NDArray[np.float32], fmt: str, granularity: str, size: tuple[int, int], scale: str, floor: float
) -> None:
    fields = oracle.fields(lp.formats[fmt])
    assert q.codes.shape == x.shape
    assert q.scale.dtype == np.float32
    tiles = blocks(x.shape, size)
    assert q.scale.size == len(tiles)
    nan = oracle.nan_code(fields)
    for i, j, rows, columns in tiles:
        codes, s = oracle.quantize_tile(x[rows, columns], fields, scale, floor)
        where = f"{fmt} {granularity} {scale}: block ({i}, {j})"
        if np.isnan(s):
            assert np.isnan(q.scale[i, j]), where
            if nan is not None:
                assert np.all(np.isnan(lp.decode(q.codes[rows, columns], fmt))), where
            continue
        assert q.scale[i, j].view(np.uint32) == s.view(np.uint32), f"{where}: scale {q.scale[i, j]!r}, wanted {s!r}"
        assert np.array_equal(q.codes[rows, columns], codes), where


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["wide", "extreme", "sparse", "powers", "special"])
@pytest.mark.parametrize("scale", ["fp32", "ue8m0"])
def test_tiles_and_blocks(scale: str, kind: str) -> None:
    for rows, columns, granularity, size in [
        (3, 300, "1x128", (1, 128)),
        (140, 72, "128x128", (128, 128)),
        (130, 5, "128x1", (128, 1)),
    ]:
        check(matrix(kind, rows, columns), "e4m3fn", granularity, size, scale, 0.0)


@pytest.mark.parametrize("floor", [1e-4, 1e-10, 2.0**-20])
def test_amax_floor(floor: float) -> None:
    x = matrix("normal", 40, 20) * (10.0 ** np.linspace(-12, 0, 40, dtype=np.float32))[:, None]
    x[3] = 0
    for scale in ("fp32", "ue8m0"):
        check(x.astype(np.float32), "e4m3fn", "1x128", (1, 128), scale, floor)


def test_five_hundred_and_seventy_six_columns_are_four_and_a_half_blocks() -> None:
    x = matrix("normal", 3, 576)
    assert lp.quantize(x, "e4m3fn", "1x128").scale.shape == (3, 5)
    assert lp.quantize(x, "e4m3fn", "128x128").scale.shape == (1, 5)
    check(x, "e4m3fn", "1x128", (1, 128), "fp32", 0.0)


@pytest.mark.parametrize("granularity", ["1x128", "128x128", "128x1", "tensor"])
def test_dequantize_is_one_rounding_of_scale_times_value(granularity: str) -> None:
    x = matrix("wide", 30, 140)
    q = lp.quantize(x, "e4m3fn", granularity)
    rows, columns = q.granularity.block(x.shape)
    scale = np.repeat(np.repeat(q.scale, rows, 0), columns, 1)[:30, :140].astype(np.float64)
    wanted = (scale * lp.decode(q.codes, "e4m3fn").astype(np.float64)).astype(np.float32)  # 28 bits: exact in float64
    assert np.array_equal(q.dequantize().view(np.uint32), wanted.view(np.uint32))
